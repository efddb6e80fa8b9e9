"""What the preprocessing kernel is told about each picture, as the struct that it reads."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.config import InputConfig
from edgert.errors import StageError
from edgert.memory.cuda import DeviceView
from edgert.runtime import Color, Frame
from edgert.stages.gpu.target import Target
from edgert.stages.placement import Placement
from edgert.stages.resample import yuv_matrix

JOBS = 32
"""Pictures per launch: their structs are passed by value, in the 4 KiB that every CUDA takes for arguments."""

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
        narrow: a plane is one sample wide, so that the last sample has no neighbour.
    """

    paired: bool = True
    narrow: bool = False

    def __or__(self, other: Shape) -> Shape:
        """What holds for two pictures."""
        return Shape(self.paired and other.paired, self.narrow or other.narrow)


def normal_of(config: InputConfig, channels: int) -> Normal:
    """(level - mean) / std as one multiplication and addition."""
    mean, std = (np.broadcast_to(np.asarray(value, np.float64), channels) for value in (config.mean, config.std))
    return Normal((1 / std).astype(np.float32), (-mean / std).astype(np.float32))


def new_batch(address: int, target: Target, config: InputConfig) -> bytearray:
    """The struct of a target, its pictures not filled in."""
    batch, normal = bytearray(BATCH_BYTES), normal_of(config, target.channels)
    three = [np.resize(part, 3).tolist() for part in (normal.scale, normal.bias)]
    size = (target.width, target.height)
    _HEADER.pack_into(
        batch, 0, address, target.strides[0], *target.strides[1:], *size, config.pad, *three[0], *three[1]
    )
    return batch


def fill_job(batch: bytearray, slot: int, placement: Placement, order: str, row: int) -> Shape:
    """Writes the struct of one picture, which goes to ``row`` of the target.

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
    """(width, height) of the chroma samples; those of the picture where there is no chroma."""
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
