"""V4L2 as the kernel defines it: structs, requests, and the calls behind a door of their own.

Source: linux/videodev2.h, https://docs.kernel.org/userspace-api/media/v4l/videodev.html; sizes and offsets are those of
64-bit machines, held to what a C compiler makes of the header by tests.
"""

import ctypes
import fcntl
import os
import select
from typing import Protocol

from edgert.errors import DeviceError

CAPTURE, USERPTR = 1, 2  # V4L2_BUF_TYPE_VIDEO_CAPTURE, V4L2_MEMORY_USERPTR
CAP_CAPTURE, CAP_STREAMING, CAP_DEVICE_CAPS = 0x1, 0x0400_0000, 0x8000_0000
FLAG_ERROR, FLAG_MONOTONIC, FLAG_CLOCK_MASK = 0x40, 0x2000, 0xE000
COLORSPACE_REC709, COLORSPACE_JPEG, QUANTIZATION_FULL = 3, 7, 1
QUERYCAP, S_FMT, S_PARM, REQBUFS = 0x8068_5600, 0xC0D0_5605, 0xC0CC_5616, 0xC014_5608
QBUF, DQBUF, STREAMON, STREAMOFF = 0xC058_560F, 0xC058_5611, 0x4004_5612, 0x4004_5613
NAMES = {
    QUERYCAP: "VIDIOC_QUERYCAP",
    S_FMT: "VIDIOC_S_FMT",
    S_PARM: "VIDIOC_S_PARM",
    REQBUFS: "VIDIOC_REQBUFS",
    QBUF: "VIDIOC_QBUF",
    DQBUF: "VIDIOC_DQBUF",
    STREAMON: "VIDIOC_STREAMON",
    STREAMOFF: "VIDIOC_STREAMOFF",
}
_U32 = ctypes.c_uint32


class Capability(ctypes.Structure):
    """``v4l2_capability``."""

    _fields_ = (
        ("driver", ctypes.c_char * 16),
        ("card", ctypes.c_char * 32),
        ("bus_info", ctypes.c_char * 32),
        ("version", _U32),
        ("capabilities", _U32),
        ("device_caps", _U32),
        ("reserved", _U32 * 3),
    )


class PixFormat(ctypes.Structure):
    """``v4l2_pix_format``."""

    _fields_ = (
        ("width", _U32),
        ("height", _U32),
        ("pixelformat", _U32),
        ("field", _U32),
        ("bytesperline", _U32),
        ("sizeimage", _U32),
        ("colorspace", _U32),
        ("priv", _U32),
        ("flags", _U32),
        ("ycbcr_enc", _U32),
        ("quantization", _U32),
        ("xfer_func", _U32),
    )


class _FormatUnion(ctypes.Union):
    _fields_ = (("pix", PixFormat), ("raw", ctypes.c_uint8 * 200), ("align", ctypes.c_uint64))


class Format(ctypes.Structure):
    """``v4l2_format``."""

    _fields_ = (("type", _U32), ("fmt", _FormatUnion))


class StreamParm(ctypes.Structure):
    """``v4l2_streamparm`` of a capture device; ``numerator`` / ``denominator`` is seconds per frame."""

    _fields_ = (
        ("type", _U32),
        ("capability", _U32),
        ("capturemode", _U32),
        ("numerator", _U32),
        ("denominator", _U32),
        ("rest", ctypes.c_uint8 * 184),
    )


class RequestBuffers(ctypes.Structure):
    """``v4l2_requestbuffers``."""

    _fields_ = (("count", _U32), ("type", _U32), ("memory", _U32), ("capabilities", _U32), ("flags", _U32))


class Buffer(ctypes.Structure):
    """``v4l2_buffer``; ``userptr`` stands for the union ``m``."""

    _fields_ = (
        ("index", _U32),
        ("type", _U32),
        ("bytesused", _U32),
        ("flags", _U32),
        ("field", _U32),
        ("seconds", ctypes.c_int64),
        ("microseconds", ctypes.c_int64),
        ("timecode", ctypes.c_uint8 * 16),
        ("sequence", _U32),
        ("memory", _U32),
        ("userptr", ctypes.c_uint64),
        ("length", _U32),
        ("reserved2", _U32),
        ("request_fd", _U32),
    )


class Kernel(Protocol):
    """The calls. Each raises OSError."""

    def open(self, path: str) -> int: ...
    def close(self, fd: int) -> None: ...
    def ioctl(self, fd: int, request: int, argument: ctypes.Structure | ctypes.c_int) -> None: ...
    def wait(self, fd: int, timeout_s: float) -> bool: ...


class Linux:
    """Those of this machine."""

    def open(self, path: str) -> int:
        """Without blocking, so that :meth:`wait` decides how long."""
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        """Gives the device back."""
        os.close(fd)

    def ioctl(self, fd: int, request: int, argument: ctypes.Structure | ctypes.c_int) -> None:
        """One request; the kernel writes its answer into ``argument``."""
        fcntl.ioctl(fd, request, argument)

    def wait(self, fd: int, timeout_s: float) -> bool:
        """Whether a filled buffer came in time."""
        return bool(select.select([fd], [], [], timeout_s)[0])


class Node:
    """An opened device.

    Raises:
        DeviceError: by every method, naming the request that the driver refuses and its reason.
    """

    def __init__(self, path: str, where: str, kernel: Kernel) -> None:
        self._path, self._where, self._kernel = path, where, kernel
        try:
            self._fd = kernel.open(path)
        except OSError as error:
            raise self.error("cannot open", error.strerror or str(error)) from error

    def ask(self, request: int, argument: ctypes.Structure | ctypes.c_int) -> None:
        """Asks the driver, whose answer is then in ``argument``."""
        try:
            self._kernel.ioctl(self._fd, request, argument)
        except OSError as error:
            raise self.error(
                "lost" if request == DQBUF else "cannot use", f"{NAMES[request]}: {error.strerror}"
            ) from error

    def wait(self, timeout_s: float) -> bool:
        """Whether a filled buffer came in time."""
        try:
            return self._kernel.wait(self._fd, timeout_s)
        except OSError as error:
            raise self.error("lost", error.strerror or str(error)) from error

    def close(self) -> None:
        """Gives the device back."""
        self._kernel.close(self._fd)

    def error(self, what: str, why: str) -> DeviceError:
        """An error of this device."""
        fix = "check cable and power, and who else has it: fuser " + self._path
        return DeviceError(f"{what} camera {self._path}", why=why, where=self._where, fix=fix)


def fourcc(letters: str) -> int:
    """``YUYV`` → the number that V4L2 knows it by."""
    return int.from_bytes(letters.encode("ascii"), "little")
