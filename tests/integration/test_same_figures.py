"""One pipeline on one board has the same figures in a plan, in a simulation and emulated: within a twentieth."""

from pathlib import Path

import pytest

from edgert.config.pipeline_file import BudgetConfig
from edgert.emulation import emulate
from edgert.pipeline import pipeline_in
from edgert.planner import plan
from edgert.planner.plan_text import row_text, to_json
from edgert.planner.simulation import Scenario, simulate
from tests.helpers.shipped_cameras import BOARDS, PIPELINES, emulated, figures_of, planned, shipped

NEAR = 0.05
SECONDS = 4.0


@pytest.mark.parametrize(
    "board", ["orin-nano-8gb", *(pytest.param(one, marks=pytest.mark.slow) for one in list(BOARDS)[1:])]
)
@pytest.mark.parametrize("name", PIPELINES)
def test_a_plan_and_a_simulation(name: str, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shipped(name, tmp_path, 240, monkeypatch)
    row = planned(file, board)
    made = simulate(file, board=board, mode=BOARDS[board], scenario=Scenario(seconds=8.0))
    assert made.placement == row.name
    assert made.most_fps == pytest.approx(row.most_fps, rel=NEAR)
    assert made.error == row.error and made.power_error == row.power_error
    ran = made.played
    figures = ran.fps, ran.latency_ms.p50, ran.latency_ms.p99, ran.power_w
    assert figures == pytest.approx(figures_of(row), rel=NEAR)


def test_files_as_fast_as_they_are_taken_give_as_many_as_a_plan_has_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shipped("hello", tmp_path, 2000, monkeypatch)
    source = file.config.stages["belt"].model_copy(update={"realtime": False})
    stages = {**file.config.stages, "belt": source}
    flat_out = type(file)(file.config.model_copy(update={"stages": stages}), file.document)
    made = simulate(flat_out, board="orin-nx-16gb", mode="15W", scenario=Scenario(seconds=4.0))
    assert made.played.fps == pytest.approx(planned(file, "orin-nx-16gb").most_fps, rel=NEAR)


@pytest.mark.parametrize(("name", "board"), [("cascade", "orin-nx-16gb"), ("multi-camera", "orin-nano-8gb")])
def test_a_plan_and_an_emulation(name: str, board: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shipped(name, tmp_path, round(30 * SECONDS), monkeypatch)
    assert emulated(file, board)[0] == pytest.approx(figures_of(planned(file, board)), rel=NEAR)


@pytest.mark.parametrize(
    ("budgets", "verdict"),
    [
        ({}, "kept"),
        ({"power": "14W", "latency": "50ms"}, "kept"),
        ({"power": "5.3W", "latency": "50ms"}, "close"),
        ({"power": "2W", "latency": "1ms"}, "missed"),
    ],
)
def test_one_name_and_one_verdict_for_each_figure(
    budgets: dict[str, str], verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept, too close to tell and missed are the same words in a plan, a simulation and an emulation."""
    board, file = "orin-nx-16gb", shipped("csi", tmp_path, 120, monkeypatch)
    held = BudgetConfig.model_validate({**budgets, "when_exceeded": "warn"})
    file = type(file)(file.config.model_copy(update={"budgets": held}), file.document)
    made = plan(file, board=board, mode="15W")
    row = next(one for one in to_json(made)["boards"][0]["rows"] if one["placement"] == made.boards[0].rows[0].name)
    played = simulate(file, board=board, mode="15W", scenario=Scenario(seconds=SECONDS))
    place = emulate(file, board, "15W", pace=0)
    with pipeline_in(place.environment, place.file) as running:
        report = place.report(running.run())
    assert list(played.figures) == list(report["figures"]) and played.figures["fps"] == pytest.approx(30.0)
    for name, value in played.figures.items():
        if isinstance(value, float):
            assert value == pytest.approx(row[name], rel=NEAR)
            assert report["figures"][name] == pytest.approx(row[name], rel=NEAR)
        elif name not in ("checks", "busy"):
            assert value == row[name] == report["figures"][name]
    for one in (played.figures, report["figures"]):
        assert one["busy"] == pytest.approx(row["busy"], rel=NEAR)
        assert [check["name"] for check in one["checks"]] == [check["name"] for check in row["checks"]]
    assert played.verdict == made.boards[0].verdict == report["verdict"] == verdict
    planned_words = row_text(made.boards[0].rows[0])
    assert played.words.split()[0] == planned_words.split()[0] == report["words"].split()[0]


def test_a_machine_that_is_much_slower_than_the_board_has_the_boards_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shipped("csi", tmp_path, 40, monkeypatch, slow_s=0.04)
    figures, slower = emulated(file, "orin-nx-16gb", pace=1.0)
    assert slower > 1.05
    assert figures == pytest.approx(figures_of(planned(file, "orin-nx-16gb")), rel=NEAR)
