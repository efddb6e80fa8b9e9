"""One pipeline on one board has the same figures in a plan, in a simulation and emulated: within a twentieth."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from edgert.emulation import emulate
from edgert.pipeline import Pipeline
from edgert.planner import plan
from edgert.planner.simulation import Scenario, simulate
from tests.helpers.shipped_cameras import BOARDS, PIPELINES, shipped

NEAR = 0.05
FRAMES, FPS, SLOWER = 24, 60.0, 40.0
"""So slow that what threads and queues cost here hardly shows."""
TRIES = 3
"""Other programs may take the machine away for the length of a run."""


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("name", PIPELINES)
def test_a_plan_and_a_simulation(name: str, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shipped(name, tmp_path, 240, monkeypatch)
    row = plan(file, board=board, mode=BOARDS[board]).boards[0].best
    made = simulate(file, board=board, mode=BOARDS[board], scenario=Scenario(seconds=8.0))
    assert row is not None and made.placement == row.name
    played = made.played
    assert played.fps == pytest.approx(row.fps, rel=NEAR)
    assert played.latency_ms.p50 == pytest.approx(row.p50_ms, rel=NEAR)
    assert played.latency_ms.p99 == pytest.approx(row.p99_ms, rel=NEAR)
    assert played.power_w == pytest.approx(row.power_w, rel=NEAR)
    assert made.most_fps == pytest.approx(row.most_fps, rel=NEAR)
    assert made.error == row.error and made.power_error == row.power_error


def test_files_as_fast_as_they_are_taken_give_as_many_as_a_plan_has_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shipped("hello", tmp_path, 2000, monkeypatch)
    source = file.config.stages["belt"].model_copy(update={"realtime": False})
    stages = {**file.config.stages, "belt": source}
    flat_out = type(file)(file.config.model_copy(update={"stages": stages}), file.document)
    row = plan(file, board="orin-nx-16gb", mode="15W").boards[0].best
    made = simulate(flat_out, board="orin-nx-16gb", mode="15W", scenario=Scenario(seconds=4.0))
    assert row is not None and made.played.fps == pytest.approx(row.most_fps, rel=NEAR)


@pytest.mark.parametrize(("name", "board"), list(zip(PIPELINES, cycle(BOARDS), strict=False)))
def test_a_plan_and_an_emulation(name: str, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shipped(name, tmp_path, FRAMES, monkeypatch, FPS)
    row = plan(file, board=board, mode=BOARDS[board]).boards[0].best
    assert row is not None
    found = []
    for _ in range(TRIES):
        place = emulate(file, board, BOARDS[board], slower=SLOWER)
        with Pipeline.within(place.environment, place.file) as running:
            summary = running.run()
        last_s = summary.frames_out / summary.fps - summary.latency_ms.p50 / 1e3  # from the first frame to the last
        fps = (FRAMES - 1) * row.fps / FPS / last_s
        found.append((fps, place.report(summary.frames_out)["power_w"]))
        # How late results are is up to this machine, too: tests/bench/bench_same_figures.py has that on an idle one.
        is_never_sooner = name == "multi-camera" or summary.latency_ms.p99 >= (1 - NEAR) * row.p99_ms
        if is_never_sooner and found[-1] == pytest.approx((row.fps, row.power_w), rel=NEAR):
            return
    pytest.fail(f"planned {row.fps} fps, p99 {row.p99_ms} ms, {row.power_w} W; emulated {found}")
