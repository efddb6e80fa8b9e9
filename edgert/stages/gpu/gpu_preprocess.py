"""Preprocessing of GPU frames into an engine's input tensor: one kernel, one launch for a batch."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from edgert.config import InputConfig
from edgert.errors import ModelError, StageError
from edgert.memory import Lease
from edgert.memory.cuda import DeviceView, Event, Kernel, Launch, SharedLease, Stream, StreamLease
from edgert.runtime import Color, Frame
from edgert.runtime.frame import origin_of
from edgert.stages.crop import F32
from edgert.stages.gpu.kernels import Kernels
from edgert.stages.preprocess import Placement, place, yuv_matrix

ValueType = Literal["float32", "float16", "uint8", "int8"]
ITEM_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "uint8": 1, "int8": 1}


@dataclass(frozen=True, slots=True)
class Target:
    """Memory layout of an engine's input tensor on the GPU.

    Attributes:
        strides: strides of image, channel, row and pixel, in elements.
        vector: elements of a pixel if its channels are adjacent; 1 for planar layouts.
        nbytes: bytes of the batch, including padding.
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
        """Number of channels that one store writes; 1 for planar layouts."""
        return 4 if self.vector >= 4 and self.vector % 4 == 0 else 1

    def aligned(self, step: int) -> bool:
        """Return whether ``step`` pixels of a row may be stored at once, if the tensor's address is aligned."""
        sizes = (self.width, *self.strides[:3])
        return self.group == 1 and self.strides[3] == 1 and all(size % step == 0 for size in sizes)


def plain_target(layout: str, dtype: ValueType, rows: int, width: int, height: int, channels: int) -> Target:
    """Return the target of a tensor in the order of its dimensions, ``nchw`` or ``nhwc``, without padding."""
    strides = (channels * height * width, height * width, width, 1)
    if layout == "nhwc":
        strides = (height * width * channels, 1, width * channels, channels)
    return padded_target(dtype, (rows, channels, height, width), strides, rows * strides[0] * ITEM_BYTES[dtype])


def padded_target(
    dtype: ValueType, shape: tuple[int, int, int, int], strides: tuple[int, int, int, int], nbytes: int
) -> Target:
    """Return the target of an (N, C, H, W) tensor in an engine's own layout.

    Strides are elements. If channels have stride 1, the stride of a pixel is the vector.
    """
    rows, channels, height, width = shape
    vector = strides[3] if strides[1] == 1 and strides[3] > 1 else 1
    return Target(dtype, rows, width, height, channels, strides, vector, nbytes)


# The struct that the kernel reads for each image.

_MOST_JOBS = 32
"""Images per launch: their structs are passed by value, in the 4 KiB that every CUDA version has for arguments."""

_HEADER = struct.Struct("=Qq6i6f")
_PLANES = struct.Struct("=3Q")
_PLACED = struct.Struct("=12i12f")
HEADER_BYTES = _HEADER.size
_JOB_BYTES = _PLANES.size + _PLACED.size
SOURCES = {"i420": 0, "nv12": 1, "yuyv": 2, "bgr": 3, "rgb": 3, "bgra": 3, "rgba": 3, "gray": 4}
_MATRIX_ONE = 1024


def scale_and_bias(config: InputConfig, channels: int) -> tuple[F32, F32]:
    """Return float32 scale and bias per channel, so that (level - mean) / std = level * scale + bias."""
    mean, std = (np.broadcast_to(np.asarray(value, np.float64), channels) for value in (config.mean, config.std))
    return (1 / std).astype(np.float32), (-mean / std).astype(np.float32)


def new_batch(address: int, target: Target, config: InputConfig) -> bytearray:
    """Return the struct of a target with room for only one image per row, as a launch with fewer bytes is faster."""
    batch = bytearray(_HEADER.size + min(target.rows, _MOST_JOBS) * _JOB_BYTES)
    size = target.width, target.height
    scale, bias = (np.resize(part, 3).tolist() for part in scale_and_bias(config, target.channels))
    _HEADER.pack_into(batch, 0, address, *target.strides, *size, config.pad, *scale, *bias)
    return batch


class Plan:
    """Constant part of the kernel's struct, for all frames of one size, format and memory layout.

    Attributes:
        offsets: bytes from the start of each plane to the part that is read.
        is_cut: whether any offset is not 0.
        is_even: whether the pitches of chroma planes are even.
        is_narrow: whether a plane is one sample wide, so that its last sample has no neighbor.
    """

    __slots__ = ("_numbers", "_structs", "form", "geometry", "is_cut", "is_even", "is_narrow", "offsets")

    def __init__(self, frame: Frame, placement: Placement, order: str) -> None:
        part = placement.frame
        pitches = [plane.strides[0] for plane in part.planes]
        chroma = chroma_size(part)
        self.geometry, self.form = placement.geometry, frame.format
        pairs = zip(addresses_of(part), addresses_of(frame), strict=True)
        self.offsets = tuple(address - whole for address, whole in pairs)
        self.is_cut = any(self.offsets)
        self.is_even = not any(pitch & 1 for pitch in pitches[1:])
        self.is_narrow = min(part.width, chroma[0]) < 2
        before = [*pitches, *[0] * (3 - len(pitches)), part.width, part.height, *chroma, *placement.rectangle]
        self._numbers = before, kernel_matrix(frame.color, order)
        self._structs: dict[int, bytes] = {}

    def struct(self, row: int) -> bytes:
        """Return the struct without its addresses, for an image that is written into ``row`` of the target."""
        packed = self._structs.get(row)
        if packed is None:
            before, matrix = self._numbers
            packed = self._structs[row] = _PLACED.pack(*before, row, *matrix)
        return packed


class ReadyFrame(NamedTuple):
    """A frame in memory that the GPU reads, or that a stream is copying there.

    The lease is held until the GPU has read the planes. ``writer`` is the stream that copies them; None: they are there
    already.
    """

    plan: Plan
    addresses: tuple[int, ...]
    lease: Lease
    writer: Stream | None


_MOST_PLANS = 64
"""Maximum number of cached plans: each size of crop has one."""


class PlanCache:
    """Cache of plans for frames that become a network's input of (width, height) pixels."""

    def __init__(self, network: tuple[int, int], config: InputConfig) -> None:
        self._network, self._config = network, config
        self._plans: dict[tuple[object, ...], Plan] = {}

    def ready(self, frame: Frame, writer: Stream | None = None) -> ReadyFrame:
        """Return a frame in GPU-readable memory with its plan.

        Raises StageError: the frame is not in such memory, was released, or does not fit (``resize: none``).
        """
        addresses, color = addresses_of(frame), frame.color
        form = frame.format, frame.width, frame.height, origin_of(frame), color.matrix, color.full_range
        key = (*form, *[plane.strides for plane in frame.planes])  # shapes follow from size and format
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) == _MOST_PLANS:
                self._plans.clear()
            placement = place(frame, self._network, self._config)
            plan = self._plans[key] = Plan(frame, placement, self._config.color)
        if plan.is_cut:
            addresses = [address + offset for address, offset in zip(addresses, plan.offsets, strict=True)]
        return ReadyFrame(plan, (*addresses, 0, 0)[:3], frame.lease, writer)


def chroma_size(frame: Frame) -> tuple[int, int]:
    """Return (width, height) of the chroma planes, or of the image if it has no chroma."""
    if frame.format == "yuyv":
        return frame.width // 2, frame.height
    plane = frame.planes[1] if frame.format in ("i420", "nv12") else frame.planes[0]
    return int(plane.shape[1]), int(plane.shape[0])


@lru_cache(maxsize=16)
def fixed_matrix(color: Color, order: str) -> npt.NDArray[np.int32]:
    """Return (12,) int32: rows for (Y, U, V, 1) in 1/1024, rounded as OpenCV does; for gray, luma to full range."""
    if order == "gray":
        scale = 1.0 if color.full_range else 255 / 219
        rows = np.zeros((3, 4))
        rows[0] = scale, 0, 0, 0.0 if color.full_range else -16 * scale
    else:
        rows = yuv_matrix(color, order).astype(np.float64)
    return np.rint(rows * _MATRIX_ONE).astype(np.int32).reshape(12)


@lru_cache(maxsize=16)
def kernel_matrix(color: Color, order: str) -> tuple[float, ...]:
    """Return the kernel's (3, 4) matrix, flat, from (4Y, 4U, 4V, 1) to levels / 256; its offset rounds ties up."""
    rows = fixed_matrix(color, order).reshape(3, 4) / _MATRIX_ONE
    rows[:, 3] = (rows[:, 3] + 0.5 / _MATRIX_ONE) * 4
    return tuple((rows / (4 * 256)).ravel().tolist())


def addresses_of(frame: Frame) -> list[int]:
    """Return the GPU addresses of a frame's planes; for shared memory, those on the GPU's side."""
    lease = frame.lease
    if isinstance(lease, SharedLease) and isinstance(frame.planes[0], np.ndarray):
        return lease.addresses_of(frame.planes)
    return [plane_on_gpu(plane, frame)[0] for plane in frame.planes]


def plane_on_gpu(plane: Any, frame: Frame) -> tuple[int, int]:
    """Return address and pitch of a plane on the GPU. Raises StageError if it is host memory."""
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
BLOCK = (32, 8, 1)
_METHODS = {"linear": 0, "nearest": 1, "area": 2, "cubic": 3}
_SHARES = {"linear": (4, 2), "nearest": (4, 2), "area": (2, 2), "cubic": (2, 1)}
"""Number of pixels of a row, and of rows, per thread: the fastest choice that spills no registers."""


class GpuPreprocessor:
    """GPU counterpart of :class:`~edgert.stages.preprocess.Preprocessor`, which fills the rows of one input tensor.

    Its result is within one gray level of the CPU's. Padding of a layout stays 0, as the memory was allocated.

    Attributes:
        plans: cache that makes the frames for :meth:`launches`, also for preprocessors of other tensors of this layout.

    Args:
        address: address of the tensor on the GPU, a multiple of 256; the tensor must outlive this object.
        share: number of pixels of a row, and of rows, per thread.

    Raises:
        ModelError: the target's number of channels is not that of the model's color.
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
        self.plans = PlanCache(self.network, config)
        self.kernels, (self._step, self._rows) = kernels, share or _SHARES[config.interpolation]
        self._batch = new_batch(address, target, config)
        self.header = bytes(self._batch[:HEADER_BYTES])
        self._aligned = target.aligned(self._step) and address % (self._step * ITEM_BYTES[target.dtype]) == 0
        self._event = kernels.device.event()
        self._compiled: dict[tuple[str, bool, bool], Kernel] = {}
        self._known: dict[tuple[Plan, tuple[int, ...]], list[Launch]] = {}  # of single frames, as buffers are reused
        self._jobs = min(target.rows, _MOST_JOBS)
        self._written: list[bytes] = [b""] * self._jobs
        across, down = BLOCK[0] * self._step, BLOCK[1] * self._rows
        self.grid = -(-target.width // across), -(-target.height // down)

    def launches(self, frames: Sequence[ReadyFrame]) -> list[Launch]:
        """Return launches that write frames, or crops of them, into the first rows.

        One launch writes up to 32 frames of one format. Call :meth:`wait_for` before they are enqueued, and
        :func:`hold` after. Raises StageError: there are more frames than rows, or one has a format that the kernel does
        not read.
        """
        if len(frames) != 1:
            return self._launches(frames)
        plan, addresses, _, _ = frames[0]
        if (known := self._known.get((plan, addresses))) is None:
            if len(self._known) == _MOST_PLANS:
                self._known.clear()
            known = self._known[plan, addresses] = self._launches(frames)
        return known

    def _launches(self, frames: Sequence[ReadyFrame]) -> list[Launch]:
        if len(frames) > self.target.rows:
            raise StageError(f"{len(frames)} frames at once", why=f"the input has {self.target.rows} rows")
        launches = []
        for form, same in groupby(enumerate(frames), key=lambda pair: pair[1].plan.form):
            while jobs := list(islice(same, self._jobs)):
                paired, narrow = True, False
                for slot, (row, (plan, addresses, _, _)) in enumerate(jobs):
                    start = _HEADER.size + slot * _JOB_BYTES
                    _PLANES.pack_into(self._batch, start, *addresses)
                    if (rest := plan.struct(row)) is not self._written[slot]:
                        self._batch[start + _PLANES.size : start + _JOB_BYTES] = self._written[slot] = rest
                    # Chroma of nv12 can be read in pairs if all of it is at even addresses.
                    paired = paired and plan.is_even and not (addresses[1] | addresses[2]) & 1
                    narrow = narrow or plan.is_narrow
                kernel, grid = self._kernel(form, paired, narrow), (*self.grid, len(jobs))
                launches.append(Launch(kernel, bytes(self._batch), grid, BLOCK))
        return launches

    def compile(self) -> None:
        """Compile the kernel for NV12 frames before the first one arrives. Raises BuildError."""
        self._kernel("nv12", True, False)

    def _kernel(self, form: str, paired: bool, narrow: bool) -> Kernel:
        variant = form, paired, narrow
        if variant not in self._compiled:
            if form not in SOURCES:
                raise StageError(f"frames of {form!r} on the GPU", why=f"the kernel reads {', '.join(SOURCES)}")
            self._compiled[variant] = self.kernels.kernel("preprocess", self.definitions(*variant))
        return self._compiled[variant]

    def definitions(self, form: str, paired: bool, narrow: bool) -> dict[str, int]:
        """Return the kernel's compile-time definitions for frames of a format.

        ``paired``: all chroma of nv12 is at even addresses, so that U and V can be read together. ``narrow``: a plane
        may be one sample wide.
        """
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
            "JOBS": self._jobs,
            "TARGETS": 1,
        }

    def wait_for(self, frames: Sequence[ReadyFrame], stream: Stream) -> None:
        """Make the stream wait for the streams that write the frames."""
        writers = {frame.writer for frame in frames} if len(frames) > 1 else (frames[0].writer,)
        for writer in writers:
            if writer is not None and writer is not stream:
                stream.wait(self._event.record(writer))


def hold(frames: Sequence[ReadyFrame] | Sequence[Frame], stream: Stream, passing: Event | None = None) -> None:
    """Extend the leases of pooled frames until the work that the stream has now is done.

    ``passing`` is the event of that work; see :meth:`edgert.memory.cuda.StreamMarks.after`.
    """
    leases = [frame.lease for frame in frames]
    for lease in dict.fromkeys(leases) if len(leases) > 1 else leases:  # images of a batch may share one lease
        if isinstance(lease, StreamLease):
            lease.after(stream, passing)
