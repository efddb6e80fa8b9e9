"""Frames on the GPU into an engine's input on the GPU: one kernel, one launch for a whole batch."""

from collections.abc import Sequence
from itertools import groupby

from edgert.config import InputConfig
from edgert.errors import ModelError, StageError
from edgert.memory.cuda import Kernel, Launch, Stream, StreamLease
from edgert.runtime import Frame
from edgert.stages.crop import Geometry
from edgert.stages.gpu.kernel_jobs import BATCH_BYTES, ITEM_BYTES, JOBS, SOURCES, Shape, Target, fill_job, new_batch
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.preprocess import Placement, place

_VALUES = {"float32": 0, "float16": 1, "uint8": 2, "int8": 3}
_ORDERS = {"rgb": 0, "bgr": 1, "gray": 2}
_BLOCK = (32, 8, 1)
_METHODS = {"linear": 0, "nearest": 1, "area": 2, "cubic": 3}
_SHARES = {"linear": (4, 2), "nearest": (4, 2), "area": (2, 2), "cubic": (2, 1)}
"""Pixels of a row, and rows, that a thread computes: what was fastest without spilling registers."""


class GpuPreprocessor:
    """Fills the rows of one input tensor; the GPU's counterpart of :class:`~edgert.stages.preprocess.Preprocessor`.

    What it writes is within one gray level of what the CPU path writes. Padding that a layout has is written never or
    as 0, so it stays what the memory was made as: zeros.

    Args:
        config: what the model wants to see.
        target: the tensor's layout.
        address: of the tensor on the GPU, a multiple of 256; must outlive this.
        share: pixels of a row, and rows, that a thread computes.

    Raises:
        ModelError: the target is not of the model's color.
    """

    def __init__(
        self,
        config: InputConfig,
        target: Target,
        address: int,
        kernels: Kernels,
        *,
        share: tuple[int, int] | None = None,
        where: str = "",
    ) -> None:
        if target.channels != (1 if config.color == "gray" else 3):
            raise ModelError(f"the input has {target.channels} channels, not {config.color}", where=where)
        self.config, self.target, self.network = config, target, (target.width, target.height)
        self._kernels, (self._step, self._rows) = kernels, share or _SHARES[config.interpolation]
        self._batch = new_batch(address, target, config)
        self._aligned = target.aligned(self._step) and address % (self._step * ITEM_BYTES[target.dtype]) == 0
        self._event = kernels.device.event()
        self._made: dict[tuple[str, Shape], Kernel] = {}

    def into(self, frames: Sequence[Frame], stream: Stream, first_row: int = 0) -> list[Geometry]:
        """Enqueues the writing of frames, or crops of them, into rows from ``first_row`` on. Does not wait.

        The launch starts after what the frames' own streams have now; leases of pooled frames last until it is done.

        Returns:
            For every frame, the way back to source pixels.

        Raises:
            StageError: there are more frames than rows, a frame does not fit (``resize: none``), is host memory, was
                released, or has a format that the kernel does not read.
        """
        launches, geometries = self.launches(frames, first_row)
        self.wait_for(frames, stream)
        for launch in launches:
            launch.enqueue(stream)
        hold(frames, stream)
        return geometries

    def launches(self, frames: Sequence[Frame], first_row: int = 0) -> tuple[list[Launch], list[Geometry]]:
        """What :meth:`into` puts on the stream, and the ways back; raises like it. One launch where all frames have
        one format and are no more than 32."""
        if first_row + len(frames) > self.target.rows:
            raise StageError(
                f"{len(frames)} frames from row {first_row} on", why=f"the input has {self.target.rows} rows"
            )
        placements = [place(frame, self.network, self.config) for frame in frames]
        launches = []
        rows = enumerate(placements, first_row)
        for form, same in groupby(rows, key=lambda pair: pair[1].frame.format):
            jobs = list(same)
            launches += [self._launch(form, jobs[start : start + JOBS]) for start in range(0, len(jobs), JOBS)]
        return launches, [placement.geometry for placement in placements]

    def any_launch(self) -> Launch:
        """A launch of the right kind, to be recorded in a graph and replaced before the graph runs."""
        kernel = self._kernel("nv12", Shape())
        return Launch(kernel, bytes(self._batch), (1, 1, 1), _BLOCK)

    def _launch(self, form: str, jobs: Sequence[tuple[int, Placement]]) -> Launch:
        shape = Shape()
        for slot, (row, placement) in enumerate(jobs):
            shape |= fill_job(self._batch, slot, placement, self.config.color, row)
        across, down = _BLOCK[0] * self._step, _BLOCK[1] * self._rows
        grid = (-(-self.target.width // across), -(-self.target.height // down), len(jobs))
        return Launch(self._kernel(form, shape), bytes(self._batch), grid, _BLOCK)

    def _kernel(self, form: str, shape: Shape) -> Kernel:
        if (form, shape) not in self._made:
            if form not in SOURCES:
                raise StageError(f"frames of {form!r} on the GPU", why=f"the kernel reads {', '.join(SOURCES)}")
            kernel = self._kernels.kernel("preprocess", self.definitions(form, shape), BATCH_BYTES)
            self._made[form, shape] = kernel
        return self._made[form, shape]

    def definitions(self, form: str, shape: Shape) -> dict[str, int]:
        """What the kernel is compiled with for frames of a format; see
        :func:`~edgert.stages.gpu.kernel_jobs.fill_job`."""
        return {
            "SOURCE": SOURCES[form],
            "PIXEL": 4 if form.endswith("a") else 3,
            "RED": 0 if form.startswith("rgb") else 2,
            "ORDER": _ORDERS[self.config.color],
            "METHOD": _METHODS[self.config.interpolation],
            "VALUE": _VALUES[self.target.dtype],
            "GROUP": self.target.group,
            "ALIGNED": int(self._aligned),
            "PAIRED": int(shape.paired),
            "NARROW": int(shape.narrow),
            "STEP": self._step,
            "ROWS": self._rows,
            "JOBS": JOBS,
        }

    def wait_for(self, frames: Sequence[Frame], stream: Stream) -> None:
        """Puts the stream behind those that write the frames."""
        writers = {getattr(frame.planes[0], "stream", None) for frame in frames}
        for writer in writers - {stream}:
            if isinstance(writer, Stream):
                stream.wait(self._event.record(writer))


def hold(frames: Sequence[Frame], stream: Stream) -> None:
    """Leases of pooled frames last until what the stream has now is done."""
    for frame in frames:
        if isinstance(frame.lease, StreamLease):
            frame.lease.after(stream)
