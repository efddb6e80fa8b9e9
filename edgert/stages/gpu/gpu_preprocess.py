"""Frames on the GPU into an engine's input on the GPU: one kernel, one launch for a whole batch."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgert.config import InputConfig
from edgert.errors import ModelError, StageError
from edgert.memory.cuda import DeviceView, Kernel, Launch, Stream, StreamLease
from edgert.runtime import Color, Frame
from edgert.stages.crop import F32
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.preprocess import Placement, place, yuv_matrix

# Where an image goes: an engine's input tensor on the GPU, in whatever order the engine wants its numbers.

ValueType = Literal["float32", "float16", "uint8", "int8"]
ITEM_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "uint8": 1, "int8": 1}


@dataclass(frozen=True, slots=True)
class Target:
    """The shape of a batch of images in memory.

    Attributes:
        dtype: NumPy's name.
        rows: images in the batch.
        width, height: pixels.
        channels: 1 or 3.
        strides: of image, channel, row and pixel, in numbers.
        vector: numbers that a pixel takes where its channels lie together; 1 where they do not.
        nbytes: all of it, padding included.
    """

    dtype: ValueType
    rows: int
    width: int
    height: int
    channels: int
    strides: tuple[int, int, int, int]
    vector: int
    nbytes: int

    @property
    def group(self) -> int:
        """Channels that one store writes; 1 where each has an address of its own."""
        return 4 if self.vector >= 4 and self.vector % 4 == 0 else 1

    def aligned(self, step: int) -> bool:
        """Whether ``step`` neighbors of a row may be stored at once, the tensor's address being aligned."""
        sizes = (self.width, *self.strides[:3])
        return self.group == 1 and self.strides[3] == 1 and all(size % step == 0 for size in sizes)


def plain(layout: str, dtype: ValueType, rows: int, width: int, height: int, channels: int) -> Target:
    """The target of a tensor in the order of its dimensions, ``nchw`` or ``nhwc``, without padding."""
    strides = (channels * height * width, height * width, width, 1)
    if layout == "nhwc":
        strides = (height * width * channels, 1, width * channels, channels)
    return strided(dtype, (rows, channels, height, width), strides, rows * strides[0] * ITEM_BYTES[dtype])


def strided(
    dtype: ValueType, shape: tuple[int, int, int, int], strides: tuple[int, int, int, int], nbytes: int
) -> Target:
    """The target of an (N, C, H, W) tensor in an engine's own layout.

    Args:
        strides: of each dimension in numbers. Where channels have stride 1, that of a pixel is the vector they lie in.
        nbytes: all of it, padding included.
    """
    rows, channels, height, width = shape
    vector = strides[3] if strides[1] == 1 and strides[3] > 1 else 1
    return Target(dtype, rows, width, height, channels, strides, vector, nbytes)


# What the kernel reads about each image, as the struct that it reads.

JOBS = 32
"""Images per launch: their structs are passed by value, in the 4 KiB that every CUDA takes for arguments."""

_HEADER = struct.Struct("=Qq6i6f")
_JOB = struct.Struct("=3Q12i12f")
BATCH_BYTES = _HEADER.size + JOBS * _JOB.size
SOURCES = {"i420": 0, "nv12": 1, "yuyv": 2, "bgr": 3, "rgb": 3, "bgra": 3, "rgba": 3, "gray": 4}
_MATRIX_ONE = 1024


def normal_of(config: InputConfig, channels: int) -> tuple[F32, F32]:
    """(level - mean) / std as level * scale + bias: scale and bias per channel, float32."""
    mean, std = (np.broadcast_to(np.asarray(value, np.float64), channels) for value in (config.mean, config.std))
    return (1 / std).astype(np.float32), (-mean / std).astype(np.float32)


def new_batch(address: int, target: Target, config: InputConfig) -> bytearray:
    """The struct of a target, its images not filled in."""
    batch, size = bytearray(BATCH_BYTES), (target.width, target.height)
    scale, bias = (np.resize(part, 3).tolist() for part in normal_of(config, target.channels))
    _HEADER.pack_into(batch, 0, address, *target.strides, *size, config.pad, *scale, *bias)
    return batch


def fill_job(batch: bytearray, slot: int, placement: Placement, order: str, row: int) -> tuple[bool, bool]:
    """Writes the struct of one image, which goes to ``row`` of the target.

    Returns:
        What decides between variants of the kernel. Whether all chroma lies at even addresses, so that that of nv12 can
        be read in pairs; and whether a plane is one sample wide, so that the last sample has no neighbor.

    Raises:
        StageError: the frame is not on the GPU, or was released.
    """
    frame = placement.frame
    planes = [plane_on_gpu(plane, frame) for plane in frame.planes]
    matrix = _kernel_matrix(frame.color, order)
    unused = [0] * (3 - len(planes))
    _JOB.pack_into(
        batch,
        _HEADER.size + slot * _JOB.size,
        *[address for address, _ in planes],
        *unused,
        *[pitch for _, pitch in planes],
        *unused,
        frame.width,
        frame.height,
        *chroma_size(frame),
        *placement.rectangle,
        row,
        *matrix,
    )
    paired = not any((address | pitch) & 1 for address, pitch in planes[1:])
    return paired, min(frame.width, chroma_size(frame)[0]) < 2


def chroma_size(frame: Frame) -> tuple[int, int]:
    """(width, height) of the chroma samples; those of the image where there is no chroma."""
    if frame.format == "yuyv":
        return frame.width // 2, frame.height
    plane = frame.planes[1] if frame.format in ("i420", "nv12") else frame.planes[0]
    return int(plane.shape[1]), int(plane.shape[0])


@lru_cache(maxsize=16)
def fixed_matrix(color: Color, order: str) -> npt.NDArray[np.int32]:
    """(12,) int32: rows of (Y, U, V, 1) in 1/1024, rounded as OpenCV rounds them; for gray, luma to full range."""
    if order == "gray":
        scale = 1.0 if color.full_range else 255 / 219
        rows = np.zeros((3, 4))
        rows[0] = scale, 0, 0, 0.0 if color.full_range else -16 * scale
    else:
        rows = yuv_matrix(color, order).astype(np.float64)
    return np.rint(rows * _MATRIX_ONE).astype(np.int32).reshape(12)


@lru_cache(maxsize=16)
def _kernel_matrix(color: Color, order: str) -> tuple[float, ...]:
    """(3, 4) as the kernel takes it: from four times Y, U, V, and 1, to levels / 256; the offset rounds ties up."""
    rows = fixed_matrix(color, order).reshape(3, 4) / _MATRIX_ONE
    rows[:, 3] = (rows[:, 3] + 0.5 / _MATRIX_ONE) * 4
    return tuple((rows / (4 * 256)).ravel().tolist())


def plane_on_gpu(plane: Any, frame: Frame) -> tuple[int, int]:
    """Address and pitch of a plane on the GPU."""
    if isinstance(plane, DeviceView):
        return plane.address, plane.strides[0]
    interface = getattr(plane, "__cuda_array_interface__", None)
    if interface is None:
        raise StageError(
            f"frame {frame.index} of {frame.stream!r} is not on the GPU",
            why="its planes are host memory",
            fix="upload it first: edgert.stages.gpu.upload.Uploader",
        )
    return int(interface["data"][0]), int(plane.strides[0])


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
        self._made: dict[tuple[str, bool, bool], Kernel] = {}

    def launches(self, frames: Sequence[Frame]) -> list[Launch]:
        """What writes frames, or crops of them, into the first rows. One launch where all frames have one format and
        are no more than 32. Goes on a stream after :meth:`wait_for`, and before :func:`hold`.

        Raises:
            StageError: there are more frames than rows, a frame does not fit (``resize: none``), is host memory, was
                released, or has a format that the kernel does not read.
        """
        if len(frames) > self.target.rows:
            raise StageError(f"{len(frames)} frames at once", why=f"the input has {self.target.rows} rows")
        rows = enumerate(place(frame, self.network, self.config) for frame in frames)
        across, down = _BLOCK[0] * self._step, _BLOCK[1] * self._rows
        launches = []
        for form, same in groupby(rows, key=lambda pair: pair[1].frame.format):
            while jobs := list(islice(same, JOBS)):
                paired, narrow = True, False
                for slot, (row, placement) in enumerate(jobs):
                    is_paired, is_narrow = fill_job(self._batch, slot, placement, self.config.color, row)
                    paired, narrow = paired and is_paired, narrow or is_narrow
                grid = (-(-self.target.width // across), -(-self.target.height // down), len(jobs))
                launches.append(Launch(self._kernel(form, paired, narrow), bytes(self._batch), grid, _BLOCK))
        return launches

    def compile(self) -> None:
        """Compiles the kernel of the usual frames, before they come. Raises BuildError."""
        self._kernel("nv12", True, False)

    def _kernel(self, form: str, paired: bool, narrow: bool) -> Kernel:
        variant = form, paired, narrow
        if variant not in self._made:
            if form not in SOURCES:
                raise StageError(f"frames of {form!r} on the GPU", why=f"the kernel reads {', '.join(SOURCES)}")
            self._made[variant] = self._kernels.kernel("preprocess", self.definitions(*variant), BATCH_BYTES)
        return self._made[variant]

    def definitions(self, form: str, paired: bool, narrow: bool) -> dict[str, int]:
        """What the kernel is compiled with for frames of a format; see :func:`fill_job`."""
        return {
            "SOURCE": SOURCES[form],
            "PIXEL": 4 if form.endswith("a") else 3,
            "RED": 0 if form.startswith("rgb") else 2,
            "ORDER": _ORDERS[self.config.color],
            "METHOD": _METHODS[self.config.interpolation],
            "VALUE": _VALUES[self.target.dtype],
            "GROUP": self.target.group,
            "ALIGNED": int(self._aligned),
            "PAIRED": int(paired),
            "NARROW": int(narrow),
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
