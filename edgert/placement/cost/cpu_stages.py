"""Cost of stages other than models: on a board's CPU cores, and on its hardware units for video.

The numbers are in ``configs/costs/cpu.yaml``. A stage's time was measured on one CPU. A core of another CPU is assumed
to be slower by the ratio of their 7-Zip results, in proportion to the clock of a power mode. A unit for video takes as
long for a frame as the documented number of parallel streams implies.
"""

from functools import cache
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from edgert.board.record import Board
from edgert.board.sections import Mode
from edgert.installation import data_folder
from edgert.placement.cost import coefficients
from edgert.placement.cost.coefficients import Amount, Count, Part

NVDEC, NVENC = "nvdec", "nvenc"
_STREAM_MP_S = 1920 * 1080 * 30 / 1e6
Some = Annotated[float, Field(gt=0)]


class StageCost(Part):
    """Milliseconds of one core that a stage takes: per frame, per megapixel of it, and per object."""

    frame_ms: Amount
    megapixel_ms: Amount
    object_ms: Amount

    def of(self, megapixels: float, objects: float) -> float:
        """Return the milliseconds of one frame."""
        return self.frame_ms + self.megapixel_ms * megapixels + self.object_ms * objects


class Measured(Part):
    """Stage times on one processor, ``cpu``, whose core reaches ``mips`` in 7-Zip."""

    mips: Some
    cpu: str
    stages: dict[str, StageCost]


class Core(Part):
    """Result of 7-Zip, in ``mips``, of one core at a clock."""

    mips: Some
    mhz: Some
    note: str = ""


class Video(Part):
    """Streams of 1080p at 30 frames per second that a board's units handle; None: not found.

    Attributes:
        decode: streams of the decoder.
        encode: streams of the encoder.
        confidence: ``copied`` from a data sheet's table by somebody else, or ``assumed``.
        note: the codec or condition, where that is not plain.
    """

    decode: Count | None
    encode: Count | None
    confidence: Literal["copied", "assumed"]
    note: str = ""


class CpuCosts(Part):
    """Contents of the file of stage costs.

    Attributes:
        measured: stages on one processor.
        cores: by the name that boards have for their processor.
        source: of these.
        error: relative, of a stage's time on another processor.
        video: by the name of the board.
    """

    measured: Measured
    cores: dict[str, Core]
    source: str
    error: Amount
    video: dict[str, Video]

    def slowdown(self, board: Board, mode: Mode) -> float | None:
        """Return how many times as long a stage takes on a core in this mode; None where that is not known."""
        core, mhz = self.cores.get(board.cpu.model), mode.cpu_mhz
        return None if core is None or mhz is None else self.measured.mips * core.mhz / (core.mips * mhz)

    def unit_ms(self, board: Board, unit: str, megapixels: float) -> float | None:
        """Return the time of NVDEC or NVENC for a frame; None where the board has none, or its speed was not found."""
        known = self.video.get(board.name)
        streams = None if known is None else known.decode if unit == NVDEC else known.encode
        return 1e3 * megapixels / (streams * _STREAM_MP_S) if streams else None


@cache
def cpu_costs() -> CpuCosts:
    """Return the numbers; raise ConfigError where their file is damaged."""
    return coefficients.validated(
        data_folder("configs") / "costs" / "cpu.yaml", TypeAdapter(CpuCosts), "costs of stages"
    )
