"""Planes of an image, from FFmpeg's frames, arrays of a program, or memory on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.errors import StageError, nearest
from edgert.memory import Counter, Lease, lend
from edgert.memory.cuda import CudaDevice, DeviceView, Stream
from edgert.runtime.frame import U8, Color, PixelFormat
from edgert.stages.source.timeline import Image

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.plane import VideoPlane


Planes = tuple[U8, ...]
CHANNELS: dict[PixelFormat, tuple[int, ...]] = {
    "bgr": (3,),
    "rgb": (3,),
    "gray": (1,),
    "yuyv": (2,),
    "nv12": (1, 2),
    "i420": (1, 1, 1),
}
"""Channels of each plane. All planes but the first are chroma, of half the width and height."""


@lru_cache(maxsize=64)
def plane_shapes(format: PixelFormat, width: int, height: int) -> tuple[tuple[int, ...], ...]:
    """Return (height, width) or (height, width, channels) of each plane of an image."""
    half = (height + 1) // 2, (width + 1) // 2
    sizes = [half if number else (height, width) for number in range(len(CHANNELS[format]))]
    return tuple(size if depth == 1 else (*size, depth) for size, depth in zip(sizes, CHANNELS[format], strict=True))


_BYTES = np.dtype(np.uint8)


def device_planes(
    format: PixelFormat,
    size: tuple[int, int],
    rows: Sequence[tuple[int, int]],
    lease: Lease,
    device: CudaDevice,
    stream: Stream,
) -> tuple[U8, ...]:
    """Return the planes of an image on the GPU.

    ``rows`` has (address, bytes from one row to the next) of each plane.
    """
    layouts = _layouts(format, size, tuple([pitch for _, pitch in rows]))
    planes = [
        DeviceView(address, shape, strides, _BYTES, lease, device.ordinal, stream)
        for (address, _), (shape, strides) in zip(rows, layouts, strict=True)
    ]
    return cast("tuple[U8, ...]", tuple(planes))


@lru_cache(maxsize=64)
def _layouts(
    format: PixelFormat, size: tuple[int, int], pitches: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return shape and strides of each plane, the same for every image of a stream."""
    shapes = plane_shapes(format, *size)
    return tuple((shape, (pitch, *shape[2:], 1)) for shape, pitch in zip(shapes, pitches, strict=True))


def media_ns(pts: int | None, time_base: Fraction | None) -> int | None:
    """Convert a time in ticks of ``time_base`` seconds to nanoseconds; None stays None."""
    if pts is None or time_base is None:
        return None
    return pts * time_base.numerator * 1_000_000_000 // time_base.denominator


# Arrays of a program, checked against the layouts that a frame may have.

_MOST_COLORS = 4
"""Largest last dimension of a gray array that is taken for colors, not for a width."""
_MOST_PITCH = 2**31 - 1
"""Longest distance between two rows, bytes; kernels count it in 32 bits."""


def as_planes(array: Any, format: PixelFormat, where: str, *, copy: bool = False) -> tuple[U8, ...]:
    """Return the planes of ``array`` as uint8 arrays on the same memory, or copies with ``copy``.

    Raises StageError: the format is unknown, or the array is not one, not uint8, of a wrong shape, or has rows whose
    pixels are not contiguous.
    """
    return checked_planes([host_array(part, where) for part in split_planes(array, format, where)], format, where, copy)


def split_planes(array: Any, format: PixelFormat, where: str) -> Sequence[Any]:
    """Return the arrays of an image that is given as one array or as its planes. Raises StageError."""
    if format not in CHANNELS:
        hint = nearest(str(format), CHANNELS)
        raise StageError(f"unknown format {format!r}{hint}", why=f"known: {', '.join(CHANNELS)}", where=where)
    count = len(CHANNELS[format])
    if count == 1 or (format == "nv12" and not isinstance(array, (tuple, list))):
        return [array]
    if not (isinstance(array, (tuple, list)) and len(array) == count):
        fix = "or one array (height * 3 / 2, width)" if format == "nv12" else ""
        raise StageError(f"{format} takes a sequence of {count} planes", where=where, fix=fix)
    return array


def is_batch(shape: Sequence[int], format: PixelFormat) -> bool:
    """Return whether an array has one dimension more than an image of the format.

    A gray array whose last dimension can be colors is not a batch.
    """
    if format == "i420":
        return False
    own = 2 if format in ("nv12", "gray") else 3
    return len(shape) == own + 1 and (own == 3 or shape[-1] > _MOST_COLORS)


def split_batch(batch: Any, format: PixelFormat, where: str) -> list[Planes]:
    """Return the planes of each image of a batch: a host array or a view of a GPU's memory. Raises StageError."""
    if not len(batch):
        raise StageError("a batch without images was submitted", where=where, fix="submit at least one image")
    checked_planes([batch[0]], format, where)  # all images have the same layout
    return batch_planes(batch, format)


def batch_planes(batch: Any, format: PixelFormat) -> list[Planes]:
    """Return the planes of each image of a batch whose shape was checked before."""
    if format != "nv12" or isinstance(batch, DeviceView):
        return [array_planes(batch[row], format) for row in range(len(batch))]
    count, rows, width = batch.shape
    luma, chroma = batch[:, : rows // 3 * 2], batch[:, rows // 3 * 2 :]
    return list(zip(luma, chroma.reshape(count, rows // 3, width // 2, 2), strict=True))


def array_planes(array: Any, format: PixelFormat) -> Planes:
    """Return the planes of an image in one array whose shape was checked before."""
    if format != "nv12":
        return (array,)
    rows, width = array.shape
    luma, chroma = array[: rows // 3 * 2], array[rows // 3 * 2 :]
    shape = (rows // 3, width // 2, 2)
    if isinstance(chroma, DeviceView):
        pitch, step = chroma.strides
        chroma = replace(chroma, shape=shape, strides=(pitch, 2 * step, step))
        return luma, cast("U8", chroma)
    return luma, chroma.reshape(shape)


def checked_planes(arrays: Sequence[Any], format: PixelFormat, where: str, copy: bool = False) -> tuple[U8, ...]:
    """Return arrays of the host, or views of a GPU's memory, as the planes of an image. Raises StageError."""
    for array in arrays:
        _check_bytes(array, where)
    planes = _nv12_planes(arrays[0], where) if format == "nv12" and len(arrays) == 1 else tuple(arrays)
    height, width = planes[0].shape[:2] if planes[0].ndim >= 2 else (0, 0)
    for number, (plane, shape) in enumerate(zip(planes, plane_shapes(format, width, height), strict=True)):
        if tuple(plane.shape) != shape or 0 in shape:
            names = "(height, width)" if len(shape) == 2 else f"(height, width, {shape[-1]})"
            raise StageError(
                f"plane {number} of format {format} has shape {tuple(plane.shape)}",
                why=f"expected {names}" + (f", here {shape}" if number else ""),
                where=where,
                fix="name the format of its pixels, such as format='gray', or convert it with cv2.cvtColor",
            )
    if copy:
        return tuple(plane.copy() for plane in planes)
    for plane, depth in zip(planes, CHANNELS[format], strict=True):
        pitch = plane.strides[0]
        if plane.strides[-1] != 1 or plane.strides[1] != depth or not plane.shape[1] * depth <= pitch <= _MOST_PITCH:
            on_gpu = isinstance(plane, DeviceView)
            raise StageError(
                f"the pixels of a row are not contiguous (strides {plane.strides})",
                why="the array is a flipped, transposed or strided view, and reading it would need a hidden copy",
                where=where,
                fix="submit tensor.contiguous()" if on_gpu else "copy=True, or submit numpy.ascontiguousarray(array)",
            )
    return planes


def _nv12_planes(whole: Any, where: str) -> Planes:
    """Return luma and chroma of one array (height * 3 / 2, width)."""
    if whole.ndim != 2 or whole.shape[0] % 3 or whole.shape[1] % 2 or 0 in whole.shape:
        raise StageError(
            f"an nv12 frame in one array has shape {tuple(whole.shape)}",
            why="expected (height * 3 / 2, width), both even: luma, then half as many rows of chroma",
            where=where,
            fix="submit the two planes as a sequence, or another format=",
        )
    return array_planes(whole, "nv12")


def _check_bytes(array: Any, where: str) -> None:
    if array.dtype != np.uint8:
        raise StageError(
            f"pixels must be uint8, not {array.dtype}",
            why="frames hold bytes from 0 to 255; mean and std belong to the model's input",
            where=where,
            fix="scale the array to 0-255, then array.astype(numpy.uint8)",
        )


def host_array(part: Any, where: str) -> npt.NDArray[Any]:
    """Return a NumPy array on the memory of another library's array on the host. Raises StageError."""
    if hasattr(part, "__array_interface__"):
        array: npt.NDArray[Any] = np.asarray(part)
    elif hasattr(part, "__dlpack__"):
        try:
            array = np.from_dlpack(part)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise StageError(
                f"cannot share {type(part).__name__} without copying",
                why=str(error),
                where=where,
                fix="copy it to the host first, like tensor.cpu()",
            ) from error
    elif part is None:
        why = "cv2.imread and VideoCapture.read return None for what they cannot read"
        raise StageError("None is no image", why=why, where=where, fix="check the file or camera")
    else:
        raise StageError(
            f"cannot take {type(part).__name__} as pixels",
            why="it offers neither __array_interface__ nor DLPack",
            where=where,
            fix="submit a NumPy array or a CPU tensor",
        )
    return array


# FFmpeg's frames.

_FORMATS: dict[str, PixelFormat] = {
    "yuv420p": "i420",
    "yuvj420p": "i420",
    "nv12": "nv12",
    "yuyv422": "yuyv",
    "bgr24": "bgr",
    "rgb24": "rgb",
    "gray": "gray",
}
_LIKE_BT709 = frozenset({1, 7, 9, 10})
"""AVColorSpace of libavutil/pixfmt.h (ITU-T H.273 table 4): BT.709, SMPTE 240M, and two forms of BT.2020."""
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG
_TURNS = {-90: cv2.ROTATE_90_CLOCKWISE, 90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, -180: cv2.ROTATE_180}


def to_image(frame: VideoFrame, counter: Counter, now_ns: int) -> Image:
    """Return the frame's planes without a copy, except in two cases, which are counted.

    Pixel formats that edgert does not read (10 bit, 4:2:2 planar, RGB with alpha …) are converted to 4:2:0 or BGR.
    Video whose metadata asks for a rotation is rotated.
    """
    pixel_format = _FORMATS.get(frame.format.name)
    if pixel_format is None or frame.planes[0].line_size < 0:
        frame, pixel_format = _to_known(frame, counter)
    color = color_of_tags(frame.colorspace, frame.color_range, frame.format.name)
    planes = tuple(map(_as_array, frame.planes, CHANNELS[pixel_format]))
    if len(planes) > 1:
        for plane in planes:
            # The decoder predicts later frames from these bytes, so nothing may write to them.
            plane.flags.writeable = False
    lease = lend(frame, counter)
    if (turn := _TURNS.get(frame.rotation)) is not None and pixel_format != "yuyv":
        planes = tuple(cast("U8", cv2.rotate(plane, turn)) for plane in planes)
        counter.copied(sum(plane.nbytes for plane in planes))
        lease = lend(planes, counter)
    return Image(
        format=pixel_format,
        planes=planes,
        lease=lease,
        timestamp_ns=now_ns,
        media_ns=media_ns(frame.pts, frame.time_base),
        color=color,
    )


def _as_array(plane: VideoPlane, channels: int) -> U8:
    memory: Any = plane  # offers the buffer protocol, which its types do not state
    depth = () if channels == 1 else (channels,)
    shape, strides = (plane.height, plane.width, *depth), (plane.line_size, *depth, 1)
    return cast("U8", np.ndarray(shape, np.uint8, memory, strides=strides))


@lru_cache(maxsize=32)
def color_of_tags(colorspace: int, color_range: int, format_name: str) -> Color:
    """Return the colors for numbers of AVColorSpace and AVColorRange.

    An untagged stream counts as BT.601, whatever its size. FFmpeg and OpenCV convert it that way, and models were
    trained on the result. (Players such as mpv guess BT.709 above 576 lines.)
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
