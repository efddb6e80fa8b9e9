"""Image messages as images, with the depth image that belongs to each; and images as messages."""

from __future__ import annotations

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
from edgert.runtime.frame import U8, DepthImage, Frame, PixelFormat, bgr_from
from edgert.stages.ros2.cdr import DamagedMessage, decoded, encoded
from edgert.stages.ros2.definitions import CAMERA_INFO, COMPRESSED_IMAGE, IMAGE
from edgert.stages.source.live import MismatchError
from edgert.stages.source.sent_images import jpeg_size
from edgert.stages.source.timeline import Image

log = logging.getLogger("edgert.ros2")

Role = Literal["image", "depth", "info"]
_AS_THEY_ARE: Mapping[str, tuple[PixelFormat, int]] = {
    "bgr8": ("bgr", 3),
    "8UC3": ("bgr", 3),
    "rgb8": ("rgb", 3),
    "mono8": ("gray", 1),
    "8UC1": ("gray", 1),
    "yuyv": ("yuyv", 2),
    "yuv422_yuy2": ("yuyv", 2),
}
"""Encoding → format, and bytes of a pixel: these are read where the message lies."""
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
_PAIRED = 2  # bytes of a pixel where two pixels share their colors, as in all encodings above: rows are even
_DEPTHS = {"16UC1": "u2", "mono16": "u2", "32FC1": "f4"}
_ENCODINGS: dict[PixelFormat, str] = {"bgr": "bgr8", "rgb": "rgb8", "gray": "mono8"}
_TOGETHER_NS = 20_000_000
"""Most nanoseconds between a color and a depth image that belong together."""
_WAIT_NS = 50_000_000
"""Longest wait of a color image for its depth image."""
_OLDEST_NS = 10_000_000_000
"""Oldest stamp that is believed: one that is older, or ahead, is of a machine whose clock is not this one's."""
_JUMP_NS = 1_000_000_000
"""Stamps that fall by this much are of a clock that was set back; by less, of messages that overtook each other."""
_QUALITY = 85


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message.

    Attributes:
        role: what it is to the camera.
        kind: its type.
        data: its CDR.
        at_ns: when it came, by the pipeline's clock; of a bag, when it was recorded.
        lost: images that were replaced by this one before anybody took them.
    """

    role: Role
    kind: str
    data: bytes | memoryview
    at_ns: int
    lost: int = 0


def stamp_ns(message: Mapping[str, Any]) -> int:
    """Return the stamp of a message's header in nanoseconds; 0 where it has none."""
    return int(message["header.stamp.sec"]) * 1_000_000_000 + int(message["header.stamp.nanosec"])


def header(time_ns: int, frame_id: str) -> dict[str, Any]:
    """Return the fields of a header."""
    seconds, rest = divmod(max(time_ns, 0), 1_000_000_000)
    return {"header.stamp.sec": seconds & 0x7FFFFFFF, "header.stamp.nanosec": rest, "header.frame_id": frame_id}


class CameraTopics:
    """The messages of one camera's topics, made into images in the order of their stamps. For one thread.

    Args:
        title: of the topic, for messages.
        where: the stage.
        has_depth: whether each image waits a moment for the depth image with its stamp.
        now_ns: the time of stamps now; None of a bag, whose images are taken when they are read.
        goes_back: whether a clock that jumps back is a new stretch instead of an error.

    Attributes:
        skipped: messages that were damaged or came too late.
        frame_id: of the newest image.
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
        self.skipped, self.frame_id, self._has_image = 0, "", False

    def images(self, incoming: Incoming | None, at_ns: int) -> Iterator[Image]:
        """Take a message, and yield the images that are complete.

        Args:
            incoming: None at the end, or when time passed without a message.
            at_ns: the time now, as of ``Incoming.at_ns``.

        Raises:
            MismatchError: the first image has an encoding that is no image here. Later ones are skipped, as of another
                publisher on the topic; where all are, no image comes in time.
            DeviceError: the clock of its stamps jumped back, and that is an error.
        """
        if incoming is not None:
            try:
                message = decoded(incoming.kind, incoming.data)
            except DamagedMessage as error:
                self._skip(error)
                return
            if incoming.role == "image":
                yield from self._finished(at_ns, self._waiting is not None)
                self._waiting = message, incoming
            elif incoming.role == "depth":
                self._add_depth(message)
            else:
                self._info = message
        yield from self._finished(at_ns, not self._has_depth)

    def last(self) -> Iterator[Image]:
        """Yield the image that still waits for its depth image."""
        yield from self._finished(0, True)

    def _finished(self, at_ns: int, is_over: bool) -> Iterator[Image]:
        """Yield the image that waits, once its depth image is there, or cannot come any more."""
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
            self._jumped(last_ns - time_ns)
        elif time_ns < last_ns:
            self.skipped += 1
            return None
        try:
            made = self._compressed(message) if incoming.kind == COMPRESSED_IMAGE else self._raw(message)
        except (DamagedMessage, MismatchError) as error:
            self._skip(error)
            return None
        self._has_image, self._last_ns, self.frame_id = True, time_ns, message["header.frame_id"]
        format, plane, owner = made
        if depth is not None and self._info is not None:
            depth = DepthImage(depth.values, _camera(self._info, plane.shape[1], plane.shape[0]))
        stamp = time_ns or None
        taken_ns, lease = self._taken_ns(time_ns), lend(owner, self._counter)
        return Image(format, (plane,), lease, taken_ns, stamp, lost=incoming.lost, sender_ns=stamp, depth=depth)

    def _skip(self, error: DamagedMessage | MismatchError) -> None:
        """Count a message that is left out. Raises a MismatchError where no image before it was good."""
        if isinstance(error, MismatchError) and not self._has_image:
            raise error
        self.skipped += 1
        log.debug("%s: %s", self._where, error)

    def _taken_ns(self, time_ns: int) -> int:
        """Return when an image was taken, by the pipeline's clock."""
        age_ns = 0 if self._now_ns is None or not time_ns else self._now_ns() - time_ns
        return self._clock.now_ns() - (age_ns if 0 <= age_ns <= _OLDEST_NS else 0)

    def _jumped(self, by_ns: int) -> None:
        self._depths.clear()
        what = f"the clock of {self._title} jumped back by {by_ns / 1e9:.1f} s"
        why = "a bag or a simulation began again"
        if not self._goes_back:
            fix = "leave reconnect: false out, and positions in the stream go on from there"
            raise DeviceError(what, why=why, where=self._where, fix=fix)
        log.warning("%s: %s (%s?); positions in the stream go on from there", self._where, what, why)

    def _raw(self, message: dict[str, Any]) -> tuple[PixelFormat, U8, object]:
        encoding, data = message["encoding"], message["data"]
        if encoding in _AS_THEY_ARE:
            format, depth = _AS_THEY_ARE[encoding]
            return format, _plane(message, depth), data
        if encoding in _CONVERTED:
            code, depth = _CONVERTED[encoding]
            image = cast("U8", cv2.cvtColor(_plane(message, depth), code))
            self._counter.copied(image.nbytes)
            return "bgr", image, image
        known = ", ".join([*_AS_THEY_ARE, *_CONVERTED])
        what, why = f"{self._title} has images of encoding {encoding!r}", f"images can be {known}"
        fix = "publish one of these, or take the compressed topic beside it"
        if encoding in _DEPTHS:
            fix = "that is a depth image: name the color topic in source:, and this one in options: {depth: TOPIC}"
        raise MismatchError(what, why=why, where=self._where, fix=fix)

    def _compressed(self, message: dict[str, Any]) -> tuple[PixelFormat, U8, object]:
        data, image = np.frombuffer(message["data"], np.uint8), None
        if (size := _size_of(data.data)) is not None:
            if size[0] * size[1] > limits.ROS_PIXELS:
                raise DamagedMessage(f"its image has {size[0]}x{size[1]} pixels, and the limit is {limits.ROS_PIXELS}")
            with suppress(cv2.error):  # a header that lies
                image = cv2.imdecode(data, cv2.IMREAD_COLOR)
        if image is not None:
            return "bgr", cast("U8", image), image
        if re.search("jpe?g|png", message["format"]) and "compressedDepth" not in message["format"]:
            raise DamagedMessage(f"a {message['format']} image is damaged")
        what = f"{self._title} has images of format {message['format']!r}"
        fix = "publish jpeg or png, or take the raw topic beside it"
        raise MismatchError(what, why="only jpeg and png are decoded", where=self._where, fix=fix)

    def _add_depth(self, message: dict[str, Any]) -> None:
        if message.get("encoding") not in _DEPTHS:
            what = f"the depth topic of {self._title} has images of encoding {message.get('encoding')!r}"
            self._skip(MismatchError(what, why=f"depth images are {', '.join(_DEPTHS)}", where=self._where))
            return
        order = ">" if message["is_bigendian"] else "<"
        values = _values(message, np.dtype(order + _DEPTHS[message["encoding"]]), ())
        if values is None:
            self.skipped += 1
        else:
            native = cast("npt.NDArray[np.float32]", values.astype(values.dtype.newbyteorder("="), copy=False))
            self._depths.append((stamp_ns(message), DepthImage(native)))


def _size_of(data: memoryview) -> tuple[int, int] | None:
    """Return width and height of a JPEG or PNG file, by its header; None of anything else."""
    if bytes(data[:8]) == b"\x89PNG\r\n\x1a\n" and bytes(data[12:16]) == b"IHDR":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    with suppress(ValueError):
        return jpeg_size(data)
    return None


def _plane(message: dict[str, Any], depth: int) -> U8:
    found = _values(message, np.dtype(np.uint8), (depth,) if depth > 1 else ())
    if found is None or (depth == _PAIRED and found.shape[1] % 2):
        size = f"{message['width']}x{message['height']} pixels, {message['step']} bytes a row"
        raise DamagedMessage(f"{len(message['data'])} bytes are no image of {size}")
    return cast("U8", found)


def _values(message: dict[str, Any], dtype: np.dtype[Any], channels: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Return the pixels where they lie; None where the message is too short for its size."""
    height, width, step, data = message["height"], message["width"], message["step"], message["data"]
    pixel = dtype.itemsize * (channels[0] if channels else 1)
    step = step or width * pixel
    if not height or not width or step < width * pixel or (height - 1) * step + width * pixel > len(data):
        return None
    strides = (step, pixel, *(dtype.itemsize for _ in channels))
    found: npt.NDArray[Any] = np.ndarray((height, width, *channels), dtype, data, 0, strides)
    return found


def _camera(info: Mapping[str, Any], width: int, height: int) -> tuple[float, float, float, float] | None:
    """Return focal lengths and center of a CameraInfo in pixels of an image; None of one that is not calibrated."""
    k = info["k"]
    if not k[0] or not k[4]:
        return None
    x, y = width / (info["width"] or width), height / (info["height"] or height)
    return k[0] * x, k[4] * y, k[2] * x, k[5] * y


def image_message(image: Frame | U8, fields: Mapping[str, Any], counter: Counter) -> list[bytes | memoryview]:
    """Return an Image message as pieces; its pixels are where they were, if they are BGR, RGB or gray.

    Args:
        image: a frame on the host, or a drawn image (height, width, 3) uint8 BGR.
        fields: of the header.
        counter: counts the bytes of an image that must be converted, or joined.
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
    return encoded(IMAGE, {**about, "data": plane.data})


def jpeg_message(image: U8, fields: Mapping[str, Any]) -> list[bytes | memoryview]:
    """Return a CompressedImage message of a BGR image."""
    done, data = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, _QUALITY))
    assert done, "OpenCV encodes every BGR image as JPEG"
    return encoded(COMPRESSED_IMAGE, {**fields, "format": "jpeg", "data": cast("U8", data).data})


KINDS_OF_ROLE: Mapping[Role, tuple[str, ...]] = {
    "image": (IMAGE, COMPRESSED_IMAGE),
    "depth": (IMAGE,),
    "info": (CAMERA_INFO,),
}
"""Types that the topic of each role may have."""
