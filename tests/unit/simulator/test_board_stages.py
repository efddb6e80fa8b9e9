"""Stages on a board, from a pipeline file."""

from pathlib import Path

import pytest

from edgert.board.record import find_board
from edgert.config import load_pipeline
from edgert.simulator.board_stages import BoardStages, board_stages

ORIN = find_board("orin-nx-16gb")
TEXT = """
models: {{net: {{onnx: m.onnx, task: {{detect: yolox}}}}}}
stages:
  cam: {source}
  look: {{infer: net, from: cam}}
{stages}
"""


def stages(folder: Path, source: str, more: str = "", board: str = "orin-nx-16gb") -> BoardStages:
    (folder / "m.onnx").touch()
    (folder / "p.yaml").write_text(TEXT.format(source=source, stages=more), encoding="utf-8")
    record = find_board(board)
    return board_stages(load_pipeline(folder / "p.yaml"), record, record.peak_mode)


@pytest.mark.parametrize(
    ("source", "unit"),
    [
        ("{source: film.mp4}", "nvdec"),
        ("{source: 'rtsp://host/stream'}", "nvdec"),
        ("{source: film.mp4, decode: cpu}", "cpu"),
        ("{source: 'images:*.jpg'}", "cpu"),
        ("{source: 'v4l2:///dev/video0', format: mjpeg}", "cpu"),
        ("{source: 'csi://0'}", ""),
    ],
)
def test_who_decodes(tmp_path: Path, source: str, unit: str) -> None:
    found = stages(tmp_path, source)
    assert [step.accelerator for step in found.own.get("cam", ())] == ([unit] if unit else [])
    assert found.unknown == () and not found.is_unmeasured


@pytest.mark.parametrize(
    ("board", "encode", "unit"),
    [("orin-nx-16gb", "auto", "nvenc"), ("orin-nx-16gb", "cpu", "cpu"), ("orin-nano-8gb", "auto", "cpu"),
     ("jetson-tx2-8gb", "auto", "cpu")],
)  # fmt: skip
def test_who_encodes(tmp_path: Path, board: str, encode: str, unit: str) -> None:
    video = f"  video: {{sink: video, from: look, path: out.mp4, encode: {encode}}}"
    (step,) = stages(tmp_path, "{source: 'csi://0', size: 1920x1080}", video, board).own["video"]
    assert step.accelerator == unit
    assert step.threads == (1 if unit == "nvenc" else 4)


@pytest.mark.parametrize(
    ("source", "board", "expected"),
    [
        ("{source: film.mp4}", "orin-nx-16gb", "NVDEC: as many streams as public copies of the board's"),
        ("{source: film.mp4}", "thor-t4000", "NVDEC: as many streams as is assumed of this board"),
        ("{source: 'csi://0'}", "thor-t4000", None),
    ],
)
def test_where_the_streams_of_a_unit_come_from(tmp_path: Path, source: str, board: str, expected: str | None) -> None:
    (note,) = [note for note in stages(tmp_path, source, board=board).notes if "streams" in note] or [""]
    assert note.startswith(expected) if expected else not note


def test_more_pixels_take_longer_and_a_narrow_drawing_less(tmp_path: Path) -> None:
    more = "  wide: {draw: boxes, from: look}\n  narrow: {draw: boxes, from: look, width: 480}"
    large = stages(tmp_path, "{source: 'csi://0', size: 1920x1080}", more)
    small = stages(tmp_path, "{source: 'csi://0', size: 640x480}", more)
    assert large.own["wide"][0].time_ms > small.own["wide"][0].time_ms > 0
    assert large.own["narrow"][0].time_ms < large.own["wide"][0].time_ms
    assert large.cores_ms > small.cores_ms


def test_what_nobody_measured_is_said_and_takes_no_time(tmp_path: Path) -> None:
    found = stages(tmp_path, "{source: 'python:json:loads'}", "  mine: {python: 'json:dumps', from: look}")
    assert found.unknown == ("cam", "mine") and found.is_unmeasured and "mine" not in found.own
    assert any("cam, mine: not measured" in note and "wider by 25%" in note for note in found.notes)
    alone = stages(tmp_path, "{source: 'python:json:loads'}")
    assert alone.unknown == ("cam",) and not alone.is_unmeasured
