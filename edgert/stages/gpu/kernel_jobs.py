"""What the preprocessing kernel reads about each image, as the struct that it reads."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgert.config import InputConfig
from edgert.errors import ModelError, StageError
from edgert.memory.cuda import DeviceView
from edgert.runtime import Color, Frame
from edgert.stages.preprocess import Placement, yuv_matrix

# Where an image goes: an engine's input tensor on the GPU, in whatever order the engine wants its numbers.
#
# Layouts of a DLA: NVIDIA TensorRT, "DLA Supported I/O Formats".

TensorLayout = Literal["nchw", "nhwc", "dla_linear", "dla_hwc4", "chw16", "chw32", "strided"]
ValueType = Literal["float32", "float16", "uint8", "int8"]
ITEM_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "uint8": 1, "int8": 1}
_DLA_ROW_BYTES = 64
_VECTORS = {"chw16": 16, "chw32": 32}


@dataclass(frozen=True, slots=True)
class Target:
    """The shape of a batch of images in memory.

    Attributes:
        layout: nchw and nhwc as ONNX has them; dla_linear is nchw with rows of a multiple of 64 bytes; dla_hwc4 is nhwc
            of 1 or 4 channels with such rows; chw16 and chw32 store 16 or 32 channels of a pixel next to each other;
            strided is whatever an engine reports, which may be any of these.
        dtype: NumPy's name.
        rows: images in the batch.
        width, height: pixels.
        channels: 1 or 3.
        strides: of image, channel, row and pixel, in numbers.
        vector: numbers that a pixel takes where its channels lie together; 1 where they do not.
        nbytes: all of it, padding included.
    """

    layout: TensorLayout
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


def target(layout: TensorLayout, dtype: ValueType, rows: int, width: int, height: int, channels: int = 3) -> Target:
    """The target of a layout. Raises ModelError for a type that the layout does not have."""
    item = ITEM_BYTES[dtype]
    if layout in ("nchw", "dla_linear"):
        row = width if layout == "nchw" else _padded(width, item)
        strides, vector = (channels * height * row, height * row, row, 1), 1
    elif layout in ("nhwc", "dla_hwc4"):
        vector = 4 if layout == "dla_hwc4" and channels == 3 else channels
        row = width * vector if layout == "nhwc" else _padded(width * vector, item)
        strides = (height * row, 1, row, vector)
    else:
        vector = _VECTORS[layout]
        strides = (height * width * vector, 1, width * vector, vector)
    wanted = {"chw16": ("float16",), "chw32": ("int8",)}.get(layout, ("float16", "int8"))
    if layout not in ("nchw", "nhwc") and dtype not in wanted:
        raise ModelError(f"a {layout} input of {dtype}", why=f"TensorRT has {layout} for {' and '.join(wanted)} only")
    return Target(layout, dtype, rows, width, height, channels, strides, vector, rows * strides[0] * item)


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
    return Target("strided", dtype, rows, width, height, channels, strides, vector, nbytes)


def _padded(numbers: int, item: int) -> int:
    per_row = _DLA_ROW_BYTES // item
    return -(-numbers // per_row) * per_row


JOBS = 32
"""Images per launch: their structs are passed by value, in the 4 KiB that every CUDA takes for arguments."""

_HEADER = struct.Struct("=Qq6i6f")
_JOB = struct.Struct("=3Q12i12f")
BATCH_BYTES = _HEADER.size + JOBS * _JOB.size
SOURCES = {"i420": 0, "nv12": 1, "yuyv": 2, "bgr": 3, "rgb": 3, "bgra": 3, "rgba": 3, "gray": 4}
_MATRIX_ONE = 1024


@dataclass(frozen=True, slots=True)
class Normal:
    """level * scale + bias, per channel, float32."""

    scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides between variants of the kernel.

    Attributes:
        paired: all chroma lies at even addresses, so that that of nv12 can be read in pairs.
        narrow: a plane is one sample wide, so that the last sample has no neighbor.
    """

    paired: bool = True
    narrow: bool = False

    def __or__(self, other: Shape) -> Shape:
        """What holds for two images."""
        return Shape(self.paired and other.paired, self.narrow or other.narrow)


def normal_of(config: InputConfig, channels: int) -> Normal:
    """(level - mean) / std as one multiplication and addition."""
    mean, std = (np.broadcast_to(np.asarray(value, np.float64), channels) for value in (config.mean, config.std))
    return Normal((1 / std).astype(np.float32), (-mean / std).astype(np.float32))


def new_batch(address: int, target: Target, config: InputConfig) -> bytearray:
    """The struct of a target, its images not filled in."""
    batch, normal = bytearray(BATCH_BYTES), normal_of(config, target.channels)
    three = [np.resize(part, 3).tolist() for part in (normal.scale, normal.bias)]
    size = (target.width, target.height)
    _HEADER.pack_into(
        batch, 0, address, target.strides[0], *target.strides[1:], *size, config.pad, *three[0], *three[1]
    )
    return batch


def fill_job(batch: bytearray, slot: int, placement: Placement, order: str, row: int) -> Shape:
    """Writes the struct of one image, which goes to ``row`` of the target.

    Returns:
        What the kernel may rely on.

    Raises:
        StageError: the frame is not on the GPU, or was released.
    """
    frame = placement.frame
    planes = [_plane(plane, frame) for plane in frame.planes]
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
    return Shape(paired, min(frame.width, chroma_size(frame)[0]) < 2)


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


def _plane(plane: Any, frame: Frame) -> tuple[int, int]:
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
