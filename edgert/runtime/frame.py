"""Frames, and the conversion of their pixels to BGR.

The matrices are those of ITU-R BT.601-7 and BT.709-6 (full range: 0–255 for luma and chroma, as in JFIF). Chroma is
repeated, not interpolated, as OpenCV does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.errors import StageError
from edgert.frozen import with_fast_init
from edgert.memory import EndedLease, Lease, Receipt, lend
from edgert.memory.buffer import CoveredLease

if TYPE_CHECKING:
    from edgert.memory.cuda import DeviceView


U8 = npt.NDArray[np.uint8]
PixelFormat = Literal["i420", "nv12", "yuyv", "bgr", "rgb", "gray"]
"""Layout of pixels in memory: i420 = planes Y, U, V; nv12 = planes Y, interleaved UV; yuyv = one plane (h, w, 2)."""


@dataclass(frozen=True, slots=True)
class Color:
    """YUV color space: the matrix (ITU-R BT.601 or BT.709) and whether luma spans 0–255 or 16–235."""

    matrix: Literal["bt601", "bt709"] = "bt601"
    full_range: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class DepthImage:
    """Depth image of the same view as a frame, perhaps at another size.

    Attributes:
        values: (h, w) uint16 millimeters or float32 meters along the optical axis; 0 and NaN are unknown.
        camera: focal lengths x and y and center x and y, in pixels of the frame; None where unknown.
    """

    values: npt.NDArray[np.uint16] | npt.NDArray[np.float32]
    camera: tuple[float, float, float, float] | None = None


class _Released(tuple[U8, ...]):
    """Placeholder for released planes; any use raises StageError."""

    def _refuse(self, *_: object) -> NoReturn:
        raise StageError(
            "a stage used the pixels of a frame after their release",
            why="no stage from here on declares that it reads pixels, so they went back to the camera or decoder",
            fix="set takes_images = True in the kind of the stage or sink that reads pixels",
        )

    __getitem__ = __iter__ = __len__ = _refuse


_RELEASED = _Released()


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """Metadata of a frame from another machine.

    Attributes:
        trace: W3C trace id of the camera's frame, 32 hexadecimal digits; the same on all machines.
        about: plain data about the frame, such as the object that it was cropped around.
        receipt: receipt that acknowledges the frame to the sender once all work on it is done.
        parent: span id of the sender, 16 hexadecimal digits; empty where unknown.
        is_sampled: whether the sender exports the frame's spans.
    """

    trace: str
    about: Mapping[str, Any]
    receipt: Receipt
    parent: str = ""
    is_sampled: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class FrameExtra:
    """Properties of a frame that only some sources know.

    Attributes:
        file: path of an image file, relative to the source's folder; else empty.
        sender_ns: capture time in nanoseconds since the epoch, by the clock of a network camera that reports it; else
            None.
        delivery: metadata of a frame from another machine; else None.
        depth: depth image of the frame; None where the camera measures no depth.
    """

    file: str = ""
    sender_ns: int | None = None
    delivery: Delivery | None = None
    depth: DepthImage | None = None


NO_EXTRA = FrameExtra()


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """Place of a crop: its first pixel in the full image, and the frame that it was taken from; None: in new memory."""

    x: int
    y: int
    root: Frame | None


@with_fast_init
@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One image of one stream, in the memory of its camera or decoder.

    Attributes:
        stream: name of the source stage.
        index: number of the frame in its stream, from 0; gaps are frames lost before the source saw them.
        timestamp_ns: monotonic clock when the frame was captured or decoded; latency counts from here.
        media_ns: position in the stream, never running backwards, also across reconnects.
        width, height: size in pixels.
        format: pixel format of ``planes``.
        planes: uint8 arrays, rows possibly padded: i420 (h,w) (h/2,w/2) (h/2,w/2) rounded up; nv12 (h,w)
            (h/2,w/2,2); yuyv (h,w,2); bgr and rgb (h,w,3); gray (h,w). Valid while ``lease`` is alive. For a frame
            on a GPU, they are :class:`~edgert.memory.cuda.DeviceView`.
        lease: shared ownership of the memory. Retain it to keep a frame beyond the call that received it.
        color: color space of the YUV formats.
        extra: properties that only some sources know, such as the path of an image file.
    """

    stream: str
    index: int
    timestamp_ns: int
    media_ns: int
    width: int
    height: int
    format: PixelFormat
    planes: tuple[U8, ...] = field(repr=False)
    lease: Lease = field(repr=False)
    color: Color = Color()
    extra: FrameExtra = NO_EXTRA
    _cut: _Cut | None = field(default=None, repr=False)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array protocol, without a copy, for formats of one plane."""
        interface: dict[str, Any] = self._single_plane().__array_interface__
        return interface

    def __dlpack__(self, **options: Any) -> Any:
        """Return a DLPack capsule, without a copy, for formats of one plane."""
        return self._single_plane().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device, number = self._single_plane().__dlpack_device__()
        return int(device), number

    def crop(self, x1: int, y1: int, x2: int, y2: int) -> Frame:
        """Return the part between (x1, y1) and (x2, y2), in this frame's pixels, as a view without a copy.

        Edges are clipped to the frame and moved out to even pixels where chroma is subsampled. The crop shares
        this frame's lease. Raises StageError when nothing is left.
        """
        x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, self.width), min(y2, self.height)
        if x1 >= x2 or y1 >= y2:
            why = f"the frame is {self.width}x{self.height}"
            raise StageError(f"crop {x1},{y1}-{x2},{y2} is empty", why=why, where=self.stream)
        if self.format in ("i420", "nv12", "yuyv"):
            x1, y1 = x1 & ~1, y1 & ~1
            x2, y2 = min(x2 + (x2 & 1), self.width), min(y2 + (y2 & 1), self.height)
        left, top = origin_of(self)
        cut = _Cut(left + x1, top + y1, full_frame(self))
        if not has_pixels(self):
            return replace(self, width=x2 - x1, height=y2 - y1, _cut=cut)
        planes = [self.planes[0][y1:y2, x1:x2]]
        planes += [plane[y1 // 2 : (y2 + 1) // 2, x1 // 2 : (x2 + 1) // 2] for plane in self.planes[1:]]
        return replace(self, width=x2 - x1, height=y2 - y1, planes=tuple(planes), _cut=cut)

    @property
    def region(self) -> tuple[int, int, int, int]:
        """Rectangle (x1, y1, x2, y2) of this frame in the source image, in pixels; starts at (0, 0) unless cropped."""
        x, y = origin_of(self)
        return x, y, x + self.width, y + self.height

    @property
    def is_on_gpu(self) -> bool:
        """Whether the planes are in the memory of a GPU."""
        if self.planes is _RELEASED:
            return False
        first: object = self.planes[0]
        return not isinstance(first, np.ndarray) and hasattr(first, "__cuda_array_interface__")  # the fast check first

    def to_host(self) -> Frame:
        """Return the frame with planes on the host: itself, or a counted copy of a frame on a GPU."""
        if not self.is_on_gpu:
            return self
        planes = tuple(plane.to_host() for plane in cast("tuple[DeviceView, ...]", self.planes))
        return with_planes(self, planes, lend(planes, self.lease.counter))

    def to_bgr(self) -> U8:
        """Return a new (height, width, 3) uint8 BGR image. It counts as one copy, or two for a frame on a GPU."""
        image = bgr_from(self.to_host())
        self.lease.counter.copied(image.nbytes)
        return image

    def _single_plane(self) -> U8:
        if not self.lease.alive and has_pixels(self):
            raise StageError(
                f"frame {self.index} of {self.stream!r} was used after its release",
                why="its memory went back to the pool and may hold another image",
                fix="retain the frame (frame.lease.retain()) or copy it before it is released",
            )
        if len(self.planes) != 1:
            raise StageError(
                f"this {self.format} frame is {len(self.planes)} planes, not one array",
                where=self.stream,
                fix="use frame.planes (no copy) or frame.to_bgr() (one copy)",
            )
        return self.planes[0]


def has_pixels(frame: Frame) -> bool:
    """Return whether a frame still has its pixels; they are released where no later stage reads them."""
    return frame.planes is not _RELEASED


def without_pixels(frame: Frame) -> Frame:
    """Return the frame without its pixels, under a new lease; the lease of ``frame`` is not changed.

    Its other attributes stay. Using its ``planes`` raises StageError.
    """
    lease: Lease = EndedLease(frame.lease.counter)
    if (delivery := frame.extra.delivery) is not None:  # its sender also waits for work that needs no pixels
        lease = delivery.receipt.cover(lease)
    return with_planes(frame, _RELEASED, lease)


def with_planes(frame: Frame, planes: tuple[U8, ...], lease: Lease) -> Frame:
    """Return the same image in other memory, with the lease of that memory; the lease of ``frame`` is not changed."""
    place = frame.stream, frame.index, frame.timestamp_ns, frame.media_ns, frame.width, frame.height, frame.format
    cut = None if frame._cut is None else replace(frame._cut, root=None)
    return Frame(*place, planes, lease, frame.color, frame.extra, cut)


def without_delivery(frame: Frame) -> Frame:
    """Return the frame without its delivery, so that its sender does not wait for code that keeps it to show it."""
    if frame.extra.delivery is None or not isinstance(frame.lease, CoveredLease):
        return frame
    return replace(frame, lease=frame.lease.pixels, extra=replace(frame.extra, delivery=None))


def origin_of(frame: Frame) -> tuple[int, int]:
    """Return (x, y) of a frame's first pixel in the full image, which is (0, 0) except for crops."""
    return (0, 0) if frame._cut is None else (frame._cut.x, frame._cut.y)


def full_frame(frame: Frame) -> Frame:
    """Return the frame that a crop was taken from, or the frame itself."""
    return (frame._cut and frame._cut.root) or frame


def separate_image(crop: Frame, planes: tuple[U8, ...], lease: Lease) -> Frame:
    """Return a rotated or warped crop as a separate image of BGR pixels in ``planes``."""
    height, width = planes[0].shape[:2]
    place = crop.stream, crop.index, crop.timestamp_ns, crop.media_ns, width, height
    extra = FrameExtra(crop.extra.file, crop.extra.sender_ns)
    return Frame(*place, "bgr", planes, lease, crop.color, extra)


_LUMA_WEIGHTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}  # of red and of blue
_STRIP_ROWS = 32  # rows of chroma converted at a time; the temporaries of 1920 pixels fit a 512 KiB L2 cache


def bgr_from(frame: Frame) -> U8:
    """Return a new (height, width, 3) uint8 BGR image of ``frame``. The caller counts the copy."""
    out = np.empty((frame.height, frame.width, 3), np.uint8)
    bgr_into(frame, out)
    return out


def bgr_into(frame: Frame, out: U8) -> None:
    """Write ``frame`` as BGR into ``out``; the caller counts the copy.

    Args:
        frame: the frame, of any format.
        out: (h, w, 3) uint8, rows may be padded. Where its size is not the frame's, the planes are scaled first
            and converted afterwards, so that a small image of a large frame is cheap.

    Raises:
        StageError: ``out`` is not a BGR image.
    """
    if out.dtype != np.uint8 or out.ndim != 3 or out.shape[2] != 3 or out.strides[1:] != (3, 1):
        raise StageError(f"cannot write an image into a {out.shape} array of {out.dtype}", where=frame.stream)
    size, first = (out.shape[0], out.shape[1]), frame.planes[0]
    if frame.format in ("bgr", "rgb", "gray"):
        plane = first if size == first.shape[:2] else _scaled(first, size)
        if frame.format == "bgr":
            np.copyto(out, plane)
        else:
            cv2.cvtColor(plane, cv2.COLOR_RGB2BGR if frame.format == "rgb" else cv2.COLOR_GRAY2BGR, dst=out)
        return
    fast = size == (frame.height, frame.width) and _is_opencv_conversion(frame.color, out)
    if fast and frame.format == "yuyv":
        cv2.cvtColor(first, cv2.COLOR_YUV2BGR_YUYV, dst=out)
    elif fast and frame.format == "nv12":
        cv2.cvtColorTwoPlane(first, frame.planes[1], cv2.COLOR_YUV2BGR_NV12, dst=out)
    else:
        y, u, v = yuv_planes(frame)
        if size != (frame.height, frame.width):
            half = (size[0] + 1) // 2, (size[1] + 1) // 2
            y, u, v = _scaled(y, size), _scaled(u, half), _scaled(v, half)
        _convert_planes(y, u, v, frame.color, out)


def yuv_planes(frame: Frame) -> tuple[U8, U8, U8]:
    """Return the Y, U and V planes of a YUV frame, each of its own size.

    They are views for i420, and new arrays for nv12 and yuyv.
    """
    if frame.format == "i420":
        y, u, v = frame.planes
        return y, u, v
    if frame.format == "nv12":
        y, uv = frame.planes
        return y, _channel(uv, 0), _channel(uv, 1)
    (plane,) = frame.planes
    chroma = _channel(plane, 1)
    # The last pixel of an odd row has no V; it takes that of its neighbor, or mid-gray without one.
    v = np.full((frame.height, (frame.width + 1) // 2), 128, np.uint8)
    v[:, : frame.width // 2] = chroma[:, 1::2]
    if frame.width % 2 and frame.width > 1:
        v[:, -1] = v[:, -2]
    return _channel(plane, 0), np.ascontiguousarray(chroma[:, 0::2]), v


@lru_cache(maxsize=8)
def bgr_matrix(color: Color) -> npt.NDArray[np.float64]:
    """Return the (3, 4) matrix from (Y, U, V, 1) in 0–255 to B, G, R in 0–255."""
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


def _is_opencv_conversion(color: Color, out: U8) -> bool:
    """Return whether OpenCV has the conversion: BT.601, limited range (luma below 16 counts as 16), even sizes."""
    return color == Color() and out.shape[0] % 2 == 0 and out.shape[1] % 2 == 0


def _convert_planes(y: U8, u: U8, v: U8, color: Color, out: U8) -> None:
    if _is_opencv_conversion(color, out) and 2 * u.shape[0] == y.shape[0]:
        cv2.cvtColorTwoPlane(y, cv2.merge([u, v]), cv2.COLOR_YUV2BGR_NV12, dst=out)
    else:
        _convert_by_matrix(y, u, v, color, out)


def _convert_by_matrix(y: U8, u: U8, v: U8, color: Color, out: U8) -> None:
    """Convert planes of any color space and size. Where there are half as many chroma rows, two luma rows share one."""
    shared = 1 if u.shape[0] == y.shape[0] else 2
    matrix, width = bgr_matrix(color), y.shape[1]
    for top in range(0, u.shape[0], _STRIP_ROWS):
        bottom = min(top + _STRIP_ROWS, u.shape[0])
        # Repeat every column of chroma.
        wide_u, wide_v = (
            cast("U8", cv2.merge([plane, plane])).reshape(bottom - top, -1)[:, :width]
            for plane in (u[top:bottom], v[top:bottom])
        )
        for row in range(shared):
            rows = slice(top * shared + row, bottom * shared, shared)
            luma = y[rows]
            if height := len(luma):
                yuv = cv2.merge([luma, wide_u[:height], wide_v[:height]])
                cv2.transform(yuv, matrix, dst=out[rows])


def _channel(plane: U8, channel: int) -> U8:
    return cast("U8", cv2.extractChannel(plane, channel))


def _scaled(plane: U8, size: tuple[int, int]) -> U8:
    """Return ``plane`` scaled to (height, width) ``size``, by area where linear sampling would skip pixels."""
    height, width = size
    shrinks = plane.shape[0] > 2 * height or plane.shape[1] > 2 * width
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return cast("U8", cv2.resize(plane, (width, height), interpolation=how))
