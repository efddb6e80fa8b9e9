"""What a run reports of its threads, and a simulation that draws from it: the same comes out again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from edgert.board.host import core_accelerators
from edgert.config import load_pipeline
from edgert.graph import load
from edgert.jitter import AT
from edgert.pipeline import Pipeline
from edgert.placement.profile import MeasuredTransition, Profile, ProfiledUnit, Whole
from edgert.planner.simulation import Scenario, simulate
from edgert.runtime import Summary

MODEL = Path(__file__).parents[2] / "pipelines" / "assets" / "parts.onnx"
CODE = """
import time

def wait(result):
    time.sleep(0.015 if result.frame.index % 8 else 0.045)
    return result
"""
FPS, FRAMES = 20, 60
TEXT = f"""
models:
  parts: {{onnx: {MODEL}, task: {{detect: yolox}}, backend: "null"}}
stages:
  camera: {{source: 'synthetic:blank', size: 64x64, realtime: true, fps: {FPS}, limit: {FRAMES}}}
  find: {{infer: parts, from: camera}}
  slow: {{python: 'slow:wait', from: find}}
  end: {{sink: "null", from: slow}}
"""


def nearly_nothing(folder: Path) -> Path:
    """A profile of a model that computes nothing."""
    whole = {core: Whole(1e-3, 1e-3, 1e-3) for core in core_accelerators()}
    unit = ProfiledUnit("all", ("all",), dict.fromkeys(whole, 1e-3))
    made = Profile(
        "parts", load(MODEL).digest, "host", "", {"cpu": "test"}, 1, whole, (unit,), MeasuredTransition(0.0, 0.0, 0.0)
    )
    path = folder / "profile.json"
    path.write_text(json.dumps({"schema": 1, **asdict(made)}), encoding="utf-8")
    return path


@pytest.mark.skipif(not core_accelerators(), reason="threads cannot be kept on a core here")
def test_a_stage_that_is_slow_now_and_then_makes_the_same_p99_simulated(tmp_path: Path) -> None:
    tries = 3  # a burst of other programs' work makes a p99 that no stage of the run shows
    for number in range(tries):
        real, played = run_and_played(tmp_path / str(number))
        try:
            assert played.latency_ms.p50 == pytest.approx(real.latency_ms.p50, rel=0.25)
            assert played.latency_ms.p99 == pytest.approx(real.latency_ms.p99, rel=0.25)
        except AssertionError:
            if number == tries - 1:
                raise
        else:
            return


def run_and_played(folder: Path) -> tuple[Summary, Summary]:
    """A run of the pipeline, and that run simulated from what its stages showed."""
    folder.mkdir()
    (folder / "slow.py").write_text(CODE, encoding="utf-8")
    (folder / "p.yaml").write_text(TEXT, encoding="utf-8")
    with Pipeline(folder / "p.yaml") as pipeline:
        real = pipeline.run()
    stages = folder / "run.json"
    stages.write_text(json.dumps(real.to_json(), default=str), encoding="utf-8")
    slow = real.simulation["slow"]
    assert slow.jitter[-1] > 2 * slow.jitter[AT.index(0.5)] and slow.wakeup_latency_ms[0] > 0
    scenario = Scenario(seconds=FRAMES / FPS, stages=stages)
    file = load_pipeline(folder / "p.yaml")
    return real, simulate(file, board="host", profiles=[nearly_nothing(folder)], scenario=scenario).played
