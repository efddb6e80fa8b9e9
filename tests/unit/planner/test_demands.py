"""How often models run."""

from pathlib import Path

import pytest

from edgert.config import load_pipeline
from edgert.simulator.design import ASSUMED_HZ, Demand, demands

HEAD = """
models:
  big: {onnx: m.onnx, task: {detect: yolox}}
  small: {onnx: m.onnx, task: {classify: auto}}
  idle: {onnx: m.onnx, task: {classify: auto}}
stages:
"""


def found(tmp_path: Path, stages: str) -> dict[str, Demand]:
    (tmp_path / "m.onnx").touch()
    (tmp_path / "p.yaml").write_text(HEAD + stages)
    return {demand.model: demand for demand in demands(load_pipeline(tmp_path / "p.yaml").config)}


def test_a_model_runs_on_every_frame_and_one_that_no_stage_uses_does_not(tmp_path: Path) -> None:
    one = found(tmp_path, "  cam: {source: 'usb:0', fps: 15}\n  find: {infer: big, from: cam}\n")
    assert list(one) == ["big"]
    assert (one["big"].rate_hz, one["big"].notes) == (15, ())


def test_a_rate_that_nobody_told_is_assumed_and_said_so(tmp_path: Path) -> None:
    one = found(tmp_path, "  cam: {source: 'usb:0'}\n  find: {infer: big, from: cam}\n")["big"]
    assert one.rate_hz == ASSUMED_HZ
    assert one.notes[0] == "cam: 30 fps assumed; --set stages.cam.fps=15 plans for another rate"
    (other,) = demands(load_pipeline(tmp_path / "p.yaml", ["stages.cam.fps=15"]).config)
    assert other.rate_hz == one.rate_hz / 2 and not other.notes


def test_every_nth_frame_and_several_sources_and_stages_add_up(tmp_path: Path) -> None:
    stages = """
  a: {source: 'usb:0', fps: 30}
  b: {source: 'usb:1', fps: 10}
  find: {infer: big, from: [a, b], every: 2}
  again: {infer: big, from: a}
"""
    assert found(tmp_path, stages)["big"].rate_hz == pytest.approx((30 + 10) / 2 + 30)


def test_crops_count_up_to_their_limit_wherever_they_are_cut(tmp_path: Path) -> None:
    stages = """
  cam: {source: 'usb:0', fps: 10}
  find: {infer: big, from: cam}
  read: {infer: small, from: find, crop: {limit: 4}}
  cut: {crop: {limit: 3}, from: find}
  more: {infer: small, from: cut, every: 3}
"""
    small = found(tmp_path, stages)["small"]
    assert small.rate_hz == pytest.approx(10 * 4 + 10 * 3 / 3)
    assert small.notes == ("read: planned for 4 crops a frame",)


def test_every_tile_counts_and_so_does_the_whole_frame(tmp_path: Path) -> None:
    stages = """
  cam: {source: 'usb:0', fps: 10}
  find: {infer: big, from: cam, tiles: 3x2, every: 2}
  again: {infer: big, from: cam, tiles: {grid: 2x1, whole: false}}
"""
    big = found(tmp_path, stages)["big"]
    assert big.rate_hz == pytest.approx(10 * 7 / 2 + 10 * 2)
    assert big.notes[-1] == "again: planned for 2 tiles a frame"
