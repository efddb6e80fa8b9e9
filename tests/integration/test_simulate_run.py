"""A simulation of this machine, checked against the run that measured its stages."""

import json
from pathlib import Path

import pytest

from edgert.board.host import core_accelerators
from edgert.config import load_pipeline
from edgert.graph import load
from edgert.pipeline import Pipeline
from edgert.placement.profile import MeasuredTransition, ModelTimes, Profile, ProfiledUnit
from edgert.planner.simulation import Scenario, simulate
from edgert.runtime import Summary
from edgert.simulator import Simulated

MODEL = Path(__file__).parents[2] / "pipelines" / "assets" / "parts.onnx"
CODE = """
import time

def wait(result):
    time.sleep(0.03)
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
    whole = {core: ModelTimes(1e-3, 1e-3, 1e-3) for core in core_accelerators()}
    unit = ProfiledUnit("all", ("all",), dict.fromkeys(whole, 1e-3))
    made = Profile(
        "parts", load(MODEL).digest, "host", "", {"cpu": "test"}, 1, whole, (unit,), MeasuredTransition(0.0, 0.0, 0.0)
    )
    path = folder / "profile.json"
    path.write_text(json.dumps(made.to_json()), encoding="utf-8")
    return path


@pytest.mark.skipif(not core_accelerators(), reason="threads cannot be kept on a core here")
def test_a_run_is_simulated_from_the_times_of_its_stages(tmp_path: Path) -> None:
    real, played = run_and_played(tmp_path)
    assert played.frames_in == played.frames_out == FRAMES
    assert played.frames_out == pytest.approx(real.frames_out, rel=0.1)
    assert played.latency_ms.p50 == pytest.approx(real.latency_ms.p50, rel=0.25)


def run_and_played(folder: Path) -> tuple[Summary, Simulated]:
    (folder / "slow.py").write_text(CODE, encoding="utf-8")
    (folder / "p.yaml").write_text(TEXT, encoding="utf-8")
    with Pipeline(folder / "p.yaml") as pipeline:
        real = pipeline.run()
    stages = folder / "run.json"
    stages.write_text(json.dumps(real.to_json(), default=str), encoding="utf-8")
    scenario = Scenario(seconds=FRAMES / FPS, stages=stages)
    file = load_pipeline(folder / "p.yaml")
    return real, simulate(file, board="host", profiles=[nearly_nothing(folder)], scenario=scenario).played
