"""Budgets in real runs: held while another process loads the machine, and what was done is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import edgert
from edgert.errors import BudgetError
from tests.helpers.command import ROOT

ASSETS = ROOT / "pipelines" / "assets"
_BUSY = "while True: pass"


def write(folder: Path, budgets: str, source: str = "realtime: true") -> Path:
    path = folder / "p.yaml"
    path.write_text(
        f"budgets: {budgets}\n"
        f"models:\n  parts: {{onnx: {ASSETS}/parts.onnx, task: {{detect: yolox, labels: {ASSETS}/parts.txt}},"
        " precision: fp32, input: {std: 255}}\n"
        'stages:\n  belt: {source: "synthetic:noise", size: 320x240, fps: 40, ' + source + "}\n"
        '  find: {infer: parts, from: belt}\n  out: {sink: "null", from: find}\n'
    )
    return path


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Other processes that keep cores busy."""
    made = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in made:
            one.kill()
            one.wait()


@pytest.mark.slow
def test_cpu_time_is_held_beside_a_second_process_and_all_frames_come_back_after(tmp_path: Path) -> None:
    with edgert.Pipeline(write(tmp_path, "{}")) as free:
        free.start()
        free.wait(6)
        free.stop()
        free.wait(5)
        used = free.summary()
    whole = _cores(tmp_path)
    cap = round(0.5 * whole, 3)
    with edgert.Pipeline(write(tmp_path, f"{{cpu: {cap}, when_exceeded: degrade}}")) as pipeline:
        pipeline.start()
        with load(1):
            pipeline.wait(25)
        summary = pipeline.summary()
    governor = summary.budgets["governor"]
    assert governor["setting"] != "all frames"
    assert summary.budgets["held_back"] > 0
    assert summary.fps < used.fps


def _cores(folder: Path) -> float:
    """CPU time of the pipeline without a budget, in cores."""
    import time

    with edgert.Pipeline(write(folder, "{}")) as pipeline:
        pipeline.start()
        pipeline.wait(2)
        cpu_s, wall_s = time.process_time(), time.monotonic()
        pipeline.wait(4)
        return (time.process_time() - cpu_s) / (time.monotonic() - wall_s)


def test_stop_ends_the_run_with_what_was_exceeded(tmp_path: Path) -> None:
    with (
        pytest.raises(BudgetError) as caught,
        edgert.Pipeline(write(tmp_path, "{memory: 1MiB, when_exceeded: stop}")) as pipeline,
    ):
        pipeline.start()
        pipeline.wait(20)
    assert caught.value.what == "a budget was exceeded"
    assert caught.value.why.startswith("memory ") and caught.value.why.endswith("for 2 s")
    assert "budgets" in caught.value.where


def test_a_budget_of_cpu_time_that_no_setting_keeps_is_refused_with_the_closest(tmp_path: Path) -> None:
    with pytest.raises(BudgetError) as caught:
        edgert.Pipeline(write(tmp_path, "{cpu: 0.0001, when_exceeded: degrade}"))
    assert "10 % of the frames, is predicted to need" in caught.value.why
    assert "cpu: " in caught.value.fix


def test_a_latency_that_the_engine_alone_exceeds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="no setting keeps the budgets"):
        edgert.Pipeline(write(tmp_path, "{latency: 0.001ms, when_exceeded: stop}"))
