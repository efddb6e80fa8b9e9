"""What a source would deliver is looked at, as far as that is quick."""

import os
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from edgert.config import PipelineFile, SourceStage, load_pipeline
from edgert.planner import plan
from edgert.planner.planning import plan_boards
from edgert.planner.simulation import Scenario, simulate
from edgert.stages.source import v4l2_modes
from edgert.stages.source.delivered import Delivered, as_delivered, delivered
from tests.unit.planner.test_planning import pipeline


def clip(path: Path, rate: Fraction = Fraction(25, 2)) -> Path:
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(3):
            frame = av.VideoFrame.from_ndarray(np.zeros((64, 96, 3), np.uint8), "bgr24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def source(text: str, **more: object) -> SourceStage:
    return SourceStage.model_validate({"source": text, **more})


def test_a_video_has_its_size_and_rate(tmp_path: Path) -> None:
    clip(tmp_path / "cars.mp4")
    expected = Delivered((96, 64), 12.5, "cars.mp4")
    assert delivered(source("cars.mp4"), tmp_path) == expected == delivered(source("videos:*.mp4"), tmp_path)
    assert delivered(source(f"file://{tmp_path}/cars.mp4"), tmp_path) == expected


def test_an_image_has_a_size_and_no_rate(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((20, 30, 3), np.uint8))
    assert delivered(source("images:*.png"), tmp_path) == Delivered((30, 20), None, "a.png")


def test_a_camera_has_what_it_is_set_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offered = {"YUYV": ((5.0, 30.0),), "MJPG": ((5.0, 60.0),)}
    monkeypatch.setattr(v4l2_modes, "offers", lambda path, size, kernel: (size or (640, 480), offered))
    found = delivered(source("/dev/null"), tmp_path)
    assert found == Delivered((640, 480), 60.0, "/dev/null of this machine")
    assert delivered(source("usb:63"), tmp_path) is None  # which is not there


def test_what_cannot_be_looked_at_is_nothing_and_nothing_waits(tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    os.mkfifo(tmp_path / "pipe.mp4")
    for text in ("broken.mp4", "pipe.mp4", "absent.mp4", "images:*.png", "videos:*.mkv", "rtsp://10.0.0.1/a", "api"):
        assert delivered(source(text), tmp_path) is None, text


def cars(tmp_path: Path, more: str = "") -> PipelineFile:
    pipeline(tmp_path)
    clip(tmp_path / "cars.mp4")
    text = (tmp_path / "p.yaml").read_text().replace("'usb:0', fps: 30", f"cars.mp4{more}")
    (tmp_path / "p.yaml").write_text(text)
    return load_pipeline(tmp_path / "p.yaml")


@pytest.mark.parametrize(
    ("written", "size", "fps", "note"),
    [
        ("", (96, 64), 12.5, "cam: 96x64, 12.5 fps, from cars.mp4"),
        (", fps: 5", (96, 64), 5.0, "cam: 96x64, from cars.mp4"),
        (", size: 32x32", (32, 32), 12.5, "cam: 12.5 fps, from cars.mp4"),
        (", size: 32x32, fps: 5", (32, 32), 5.0, ""),
    ],
)
def test_what_the_file_writes_stays(tmp_path: Path, written: str, size: tuple[int, int], fps: float, note: str) -> None:
    found, notes = as_delivered(cars(tmp_path, written))
    stage = found.config.stages["cam"]
    assert isinstance(stage, SourceStage) and (stage.size, stage.fps) == (size, fps)
    assert notes == ((note,) if note else ())


def test_a_plan_and_a_simulation_are_of_the_video_they_are_given(tmp_path: Path) -> None:
    file = cars(tmp_path)
    made = plan(file, mode="15W")
    row = made.boards[0].rows[0]
    assert row.requested_fps == 12.5 and not any("assumed" in note for note in made.notes if note.startswith("cam"))
    assert "cam: 96x64, 12.5 fps, from cars.mp4" in made.notes
    assert any("96x64" in part.note for part in row.memory)
    played = simulate(file, mode="15W", scenario=Scenario(2.0))
    assert "cam: 96x64, 12.5 fps, from cars.mp4" in played.notes and played.played.frames_out == 25
    assert plan_boards(file, mode="15W", look=False).boards[0].rows[0].requested_fps == 30
