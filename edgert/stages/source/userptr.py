"""A V4L2 camera whose driver writes into memory that the GPU fetches from: mapped or pinned, handed over by address.

A GPU that shares the processor's memory (Jetson) reads it in place; another makes one copy, which is counted. The order
of the calls is that of the kernel's documentation, https://docs.kernel.org/userspace-api/media/v4l/userp.html. Tested
on a stand-in for the kernel; none of this has run on a board, or with a camera.
"""

import ctypes
import logging
from collections.abc import Iterator
from typing import cast

import numpy as np

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import Block, CudaDevice, DeviceView, Loans, StreamLease
from edgert.runtime.frame import U8, Color, PixelFormat
from edgert.stages.source import v4l2
from edgert.stages.source.timeline import Image

log = logging.getLogger("edgert.source")

FORMATS: dict[str, tuple[str, PixelFormat]] = {
    "yuyv422": ("YUYV", "yuyv"),
    "yuyv": ("YUYV", "yuyv"),
    "nv12": ("NV12", "nv12"),
    "gray": ("GRAY", "gray"),
}
"""``format:`` of a source → V4L2's four letters, and what frames are called."""
BUFFERS = 6
"""One being written, one waiting for it, and those that a pipeline holds."""
_PAGE_BYTES = 4096
_POLL_S = 0.1


def why_not_on(config: SourceStage, device: CudaDevice) -> str:
    """Why a camera cannot write where this GPU reads; empty when it can, as far as is known before it is opened."""
    if (config.format or "").lower() not in FORMATS:
        return f"its format is not known; {', '.join(FORMATS)} can be read in place"
    return ""


class UserPointerCamera:
    """One opened camera; see :class:`~edgert.stages.source.live.Device`.

    A buffer goes back to the driver when its image's lease has ended and the GPU has read it. Buffers that are lent
    when the camera is closed are freed when they come back.

    Raises:
        DeviceError: the driver takes no memory of others, has not the format, or there is too little memory.
    """

    def __init__(
        self,
        path: str,
        config: SourceStage,
        device: CudaDevice,
        counter: Counter,
        clock: Clock,
        where: str,
        kernel: v4l2.Kernel,
    ) -> None:
        self.skipped = 0
        self._device, self._clock, self._timeout_s = device, clock, config.timeout
        self._letters, self._format = FORMATS[(config.format or "").lower()]
        self._node = v4l2.Node(path, where, kernel)
        self._stream, self._is_open = device.stream(), True
        self._loans = Loans(device, counter, self._give_back)
        self._lent: set[int] = set()
        self._sequence: int | None = None
        self._blocks: list[Block] = []
        try:
            self._image_format = self._agreed(config)
            self._start()
        except DeviceError:
            self.close()
            raise

    def images(self) -> Iterator[Image]:
        """Blocks for each image. Raises DeviceError when the camera is gone, or gives none in time."""
        waited_since_ns = self._clock.now_ns()
        while True:
            self._loans.settle(_POLL_S if len(self._lent) == BUFFERS else 0.0)
            if len(self._lent) < BUFFERS and self._node.wait(_POLL_S):
                image = self._next()
                if image is not None:
                    yield image
                    del image
                waited_since_ns = self._clock.now_ns()
            elif self._clock.now_ns() - waited_since_ns > self._timeout_s * 1e9:
                raise self._node.error("lost", f"no frame for {self._timeout_s:g} s")

    def close(self) -> None:
        """Stops the camera and gives it back."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._node.ask(v4l2.STREAMOFF, ctypes.c_int(v4l2.CAPTURE))
            self._node.ask(v4l2.REQBUFS, v4l2.RequestBuffers(0, v4l2.CAPTURE, v4l2.USERPTR))
        except DeviceError as error:
            log.debug("%s", error)  # one that was unplugged has nothing to stop
        self._node.close()
        for index, block in enumerate(self._blocks):
            if index not in self._lent:
                block.release()
        self._loans.close()

    def _agreed(self, config: SourceStage) -> v4l2.PixFormat:
        """What the driver makes of the size, format and rate that are asked of it."""
        found = v4l2.Capability()
        self._node.ask(v4l2.QUERYCAP, found)
        caps = found.device_caps if found.capabilities & v4l2.CAP_DEVICE_CAPS else found.capabilities
        if not (caps & v4l2.CAP_CAPTURE and caps & v4l2.CAP_STREAMING):
            raise self._node.error("cannot use", "it is no video capture device that streams")
        asked = v4l2.Format(type=v4l2.CAPTURE)
        asked.fmt.pix.width, asked.fmt.pix.height = config.size or (640, 480)
        asked.fmt.pix.pixelformat = v4l2.fourcc(self._letters)
        self._node.ask(v4l2.S_FMT, asked)
        pix: v4l2.PixFormat = asked.fmt.pix
        if pix.pixelformat != v4l2.fourcc(self._letters):
            raise self._node.error("cannot use", f"it does not give {self._letters}")
        if config.fps:
            rate = v4l2.StreamParm(type=v4l2.CAPTURE, numerator=1000, denominator=round(config.fps * 1000))
            self._node.ask(v4l2.S_PARM, rate)
        return pix

    def _start(self) -> None:
        self._node.ask(v4l2.REQBUFS, v4l2.RequestBuffers(BUFFERS, v4l2.CAPTURE, v4l2.USERPTR))
        nbytes = -(-self._image_format.sizeimage // _PAGE_BYTES) * _PAGE_BYTES
        for index in range(BUFFERS):
            self._blocks.append(self._device.block(nbytes))
            self._queue(index)
        self._node.ask(v4l2.STREAMON, ctypes.c_int(v4l2.CAPTURE))

    def _queue(self, index: int) -> None:
        block = self._blocks[index]
        self._node.ask(
            v4l2.QBUF,
            v4l2.Buffer(
                index=index,
                type=v4l2.CAPTURE,
                memory=v4l2.USERPTR,
                userptr=block.host.ctypes.data,
                length=block.nbytes,
            ),
        )

    def _next(self) -> Image | None:
        """The image that the driver has filled; None for a damaged one."""
        buffer = v4l2.Buffer(type=v4l2.CAPTURE, memory=v4l2.USERPTR)
        self._node.ask(v4l2.DQBUF, buffer)
        if buffer.flags & v4l2.FLAG_ERROR:
            self.skipped += 1
            self._queue(buffer.index)
            return None
        last, self._sequence = self._sequence, int(buffer.sequence)
        lease = self._loans.lend(buffer.index)
        self._lent.add(buffer.index)
        if self._blocks[buffer.index].is_staged:
            self._blocks[buffer.index].upload(self._stream)
            lease.after(self._stream)
        now_ns, taken_ns = self._clock.now_ns(), buffer.seconds * 1_000_000_000 + buffer.microseconds * 1000
        is_ours = buffer.flags & v4l2.FLAG_CLOCK_MASK == v4l2.FLAG_MONOTONIC
        return Image(
            format=self._format,
            width=self._image_format.width,
            height=self._image_format.height,
            planes=self._planes(buffer.index, lease),
            lease=lease,
            timestamp_ns=min(taken_ns, now_ns) if is_ours else now_ns,
            media_ns=taken_ns if is_ours else None,
            color=color_of(self._image_format),
            lost=0 if last is None else max(self._sequence - last - 1, 0),
        )

    def _planes(self, index: int, lease: StreamLease) -> tuple[U8, ...]:
        width, height, row = (int(getattr(self._image_format, name)) for name in ("width", "height", "bytesperline"))
        at = self._blocks[index].address
        shapes: dict[str, list[tuple[int, tuple[int, ...], tuple[int, ...]]]] = {
            "yuyv": [(at, (height, width, 2), (row, 2, 1))],
            "gray": [(at, (height, width), (row, 1))],
            "nv12": [
                (at, (height, width), (row, 1)),
                (at + row * height, (height // 2, width // 2, 2), (row, 2, 1)),
            ],
        }
        kind, ordinal = np.dtype(np.uint8), self._device.ordinal
        planes = [
            DeviceView(a, shape, step, kind, lease, ordinal, self._stream) for a, shape, step in shapes[self._format]
        ]
        return cast("tuple[U8, ...]", tuple(planes))

    def _give_back(self, index: int) -> None:
        self._lent.discard(index)
        if self._is_open:
            self._queue(index)
        else:
            self._blocks[index].release()


def color_of(pix: v4l2.PixFormat) -> Color:
    """From the colors that the driver reports."""
    full = pix.quantization == v4l2.QUANTIZATION_FULL or pix.colorspace == v4l2.COLORSPACE_JPEG
    return Color("bt709" if pix.colorspace == v4l2.COLORSPACE_REC709 else "bt601", full)
