"""From the pixels a camera or decoder gives to BGR.

The matrices are those of ITU-R BT.601-7 and BT.709-6 (full range: 0–255 for luma and chroma, as in JFIF). Chroma is
repeated, not interpolated, as OpenCV does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.errors import StageError
from edgert.runtime.frame import U8, Color, Frame

_LUMA_WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}  # of red and of blue
_STRIP_ROWS = 32  # rows of chroma converted at a time; the temporaries of 1920 pixels fit a 512 KiB L2 cache


def bgr_from(frame: Frame) -> U8:
    """A new (height, width, 3) uint8 BGR picture of ``frame``. The caller owns it and counts the copy."""
    out = np.empty((frame.height, frame.width, 3), np.uint8)
    bgr_into(frame, out)
    return out


def bgr_into(frame: Frame, out: U8) -> None:
    """Writes ``frame`` as BGR into ``out``; the caller counts the copy.

    Args:
        out: (h, w, 3) uint8, rows may be padded. Where its size is not the frame's, the planes are scaled first
            and converted afterwards, so that a small picture of a large frame is cheap.

    Raises:
        StageError: ``out`` is not a BGR picture.
    """
    if out.dtype != np.uint8 or out.ndim != 3 or out.shape[2] != 3 or out.strides[1:] != (3, 1):
        raise StageError(f"cannot write a picture into a {out.shape} array of {out.dtype}", where=frame.stream)
    size = (out.shape[0], out.shape[1])
    if frame.format in ("bgr", "rgb", "gray"):
        _packed_into(frame, out)
    elif size == (frame.height, frame.width):
        _same_size_into(frame, out)
    else:
        y, u, v = yuv_planes(frame)
        half = (size[0] + 1) // 2, (size[1] + 1) // 2
        _planes_into(_scaled(y, size), _scaled(u, half), _scaled(v, half), frame.color, out)


def yuv_planes(frame: Frame) -> tuple[U8, U8, U8]:
    """Y, U and V of a YUV frame, each of its own size: views for i420, unpacked into new arrays for nv12 and yuyv."""
    if frame.format == "i420":
        y, u, v = frame.planes
        return y, u, v
    if frame.format == "nv12":
        y, uv = frame.planes
        return y, _channel(uv, 0), _channel(uv, 1)
    (plane,) = frame.planes
    chroma = _channel(plane, 1)
    # The last pixel of an odd row has no V of its own; it takes its neighbour's (mid-grey when there is none).
    v = np.full((frame.height, (frame.width + 1) // 2), 128, np.uint8)
    v[:, : frame.width // 2] = chroma[:, 1::2]
    if frame.width % 2 and frame.width > 1:
        v[:, -1] = v[:, -2]
    return _channel(plane, 0), np.ascontiguousarray(chroma[:, 0::2]), v


@lru_cache(maxsize=8)
def bgr_matrix(color: Color) -> npt.NDArray[np.float64]:
    """The (3, 4) matrix from (Y, U, V, 1) in 0–255 to B, G, R in 0–255."""
    red, blue = _LUMA_WEIGHTS[color.matrix]
    green = 1 - red - blue
    to_bgr = np.array(
        [
            [1, 2 * (1 - blue), 0],
            [1, -2 * (1 - blue) * blue / green, -2 * (1 - red) * red / green],
            [1, 0, 2 * (1 - red)],
        ]
    )
    scale = np.array([1.0, 1.0, 1.0]) if color.full_range else np.array([255 / 219, 255 / 224, 255 / 224])
    zero = np.array([0.0 if color.full_range else 16.0, 128.0, 128.0])
    matrix = to_bgr * scale
    return np.hstack([matrix, -(matrix @ zero)[:, None]])


def _packed_into(frame: Frame, out: U8) -> None:
    (plane,) = frame.planes
    if out.shape[:2] != plane.shape[:2]:
        plane = _scaled(plane, (out.shape[0], out.shape[1]))
    if frame.format == "bgr":
        np.copyto(out, plane)
    else:
        cv2.cvtColor(plane, cv2.COLOR_RGB2BGR if frame.format == "rgb" else cv2.COLOR_GRAY2BGR, dst=out)


def _same_size_into(frame: Frame, out: U8) -> None:
    fast = _is_fast(frame.color, out)
    if fast and frame.format == "yuyv":
        cv2.cvtColor(frame.planes[0], cv2.COLOR_YUV2BGR_YUYV, dst=out)
    elif fast and frame.format == "nv12":
        y, uv = frame.planes
        cv2.cvtColorTwoPlane(y, uv, cv2.COLOR_YUV2BGR_NV12, dst=out)
    else:
        _planes_into(*yuv_planes(frame), frame.color, out)


def _is_fast(color: Color, out: U8) -> bool:
    """Whether OpenCV has a conversion of its own: BT.601, limited range (luma below 16 taken as 16), even sizes."""
    return color == Color() and out.shape[0] % 2 == 0 and out.shape[1] % 2 == 0


def _planes_into(y: U8, u: U8, v: U8, color: Color, out: U8) -> None:
    if _is_fast(color, out) and 2 * u.shape[0] == y.shape[0]:
        cv2.cvtColorTwoPlane(y, cv2.merge([u, v]), cv2.COLOR_YUV2BGR_NV12, dst=out)
    else:
        _yuv_into(y, u, v, color, out)


def _yuv_into(y: U8, u: U8, v: U8, color: Color, out: U8) -> None:
    """Any matrix, any size. Chroma rows are shared by every second row of luma where they are half as many."""
    shared = 1 if u.shape[0] == y.shape[0] else 2
    matrix = bgr_matrix(color)
    for top, bottom in _strips(u.shape[0]):
        wide_u, wide_v = _doubled(u[top:bottom], y.shape[1]), _doubled(v[top:bottom], y.shape[1])
        for row in range(shared):
            rows = slice(top * shared + row, bottom * shared, shared)
            luma = y[rows]
            height = len(luma)
            if height:
                yuv = cv2.merge([luma, wide_u[:height], wide_v[:height]])
                cv2.transform(yuv, matrix, dst=out[rows])


def _strips(rows: int) -> Iterator[tuple[int, int]]:
    for top in range(0, rows, _STRIP_ROWS):
        yield top, min(top + _STRIP_ROWS, rows)


def _doubled(plane: U8, width: int) -> U8:
    """Every column twice, ``width`` of them."""
    return cast("U8", cv2.merge([plane, plane])).reshape(plane.shape[0], -1)[:, :width]


def _channel(plane: U8, channel: int) -> U8:
    return cast("U8", cv2.extractChannel(plane, channel))


def _scaled(plane: U8, size: tuple[int, int]) -> U8:
    """``plane`` at (height, width) ``size``; averaging over areas only where linear sampling would skip pixels."""
    height, width = size
    shrinks = plane.shape[0] > 2 * height or plane.shape[1] > 2 * width
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cast("U8", cv2.resize(plane, (width, height), interpolation=how))
