"""How long models keep a frame."""

from __future__ import annotations

from pathlib import Path

from edgert.config import PipelineConfig, load_pipeline
from edgert.planner.selection import longest_ms
from edgert.simulator.design import source_rates

TEXT = """
models:
  find: {onnx: m.onnx, task: {detect: yolox}}
  read: {onnx: m.onnx, task: {classify: auto}}
stages:
  a: {source: 'usb:0', fps: 10}
  b: {source: 'usb:1'}
  seek: {infer: find, from: [a, b]}
  look: {infer: read, from: seek, crop: {limit: 3}}
  side: {infer: read, from: a}
  out: {sink: null, from: [look, side]}
"""


def config(tmp_path: Path) -> PipelineConfig:
    (tmp_path / "m.onnx").touch()
    (tmp_path / "p.yaml").write_text(TEXT)
    return load_pipeline(tmp_path / "p.yaml").config


def test_the_longest_chain_counts_with_crops_one_after_the_other(tmp_path: Path) -> None:
    assert longest_ms(config(tmp_path), {"find": 5.0, "read": 2.0}) == 5 + 3 * 2
    assert longest_ms(config(tmp_path), {"find": 0.0, "read": 0.0}) == 0


def test_frames_of_all_sources(tmp_path: Path) -> None:
    assert sorted(source_rates(config(tmp_path)).values()) == [10, 30]
