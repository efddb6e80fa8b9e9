"""What a ``source:`` line means, and which options it may have."""

import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, EdgertError, StageError
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source.kinds import kind_of, source_for
from tests.helpers.errors import Exactly, raises
from tests.helpers.virtual_clock import VirtualClock


def make(source: str, directory: Path = Path(), **options: object) -> Source:
    config = SourceStage.model_validate({"source": source, **options})
    return source_for("cam", config, Context(directory, clock=VirtualClock()))


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("dock.mp4", "file"),
        ("file:///tmp/dock.mp4", "file"),
        ("C:\\dock.mp4", "file"),
        ("rtsp://cam/live", "network"),
        ("RTSP://cam/live", "network"),
        ("https://host/live.m3u8", "network"),
        ("v4l2:///dev/video0", "camera"),
        ("/dev/video0", "camera"),
        ("usb:0", "camera"),
        ("csi://0", "csi"),
        ("images:calib/*.jpg", "images"),
        ("photos/*.jpg", "images"),
        ("photo.JPG", "images"),
        ("gst:videotestsrc", "gst"),
        ("synthetic:noise", "synthetic"),
        ("python:conveyor:Conveyor", "python"),
        ("api", "api"),
        ("rtps://cam/live", ""),
        ("ftp://host/clip.mp4", ""),
    ],
)
def test_kinds(source: str, kind: str) -> None:
    assert kind_of(source) == kind


def test_a_folder_is_images_and_an_existing_file_with_a_colon_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "cam:1.mp4").write_bytes(b"")
    assert kind_of("photos", tmp_path) == "images"
    assert kind_of("cam:1.mp4", tmp_path) == "file"


def test_relative_paths_start_at_the_pipeline_file(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "a.png"), np.zeros((4, 4, 3), np.uint8))
    assert make("photos", tmp_path).live is False
    assert make("images:photos/*.png", tmp_path).live is False
    with raises(StageError, what=str(tmp_path / "clips" / "a.mp4")):
        make("clips/a.mp4", tmp_path)


def test_an_unknown_scheme_names_the_known_and_the_nearest() -> None:
    with raises(ConfigError, what="did you mean 'rtsp", where=Exactly("stages.cam.source"), fix="synthetic:") as caught:
        make("rtps://bob:s3cret@cam/live")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "options", "key"),
    [
        ("rtsp://bob:s3cret@cam/live", {"loop": True}, "loop"),
        ("usb:0", {"loop": True}, "loop"),
        ("csi://0", {"loop": True}, "loop"),
        ("gst:videotestsrc", {"loop": True}, "loop"),
        ("synthetic:blank", {"loop": True}, "loop"),
        ("api", {"realtime": True}, "realtime"),
    ],
)
def test_options_without_meaning_are_refused_with_a_reason(source: str, options: dict[str, object], key: str) -> None:
    with raises(ConfigError, f"{key}: has no meaning", why=True, where=Exactly(f"stages.cam.{key}")) as caught:
        make(source, **options)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("option", [{"size": "640x480"}, {"format": "mjpeg"}, {"sensor_mode": 2}, {"flip": 180}])
def test_what_stands_in_for_a_camera_is_told_what_it_ignores(
    option: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    make("rtsp://bob:s3cret@cam/live", **option)
    assert f"stages.cam.{next(iter(option))}: has no meaning for a network stream" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_file_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EdgertError, match="missing"):
        make("/missing.mp4", start="wait")
    assert "stages.cam.start: has no meaning for a video file; a file that is missing at the start" in caplog.text


@pytest.mark.parametrize("source", ["usb:x", "v4l2://video0", "rtsp://[bad"])
def test_malformed_addresses_are_edgerts_errors(source: str) -> None:
    with pytest.raises(EdgertError):
        next(iter(make(source).frames(threading.Event())))


def test_no_source_shows_its_password() -> None:
    source = make("rtsp://bob:s3cret@cam/live")
    assert "s3cret" not in repr(source)
    assert "s3cret" not in str(vars(source).get("_title"))
