"""What is done to a GStreamer pipeline's text; running one is an integration test. No password comes through."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from edgert.config.stages import SourceStage
from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.stages.context import Context
from edgert.stages.source import gst
from edgert.stages.source.live import redact
from tests.helpers.errors import Exactly, raises
from tests.helpers.virtual_clock import VirtualClock


def test_an_appsink_is_added_once() -> None:
    text = gst.with_appsink("videotestsrc ! videoconvert ! ", drop=True, sync=False)
    assert text.startswith("videotestsrc ! videoconvert ! appsink name=edgert max-buffers=2 drop=true sync=false caps=")
    assert "NV12,I420,YUY2,BGR,RGB,GRAY8" in text
    own = "videotestsrc ! appsink name=edgert max-buffers=1"
    assert gst.with_appsink(own, drop=False, sync=False) == own
    other = "videotestsrc ! tee name=t ! appsink name=other t. ! queue"
    assert gst.with_appsink(other, drop=False, sync=True).endswith('}"')


@pytest.mark.parametrize(
    ("pipeline", "live"),
    [
        ("nvarguscamerasrc ! nvvidconv", True),
        ("v4l2src device=/dev/video0", True),
        ("rtspsrc location=x ! rtph264depay", True),
        ("uridecodebin uri=rtsp://cam/live", True),
        ("videotestsrc is-live=true", True),
        ("videotestsrc is-live = 1", True),
        ("videotestsrc", False),
        ("videotestsrc is-live=false", False),
        ("filesrc location=v4l2src.mp4 ! decodebin", True),
        ("filesrc location=a.mp4 ! decodebin", False),
    ],
)
def test_live_by_its_elements_unless_the_user_says(pipeline: str, live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gst, "gstreamer", lambda where: (None, None))

    def make(**options: object) -> bool:
        config = SourceStage.model_validate({"source": f"gst:{pipeline}", **options})
        return gst.gst_source("cam", config, Context(clock=VirtualClock()), pipeline).live

    assert make() is live
    assert make(realtime=True) is True
    assert make(realtime=False) is False


def test_a_missing_binding_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named '{name}'")

    gst._modules.cache_clear()
    monkeypatch.setattr(importlib, "import_module", missing)
    with raises(DeviceError, why="No module named 'gi'", fix="apt install python3-gi"):
        gst.gstreamer("stages.cam")
    gst._modules.cache_clear()


def test_a_pipeline_that_does_not_start_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = SimpleNamespace(pop_filtered=lambda kind: None)
    pipeline = SimpleNamespace(get_bus=lambda: bus, get_by_name=lambda name: None, set_state=lambda state: "failure")
    names = {"PLAYING": 1, "NULL": 0, "ERROR": 2, "FAILURE": "failure"}
    kinds = dict.fromkeys(("State", "StateChangeReturn", "MessageType"), SimpleNamespace(**names))
    found = SimpleNamespace(parse_launch=lambda text: pipeline, **kinds)
    monkeypatch.setattr(gst, "gstreamer", lambda where: (found, None))
    monkeypatch.setitem(sys.modules, "gi.repository.GLib", SimpleNamespace(Error=RuntimeError))
    with raises(DeviceError, why=Exactly("it did not start")):
        gst.Pipeline("videotestsrc", True, 1.0, Counter(), VirtualClock(), "stages.cam", None)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://bob:s3cret@cam.local/live", "rtsp://***@cam.local/live"),
        ("rtsp://s3cret@cam.local/live", "rtsp://***@cam.local/live"),
        ("rtsp://bob:s3cret@x@cam/live", "rtsp://***@cam/live"),
        ("rtsp://bob:s3/cret@cam/live", "rtsp://***@cam/live"),
        ("cannot open 'rtsp://bob:s3cret@cam/a' again", "cannot open 'rtsp://***@cam/a' again"),
        ("http://cam/video?user=bob&password=s3cret&fps=5", "http://cam/video?user=bob&password=***&fps=5"),
        ("http://cam/v?token=s3cret", "http://cam/v?token=***"),
        ("rtsp://cam/user=bob_password=s3cret_channel=1", "rtsp://cam/user=bob_password=***"),
        (
            'rtspsrc location=rtsp://cam/1 user-id=bob user-pw="s3cret" ! x',
            "rtspsrc location=rtsp://cam/1 user-id=bob user-pw=*** ! x",
        ),
        ("no secret here: 3@4", "no secret here: 3@4"),
        ("rtsp://cam.local:554/live", "rtsp://cam.local:554/live"),
    ],
)
def test_secrets_are_hidden_and_the_rest_stays(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert "cret" not in redact(text) or "s3" not in redact(text)
