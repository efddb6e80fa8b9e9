"""Decoded FFmpeg frames as NumPy planes: where the bytes lie, what colour they mean, which way up they are."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from edgert.memory import Counter, lend
from edgert.runtime.frame import U8, Color, PixelFormat
from edgert.stages.source.picture import Picture

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.plane import VideoPlane

_FORMATS: dict[str, PixelFormat] = {
    "yuv420p": "i420",
    "yuvj420p": "i420",
    "nv12": "nv12",
    "yuyv422": "yuyv",
    "bgr24": "bgr",
    "rgb24": "rgb",
    "gray": "gray",
}
_CHANNELS: dict[PixelFormat, tuple[int, ...]] = {
    "i420": (1, 1, 1),
    "nv12": (1, 2),
    "yuyv": (2,),
    "bgr": (3,),
    "rgb": (3,),
    "gray": (1,),
}
# AVColorSpace of libavutil/pixfmt.h (ITU-T H.273 table 4): BT.709, SMPTE 240M, BT.2020 in two kinds.
_LIKE_BT709 = frozenset({1, 7, 9, 10})
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG
_TURNS = {-90: cv2.ROTATE_90_CLOCKWISE, 90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, -180: cv2.ROTATE_180}


def to_picture(frame: VideoFrame, counter: Counter, now_ns: int) -> Picture:
    """The frame's planes, lent as they lie.

    Only two cases copy, and are counted: pixel formats that edgert does not read (10 bit, 4:2:2 planar, RGB with
    alpha …) are converted to 4:2:0 or BGR, and video that says it was filmed upright is turned.
    """
    pixel_format = _FORMATS.get(frame.format.name)
    if pixel_format is None or frame.planes[0].line_size < 0:
        frame, pixel_format = _to_known(frame, counter)
    color = color_of_tags(frame.colorspace, frame.color_range, frame.format.name)
    planes = _as_planes(frame, pixel_format)
    lease = lend(frame, counter)
    width, height = frame.width, frame.height
    if (turn := _TURNS.get(frame.rotation)) is not None and pixel_format != "yuyv":
        planes = _to_turned(planes, turn, counter)
        lease = lend(planes, counter)
        height, width = planes[0].shape[:2]
    return Picture(
        format=pixel_format,
        width=width,
        height=height,
        planes=planes,
        lease=lease,
        timestamp_ns=now_ns,
        media_ns=_media_ns(frame),
        color=color,
    )


def _media_ns(frame: VideoFrame) -> int | None:
    if frame.pts is None or frame.time_base is None:
        return None
    return frame.pts * frame.time_base.numerator * 1_000_000_000 // frame.time_base.denominator


def _as_planes(frame: VideoFrame, pixel_format: PixelFormat) -> tuple[U8, ...]:
    planes = tuple(map(_as_array, frame.planes, _CHANNELS[pixel_format]))
    if len(planes) > 1:
        for plane in planes:
            # The decoder predicts later frames from these bytes: nobody may paint on them.
            plane.flags.writeable = False
    return planes


def _as_array(plane: VideoPlane, channels: int) -> U8:
    width, height, line_bytes = plane.width, plane.height, plane.line_size
    memory: Any = plane  # offers the buffer protocol, which its types do not tell
    if channels == 1:
        array: U8 = np.ndarray((height, width), np.uint8, memory, strides=(line_bytes, 1))
    else:
        array = np.ndarray((height, width, channels), np.uint8, memory, strides=(line_bytes, channels, 1))
    return array


@lru_cache(maxsize=32)
def color_of_tags(colorspace: int, color_range: int, format_name: str) -> Color:
    """What the numbers of AVColorSpace and AVColorRange mean.

    An untagged stream is BT.601 here, whatever its size, because FFmpeg and OpenCV turn it into RGB that way, and
    models were trained on what they made. (Players such as mpv guess BT.709 above 576 lines.)
    """
    full_range = color_range == _FULL_RANGE or format_name.startswith("yuvj")
    return Color("bt709" if colorspace in _LIKE_BT709 else "bt601", full_range)


def _to_known(frame: VideoFrame, counter: Counter) -> tuple[VideoFrame, PixelFormat]:
    name = frame.format.name
    if name.startswith(("gray", "ya", "mono")):
        target = "gray"
    elif frame.format.is_rgb or frame.format.has_palette:
        target = "bgr24"
    elif frame.color_range == _FULL_RANGE or name.startswith("yuvj"):
        target = "yuvj420p"
    else:
        target = "yuv420p"
    pts, time_base = frame.pts, frame.time_base
    known = frame.reformat(format=target)
    known.pts, known.time_base = pts, time_base
    counter.copied(sum(plane.buffer_size for plane in known.planes))
    return known, _FORMATS[target]


def _to_turned(planes: tuple[U8, ...], turn: int, counter: Counter) -> tuple[U8, ...]:
    turned = tuple(cv2.rotate(plane, turn) for plane in planes)
    counter.copied(sum(plane.nbytes for plane in turned))
    return turned  # type: ignore[return-value]
