"""One pipeline on one board has the same figures in a plan, in a simulation and emulated: within a twentieth."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.planner import plan
from edgert.planner.simulation import Scenario, simulate
from tests.helpers.shipped_cameras import BOARDS, PIPELINES, emulated, planned, shipped, simulated

NEAR = 0.05
SECONDS = 4.0


@pytest.mark.parametrize("board", BOARDS)
@pytest.mark.parametrize("name", PIPELINES)
def test_a_plan_and_a_simulation(name: str, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shipped(name, tmp_path, 240, monkeypatch)
    row = plan(file, board=board, mode=BOARDS[board]).boards[0].best
    made = simulate(file, board=board, mode=BOARDS[board], scenario=Scenario(seconds=8.0))
    assert row is not None and made.placement == row.name
    assert made.most_fps == pytest.approx(row.most_fps, rel=NEAR)
    assert made.error == row.error and made.power_error == row.power_error
    assert simulated(file, board, 8.0) == pytest.approx(planned(file, board), rel=NEAR)


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


@pytest.mark.parametrize(("name", "board"), [("cascade", "orin-nx-16gb"), ("multi-camera", "orin-nano-8gb")])
def test_a_plan_and_an_emulation(name: str, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of those that tests/bench/bench_same_figures.py has all of: however busy this machine is."""
    file = shipped(name, tmp_path, round(30 * SECONDS), monkeypatch)
    assert emulated(file, board)[0] == pytest.approx(planned(file, board), rel=NEAR)


def test_a_machine_that_is_much_slower_than_the_board_has_the_boards_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shipped("csi", tmp_path, 40, monkeypatch, slow_s=0.04)
    figures, slower = emulated(file, "orin-nx-16gb", pace=1.0)
    assert slower > 1.05
    assert figures == pytest.approx(planned(file, "orin-nx-16gb"), rel=NEAR)
