"""Boards without published power figures: no watts are shown, and no power budget is kept."""

from pathlib import Path

import pytest

from edgert.emulation import emulate
from edgert.errors import BudgetError
from edgert.meters.rails import POWER, TEMPERATURE
from edgert.pipeline import pipeline_in
from edgert.planner.simulation import NOT_KNOWN, Scenario, simulate
from tests.integration.test_emulation import FIND, pipeline

BOARD, MODE, FPS = "jetson-nano-4gb", "MAXN", 20


def test_an_emulated_board_of_unknown_power_runs_without_watts(tmp_path: Path) -> None:
    place = emulate(pipeline(tmp_path, FPS, FIND), BOARD, MODE, pace=0)
    with pipeline_in(place.environment, place.file) as running:
        summary = running.run()
    report, readings = place.report(summary), place.environment.meters.sample().readings
    assert summary.frames_out > 0 and not {POWER, TEMPERATURE} & {
        name for name, one in readings.items() if one.is_known
    }
    figures = report["figures"]
    assert [figures["power_w"], figures["energy_mj_per_frame"], report["temperature_c"]] == [None, None, None]
    assert NOT_KNOWN in report["notes"]


def test_a_budget_of_unknown_power_cannot_stop_an_emulated_board(tmp_path: Path) -> None:
    budget = {"budgets": {"power": "10W", "when_exceeded": "stop"}}
    place = emulate(pipeline(tmp_path, FPS, FIND, budget), BOARD, MODE, pace=0)
    with pytest.raises(BudgetError), pipeline_in(place.environment, place.file) as running:
        running.run()


@pytest.mark.parametrize("when_exceeded", ["warn", "degrade", "stop"])
def test_a_simulation_never_keeps_a_budget_of_unknown_power(tmp_path: Path, when_exceeded: str) -> None:
    file = pipeline(tmp_path, FPS, FIND, {"budgets": {"power": "100W", "when_exceeded": when_exceeded}})
    found = simulate(file, board=BOARD, mode=MODE, scenario=Scenario(seconds=1))
    assert ("power", "unknown") in [(check.name, check.verdict) for check in found.checks]
    assert found.verdict == "unknown" and "power unknown" in found.words
    assert found.played.power_w is None and NOT_KNOWN in found.notes
