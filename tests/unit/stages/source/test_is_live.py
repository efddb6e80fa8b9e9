"""What a source is called before it is made is what it calls itself afterwards."""

from pathlib import Path
from typing import Any

import pytest

from edgert.config import SourceStage
from edgert.installation import demo_images
from edgert.stages.context import Context
from edgert.stages.source.gst import names_live
from edgert.stages.source.kinds import is_live, source_for, starts_over


@pytest.mark.parametrize("realtime", [None, True, False])
@pytest.mark.parametrize(
    ("source", "live"),
    [
        ("api", False),
        (demo_images(), False),
        ("rtsp://camera.example/stream", True),
        ("https://example.com/clip.mp4?x=1", False),
        ("https://example.com/live.m3u8", True),
        ("v4l2:///dev/video0", True),
        ("synthetic:blank", False),
    ],
)
def test_as_the_source_says(source: str, live: bool, realtime: bool | None, tmp_path: Path) -> None:
    if source == "api" and realtime is not None:
        pytest.skip("realtime has no meaning for source: api")
    config = SourceStage(source=source, realtime=realtime)
    made = source_for("cam", config, Context(tmp_path))
    assert is_live(config, tmp_path) == made.live == (live if realtime is None else realtime)


def test_files_never_are(tmp_path: Path) -> None:
    assert not is_live(SourceStage(source="clip.mp4", realtime=True), tmp_path)
    assert not is_live(SourceStage(source="images:photos/*.jpg"), tmp_path)


def test_gstreamer_pipelines_are_where_an_element_is() -> None:
    assert names_live("nvarguscamerasrc ! nvvidconv")
    assert is_live(SourceStage(source="gst:v4l2src ! videoconvert"))
    assert not is_live(SourceStage(source="gst:filesrc location=a.mp4 ! decodebin"))


@pytest.mark.parametrize(
    ("keys", "again"),
    [
        ({"source": "clip.mp4"}, True),
        ({"source": "clip.mp4", "realtime": True}, True),
        ({"source": "clip.mp4", "loop": True}, False),
        ({"source": "clip.mp4", "loop": True, "limit": 9}, True),
        ({"source": "images:photos/*.jpg"}, True),
        ({"source": "https://example.com/clip.mp4"}, True),
        ({"source": "rtsp://camera.example/stream", "realtime": False}, False),
        ({"source": "v4l2:///dev/video0", "realtime": False, "limit": 9}, False),
        ({"source": "gst:v4l2src ! videoconvert", "limit": 9}, False),
        ({"source": "synthetic:noise", "limit": 9}, True),
        ({"source": "synthetic:noise", "limit": 9, "realtime": True}, False),
        ({"source": "synthetic:noise"}, False),
        ({"source": "api", "limit": 9}, False),
    ],
)
def test_what_another_run_takes_again(keys: dict[str, Any], again: bool) -> None:
    assert starts_over(SourceStage(**keys)) == again
