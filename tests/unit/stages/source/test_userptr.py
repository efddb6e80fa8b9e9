"""A camera that writes where the GPU reads: structs as a C compiler made them, the kernel stood in for. No board."""

import ctypes
import errno
import json
import threading
from collections import deque
from pathlib import Path
from typing import Any, cast

import pytest

from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, StreamLease
from edgert.runtime.frame import Color
from edgert.stages.context import Context
from edgert.stages.source import camera, ffmpeg, v4l2
from edgert.stages.source.v4l2 import BUFFERS, UserPointerCamera
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.errors import Exactly, raises
from tests.helpers.virtual_clock import VirtualClock

RECORDED = json.loads((Path(__file__).parents[3] / "data/v4l2/structs.json").read_text(encoding="utf-8"))
"""Bytes of filled structs, and the requests' numbers, from a C program over linux/videodev2.h on x86-64."""


def recorded(kind: type[ctypes.Structure]) -> Any:
    raw = bytes.fromhex(RECORDED[kind.__name__])
    assert ctypes.sizeof(kind) == len(raw)
    return kind.from_buffer_copy(raw)


class Kernel(v4l2.Kernel):
    """A camera: fills queued buffers with their number in turn, and answers with what was recorded."""

    def __init__(self, fails: int = 0, code: int = errno.EINVAL) -> None:
        self.fails, self.code = fails, code
        self.asked: list[str] = []
        self.queued: deque[tuple[int, int, int]] = deque()
        self.is_open, self.sequence, self.frames, self.flags = False, 0, 1000, 0x2000
        self.format, self.clock = recorded(v4l2.Format), VirtualClock()

    def open(self, path: str) -> int:
        self.is_open = True
        return 7

    def close(self, fd: int) -> None:
        assert self.is_open
        self.is_open = False

    def wait(self, fd: int, timeout_s: float) -> bool:
        if self.queued and self.frames > 0:
            return True
        self.clock.wait(threading.Event(), timeout_s)
        return False

    def ioctl(self, fd: int, request: int, argument: Any) -> None:
        assert fd == 7 and self.is_open
        self.asked.append(v4l2.Request(request).name)
        if request == self.fails:
            raise OSError(self.code, "Invalid argument" if self.code == errno.EINVAL else "No such device")
        if request == v4l2.Request.QUERYCAP:
            ctypes.memmove(ctypes.byref(argument), bytes(recorded(v4l2.Capability)), 104)
        elif request == v4l2.Request.S_FMT:
            ctypes.memmove(ctypes.byref(argument), bytes(self.format), 208)
        elif request == v4l2.Request.QBUF:
            assert argument.memory == v4l2.USERPTR and argument.userptr % 4096 == 0
            self.queued.append((argument.index, argument.userptr, argument.length))
        elif request == v4l2.Request.DQBUF:
            self._fill(argument)

    def _fill(self, argument: Any) -> None:
        index, address, length = self.queued.popleft()
        self.frames -= 1
        ctypes.memset(address, self.sequence % 256, length)
        argument.index, argument.flags, argument.sequence = index, self.flags, self.sequence
        argument.seconds, argument.microseconds = self.sequence, 500_000
        self.sequence += 1


class Rig:
    def __init__(self, kernel: Kernel, integrated: bool = True, **options: object) -> None:
        self.gpu, self.kernel, self.clock = CudaDouble(integrated), kernel, kernel.clock
        self.device = CudaDevice(self.gpu, 0, Counter())
        fields = {"source": "/dev/video0", "format": "yuyv422", "size": "640x480", **options}
        self.config = SourceStage.model_validate(fields)

    def open(self) -> UserPointerCamera:
        return UserPointerCamera(
            "/dev/video0", self.config, self.device, Counter(), self.clock, "stages.cam", self.kernel
        )


@pytest.fixture(autouse=True)
def page_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory starts on a page, as cuMemHostAlloc's does."""
    plain = CudaDouble.pagelocked_empty

    def aligned(self: CudaDouble, shape: int, dtype: Any, mem_flags: int = 0) -> Any:
        host = plain(self, shape + 4096, dtype, mem_flags)
        start = -host.ctypes.data % 4096
        part = host[start : start + shape]
        memory = host.base
        memory.get_device_pointer = lambda: int(part.ctypes.data)

        class Pinned(type(host)):  # type: ignore[misc]
            base = memory

        return part.view(Pinned)

    monkeypatch.setattr(CudaDouble, "pagelocked_empty", aligned)


def test_structs_and_requests_are_those_of_the_kernels_header() -> None:
    assert {one.name: one.value for one in v4l2.Request} == RECORDED["requests"]
    letters = {"yuyv422": "YUYV", "yuyv": "YUYV", "nv12": "NV12", "gray": "GREY"}  # V4L2_PIX_FMT_GREY
    assert {name: found for name, (found, _) in v4l2.FORMATS.items()} == letters
    capability = recorded(v4l2.Capability)
    assert (capability.driver, capability.device_caps) == (b"uvcvideo", v4l2.CAP_CAPTURE | v4l2.CAP_STREAMING)
    pix = recorded(v4l2.Format).fmt.pix
    assert (pix.width, pix.height, pix.pixelformat) == (640, 480, v4l2.fourcc("YUYV"))
    assert (pix.bytesperline, pix.sizeimage) == (1280, 614400)
    assert (pix.colorspace, pix.quantization) == (v4l2.COLORSPACE_REC709, v4l2.QUANTIZATION_FULL)
    rate = recorded(v4l2.StreamParm)
    assert (rate.type, rate.numerator, rate.denominator) == (1, 1000, 30000)
    request = recorded(v4l2.RequestBuffers)
    assert (request.count, request.type, request.memory) == (6, v4l2.CAPTURE, v4l2.USERPTR)
    buffer = recorded(v4l2.Buffer)
    assert (buffer.index, buffer.sequence, buffer.memory, buffer.length) == (3, 77, v4l2.USERPTR, 614400)
    assert (buffer.seconds, buffer.microseconds, buffer.userptr) == (12, 345678, 0x7F00_1234_5000)
    described = recorded(v4l2.FormatDescription)
    assert (described.index, described.flags, described.description) == (1, 1, b"Motion-JPEG")
    assert described.pixelformat == v4l2.fourcc("MJPG")
    size = recorded(v4l2.FrameSize)
    assert (size.index, size.type, list(size.numbers)) == (2, 3, [32, 1920, 2, 16, 1080, 4])
    interval = recorded(v4l2.FrameInterval)
    assert (interval.index, interval.width, interval.height, interval.type) == (3, 1280, 720, 3)
    assert list(interval.fractions) == [1, 30, 2, 5, 1, 100]


def test_requests_come_in_the_order_that_the_kernel_asks_for() -> None:
    rig = Rig(Kernel(), fps=30)
    opened = rig.open()
    start = ["QUERYCAP", "S_FMT", "S_PARM", "REQBUFS", *["QBUF"] * BUFFERS, "STREAMON"]
    assert rig.kernel.asked == start
    opened.close()
    opened.close()
    assert rig.kernel.asked[len(start) :] == ["STREAMOFF", "REQBUFS"] and not rig.kernel.is_open
    assert rig.device.live_bytes == 0


@pytest.mark.parametrize(("integrated", "uploads"), [(True, 0), (False, 2)])
def test_frames_are_what_the_camera_wrote_where_the_gpu_reads(integrated: bool, uploads: int) -> None:
    rig = Rig(Kernel(), integrated)
    opened = rig.open()
    rig.clock.wait(threading.Event(), 5.0)
    copies = rig.device.counter.read().copies
    images = opened.images()
    first, second = next(images), next(images)
    plane = cast("Any", second.planes[0])
    assert (plane.shape, plane.strides, second.format) == ((480, 640, 2), (1280, 2, 1), "yuyv")
    assert second.color == Color("bt709", full_range=True)
    assert (first.media_ns, second.media_ns, second.lost) == (500_000_000, 1_500_000_000, 0)
    assert rig.device.counter.read().copies == copies + uploads
    assert (plane.to_host() == 1).all()
    for image in (first, second):
        image.lease.release()
    opened.close()
    assert rig.device.live_bytes == 0


def test_a_buffer_is_queued_again_when_the_gpu_has_read_it() -> None:
    rig = Rig(Kernel())
    opened = rig.open()
    images = opened.images()
    held = [next(images) for _ in range(BUFFERS)]
    assert not rig.kernel.queued
    rig.gpu.paused = True
    cast("StreamLease", held[0].lease).after(rig.device.stream())
    held[0].lease.release()
    again = next(images)  # waits for the GPU, having nothing else
    assert cast("Any", again.planes[0]).pointer == cast("Any", held[0].planes[0]).pointer
    for image in (*held[1:], again):
        image.lease.release()
    opened.close()
    assert rig.device.live_bytes == 0


def test_what_is_lent_outlives_the_camera() -> None:
    rig = Rig(Kernel())
    opened = rig.open()
    image = next(opened.images())
    opened.close()
    assert (cast("Any", image.planes[0]).to_host() == 0).all() and rig.device.live_bytes
    image.lease.release()
    assert rig.device.live_bytes == 0


def test_damaged_and_lost_frames_are_counted() -> None:
    rig = Rig(Kernel())
    opened = rig.open()
    images = opened.images()
    next(images).lease.release()
    rig.kernel.sequence += 2
    late = next(images)
    assert late.lost == 2
    late.lease.release()
    rig.kernel.flags, rig.kernel.frames = 0x40, 1
    with pytest.raises(DeviceError) as caught:
        next(images)
    assert opened.skipped == 1 and caught.value.why == "no frame for 5 s"
    opened.close()


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        (v4l2.Request.QUERYCAP, "VIDIOC_QUERYCAP: Invalid argument"),
        (v4l2.Request.REQBUFS, "VIDIOC_REQBUFS: Invalid argument"),
        (v4l2.Request.STREAMON, "VIDIOC_STREAMON: Invalid argument"),
    ],
)
def test_what_the_driver_refuses_is_named_and_nothing_is_left_behind(fails: int, why: str) -> None:
    rig = Rig(Kernel(fails))
    with raises(DeviceError, what=Exactly("cannot use camera /dev/video0"), why=Exactly(why), fix="fuser /dev/video0"):
        rig.open()
    assert not rig.kernel.is_open and rig.device.live_bytes == 0


def test_another_format_than_was_asked_for_is_refused() -> None:
    rig = Rig(Kernel())
    rig.kernel.format.fmt.pix.pixelformat = v4l2.fourcc("MJPG")
    with pytest.raises(DeviceError, match="YUYV"):
        rig.open()


def test_an_unplugged_camera_is_lost() -> None:
    rig = Rig(Kernel(v4l2.Request.DQBUF, errno.ENODEV))
    opened = rig.open()
    with raises(DeviceError, what=Exactly("lost camera /dev/video0"), why=Exactly("VIDIOC_DQBUF: No such device")):
        next(opened.images())
    rig.kernel.fails = v4l2.Request.STREAMOFF
    opened.close()
    assert not rig.kernel.is_open and rig.device.live_bytes == 0


@pytest.mark.parametrize(
    ("integrated", "format", "why"),
    [
        (True, "yuyv422", ""),
        (True, "NV12", ""),
        (True, "mjpeg", "format"),
        (True, None, "format"),
        (False, "nv12", ""),
    ],
)
def test_which_cameras_write_where_the_gpu_reads(integrated: bool, format: str | None, why: str) -> None:
    device = CudaDevice(CudaDouble(integrated=integrated), 0, Counter())
    config = SourceStage(source="/dev/video0", format=format)
    reason = camera.camera_source("cam", config, Context(clock=VirtualClock())).on_gpu(device)
    assert why in reason and bool(why) == bool(reason)


def test_where_the_driver_refuses_frames_go_through_the_processor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(Kernel(v4l2.Request.REQBUFS))
    monkeypatch.setattr(camera, "check_device", lambda *_: None)
    monkeypatch.setattr(camera, "Kernel", lambda: rig.kernel)
    monkeypatch.setattr(ffmpeg, "Video", lambda *_, **__: "through FFmpeg")
    caplog.set_level("INFO")
    source = camera.camera_source("cam", rig.config, Context(clock=rig.clock))
    assert source.on_gpu(rig.device) == "" and source._connect(rig.device) == "through FFmpeg"  # type: ignore[comparison-overlap]
    assert caplog.messages == ["stages.cam: its frames go through the processor: VIDIOC_REQBUFS: Invalid argument"]
