"""Formats, sizes and frame rates of a V4L2 camera: offered and measured.

Drivers list modes by VIDIOC_ENUM_FMT, VIDIOC_ENUM_FRAMESIZES and VIDIOC_ENUM_FRAMEINTERVALS, without streaming:
https://docs.kernel.org/userspace-api/media/v4l/vidioc-enum-frameintervals.html. A USB 2 camera gives 1280x720 in raw
formats at 5 to 10 frames per second, and at 30 in MJPEG. OpenCV and FFmpeg take raw formats first
(https://github.com/opencv/opencv/issues/9540), so the choice is made here.
"""

import ctypes
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

from edgert.clock import Clock
from edgert.stages.source import v4l2
from edgert.stages.source.live import Device
from edgert.stages.source.timeline import Image

log = logging.getLogger("edgert.source")

MJPEG = "MJPG"
_RAW = "YUYV", "UYVY", "YVYU", "VYUY", "NV12", "NV21", "YU12", "YV12", "422P", "RGB3", "BGR3"
"""Raw color formats, which FFmpeg and OpenCV prefer to MJPEG."""
_USUAL_FPS = 30.0
"""Expected rate of a camera where the file sets none."""
_DISCRETE = 1  # V4L2_FRMSIZE_TYPE_DISCRETE, V4L2_FRMIVAL_TYPE_DISCRETE
_MOST = 256
"""Formats, sizes or rates that are read at most: a broken driver may list them without an end."""
_SLACK = 0.9
"""Fraction of the requested rate that still counts as reached: 29.97 is 30, and camera clocks differ."""

Size = tuple[int, int]
Range = tuple[float, float]
Offers = Mapping[str, tuple[Range, ...]]
"""Four letters of each format → its frame rates at one size, as (lowest, highest) ranges."""


def offers(path: str, size: Size | None, kernel: v4l2.Kernel) -> tuple[Size | None, Offers]:
    """Return the size, and the formats and rates of the camera at that size.

    There are none where the camera cannot be opened or its driver lists none. ``size`` is (width, height); None means
    the size that the camera is set to.
    """
    with suppress(OSError):
        fd = kernel.open(path)
        try:
            if size is None:
                format = v4l2.Format(type=v4l2.CAPTURE)
                kernel.ioctl(fd, v4l2.Request.G_FMT, format)
                size = int(format.fmt.pix.width), int(format.fmt.pix.height)
            found = dict[str, tuple[Range, ...]]()
            for index in range(_MOST):
                one = v4l2.FormatDescription(index=index, type=v4l2.CAPTURE)
                if not _is_there(fd, kernel, v4l2.Request.ENUM_FMT, one):
                    break
                if _has_size(fd, kernel, one.pixelformat, size):
                    found[_fourcc(one.pixelformat)] = tuple(_rates(fd, kernel, one.pixelformat, size))
            return size, found
        finally:
            kernel.close(fd)
    return size, {}


def wants_mjpeg(offered: Offers, fps: float | None) -> bool:
    """Return whether MJPEG is faster than every raw color format, and none of these reaches the requested rate."""
    raw = max((fastest(offered, letters) for letters in _RAW), default=0.0)
    return fastest(offered, MJPEG) * _SLACK > raw and raw < (fps or _USUAL_FPS) * _SLACK


def fastest(offered: Offers, letters: str) -> float:
    """Return the highest rate of a format; 0 where the camera does not offer it, or lists no rate."""
    return max((high for _, high in offered.get(letters, ())), default=0.0)


def nearest(offered: Offers, letters: str, fps: float) -> float:
    """Return the offered rate of a format that is nearest to ``fps``; ``fps`` itself where none is listed."""
    possible = [min(max(fps, low), high) for low, high in offered.get(letters, ())]
    return min(possible, key=lambda rate: abs(rate - fps), default=fps)


def describe_rates(offered: Offers) -> str:
    """Return the fastest rate of each format, such as ``YUYV 10, MJPG 30``."""
    rates = ((letters, fastest(offered, letters)) for letters in offered)
    return ", ".join(f"{letters} {rate:.4g}" for letters, rate in rates if rate)


class RateCheck:
    """Comparison of a camera's requested frame rate with the measured one; at most one warning, with what to do."""

    def __init__(self, where: str, path: str, fps: float, clock: Clock) -> None:
        self._where, self._path, self._fps, self._clock = where, path, fps, clock
        self._is_done = False

    def watch(self, device: Device, offered: Offers) -> Device:
        """Return the opened camera with its images counted. ``offered`` holds its rates at its size."""
        return cast("Device", _Counted(device, partial(self._watch_images, offered)))

    def _watch_images(self, offered: Offers, images: Iterable[Image]) -> Iterator[Image]:
        """Yield the images, and measure their rate without the time that the consumer takes."""
        windows, count, held_ns, since_ns = 0, 0, 0, self._clock.now_ns()
        for image in images:
            came_ns = self._clock.now_ns()
            if not self._is_done and came_ns - since_ns >= WINDOW_NS:
                seconds = (came_ns - since_ns - held_ns) / 1e9
                if windows and held_ns < WINDOW_NS * (1 - _SLACK) and count < self._fps * seconds * _SLACK:
                    self._warn(count / seconds, describe_rates(offered))
                windows, count, held_ns, since_ns = windows + 1, 0, 0, came_ns
            count += 1 + image.lost
            yield image
            del image
            held_ns += self._clock.now_ns() - came_ns

    def _warn(self, fps: float, rates: str) -> None:
        self._is_done = True
        log.warning(
            "%s: fps: %g is requested from camera %s, and %.3g arrive; fix: %smore light, as many cameras expose "
            "longer in the dark (v4l2-ctl -c exposure_dynamic_framerate=0, on older kernels exposure_auto_priority=0); "
            "another USB port; or fps: %.0f",
            self._where,
            self._fps,
            self._path,
            fps,
            f"a format: or smaller size: that is faster (at this size, at most: {rates}); " if rates else "",
            fps,
        )


WINDOW_NS = 5_000_000_000
"""Window for counting images; the first window is ignored, because a camera adjusts its exposure."""


class _Counted:
    """A camera whose images are counted; see :class:`~edgert.stages.source.live.Device`."""

    def __init__(self, device: Device, watched: Callable[[Iterable[Image]], Iterator[Image]]) -> None:
        self._device, self._watched = device, watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def images(self) -> Iterator[Image]:
        return self._watched(self._device.images())


def _has_size(fd: int, kernel: v4l2.Kernel, pixel_format: int, size: Size) -> bool:
    for index in range(_MOST):
        one = v4l2.FrameSize(index=index, pixel_format=pixel_format)
        if not _is_there(fd, kernel, v4l2.Request.ENUM_FRAMESIZES, one):
            return False
        if one.type == _DISCRETE:
            if (one.numbers[0], one.numbers[1]) == size:
                return True
            continue
        limits = tuple(one.numbers[:3]), tuple(one.numbers[3:])
        return all(
            low <= side <= high and not (side - low) % (step or 1)
            for side, (low, high, step) in zip(size, limits, strict=True)
        )
    return False


def _rates(fd: int, kernel: v4l2.Kernel, pixel_format: int, size: Size) -> Iterator[Range]:
    for index in range(_MOST):
        one = v4l2.FrameInterval(index=index, pixel_format=pixel_format, width=size[0], height=size[1])
        if not _is_there(fd, kernel, v4l2.Request.ENUM_FRAMEINTERVALS, one):
            return
        shortest, longest = tuple(one.fractions[:2]), tuple(one.fractions[2:4])
        if one.type == _DISCRETE:
            longest = shortest
        if all((*shortest, *longest)):
            yield longest[1] / longest[0], shortest[1] / shortest[0]
        if one.type != _DISCRETE:
            return


def _is_there(fd: int, kernel: v4l2.Kernel, request: int, argument: ctypes.Structure) -> bool:
    """Return whether the driver answers; it refuses behind the end of a list (EINVAL) and unknown requests (ENOTTY)."""
    try:
        kernel.ioctl(fd, request, argument)
    except OSError:
        return False
    return True


def _fourcc(pixel_format: int) -> str:
    """Return the four letters, such as ``YUYV``, of V4L2's number."""
    return int(pixel_format & 0x7FFF_FFFF).to_bytes(4, "little").decode("ascii", "replace")
