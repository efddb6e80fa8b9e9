"""V4L2 camera whose driver writes into memory that the GPU reads (``V4L2_MEMORY_USERPTR``).

A GPU that shares the processor's memory (Jetson) reads it in place; another makes one copy, which is counted. The order
of the calls is that of the kernel's documentation, https://docs.kernel.org/userspace-api/media/v4l/userp.html. Structs
and requests are those of linux/videodev2.h, https://docs.kernel.org/userspace-api/media/v4l/videodev.html. Tests
compare their 64-bit sizes and offsets with a C compiler's. Tested with a double of the kernel; none of this has run on
a board, or with a camera.
"""

import ctypes
import fcntl
import logging
import os
import select
from collections.abc import Iterator
from enum import IntEnum

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import DeviceError, cause
from edgert.memory import Counter
from edgert.memory.cuda import Block, CudaDevice, Loans
from edgert.runtime.frame import Color, PixelFormat
from edgert.stages.source.live import Device
from edgert.stages.source.planes import CHANNELS, device_planes
from edgert.stages.source.timeline import Image

log = logging.getLogger("edgert.source")

FORMATS: dict[str, tuple[str, PixelFormat]] = {
    "yuyv422": ("YUYV", "yuyv"),
    "yuyv": ("YUYV", "yuyv"),
    "nv12": ("NV12", "nv12"),
    "gray": ("GREY", "gray"),
}
"""``format:`` of a source → V4L2's four letters, and the frames' format."""
BUFFERS = 6
"""Buffers per camera: one being written, one queued behind it, and those in the pipeline."""
_PAGE_BYTES = 4096
_POLL_S = 0.1


# The kernel's interface.

CAPTURE, USERPTR = 1, 2  # V4L2_BUF_TYPE_VIDEO_CAPTURE, V4L2_MEMORY_USERPTR
CAP_CAPTURE, CAP_STREAMING, CAP_DEVICE_CAPS = 0x1, 0x0400_0000, 0x8000_0000
FLAG_ERROR, FLAG_MONOTONIC, FLAG_CLOCK_MASK = 0x40, 0x2000, 0xE000
COLORSPACE_REC709, COLORSPACE_JPEG, QUANTIZATION_FULL = 3, 7, 1


class Request(IntEnum):
    """Requests to a driver; each is ``VIDIOC_`` and its name in the kernel."""

    QUERYCAP = 0x8068_5600
    ENUM_FMT = 0xC040_5602
    G_FMT = 0xC0D0_5604
    S_FMT = 0xC0D0_5605
    REQBUFS = 0xC014_5608
    QBUF = 0xC058_560F
    DQBUF = 0xC058_5611
    STREAMON = 0x4004_5612
    STREAMOFF = 0x4004_5613
    S_PARM = 0xC0CC_5616
    ENUM_FRAMESIZES = 0xC02C_564A
    ENUM_FRAMEINTERVALS = 0xC034_564B


_U32 = ctypes.c_uint32


def _u32(*names: str) -> tuple[tuple[str, type[ctypes.c_uint32]], ...]:
    return tuple((name, _U32) for name in names)


class Capability(ctypes.Structure):
    """``v4l2_capability``."""

    _fields_ = (
        ("driver", ctypes.c_char * 16),
        ("card", ctypes.c_char * 32),
        ("bus_info", ctypes.c_char * 32),
        *_u32("version", "capabilities", "device_caps"),
        ("reserved", _U32 * 3),
    )


class PixFormat(ctypes.Structure):
    """``v4l2_pix_format``."""

    _fields_ = (
        *_u32("width", "height", "pixelformat", "field", "bytesperline", "sizeimage"),
        *_u32("colorspace", "priv", "flags", "ycbcr_enc", "quantization", "xfer_func"),
    )


class _FormatUnion(ctypes.Union):
    _fields_ = (("pix", PixFormat), ("raw", ctypes.c_uint8 * 200), ("align", ctypes.c_uint64))


class Format(ctypes.Structure):
    """``v4l2_format``."""

    _fields_ = (("type", _U32), ("fmt", _FormatUnion))


class StreamParm(ctypes.Structure):
    """``v4l2_streamparm`` of a capture device; ``numerator`` / ``denominator`` is seconds per frame."""

    _fields_ = (*_u32("type", "capability", "capturemode", "numerator", "denominator"), ("rest", ctypes.c_uint8 * 184))


class RequestBuffers(ctypes.Structure):
    """``v4l2_requestbuffers``."""

    _fields_ = _u32("count", "type", "memory", "capabilities", "flags")


class Buffer(ctypes.Structure):
    """``v4l2_buffer``; ``userptr`` is a member of the union ``m``."""

    _fields_ = (
        *_u32("index", "type", "bytesused", "flags", "field"),
        ("seconds", ctypes.c_int64),
        ("microseconds", ctypes.c_int64),
        ("timecode", ctypes.c_uint8 * 16),
        *_u32("sequence", "memory"),
        ("userptr", ctypes.c_uint64),
        *_u32("length", "reserved2", "request_fd"),
    )


class FormatDescription(ctypes.Structure):
    """``v4l2_fmtdesc``: one pixel format of a device, by its index."""

    _fields_ = (
        *_u32("index", "type", "flags"),
        ("description", ctypes.c_char * 32),
        *_u32("pixelformat", "mbus_code"),
        ("reserved", _U32 * 3),
    )


class FrameSize(ctypes.Structure):
    """``v4l2_frmsizeenum``; ``numbers`` are width and height, or minimum, maximum and step of each in this order."""

    _fields_ = (*_u32("index", "pixel_format", "type"), ("numbers", _U32 * 6), ("reserved", _U32 * 2))


class FrameInterval(ctypes.Structure):
    """``v4l2_frmivalenum``; ``fractions`` are seconds per frame, as (numerator, denominator).

    There is one fraction, or the shortest, the longest and the step.
    """

    _fields_ = (
        *_u32("index", "pixel_format", "width", "height", "type"),
        ("fractions", _U32 * 6),
        ("reserved", _U32 * 2),
    )


class Kernel:
    """System calls on a device; each raises OSError.

    ``ioctl`` leaves the answer in ``argument``; ``wait`` returns whether a filled buffer came in time.
    """

    def open(self, path: str) -> int:
        # Non-blocking, so that wait() sets the time limit.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def ioctl(self, fd: int, request: int, argument: ctypes.Structure | ctypes.c_int) -> None:
        fcntl.ioctl(fd, request, argument)

    def wait(self, fd: int, timeout_s: float) -> bool:
        return bool(select.select([fd], [], [], timeout_s)[0])


class Node:
    """Open device. Every method raises DeviceError with the request that the driver refused, and the reason."""

    def __init__(self, path: str, where: str, kernel: Kernel) -> None:
        self._path, self._where, self._kernel = path, where, kernel
        try:
            self._fd = kernel.open(path)
        except OSError as error:
            raise self.error("cannot open", cause(error)) from error

    def ask(self, request: Request, argument: ctypes.Structure | ctypes.c_int) -> None:
        """Send a request to the driver, which leaves its answer in ``argument``."""
        try:
            self._kernel.ioctl(self._fd, request, argument)
        except OSError as error:
            what = "lost" if request == Request.DQBUF else "cannot use"
            raise self.error(what, f"VIDIOC_{request.name}: {error.strerror}") from error

    def wait(self, timeout_s: float) -> bool:
        """Return whether a filled buffer came in time."""
        try:
            return self._kernel.wait(self._fd, timeout_s)
        except OSError as error:
            raise self.error("lost", cause(error)) from error

    def close(self) -> None:
        self._kernel.close(self._fd)

    def error(self, what: str, why: str) -> DeviceError:
        fix = f"check cable and power; fuser {self._path} shows who uses it"
        return DeviceError(f"{what} camera {self._path}", why=why, where=self._where, fix=fix)


def fourcc(letters: str) -> int:
    """Return V4L2's number for four letters such as ``YUYV``."""
    return int.from_bytes(letters.encode("ascii"), "little")


class UserPointerCamera(Device):
    """One opened camera; see :class:`~edgert.stages.source.live.Device`.

    A buffer returns to the driver when its image's lease has ended and the GPU has read it. Buffers in use when the
    camera is closed are freed at that point.

    Raises DeviceError: the driver supports no user memory or not the format, or there is too little memory.
    """

    def __init__(
        self,
        path: str,
        config: SourceStage,
        device: CudaDevice,
        counter: Counter,
        clock: Clock,
        where: str,
        kernel: Kernel,
    ) -> None:
        self._device, self._clock, self._timeout_s = device, clock, config.timeout
        self._letters, self._format = FORMATS[(config.format or "").lower()]
        self._node = Node(path, where, kernel)
        self._stream, self._is_open = device.stream(), True
        self._loans = Loans(device, counter, self._give_back)
        self._leased: set[int] = set()
        self._sequence: int | None = None
        self._blocks: list[Block] = []
        try:
            self._image_format = self._agreed(config)
            self._node.ask(Request.REQBUFS, RequestBuffers(BUFFERS, CAPTURE, USERPTR))
            nbytes = -(-self._image_format.sizeimage // _PAGE_BYTES) * _PAGE_BYTES
            for index in range(BUFFERS):
                self._blocks.append(device.block(nbytes))
                self._queue(index)
            self._node.ask(Request.STREAMON, ctypes.c_int(CAPTURE))
        except DeviceError:
            self.close()
            raise

    def images(self) -> Iterator[Image]:
        """Yield images, blocking for each. Raises DeviceError when the camera is lost, or gives none in time."""
        waited_since_ns = self._clock.now_ns()
        while True:
            self._loans.reclaim(_POLL_S if len(self._leased) == BUFFERS else 0.0)
            if len(self._leased) < BUFFERS and self._node.wait(_POLL_S):
                image = self._next()
                if image is not None:
                    yield image
                    del image
                waited_since_ns = self._clock.now_ns()
            elif self._clock.now_ns() - waited_since_ns > self._timeout_s * 1e9:
                raise self._node.error("lost", f"no frame for {self._timeout_s:g} s")

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._node.ask(Request.STREAMOFF, ctypes.c_int(CAPTURE))
            self._node.ask(Request.REQBUFS, RequestBuffers(0, CAPTURE, USERPTR))
        except DeviceError as error:
            log.debug("%s", error)  # an unplugged camera has nothing to stop
        self._node.close()
        for index, block in enumerate(self._blocks):
            if index not in self._leased:
                block.release()
        self._loans.close()

    def _agreed(self, config: SourceStage) -> PixFormat:
        """Set size, format and rate, and return what the driver granted."""
        found = Capability()
        self._node.ask(Request.QUERYCAP, found)
        caps = found.device_caps if found.capabilities & CAP_DEVICE_CAPS else found.capabilities
        if not (caps & CAP_CAPTURE and caps & CAP_STREAMING):
            raise self._node.error("cannot use", "it is not a streaming video capture device")
        requested = Format(type=CAPTURE)
        requested.fmt.pix.width, requested.fmt.pix.height = config.size or (640, 480)
        requested.fmt.pix.pixelformat = fourcc(self._letters)
        self._node.ask(Request.S_FMT, requested)
        pix: PixFormat = requested.fmt.pix
        if pix.pixelformat != fourcc(self._letters):
            raise self._node.error("cannot use", f"it does not offer {self._letters}")
        if config.fps:
            rate = StreamParm(type=CAPTURE, numerator=1000, denominator=round(config.fps * 1000))
            self._node.ask(Request.S_PARM, rate)
        return pix

    def _queue(self, index: int) -> None:
        address, nbytes = self._blocks[index].host.ctypes.data, self._blocks[index].nbytes
        self._node.ask(Request.QBUF, Buffer(index=index, type=CAPTURE, memory=USERPTR, userptr=address, length=nbytes))

    def _next(self) -> Image | None:
        """Return the image in the buffer that the driver has filled; None for a damaged one."""
        buffer = Buffer(type=CAPTURE, memory=USERPTR)
        self._node.ask(Request.DQBUF, buffer)
        if buffer.flags & FLAG_ERROR:
            self.skipped += 1
            self._queue(buffer.index)
            return None
        last, self._sequence = self._sequence, int(buffer.sequence)
        lease = self._loans.lend(buffer.index)
        self._leased.add(buffer.index)
        if self._blocks[buffer.index].is_staged:
            self._blocks[buffer.index].upload(self._stream)
            lease.after(self._stream)
        pix = self._image_format
        address, row = self._blocks[buffer.index].address, int(pix.bytesperline)
        size, rows = (int(pix.width), int(pix.height)), [(address, row), (address + row * int(pix.height), row)]
        now_ns, taken_ns = self._clock.now_ns(), buffer.seconds * 1_000_000_000 + buffer.microseconds * 1000
        is_ours = buffer.flags & FLAG_CLOCK_MASK == FLAG_MONOTONIC
        return Image(
            format=self._format,
            planes=device_planes(
                self._format, size, rows[: len(CHANNELS[self._format])], lease, self._device, self._stream
            ),
            lease=lease,
            timestamp_ns=min(taken_ns, now_ns) if is_ours else now_ns,
            media_ns=taken_ns if is_ours else None,
            color=color_of(pix),
            lost=0 if last is None else max(self._sequence - last - 1, 0),
        )

    def _give_back(self, index: int) -> None:
        self._leased.discard(index)
        if self._is_open:
            self._queue(index)
        else:
            self._blocks[index].release()


def color_of(pix: PixFormat) -> Color:
    """Return the colors that the driver reports."""
    full = pix.quantization == QUANTIZATION_FULL or pix.colorspace == COLORSPACE_JPEG
    return Color("bt709" if pix.colorspace == COLORSPACE_REC709 else "bt601", full)
