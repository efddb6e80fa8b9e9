"""Preprocessing as slowly and exactly as it can be written: float64 throughout, one image at a time."""

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime import Color, Frame, PixelFormat
from edgert.runtime.frame import U8
from tests.helpers.frames import frame_of

F64 = npt.NDArray[np.float64]
_LIMITED = Color()
_KR_KB = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}


def smooth(height: int, width: int, low: int, high: int, seed: int) -> U8:
    y, x = np.mgrid[:height, :width] / max(height, width, 8)
    random = np.random.default_rng(seed)
    waves = sum(np.sin(a * x + b * y + c) for a, b, c in random.uniform(-4, 4, (4, 3)))
    lowest, highest = float(np.min(waves)), float(np.max(waves))
    level = (waves - lowest) / (highest - lowest) if highest > lowest else np.full_like(waves, 0.5)
    return np.rint(low + level * (high - low)).astype(np.uint8)


def smooth_frame(
    form: PixelFormat, width: int, height: int, color: Color = _LIMITED, seed: int = 0, pad: int = 0
) -> Frame:
    """A frame without edges in any format, rows ``pad`` bytes too long (filled with noise)."""
    half = (height + 1) // 2, (width + 1) // 2
    luma = (0, 255) if color.full_range else (16, 235)
    y = smooth(height, width, *luma, seed)
    u, v = smooth(*half, 60, 200, seed + 1), smooth(*half, 60, 200, seed + 2)
    if form == "i420":
        parts = [y, u, v]
    elif form == "nv12":
        parts = [y, np.stack([u, v], axis=-1)]
    elif form == "yuyv":
        chroma = np.stack(
            [smooth(height, width // 2, 60, 200, seed + 1), smooth(height, width // 2, 60, 200, seed + 2)], -1
        )
        parts = [np.stack([y, chroma.reshape(height, width)], axis=-1)]
    elif form == "gray":
        parts = [smooth(height, width, 0, 255, seed)]
    else:
        parts = [np.stack([smooth(height, width, 0, 255, seed + n) for n in range(3)], axis=-1)]
    return frame_of(width, height, form, pixels=tuple(_padded(part, pad) for part in parts), color=color)


def _padded(plane: U8, pad: int) -> U8:
    random = np.random.default_rng(99)
    longer = random.integers(0, 256, (plane.shape[0], plane.shape[1] + pad, *plane.shape[2:]), np.uint8)
    longer[:, : plane.shape[1]] = plane
    return longer[:, : plane.shape[1]]


def resized(plane: npt.NDArray[Any], width: int, height: int) -> F64:
    """Bilinear between pixel centers, edges repeated: what cv2.INTER_LINEAR means."""
    found: F64 = plane.astype(np.float64)
    for axis, size in ((0, height), (1, width)):
        at = np.clip((np.arange(size) + 0.5) * plane.shape[axis] / size - 0.5, 0, plane.shape[axis] - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, plane.shape[axis] - 1)
        share = (at - low).reshape([-1 if n == axis else 1 for n in range(found.ndim)])
        found = np.take(found, low, axis) * (1 - share) + np.take(found, high, axis) * share
    return found


def yuv_planes(frame: Frame) -> list[U8]:
    if frame.format == "i420":
        return list(frame.planes)
    if frame.format == "nv12":
        return [frame.planes[0], frame.planes[1][..., 0], frame.planes[1][..., 1]]
    packed, even = frame.planes[0], frame.width // 2 * 2
    return [packed[..., 0], packed[:, 0:even:2, 1], packed[:, 1:even:2, 1]]


def rgb_of(y: F64, u: F64, v: F64, color: Color) -> F64:
    """(h, w, 3) from planes of one size; ITU-R BT.601-7 §2.5, BT.709-6 §3."""
    kr, kb = _KR_KB[color.matrix]
    luma, chroma = (y / 255, 255) if color.full_range else ((y - 16) / 219, 224)
    cb, cr = (u - 128) / chroma, (v - 128) / chroma
    red, blue = luma + 2 * (1 - kr) * cr, luma + 2 * (1 - kb) * cb
    green = (luma - kr * red - kb * blue) / (1 - kr - kb)
    return np.clip(np.stack([red, green, blue], axis=-1) * 255, 0, 255)


def image(frame: Frame, width: int, height: int, order: str) -> F64:
    """The frame at (height, width[, 3]) in gray levels 0-255, not rounded."""
    if frame.format in ("i420", "nv12", "yuyv"):
        luma, *chroma = (resized(plane, width, height) for plane in yuv_planes(frame))
        if order == "gray":
            full = luma if frame.color.full_range else (luma - 16) * 255 / 219
            return np.clip(full, 0, 255)
        rgb = rgb_of(luma, chroma[0], chroma[1], frame.color)
    else:
        small = resized(frame.planes[0], width, height)
        if frame.format == order:
            return small
        rgb = (
            np.stack([small] * 3, axis=-1) if small.ndim == 2 else small[..., ::-1] if frame.format == "bgr" else small
        )
    if order == "gray":
        return rgb @ np.array([0.299, 0.587, 0.114])
    return rgb if order == "rgb" else rgb[..., ::-1]


def as_people_write_it(frame: Frame, width: int, height: int) -> F64:
    """RGB by OpenCV: the whole image converted first, then resized. What networks were trained on."""
    y, u, v = yuv_planes(frame)
    cb, cr = (cv2.resize(plane.astype(np.float64), (frame.width, frame.height)) for plane in (u, v))
    return np.clip(cv2.resize(rgb_of(y.astype(np.float64), cb, cr, frame.color), (width, height)), 0, 255)
