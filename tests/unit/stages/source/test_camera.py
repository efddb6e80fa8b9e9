"""Cameras, with one of our own in place of FFmpeg."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgert.clock import RealClock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError
from edgert.memory import Counter, lend
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import Frame
from edgert.stages.context import Context
from edgert.stages.source import camera, ffmpeg, gst, live
from edgert.stages.source.camera import camera_source, device_path
from edgert.stages.source.decoders import DecoderChoice
from edgert.stages.source.live import LiveSource
from edgert.stages.source.timeline import Image
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.errors import Exactly, raises


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "JITTER", 0)


class HastyClock(RealClock):
    """Never waits long, and remembers how long it was asked to."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        return event.wait(0.001)


class FakeCamera:
    """Gives ``frames`` images, each filled with its number, then fails like an unplugged camera."""

    skipped, waiting_since_ns, ending = 0, None, ""

    def __init__(self, frames: int, is_there: bool = True) -> None:
        self.frames, self.is_there = frames, is_there
        self.is_closed = False

    def images(self) -> Iterator[Image]:
        for number in range(1, self.frames + 1):
            image = np.full((6, 8, 3), number, np.uint8)
            yield Image("bgr", (image,), lend(image, Counter()), 0)
        raise DeviceError("lost camera /dev/video0", why="it gives no more frames")

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def cameras(monkeypatch: pytest.MonkeyPatch) -> list[FakeCamera]:
    """What FFmpeg opens, one after another; a camera that goes on where there is none."""
    found = list[FakeCamera]()

    def opened(path: str, *_: object, **__: object) -> FakeCamera:
        camera = found.pop(0) if found else FakeCamera(50)
        if not camera.is_there:
            raise DeviceError(f"cannot open camera {path}", why="another program uses it")
        return camera

    monkeypatch.setattr(ffmpeg, "Video", opened)
    return found


@pytest.fixture
def source(cameras: list[FakeCamera], monkeypatch: pytest.MonkeyPatch) -> Callable[..., LiveSource]:
    """Return a source of these cameras."""
    monkeypatch.setattr(camera, "check_device", lambda path, where: None)

    def make(found: list[FakeCamera], clock: RealClock | None = None, **options: object) -> LiveSource:
        cameras[:] = found
        config = SourceStage.model_validate({"source": "usb:0", **options})
        return camera_source("cam", config, Context(clock=clock or HastyClock()))

    return make


Source = Callable[..., LiveSource]


def take(made: LiveSource, count: int) -> list[Frame]:
    frames = made.frames(threading.Event())
    taken = [next(frames) for _ in range(count)]
    frames.close()  # type: ignore[attr-defined]
    return taken


def test_an_unplugged_camera_is_waited_for(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    clock = HastyClock()
    found = [FakeCamera(3), FakeCamera(0, is_there=False), FakeCamera(0, is_there=False), FakeCamera(9)]
    made = source(found, clock)
    with caplog.at_level(logging.INFO, "edgert.source"):
        frames = take(made, 6)
    assert [frame.index for frame in frames] == [0, 1, 2, 3, 4, 5]
    media = [frame.media_ns for frame in frames]
    assert media == sorted(media)
    assert made.stats().reconnects == 1
    assert clock.waits == [0.25, 0.5, 1.0], "each failed try waits twice as long"
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [next(word for word in ("lost", "still no", "back") if word in line) for line in warned] == [
        "lost",
        "still no",
        "back",
    ], "one line for the loss, one for another reason, one for the return"
    assert "gives no more frames" in warned[0] and "another program uses it" in warned[1]
    assert all(one.is_closed for one in found if one.is_there)


def test_waits_are_capped_and_start_over_after_a_success(source: Source) -> None:
    clock = HastyClock()
    gone = [FakeCamera(0, is_there=False) for _ in range(7)]
    made = source([FakeCamera(1), *gone, FakeCamera(1), FakeCamera(5)], clock)
    take(made, 3)
    assert clock.waits == [0.25, 0.5, 1, 1.25, 1.25, 1.25, 1.25, 1.25, 0.25]


def test_waits_differ_by_chance(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "JITTER", 0.25)
    clock = HastyClock()
    take(source([FakeCamera(0, is_there=False) for _ in range(40)] + [FakeCamera(5)], clock), 1)
    waits = clock.waits[3:]
    assert len(set(waits)) > 30 and min(waits) >= 0.75 * 1.25 and max(waits) <= 1.25


def test_without_reconnect_the_first_loss_is_an_error(source: Source) -> None:
    frames = source([FakeCamera(2)], reconnect=False).frames(threading.Event())
    assert [next(frames).index for _ in range(2)] == [0, 1]
    with pytest.raises(DeviceError, match="lost camera /dev/video0"):
        next(frames)


@pytest.mark.parametrize("options", [{"start": "fail"}, {"reconnect": False}])
def test_a_camera_that_must_be_there_at_the_start_is_an_error(source: Source, options: dict[str, object]) -> None:
    with pytest.raises(DeviceError, match="cannot open camera"):
        next(source([FakeCamera(0, is_there=False)], **options).frames(threading.Event()))


def test_a_camera_that_is_absent_at_the_start_is_waited_for(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    absent = [FakeCamera(0, is_there=False) for _ in range(3)]
    made = source([*absent, FakeCamera(9)])
    frames = take(made, 3)
    assert [frame.index for frame in frames] == [0, 1, 2] and frames[0].media_ns == 0
    assert made.stats().reconnects == 0, "it came for the first time"
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "cam: no /dev/video0: another program uses it" in warned[0] and "is there after" in warned[1]
    assert len(warned) == 2


def test_one_that_waits_at_the_start_may_still_be_lost_once_only(source: Source) -> None:
    frames = source([FakeCamera(0, is_there=False), FakeCamera(2)], start="wait", reconnect=False)
    with pytest.raises(DeviceError, match="lost camera /dev/video0"):
        take(frames, 3)


def test_a_device_without_a_right_to_it_is_final_at_the_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After that it may have been plugged in just now, and udev has not yet given it to its group."""
    device = tmp_path / "video0"
    monkeypatch.setattr(camera, "device_path", lambda source, where: str(device))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    config = SourceStage.model_validate({"source": "usb:0"})

    def of(clock: RealClock) -> LiveSource:
        return camera_source("cam", config, Context(clock=clock))

    class Plugging(HastyClock):
        def wait(self, event: threading.Event, seconds: float) -> bool:
            if len(self.waits) == 3:
                device.touch()
            if len(self.waits) == 6:
                monkeypatch.setattr("os.access", lambda path, mode: True)
            return super().wait(event, seconds)

    assert take(of(Plugging()), 2)[-1].index == 1
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(DeviceError, match="cannot be opened by this user"):
        take(of(HastyClock()), 1)


def test_an_absent_device_lists_those_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "video7").touch()
    monkeypatch.setattr(camera, "DEVICES", tmp_path)
    with raises(DeviceError, fix="video7"):
        camera.check_device(str(tmp_path / "video0"), "stages.cam")


def test_a_device_that_may_not_be_read_hints_at_the_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = tmp_path / "video0"
    device.touch()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with raises(DeviceError, fix="usermod -aG video"):
        camera.check_device(str(device), "stages.cam")


def test_ffmpeg_reads_the_camera_where_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    class FakeVideo:
        def __init__(self, target: str, *args: object, **options: Any) -> None:
            seen.update(options, target=target)
            raise DeviceError("seen enough")

    device = tmp_path / "video0"
    device.touch()
    monkeypatch.setattr(camera, "device_path", lambda source, where: str(device))
    monkeypatch.setattr(ffmpeg, "Video", FakeVideo)
    config = SourceStage.model_validate(
        {"source": "usb:0", "size": "640x480", "fps": 30, "format": "yuyv422", "start": "fail"}
    )
    made = camera_source("cam", config, Context(clock=HastyClock()))
    with pytest.raises(DeviceError, match="seen enough"):
        next(made.frames(threading.Event()))
    assert (seen["target"], seen["format"], seen["live"]) == (str(device), "v4l2", True)
    assert seen["options"] == {"video_size": "640x480", "framerate": "30", "input_format": "yuyv422"}


def test_names_of_devices() -> None:
    found = [device_path(source, "stages.cam.source") for source in ("usb:2", "v4l2:///dev/video2", "/dev/video2")]
    assert found == ["/dev/video2"] * 3
    for wrong in ("usb:x", "v4l2://video0"):
        with raises(ConfigError, "is no camera", why=Exactly("expected a device, like v4l2:///dev/video0 or usb:0")):
            device_path(wrong, "stages.cam.source")


class Decoding:
    """Stands in for a GStreamer pipeline with the board's decoder: one in ``texts`` for each that was started."""

    skipped, ending = 0, ""
    texts: list[str] = []  # noqa: RUF012
    gives, why = 3, "no memory"

    def __init__(self, text: str, *arguments: object, **options: object) -> None:
        self.texts.append(text)

    def images(self) -> Iterator[Image]:
        for _ in range(self.gives):
            yield Image("gray", (np.zeros((6, 8), np.uint8),), lend(None, Counter()), 0)
        raise DeviceError("the GStreamer pipeline failed", why=self.why)

    def close(self) -> None:
        """Holds nothing."""


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> type[Decoding]:
    """A board with a decoder and a USB camera."""
    monkeypatch.setattr(camera, "jetson_missing", lambda: "")
    monkeypatch.setattr(camera, "check_device", lambda path, where: None)
    monkeypatch.setattr(gst, "Pipeline", Decoding)
    monkeypatch.setattr(Decoding, "texts", [])
    return Decoding


def usb(**options: object) -> LiveSource:
    config = SourceStage.model_validate({"source": "usb:0", "size": "1280x720", "fps": 30, **options})
    return camera_source("cam", config, Context(clock=HastyClock()))


@pytest.mark.parametrize(
    ("format", "caps", "decoder"),
    [
        ("mjpeg", "image/jpeg", "jpegparse ! nvv4l2decoder mjpeg=1"),
        ("h264", "video/x-h264", "h264parse ! nvv4l2decoder"),
    ],
)
def test_compressed_images_go_to_the_boards_decoder(
    format: str, caps: str, decoder: str, board: type[Decoding]
) -> None:
    assert [frame.format for frame in take(usb(format=format), 2)] == ["gray", "gray"]
    text = f"v4l2src device=/dev/video0 io-mode=2 ! {caps},width=1280,height=720,framerate=30/1 ! {decoder} ! nvvidconv"
    assert board.texts[0].startswith(f"{text} bl-output=false output-buffers=10 ! video/x-raw(memory:NVMM),format=NV12")


@pytest.mark.parametrize("options", [{}, {"format": "yuyv422"}, {"format": "mjpeg", "decode": "cpu"}])
def test_other_images_do_not(options: dict[str, object], board: type[Decoding]) -> None:
    assert take(usb(**options), 1)[0].format == "bgr"
    assert board.texts == []


def test_a_lost_camera_comes_back_to_the_decoder(board: type[Decoding]) -> None:
    made = usb(format="mjpeg")
    assert [frame.index for frame in take(made, 7)] == list(range(7))
    assert made.stats().reconnects == 2 and len(board.texts) == 3


def test_images_that_the_decoder_does_not_take_are_the_processors(
    board: type[Decoding], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Decoding, "gives", 0)
    frames = take(usb(format="mjpeg"), 5)
    assert {frame.format for frame in frames} == {"bgr"} and len(board.texts) == 1
    assert "decoded on the CPU from now on: no memory" in caplog.text


def test_a_decoder_that_fails_again_and_again_gives_way_once(
    board: type[Decoding], caplog: pytest.LogCaptureFixture
) -> None:
    frames = take(usb(format="mjpeg"), 20)
    assert [frame.format for frame in frames] == ["gray"] * 9 + ["bgr"] * 11 and len(board.texts) == 3
    said = [record.getMessage() for record in caplog.records if "from now on" in record.getMessage()]
    assert len(said) == 1 and "failed 3 times within a minute, last with: no memory" in said[0]


@pytest.mark.parametrize("why", ["v4l2src0: Could not read from resource", "no memory"])
def test_a_camera_that_is_unplugged_often_is_no_fault_of_the_decoder(
    why: str, board: type[Decoding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decoding, "why", why)
    options = {"decode": "auto" if "v4l2src" in why else "gpu"}
    assert {frame.format for frame in take(usb(format="mjpeg", **options), 20)} == {"gray"}


def test_frames_for_a_gpu_that_the_decoder_does_not_take_come_through_the_processor(
    board: type[Decoding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decoding, "gives", 0)
    made = usb(format="mjpeg")
    assert made.on_gpu(CudaDevice(CudaDouble(integrated=True), 0, Counter())) == ""
    assert {frame.format for frame in take(made, 3)} == {"bgr"}


def test_failures_hours_apart_do_not_add_up() -> None:
    choice, hour_ns = DecoderChoice("stages.cam", "auto"), 3_600_000_000_000
    for number in range(10):
        choice.record_failure("no memory", number * hour_ns)
    assert not choice.refused
    choice.record_failure("no memory", 9 * hour_ns + 1)
    choice.record_failure("no memory", 9 * hour_ns + 2)
    assert choice.refused


def test_decode_gpu_wants_the_decoder(board: type[Decoding], monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(DeviceError, "cannot be decoded on the GPU", why="mjpeg, h264"):
        take(usb(format="yuyv422", decode="gpu"), 1)
    monkeypatch.setattr(camera, "jetson_missing", lambda: "GStreamer has no nvv4l2decoder: sudo apt install it")
    with pytest.raises(DeviceError, match="cannot be decoded on the GPU"):
        take(usb(format="mjpeg", decode="gpu"), 1)
