"""Costs of stages other than models on a board: time on CPU cores and on hardware units for video."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from edgert.assemble.memory import frame_size
from edgert.board.record import Board, board as board_named
from edgert.board.sections import Mode
from edgert.bundle.shared_profile import SharedProfile, shipped_profiles
from edgert.config import PipelineFile, StageConfig, stages as section
from edgert.config.flow import upstream
from edgert.installation import data_folder
from edgert.placement.cost import coefficients
from edgert.placement.cost.coefficients import Amount, Count, Part
from edgert.placement.segment_engines import Step
from edgert.simulator.hardware import ANY_CORE
from edgert.stages.source.kinds import kind_of

# The numbers are in ``configs/costs/cpu.yaml``. Times of stages were measured on one CPU. Those on another CPU are
# scaled by the ratio of 7-Zip results of a core, and by the clock of the power mode. The time of a video unit for a
# frame follows from the documented number of parallel streams.

NVDEC, NVENC = "nvdec", "nvenc"
_STREAM_MP_S = 1920 * 1080 * 30 / 1e6
Positive = Annotated[float, Field(gt=0)]


class StageCost(Part):
    """Milliseconds of one core that a stage takes: per frame, per megapixel of the frame, and per object."""

    frame_ms: Amount
    megapixel_ms: Amount
    object_ms: Amount

    def of(self, megapixels: float, objects: float) -> float:
        """Return the milliseconds of one frame."""
        return self.frame_ms + self.megapixel_ms * megapixels + self.object_ms * objects


class Measured(Part):
    """Stage times on the processor ``cpu``, whose core reaches ``mips`` in 7-Zip."""

    mips: Positive
    cpu: str
    stages: dict[str, StageCost]


class Core(Part):
    """7-Zip result of one core, in ``mips``, at a clock."""

    mips: Positive
    mhz: Positive
    note: str = ""


class Video(Part):
    """Number of 1080p streams at 30 frames per second that a board's video units handle; None if unknown.

    Attributes:
        decode: streams of the decoder.
        encode: streams of the encoder.
        confidence: ``copied`` from a public copy of a data sheet, or ``assumed``.
        note: codec or condition, where it needs to be said.
    """

    decode: Count | None
    encode: Count | None
    confidence: Literal["copied", "assumed"]
    note: str = ""


class CpuCosts(Part):
    """Contents of the file of stage costs.

    Attributes:
        measured: stage times on one processor.
        cores: name of a processor in board files → result of a core.
        source: source of the results.
        error: relative error of a stage's time on another processor.
        video: name of a board → streams.
    """

    measured: Measured
    cores: dict[str, Core]
    source: str
    error: Amount
    video: dict[str, Video]

    def slowdown(self, board: Board, mode: Mode) -> float | None:
        """Return the factor by which a stage takes longer on a core of a board in a mode; None if unknown."""
        core, mhz = self.cores.get(board.cpu.model), mode.cpu_mhz
        return None if core is None or mhz is None else self.measured.mips * core.mhz / (core.mips * mhz)

    def unit_ms(self, board: Board, unit: str, megapixels: float) -> float | None:
        """Return the time of NVDEC or NVENC for a frame; None where the board has none or its speed is unknown."""
        known = self.video.get(board.name)
        streams = None if known is None else known.decode if unit == NVDEC else known.encode
        return 1e3 * megapixels / (streams * _STREAM_MP_S) if streams else None


@cache
def cpu_costs() -> CpuCosts:
    """Return the costs of stages; raise ConfigError if their file is damaged."""
    return coefficients.validated(
        data_folder("configs") / "costs" / "cpu.yaml", TypeAdapter(CpuCosts), "costs of stages"
    )


Steps = tuple[Step, ...]
OBJECTS = 8.0
"""Assumed number of objects on a frame, where neither a trace nor a scenario gives it."""
UNMEASURED = 0.25
"""Assumed addition to the error of times where a pipeline has stages without measurements."""
_FREE_SOURCES = ("synthetic", "csi", "camera")  # hardware decodes csi://, raw images of a camera need no decoding
_FREE_SINKS = ("null", "callback", "http", "display", "prometheus")  # http encodes only while somebody watches
_ENCODER_THREADS = 4
_STREAMS = {
    "copied": "public copies of the board's data sheet name",
    "assumed": "is assumed of this board: no copy of its data sheet was found",
}


@dataclass(frozen=True, slots=True)
class BoardStages:
    """Costs of a pipeline's stages on a board.

    Attributes:
        own: stage → steps for a frame, without those of a model.
        unknown: stages without measurements, which take no time.
        error: relative error of times on a CPU core.
        is_unmeasured: whether stages other than sources lack measurements.
        streams: confidence in the numbers of streams of NVDEC and NVENC.
        kinds: stage with work on a core → its kind in the costs of stages, and megapixels of its frames.
        measured: kind that shared profiles measured on this processor → their boards.
    """

    own: Mapping[str, Steps]
    unknown: tuple[str, ...]
    error: float
    is_unmeasured: bool = False
    streams: str = "assumed"
    kinds: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    measured: Mapping[str, str] = field(default_factory=dict)

    @property
    def cores_ms(self) -> float:
        """CPU time of all stages for one frame each, in milliseconds of one core."""
        steps = (step for one in self.own.values() for step in one)
        return sum(step.time_ms * step.threads for step in steps if step.accelerator == ANY_CORE)

    @property
    def notes(self) -> Iterator[str]:
        """Assumptions about stages."""
        yield (
            "decoding, drawing, encoding and the like: as measured on another processor, scaled by 7-Zip of a core "
            f"(± {self.error:.0%}); edgert.Scenario(stages=...) takes the times of a run"
        )
        for kind in dict.fromkeys(kind for kind, _ in self.kinds.values() if kind in self.measured):
            yield f"{kind}: corrected by what was measured on {self.measured[kind]}"
        used = {step.accelerator for steps in self.own.values() for step in steps}
        if units := [unit for unit in (NVDEC, NVENC) if unit in used]:
            named = " and ".join(units).upper()
            yield f"{named}: as many streams as {_STREAMS[self.streams]}"
        if self.unknown:
            wider = f"; error bars are wider by {UNMEASURED:.0%}" if self.is_unmeasured else ""
            yield f"{', '.join(self.unknown)}: not measured, so it takes no time{wider}"


def board_stages(
    file: PipelineFile,
    board: Board,
    mode: Mode,
    objects: float = OBJECTS,
    profiles: Sequence[SharedProfile] | None = None,
) -> BoardStages:
    """Return the costs of a pipeline's stages on a board.

    Args:
        file: pipeline file.
        board: board with the costs.
        mode: power mode of the board.
        objects: number of objects on a frame.
        profiles: shared profiles that may correct times; None for those in ``configs/costs``.
    """
    costs = _StageCosts(file, board, mode, objects, shipped_profiles() if profiles is None else profiles)
    found = {name: costs.steps(name, stage) for name, stage in file.config.stages.items()}
    unknown = tuple(name for name, steps in found.items() if steps is None)
    is_unmeasured = any(not isinstance(file.config.stages[name], section.SourceStage) for name in unknown)
    own = {name: steps for name, steps in found.items() if steps}
    video = costs.costs.video.get(board.name)
    streams = "assumed" if video is None else video.confidence
    places = {kind: place for kind, (_, place) in costs.measured.items()}
    return BoardStages(own, unknown, costs.costs.error, is_unmeasured, streams, costs.kinds, places)


def measured_kinds(profiles: Sequence[SharedProfile], at: Board) -> dict[str, tuple[float, str]]:
    """Return kind of stage → (median of measured over predicted time on this processor, boards)."""
    found: dict[str, list[tuple[float, str]]] = {}
    for profile in profiles:
        there = board_named(profile.board)
        slowdown = cpu_costs().slowdown(there, there.mode(profile.mode).model_copy(update=profile.clocks))
        for stage in profile.stages if there.cpu.model == at.cpu.model and slowdown else ():
            cost = cpu_costs().measured.stages.get(stage.kind)
            predicted_ms = cost.of(stage.megapixels, OBJECTS) * (slowdown or 0) if cost is not None else 0.0
            if predicted_ms > 0:
                found.setdefault(stage.kind, []).append((stage.ms / predicted_ms, profile.board))
    return {
        kind: (statistics.median(ratio for ratio, _ in each), ", ".join(dict.fromkeys(name for _, name in each)))
        for kind, each in found.items()
    }


class _StageCosts:
    """Costs of each stage; ``steps`` also records the kind of every stage on a core."""

    def __init__(
        self, file: PipelineFile, board: Board, mode: Mode, objects: float, profiles: Sequence[SharedProfile]
    ) -> None:
        self._file, self._board, self._mode, self._objects = file, board, mode, objects
        self.costs = cpu_costs()
        self.kinds: dict[str, tuple[str, float]] = {}
        self.measured = measured_kinds(profiles, board)
        self._slowdown = self.costs.slowdown(board, mode)

    def steps(self, name: str, stage: StageConfig) -> Steps | None:
        """Return the steps of a stage for a frame; None if unknown."""
        self._name, megapixels = name, self._megapixels(name)
        if isinstance(stage, section.SourceStage):
            return self._source(stage, megapixels)
        if isinstance(stage, section.InferStage):
            return self._on_core("infer", 0.0)  # the GPU scales the pixels
        if isinstance(stage, section.TrackStage):
            is_known = stage.track in ("bytetrack", "botsort") and not stage.reads_images
            return self._on_core("track", megapixels) if is_known else None
        if isinstance(stage, section.DrawStage):
            return self._on_core("trails" if {"trails", "stats"} & set(stage.draw) else "draw", megapixels)
        if isinstance(stage, section.CropStage):
            return ()
        if isinstance(stage, section.SinkStage):
            return self._sink(stage, megapixels)
        return None

    def _source(self, stage: section.SourceStage, megapixels: float) -> Steps | None:
        kind = kind_of(stage.source, self._file.document.path.parent)
        if kind == "images" or (kind == "camera" and stage.format == "mjpeg"):
            return self._on_core("image_files", megapixels)
        if kind not in ("file", "videos", "network"):
            return () if kind in _FREE_SOURCES else None
        unit_ms = self.costs.unit_ms(self._board, NVDEC, megapixels) if stage.decode != "cpu" else None
        return self._on_core("decode", megapixels) if unit_ms is None else (Step(NVDEC, unit_ms),)

    def _sink(self, stage: section.SinkStage, megapixels: float) -> Steps | None:
        if stage.sink == "video":
            by_cpu = getattr(stage, "encode", "auto") == "cpu"
            unit_ms = None if by_cpu else self.costs.unit_ms(self._board, NVENC, megapixels)
            threads = min(_ENCODER_THREADS, self._mode.cpu_cores or self._board.cpu.cores)
            by_core = self._on_core("video", megapixels, threads)
            return by_core if unit_ms is None else (Step(NVENC, unit_ms),)
        if stage.sink in ("jsonl", "images"):
            return self._on_core(stage.sink, megapixels)
        return () if stage.sink in _FREE_SINKS else None

    def _on_core(self, kind: str, megapixels: float, threads: int = 1) -> Steps | None:
        if self._slowdown is None:
            return None
        measured_ms = self.costs.measured.stages[kind].of(megapixels, self._objects)
        if kind != "infer":
            self.kinds[self._name] = kind, megapixels
        time_ms = measured_ms * self._slowdown * self.measured.get(kind, (1.0, ""))[0]
        return (Step(ANY_CORE, time_ms / threads, threads=threads),) if time_ms > 0 else ()

    def _megapixels(self, name: str) -> float:
        """Return the megapixels of a stage's images: those of the largest source, or of the width that is drawn."""
        stages = self._file.config.stages
        above = [name, *upstream(stages, name)]
        found = [stages[one] for one in above]
        sizes = [frame_size(one, self._file) for one in found if isinstance(one, section.SourceStage)]
        width, height = max(sizes, default=(0, 0))
        drawn = (one.width for one in found if isinstance(one, section.DrawStage))
        wanted = next((one for one in drawn if one is not None), width)
        return width * height * (wanted / width) ** 2 / 1e6 if width else 0.0
