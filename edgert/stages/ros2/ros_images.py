"""Conversion of image messages to images, each with its depth image, and of images to messages."""

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert import limits
from edgert.clock import Clock
from edgert.errors import DeviceError
from edgert.memory import Counter, lend
from edgert.recording.cdr import DamagedMessage, decode, encode
from edgert.recording.definitions import CAMERA_INFO, COMPRESSED_IMAGE, IMAGE
from edgert.runtime.frame import U8, DepthImage, Frame, PixelFormat, bgr_from
from edgert.stages.source.live import MismatchError
from edgert.stages.source.sent_images import jpeg_size
from edgert.stages.source.timeline import Image

log = logging.getLogger("edgert.ros2")

Role = Literal["image", "depth", "info"]
_UNCONVERTED: Mapping[str, tuple[PixelFormat, int]] = {
    "bgr8": ("bgr", 3),
    "8UC3": ("bgr", 3),
    "rgb8": ("rgb", 3),
    "mono8": ("gray", 1),
    "8UC1": ("gray", 1),
    "yuyv": ("yuyv", 2),
    "yuv422_yuy2": ("yuyv", 2),
}
"""Encoding → format, and bytes per pixel, of images that are read in the message's memory."""
_CONVERTED = {
    "bgra8": (cv2.COLOR_BGRA2BGR, 4),
    "8UC4": (cv2.COLOR_BGRA2BGR, 4),
    "rgba8": (cv2.COLOR_RGBA2BGR, 4),
    "uyvy": (cv2.COLOR_YUV2BGR_UYVY, 2),
    "yuv422": (cv2.COLOR_YUV2BGR_UYVY, 2),
    "bayer_rggb8": (cv2.COLOR_BayerRGGB2BGR, 1),
    "bayer_bggr8": (cv2.COLOR_BayerBGGR2BGR, 1),
    "bayer_gbrg8": (cv2.COLOR_BayerGBRG2BGR, 1),
    "bayer_grbg8": (cv2.COLOR_BayerGRBG2BGR, 1),
}
_PAIRED = 2  # bytes per pixel of encodings in which two pixels share their colors, so that widths are even
_DEPTHS = {"16UC1": "u2", "mono16": "u2", "32FC1": "f4"}
_ENCODINGS: dict[PixelFormat, str] = {"bgr": "bgr8", "rgb": "rgb8", "gray": "mono8"}
_TOGETHER_NS = 20_000_000
"""Largest time between a color image and its depth image."""
_WAIT_NS = 50_000_000
"""Longest wait of a color image for its depth image."""
_OLDEST_NS = 10_000_000_000
"""Oldest plausible stamp. One that is older, or ahead, comes from a machine whose clock differs."""
_JUMP_NS = 1_000_000_000
"""Backward step of stamps that shows a clock that was set back; smaller steps are messages out of order."""
_QUALITY = 85


@dataclass(frozen=True, slots=True)
class Incoming:
    """Received message.

    Attributes:
        data: message as CDR.
        at_ns: arrival by the pipeline's clock; for a bag, the time of recording.
        lost: number of images that this one replaced before they were read.
    """

    role: Role
    kind: str
    data: bytes | memoryview
    at_ns: int
    lost: int = 0


def stamp_ns(message: Mapping[str, Any]) -> int:
    """Return the stamp of a message's header in nanoseconds; 0 if it is not set."""
    return int(message["header.stamp.sec"]) * 1_000_000_000 + int(message["header.stamp.nanosec"])


def header(time_ns: int, frame_id: str) -> dict[str, Any]:
    """Return the fields of a header."""
    seconds, rest = divmod(max(time_ns, 0), 1_000_000_000)
    return {"header.stamp.sec": seconds & 0x7FFFFFFF, "header.stamp.nanosec": rest, "header.frame_id": frame_id}


class CameraTopics:
    """Converter of one camera's messages to images in the order of their stamps. For one thread.

    Args:
        has_depth: whether each image waits briefly for the depth image with its stamp.
        now_ns: function that returns the current time by the clock of stamps; None for a bag, whose images count as
            captured when they are read.
        goes_back: whether a clock that jumps back begins a new stretch instead of an error.

    Attributes:
        skipped: number of messages that were damaged or late.
        frame_id: coordinate frame of the newest image.
    """

    def __init__(
        self,
        title: str,
        where: str,
        has_depth: bool,
        counter: Counter,
        clock: Clock,
        now_ns: Callable[[], int] | None,
        goes_back: bool = True,
    ) -> None:
        self._title, self._where, self._has_depth, self._goes_back = title, where, has_depth, goes_back
        self._counter, self._clock, self._now_ns = counter, clock, now_ns
        self._depths = deque[tuple[int, DepthImage]](maxlen=8)
        self._info: dict[str, Any] | None = None
        self._waiting: tuple[dict[str, Any], Incoming] | None = None
        self._last_ns = 0
        self.skipped, self.frame_id, self._has_warned = 0, "", False
        self._valid_roles = set[Role]()

    def images(self, incoming: Incoming | None, at_ns: int) -> Iterator[Image]:
        """Process a message, and yield the images that are complete.

        Args:
            incoming: message; None when time has passed without one.
            at_ns: current time by the clock of ``Incoming.at_ns``.

        Raises:
            MismatchError: the first image, or the first depth image, has an unsupported encoding. Later ones are
                skipped: another publisher may use the topic.
            DeviceError: the clock of its stamps jumped back, without ``goes_back``.
        """
        if incoming is not None:
            try:
                message = decode(incoming.kind, incoming.data)
            except DamagedMessage as error:
                self._skip_message(error, incoming.role)
                return
            if incoming.role == "image":
                yield from self._complete_image(at_ns, self._waiting is not None)
                self._waiting = message, incoming
            elif incoming.role == "depth":
                self._add_depth(message)
            else:
                self._info = message
        yield from self._complete_image(at_ns, not self._has_depth)

    def last(self) -> Iterator[Image]:
        """Yield the image that is still waiting for its depth image."""
        yield from self._complete_image(0, True)

    def _complete_image(self, at_ns: int, is_over: bool) -> Iterator[Image]:
        """Yield the waiting image, once its depth image has come or is too late."""
        if self._waiting is None:
            return
        message, incoming = self._waiting
        time_ns = stamp_ns(message)
        near = min(self._depths, key=lambda one: abs(one[0] - time_ns), default=None)
        is_near = near is not None and abs(near[0] - time_ns) <= _TOGETHER_NS
        is_passed = bool(self._depths) and self._depths[-1][0] >= time_ns
        if is_near or is_passed or is_over or at_ns - incoming.at_ns > _WAIT_NS:
            self._waiting = None
            depth = near[1] if near is not None and is_near else None
            if (image := self._image(message, incoming, depth)) is not None:
                yield image

    def _image(self, message: dict[str, Any], incoming: Incoming, depth: DepthImage | None) -> Image | None:
        time_ns, last_ns = stamp_ns(message), self._last_ns
        if time_ns < last_ns - _JUMP_NS:
            self._handle_jump(last_ns - time_ns)
        elif time_ns < last_ns:
            self.skipped += 1
            return None
        try:
            convert = self._decode_compressed if incoming.kind == COMPRESSED_IMAGE else self._decode_raw
            format, plane, owner = convert(message)
        except (DamagedMessage, MismatchError) as error:
            self._skip_message(error, "image")
            return None
        self._last_ns, self.frame_id = time_ns, message["header.frame_id"]
        self._valid_roles.add("image")
        if depth is not None and self._info is not None:
            depth = DepthImage(depth.values, _intrinsics(self._info, plane.shape[1], plane.shape[0]))
        stamp = time_ns or None
        taken_ns, lease = self._capture_ns(time_ns), lend(owner, self._counter)
        return Image(format, (plane,), lease, taken_ns, stamp, lost=incoming.lost, sender_ns=stamp, depth=depth)

    def _skip_message(self, error: DamagedMessage | MismatchError, role: Role) -> None:
        """Count a skipped message, and warn of the first mismatch. Raises it if no message of the role was valid."""
        is_stray = isinstance(error, MismatchError)
        if is_stray and role not in self._valid_roles:
            raise error
        self.skipped += 1
        level = logging.WARNING if is_stray and not self._has_warned else logging.DEBUG
        log.log(level, "%s: a message is skipped: %s: %s", self._where, error.what, error.why)
        self._has_warned |= is_stray

    def _capture_ns(self, time_ns: int) -> int:
        """Return the capture time of an image by the pipeline's clock."""
        age_ns = 0 if self._now_ns is None or not time_ns else self._now_ns() - time_ns
        return self._clock.now_ns() - (age_ns if 0 <= age_ns <= _OLDEST_NS else 0)

    def _handle_jump(self, by_ns: int) -> None:
        self._depths.clear()
        what = f"the clock of {self._title} jumped back by {by_ns / 1e9:.1f} s"
        why = "a bag or a simulation started again"
        if not self._goes_back:
            fix = "leave reconnect: false out, so that positions in the stream continue"
            raise DeviceError(what, why=why, where=self._where, fix=fix)
        log.warning("%s: %s (%s?); positions in the stream continue", self._where, what, why)

    def _decode_raw(self, message: dict[str, Any]) -> tuple[PixelFormat, U8, object]:
        encoding, data = message["encoding"], message["data"]
        if encoding in _UNCONVERTED:
            format, depth = _UNCONVERTED[encoding]
            return format, _pixel_plane(message, depth), data
        if encoding in _CONVERTED:
            code, depth = _CONVERTED[encoding]
            image = cast("U8", cv2.cvtColor(_pixel_plane(message, depth), code))
            self._counter.copied(image.nbytes)
            return "bgr", image, image
        known = ", ".join([*_UNCONVERTED, *_CONVERTED])
        what, why = f"{self._title} has images of encoding {encoding!r}", f"edgert reads {known}"
        fix = "publish one of these, or use the compressed topic of the camera"
        if encoding in _DEPTHS:
            fix = "this is a depth image: name the color topic in source:, and this one in options: {depth: TOPIC}"
        raise MismatchError(what, why=why, where=self._where, fix=fix)

    def _decode_compressed(self, message: dict[str, Any]) -> tuple[PixelFormat, U8, object]:
        data, image = np.frombuffer(message["data"], np.uint8), None
        if (size := _image_size(data.data)) is not None:
            if size[0] * size[1] > limits.ROS_PIXELS:
                raise DamagedMessage(f"its image has {size[0]}x{size[1]} pixels, and the limit is {limits.ROS_PIXELS}")
            with suppress(cv2.error):  # the header may be wrong
                image = cv2.imdecode(data, cv2.IMREAD_COLOR)
        if image is not None:
            return "bgr", cast("U8", image), image
        if re.search("jpe?g|png", message["format"]) and "compressedDepth" not in message["format"]:
            raise DamagedMessage(f"a {message['format']} image is damaged")
        what = f"{self._title} has images of format {message['format']!r}"
        fix = "publish jpeg or png, or use the raw topic of the camera"
        raise MismatchError(what, why="only jpeg and png are decoded", where=self._where, fix=fix)

    def _add_depth(self, message: dict[str, Any]) -> None:
        if message.get("encoding") not in _DEPTHS:
            what = f"the depth topic of {self._title} has images of encoding {message.get('encoding')!r}"
            mismatch = MismatchError(what, why=f"depth images are {', '.join(_DEPTHS)}", where=self._where)
            self._skip_message(mismatch, "depth")
            return
        order = ">" if message["is_bigendian"] else "<"
        values = _values(message, np.dtype(order + _DEPTHS[message["encoding"]]), ())
        if values is None:
            self.skipped += 1
        else:
            native = cast("npt.NDArray[np.float32]", values.astype(values.dtype.newbyteorder("="), copy=False))
            self._depths.append((stamp_ns(message), DepthImage(native)))
            self._valid_roles.add("depth")


def _image_size(data: memoryview) -> tuple[int, int] | None:
    """Return width and height of a JPEG or PNG file, by its header; None for other data."""
    if bytes(data[:8]) == b"\x89PNG\r\n\x1a\n" and bytes(data[12:16]) == b"IHDR":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    with suppress(ValueError):
        return jpeg_size(data)
    return None


def _pixel_plane(message: dict[str, Any], depth: int) -> U8:
    found = _values(message, np.dtype(np.uint8), (depth,) if depth > 1 else ())
    if found is None or (depth == _PAIRED and found.shape[1] % 2):
        size = f"{message['width']}x{message['height']} pixels, {message['step']} bytes a row"
        raise DamagedMessage(f"{len(message['data'])} bytes are not an image of {size}")
    return cast("U8", found)


def _values(message: dict[str, Any], dtype: np.dtype[Any], channels: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Return a view of the pixels in the message; None if the message is too short for its size."""
    height, width, step, data = message["height"], message["width"], message["step"], message["data"]
    pixel = dtype.itemsize * (channels[0] if channels else 1)
    step = step or width * pixel
    if not height or not width or step < width * pixel or (height - 1) * step + width * pixel > len(data):
        return None
    strides = (step, pixel, *(dtype.itemsize for _ in channels))
    found: npt.NDArray[Any] = np.ndarray((height, width, *channels), dtype, data, 0, strides)
    return found


def _intrinsics(info: Mapping[str, Any], width: int, height: int) -> tuple[float, float, float, float] | None:
    """Return focal lengths and center of a CameraInfo in pixels of an image; None without a calibration."""
    k = info["k"]
    if not k[0] or not k[4]:
        return None
    x, y = width / (info["width"] or width), height / (info["height"] or height)
    return k[0] * x, k[4] * y, k[2] * x, k[5] * y


def image_message(image: Frame | U8, fields: Mapping[str, Any], counter: Counter) -> list[bytes | memoryview]:
    """Return an Image message as pieces; contiguous BGR, RGB or gray pixels are not copied.

    Args:
        image: frame on the host, or drawn image (height, width, 3) uint8 BGR.
        fields: fields of the header.
        counter: counter of the bytes of a plane that is not contiguous and must be copied.
    """
    encoding, plane = "bgr8", image if isinstance(image, np.ndarray) else None
    if plane is None:
        frame = cast("Frame", image)
        encoding = _ENCODINGS.get(frame.format, "bgr8")
        plane = frame.planes[0] if frame.format in _ENCODINGS else bgr_from(frame)
    if not plane.flags.c_contiguous:
        plane = np.ascontiguousarray(plane)
        counter.copied(plane.nbytes)
    height, width = plane.shape[:2]
    step = plane.nbytes // height
    about = {**fields, "height": height, "width": width, "encoding": encoding, "step": step}
    return encode(IMAGE, {**about, "data": plane.data})


def jpeg_message(image: U8, fields: Mapping[str, Any]) -> list[bytes | memoryview]:
    """Return a CompressedImage message with a BGR image as JPEG."""
    done, data = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, _QUALITY))
    assert done, "OpenCV encodes every BGR image as JPEG"
    return encode(COMPRESSED_IMAGE, {**fields, "format": "jpeg", "data": cast("U8", data).data})


KINDS_OF_ROLE: Mapping[Role, tuple[str, ...]] = {
    "image": (IMAGE, COMPRESSED_IMAGE),
    "depth": (IMAGE,),
    "info": (CAMERA_INFO,),
}
"""Message types that the topic of each role may have."""
