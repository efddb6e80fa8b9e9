"""CSI cameras: the pipeline that is written, and what their absence is called. No board was used."""

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from edgert.clock import REAL
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, DeviceError
from edgert.stages.context import Context
from edgert.stages.source import camera, gst, gst_pipelines, live
from edgert.stages.source.kinds import is_live
from tests.helpers.errors import Exactly, raises
from tests.helpers.virtual_clock import VirtualClock
from tests.unit.board.tree import jetson

END = "nvvidconv bl-output=false output-buffers=10 ! video/x-raw(memory:NVMM),format=NV12"


def config(**options: object) -> SourceStage:
    return SourceStage.model_validate({"source": "csi://0", **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, f"nvarguscamerasrc sensor-id=1 ! video/x-raw(memory:NVMM),format=NV12 ! {END}"),
        (
            {"size": "1920x1080", "fps": 30, "sensor_mode": 0},
            "nvarguscamerasrc sensor-id=1 sensor-mode=0 ! "
            f"video/x-raw(memory:NVMM),format=NV12,width=1920,height=1080,framerate=30/1 ! {END}",
        ),
        (
            {"size": "1920x1080", "flip": 90, "fps": 29.97},
            "nvarguscamerasrc sensor-id=1 ! video/x-raw(memory:NVMM),format=NV12,width=1920,height=1080,"
            "framerate=30000/1001 ! nvvidconv bl-output=false output-buffers=10 flip-method=3 ! "
            "video/x-raw(memory:NVMM),format=NV12,width=1080,height=1920",
        ),
        (
            {"options": {"wbmode": 3, "exposuretimerange": "100000 20000000", "aelock": True}},
            'nvarguscamerasrc sensor-id=1 wbmode=3 exposuretimerange="100000 20000000" aelock=true ! '
            f"video/x-raw(memory:NVMM),format=NV12 ! {END}",
        ),
    ],
)
def test_the_pipeline_is_the_boards(options: dict[str, object], text: str) -> None:
    assert gst_pipelines.csi(1, config(**options)) == text


def test_it_is_live_and_its_frames_stay_in_video_memory_or_come_to_the_host() -> None:
    pipeline = gst_pipelines.csi(0, config(size="1280x720"))
    assert gst.names_live(pipeline) and is_live(config())
    there = gst.with_appsink(pipeline, drop=True, sync=False, nvmm=True)
    assert "max-buffers=2 drop=true sync=false" in there and there.count("nvvidconv") == 1
    assert "NV12 ! nvvidconv ! appsink" in gst.with_appsink(pipeline, drop=True, sync=False)


def test_an_option_cannot_write_another_element() -> None:
    text = gst_pipelines.csi(0, config(options={"wbmode": '3 ! filesink location="x"'}))
    assert r'wbmode="3 ! filesink location=\"x\""' in text


@pytest.mark.parametrize(
    ("source", "options", "what"), [("csi://x", {}, "is no CSI camera"), ("csi://0", {"flip": 90}, "size: is missing")]
)
def test_what_cannot_be_asked_for_is_refused(source: str, options: dict[str, object], what: str) -> None:
    with raises(ConfigError, what, fix=True):
        camera.csi_source("cam", config(source=source, **options), Context(clock=VirtualClock()))


def sensor(root: Path, number: int) -> None:
    (root / "dev").mkdir(exist_ok=True)
    (root / f"dev/video{number}").touch()
    node = root / f"sys/class/video4linux/video{number}"
    node.mkdir(parents=True)
    (node / "name").write_text(f"vi-output, imx219 {9 + number}-0010\n")


def test_a_camera_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    def error(number: int, why: str = "its stream ended") -> DeviceError:
        return camera.no_camera(number, "stages.cam", why, tmp_path)

    assert "apt install nvidia-l4t-gstreamer" in (error(0, 'no element "nvarguscamerasrc"').fix or "")
    found = error(0)
    assert found.what == "CSI camera 0 gives no images" and "no /tmp/argus_socket" in found.why
    assert "-v /tmp:/tmp " in (found.fix or "")
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp/argus_socket").touch()
    assert "no CSI sensor is seen" in error(0).why and "jetson-io" in (error(0).fix or "")
    sensor(tmp_path, 0)
    assert "1 CSI sensors are seen here: vi-output, imx219 9-0010" in error(1).why and error(1).fix == "source: csi://0"
    assert "size and fps" in (error(0).fix or "")


@pytest.mark.parametrize(
    ("release", "kind", "words"),
    [("38.4.0", live.FinalError, "Jetson Linux 38.4.0 has no Argus"), ("39.2.0", DeviceError, "from JetPack 7.2 on")],
)
def test_on_a_thor_the_error_has_other_advice(
    release: str, kind: type[DeviceError], words: str, tmp_path: Path
) -> None:
    major, _, minor = release.partition(".")
    jetson(tmp_path, ("nvidia,p4071-0000+p3834-0008", "nvidia,tegra264"), 125_772)
    (tmp_path / "etc/nv_tegra_release").write_text(f"# R{major} (release), REVISION: {minor}, GCID: 1\n")
    found = camera.no_camera(0, "stages.cam", "its stream ended", tmp_path)
    assert type(found) is kind and words in found.why
    assert "jetson-io" not in (found.fix or "") and "USB or network camera" in (found.fix or "")


class Hasty(VirtualClock):
    """Remembers how long it was asked to wait, up to a number of tries."""

    def __init__(self, tries: int) -> None:
        super().__init__()
        self.waits, self.tries, self.over = list[float](), tries, threading.Event()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.waits.append(seconds)
        if len(self.waits) == self.tries:
            self.over.set()
        return event.wait(0.001 if len(self.waits) < self.tries else None)


def test_a_lost_csi_camera_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "JITTER", 0)
    monkeypatch.setattr(gst, "gstreamer", lambda where: (None, None))
    monkeypatch.setattr(gst, "Pipeline", Ended)
    clock, stop = Hasty(10), threading.Event()
    source = camera.csi_source("cam", config(start="wait"), Context(clock=clock))
    reading = threading.Thread(target=lambda: list(source.frames(stop)))
    reading.start()
    assert clock.over.wait(10)
    stop.set()
    reading.join(10)
    assert clock.waits == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


class Ended(gst.Pipeline):
    """A pipeline that gives what nvarguscamerasrc gives where no camera is: the end."""

    def __init__(self, *arguments: Any, lost: Any, endless: bool) -> None:
        self._lost, self._endless, self._nvmm, self._clock, self._where = lost, endless or bool(lost), None, REAL, ""
        self._sink, self.failure = Mock(), lambda: None  # type: ignore[method-assign]
        self._sink.try_pull_sample.return_value = None

    def close(self) -> None:
        pass


def test_the_end_of_a_cameras_stream_is_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gst, "gstreamer", lambda where: (None, None))
    monkeypatch.setattr(gst, "Pipeline", Ended)
    source = camera.csi_source("cam", config(reconnect=False), Context(clock=VirtualClock()))
    assert source.live
    with raises(DeviceError, "CSI camera 0 gives no images", why="its stream ended", where=Exactly("stages.cam")):
        next(iter(source.frames(threading.Event())))


def test_without_reconnect_or_gstreamer_the_first_failure_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, lost: Any, endless: bool) -> None:
        raise lost('no element "nvarguscamerasrc"')

    monkeypatch.setattr(gst, "gstreamer", lambda where: (None, None))
    monkeypatch.setattr(gst, "Pipeline", refuse)
    source = camera.csi_source("cam", config(), Context(clock=VirtualClock()))
    with raises(DeviceError, "CSI camera 0", fix="nvidia-l4t-gstreamer"):
        next(iter(source.frames(threading.Event())))
