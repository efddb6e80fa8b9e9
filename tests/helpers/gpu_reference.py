"""What ``preprocess.cu`` computes, said once more in NumPy, number for number; slow, and for tests.

It needs no GPU, so it is what the kernel and the CPU path are both compared with.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.config import InputConfig
from edgert.memory.cuda import Stream
from edgert.runtime import Frame
from edgert.runtime.frame import U8
from edgert.stages.crop import F32
from edgert.stages.gpu.gpu_preprocess import GpuPreprocessor, Target, fixed_matrix, hold, scale_and_bias
from edgert.stages.preprocess import place
from tests.helpers.gpu_scale import I64, scaled
from tests.helpers.image_reference import yuv_planes

_GRAY = np.array([9798, 19235, 3735])  # red, green, blue in 1/32768: OpenCV's RGB2GRAY


def image(frame: Frame, width: int, height: int, order: str, how: str = "linear") -> I64:
    """The frame at (height, width, channels) in gray levels, channels in ``order``: rgb, bgr or gray."""
    if frame.format in ("i420", "nv12", "yuyv"):
        pairs = [frame.format == "nv12" and index > 0 for index in range(3)]
        planes = zip(yuv_planes(frame), pairs, strict=True)
        levels = [scaled(plane, width, height, how, paired=paired) for plane, paired in planes]
        return _toned(np.stack(levels, axis=-1), frame, order)
    pixels: U8 = frame.planes[0].reshape(frame.height, frame.width, -1)
    small = [scaled(pixels[..., channel], width, height, how) for channel in range(min(pixels.shape[2], 3))]
    if len(small) == 1:
        return np.stack(small * (1 if order == "gray" else 3), axis=-1)
    rgb = np.stack(small if frame.format.startswith("rgb") else small[::-1], axis=-1)
    if order == "gray":
        luma: I64 = (rgb @ _GRAY + 16384)[..., None] >> 15
        return luma
    return rgb if order == "rgb" else rgb[..., ::-1]


def preprocess(frame: Frame, config: InputConfig, target: Target) -> npt.NDArray[Any]:
    """One image of the target: (height, width, channels) of its dtype, normalized, border included."""
    placement = place(frame, (target.width, target.height), config)
    gray = np.full((target.height, target.width, target.channels), config.pad, np.int64)
    left, top, width, height = placement.rectangle
    levels = image(placement.frame, width, height, config.color, config.interpolation)
    gray[top : top + height, left : left + width] = levels
    return _values(gray, scale_and_bias(config, target.channels), target.dtype)


def fill(preprocessor: GpuPreprocessor, frames: Sequence[Frame], stream: Stream) -> None:
    """Puts the writing of frames into the first rows on a stream, as an inference slot does. Does not wait."""
    ready = [preprocessor.plans.ready(frame, getattr(frame.planes[0], "stream", None)) for frame in frames]
    launches = preprocessor.launches(ready)
    preprocessor.wait_for(ready, stream)
    for launch in launches:
        launch.enqueue(stream)
    hold(ready, stream)


def stored(images: list[npt.NDArray[Any]], target: Target, memory: U8) -> None:
    """Writes images into a copy of the target's memory where the kernel writes them; padding channels as 0."""
    flat = memory.view(target.dtype)
    for row, pixels in enumerate(images):
        size = (target.height, target.width, target.group if target.group > 1 else target.channels)
        per_item = [stride * flat.itemsize for stride in (target.strides[2], target.strides[3], target.strides[1])]
        out = np.lib.stride_tricks.as_strided(flat[row * target.strides[0] :], size, per_item)
        out[..., : target.channels] = pixels
        out[..., target.channels :] = 0


def _toned(yuv: I64, frame: Frame, order: str) -> I64:
    rows = fixed_matrix(frame.color, order).reshape(3, 4).astype(np.int64)[: 1 if order == "gray" else 3]
    levels: I64 = np.clip((yuv @ rows[:, :3].T + rows[:, 3] + 512) >> 10, 0, 255)
    return levels


def _values(gray: I64, normal: tuple[F32, F32], dtype: str) -> npt.NDArray[Any]:
    """One rounding, as a fused multiply-add has it."""
    exact = (gray * normal[0].astype(np.float64) + normal[1]).astype(np.float32)
    if dtype in ("uint8", "int8"):
        bounds = np.iinfo(dtype)
        return np.clip(np.rint(exact), bounds.min, bounds.max).astype(dtype)
    return exact.astype(dtype)
