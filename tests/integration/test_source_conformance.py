"""What every source promises, asked of every source."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np
import pytest

from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.installation import demo_images
from edgert.kinds import SOURCES
from edgert.memory import Counter, lend
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source import camera, ffmpeg
from edgert.stages.source.api import ApiSource
from edgert.stages.source.kinds import source_for
from edgert.stages.source.timeline import Image
from edgert.testing import SourceSuite
from tests.helpers.clips import SIZE, h264_units, numbered, write_clip
from tests.helpers.rtsp_server import RtspServer

COUNT = 12


@dataclass(frozen=True)
class Made:
    """A source that gives many frames, its counter, and whether it is a live one."""

    source: Source
    counter: Counter
    live: bool


class Loopback:
    """A camera that never ends, in place of FFmpeg."""

    skipped, waiting_since_ns, ending = 0, None, ""

    def __init__(self, *_: object, **__: object) -> None:
        self.counter = Counter()

    def images(self) -> Iterator[Image]:
        while True:
            time.sleep(0.005)
            image = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
            yield Image("bgr", (image,), lend(image, self.counter), REAL.now_ns())

    def close(self) -> None: ...


def _by_line(line: str, live: bool, directory: Path, **options: object) -> Made:
    counter = Counter()
    config = SourceStage.model_validate({"source": line, **options})
    return Made(source_for("cam", config, Context(directory, counter=counter)), counter, live)


@contextmanager
def _file(directory: Path) -> Iterator[Made]:
    write_clip(directory / "clip.mp4", 30)
    yield _by_line("clip.mp4", False, directory, loop=True)


@contextmanager
def _images(directory: Path) -> Iterator[Made]:
    for number, image in enumerate(numbered(5)):
        cv2.imwrite(str(directory / f"{number}.png"), image)
    yield _by_line("images:*.png", False, directory, loop=True)


@contextmanager
def _scene(directory: Path) -> Iterator[Made]:
    yield _by_line("synthetic:counter", False, directory, size="320x240")


@contextmanager
def _code(directory: Path) -> Iterator[Made]:
    yield _by_line(demo_images(), False, directory, size="320x240")


@contextmanager
def _live_scene(directory: Path) -> Iterator[Made]:
    yield _by_line("synthetic:noise", True, directory, size="320x240", realtime=True)


@contextmanager
def _rtsp(directory: Path) -> Iterator[Made]:
    with RtspServer(h264_units(20)) as server:
        yield _by_line(server.url, True, directory)


@contextmanager
def _camera(directory: Path) -> Iterator[Made]:
    counter = Counter()
    config = SourceStage.model_validate({"source": "usb:0"})
    with patch.object(ffmpeg, "Video", Loopback), patch.object(camera, "check_device"):
        yield Made(camera.camera_source("cam", config, Context(counter=counter)), counter, True)


@contextmanager
def _gst(directory: Path) -> Iterator[Made]:
    pytest.importorskip("gi", reason="PyGObject (gi) is not installed: sudo apt install python3-gi")
    yield _by_line("gst:videotestsrc ! video/x-raw,format=NV12,width=320,height=240", False, directory)


@contextmanager
def _csi(directory: Path) -> Iterator[Made]:
    pytest.importorskip("gi", reason="PyGObject (gi) is not installed: sudo apt install python3-gi")
    text = "videotestsrc is-live=true ! video/x-raw,format=NV12,width=320,height=240,framerate=100/1"
    with patch.object(camera, "csi", lambda sensor, config: text):
        yield _by_line("csi://0", True, directory)


@contextmanager
def _api(directory: Path) -> Iterator[Made]:
    made = _by_line("api", False, directory, queue=COUNT)
    api = made.source
    assert isinstance(api, ApiSource)
    for _ in range(COUNT):
        api.submit(np.zeros((SIZE[1], SIZE[0], 3), np.uint8))
    yield made


KINDS: dict[str, Callable[[Path], Any]] = {
    "file": _file,
    "images": _images,
    "code": _code,
    "scene": _scene,
    "live scene": _live_scene,
    "rtsp": _rtsp,
    "camera": _camera,
    "gst": _gst,
    "csi": _csi,
    "api": _api,
}


@pytest.fixture(params=sorted(KINDS))
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    with KINDS[request.param](tmp_path) as one:
        yield one
        one.source.close()


class TestEverySource(SourceSuite):
    @pytest.fixture
    def source(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> Source:
        monkeypatch.setattr(type(self), "live", made.live, raising=False)
        return made.source


def test_frames_have_the_size_asked_for_and_are_not_copied(made: Made) -> None:
    stop = threading.Event()
    stream = made.source.frames(stop)
    for _ in range(COUNT):
        frame = next(stream)
        assert (frame.width, frame.height) == SIZE
        frame.lease.release()
    assert made.counter.read().copies == 0
    stop.set()
    for frame in stream:
        frame.lease.release()


def test_every_kind_is_asked() -> None:
    """A kind that was added is added above, too."""
    asked = {
        SOURCES.get(name)
        for name in ("file", "images", "python", "synthetic", "network", "camera", "csi", "gst", "api")
    }
    asked.add(SOURCES.get("nats"))  # test_machines.py asks it: others bring its frames
    asked.add(SOURCES.get("ros2"))  # so do test_ros2_rclpy.py, test_bag.py and test_replay.py of these
    asked |= {SOURCES.get("bag"), SOURCES.get("recording")}
    asked.add(SOURCES.get("videos"))  # makes no frames: edgert.video_runs plays each of its files as a file
    assert {SOURCES.get(name) for name in SOURCES.own} == asked
