"""Which format a USB camera is asked for, and what is said of its rate; the driver is stood in for."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgert.board.devices import CameraDevice
from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.memory import Counter, lend
from edgert.stages.context import Context
from edgert.stages.source import camera, ffmpeg, gst, v4l2_modes
from edgert.stages.source.timeline import Image
from edgert.stages.source.v4l2_modes import RateCheck, nearest, offers, wants_mjpeg
from tests.helpers.usb_camera import UsbCamera
from tests.helpers.virtual_clock import VirtualClock

HD, VGA = (1280, 720), (640, 480)


def test_modes_are_listed_with_their_rates() -> None:
    kernel = UsbCamera()
    size, found = offers("/dev/video0", HD, kernel)
    assert size == HD and found == {"YUYV": ((10, 10), (5, 5)), "MJPG": ((30, 30), (15, 15))}
    assert v4l2_modes.describe_rates(found) == "YUYV 10, MJPG 30"
    assert offers("/dev/video0", (1920, 1080), kernel)[1] == {"MJPG": ((30, 30),)}
    assert offers("/dev/video0", None, kernel)[0] == HD, "the size that it is set to"
    assert kernel.opened == kernel.closed == 3


@pytest.mark.parametrize("kernel", [UsbCamera(is_there=False), UsbCamera(lists=False), UsbCamera(modes={})])
def test_what_cannot_be_listed_is_not_known(kernel: UsbCamera) -> None:
    assert offers("/dev/video0", HD, kernel) == (HD, {})
    assert kernel.opened == kernel.closed


def test_ranges_of_sizes_and_rates() -> None:
    kernel = UsbCamera({"YUYV": {VGA: (5, 60), (1920, 1088): (5, 60)}}, stepwise=True)
    assert offers("/dev/video0", HD, kernel)[1] == {"YUYV": ((5, 60),)}
    assert offers("/dev/video0", (644, 480), kernel)[1] == {}, "no step of 16"
    assert offers("/dev/video0", (320, 240), kernel)[1] == {}


@pytest.mark.parametrize(
    ("size", "fps", "mjpeg"),
    [(HD, 30, True), (HD, 10, False), (HD, 11, False), (HD, None, True), (VGA, 30, False), ((1920, 1080), 15, True)],
)
def test_mjpeg_is_taken_where_raw_is_slower_than_asked(size: tuple[int, int], fps: float | None, mjpeg: bool) -> None:
    assert wants_mjpeg(offers("/dev/video0", size, UsbCamera())[1], fps) is mjpeg


def test_mjpeg_that_is_no_faster_is_not_taken() -> None:
    both = {"YUYV": ((10.0, 10.0),), "MJPG": ((10.0, 10.0),)}
    assert not wants_mjpeg(both, 30) and not wants_mjpeg({"MJPG": ()}, 30) and not wants_mjpeg({}, 30)
    assert not wants_mjpeg({"GREY": ((5.0, 5.0),), "YUYV": ((30.0, 30.0),), "MJPG": ((60.0, 60.0),)}, 30)


def test_the_nearest_rate_that_a_format_has() -> None:
    found = offers("/dev/video0", HD, UsbCamera())[1]
    assert (nearest(found, "MJPG", 25), nearest(found, "MJPG", 16), nearest(found, "H264", 25)) == (30, 15, 25)
    assert nearest({"MJPG": ((5.0, 60.0),)}, "MJPG", 25) == 25


class Giving:
    """A camera that gives so many frames per second, by a clock of its own."""

    skipped, waiting_since_ns, ending = 0, None, ""

    def __init__(self, clock: VirtualClock, fps: float, lost: int = 0) -> None:
        self.clock, self.period_s, self.lost = clock, 1 / fps, lost
        self.is_closed = False

    def images(self) -> Iterator[Image]:
        while True:
            self.clock.wait(threading.Event(), self.period_s)
            yield Image("gray", (np.zeros((6, 8), np.uint8),), lend(None, Counter()), 0, lost=self.lost)

    def close(self) -> None:
        self.is_closed = True


def run(gives: float, seconds: float, held_s: float = 0.0, lost: int = 0) -> None:
    """Opens a camera that was asked for a rate, and takes its images for so long."""
    clock = VirtualClock()
    check, device = RateCheck("stages.cam", "/dev/video0", 30, clock), Giving(clock, gives, lost)
    opened = check.watch(device, offers("/dev/video0", HD, UsbCamera())[1])
    for image in opened.images():
        clock.wait(threading.Event(), held_s)
        image.lease.release()
        if clock.now_ns() > seconds * 1e9:
            break
    opened.close()
    assert device.is_closed and (opened.skipped, opened.waiting_since_ns, opened.ending) == (0, None, "")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("gives", "held_s", "lost", "words"),
    [
        (15, 0, 0, "15 arrive"),
        (30, 0, 0, ""),
        (27.5, 0, 0, ""),
        (30, 0.1, 0, ""),  # who takes them is slow
        (15, 0, 1, ""),  # the camera gave twice as many
    ],
)
def test_a_rate_that_does_not_arrive_is_one_warning(
    gives: float, held_s: float, lost: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(gives, 40, held_s, lost)
    lines = warnings(caplog)
    assert len(lines) == bool(words)
    fixes = "YUYV 10, MJPG 30", "exposure_dynamic_framerate=0"
    assert all(word in line for line in lines for word in (words, "fps: 30 is requested from camera", *fixes))


def test_a_camera_that_finds_its_exposure_first_is_not_blamed(caplog: pytest.LogCaptureFixture) -> None:
    run(15, 5.5)
    assert warnings(caplog) == []


class Opened:
    """What camera_source opened: options of FFmpeg, or the text of a GStreamer pipeline."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def video(self, target: str, *_: object, **options: Any) -> Any:
        self.seen.append(options["options"])
        raise DeviceError("seen enough")

    def pipeline(self, text: str, *_: object, **options: object) -> Any:
        self.seen.append(text)
        return Giving(VirtualClock(), 30)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    made = Opened()
    monkeypatch.setattr(camera, "check_device", lambda path, where: None)
    monkeypatch.setattr(camera, "Kernel", UsbCamera)
    monkeypatch.setattr(ffmpeg, "Video", made.video)
    monkeypatch.setattr(gst, "Pipeline", made.pipeline)
    return made


def first(**options: object) -> None:
    config = SourceStage.model_validate({"source": "usb:0", "start": "fail", "reconnect": False, **options})
    next(camera.camera_source("cam", config, Context()).frames(threading.Event()), None)


@pytest.mark.parametrize(
    ("letters", "number", "fix"), [("RG10", 0, "csi://0"), ("BA12", 9, "gst:"), ("BA81", 0, ""), ("UYVY", 0, "")]
)
def test_a_bare_csi_sensor_is_refused_with_the_way_to_it(
    letters: str, number: int, fix: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camera, "Kernel", lambda: UsbCamera({letters: {HD: (60,)}}, letters))
    sensor = CameraDevice(f"/dev/video{number}", "vi-output, imx219 9-0010", "tegra-video", True)
    monkeypatch.setattr(camera, "csi_sensors", lambda: (sensor,))
    with pytest.raises(DeviceError) as caught:
        first()
    assert (fix in caught.value.fix and letters in caught.value.why) if fix else opened.seen


@pytest.mark.parametrize(
    ("options", "format"),
    [
        ({"size": "1280x720", "fps": 30}, "mjpeg"),
        ({"size": "1280x720"}, "mjpeg"),
        ({"fps": 30}, "mjpeg"),
        ({"size": "640x480", "fps": 30}, None),
        ({"size": "1280x720", "fps": 10}, None),
        ({"size": "1280x720", "fps": 30, "format": "yuyv422"}, "yuyv422"),
    ],
)
def test_ffmpeg_is_asked_for_the_format_that_suits(
    options: dict[str, object], format: str | None, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "edgert.source"), pytest.raises(DeviceError, match="seen enough"):
        first(**options)
    assert opened.seen[0].get("input_format") == format
    is_chosen = "format" not in options and format is not None
    line = "MJPEG is requested from camera /dev/video0; frames/s at 1280x720: YUYV 10, MJPG 30"
    assert (line in caplog.text) == is_chosen


@pytest.mark.parametrize(
    ("options", "caps"),
    [
        ({"size": "1280x720", "fps": 30}, "image/jpeg,width=1280,height=720,framerate=30/1"),
        ({"size": "1280x720", "fps": 25}, "image/jpeg,width=1280,height=720,framerate=30/1"),
        ({"size": "640x480", "fps": 30, "decode": "gpu"}, "image/jpeg,width=640,height=480,framerate=30/1"),
    ],
)
def test_on_a_board_mjpeg_goes_to_its_decoder_at_a_rate_that_the_camera_has(
    options: dict[str, object], caps: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camera, "jetson_missing", lambda: "")
    first(**options)
    assert f"! {caps} ! jpegparse ! nvv4l2decoder mjpeg=1 !" in opened.seen[0]


def test_on_a_thor_mjpeg_is_the_processors(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(camera, "jetson_missing", lambda: "")
    monkeypatch.setattr(camera, "missing_mjpeg", lambda: "the decoder of a Jetson Thor takes no MJPEG")
    with pytest.raises(DeviceError, match="seen enough"):
        first(size="1280x720", fps=30)
    assert opened.seen == [{"video_size": "1280x720", "framerate": "30", "input_format": "mjpeg"}]
    with pytest.raises(DeviceError, match="cannot be decoded on the GPU") as caught:
        first(size="1280x720", fps=30, decode="gpu")
    assert "Thor takes no MJPEG" in caught.value.why and "leave decode: out" in caught.value.fix
