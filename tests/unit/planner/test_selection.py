"""Rows against budgets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgert.config.pipeline_file import BudgetConfig
from edgert.placement.plan_record import BoardPlan, Objective, Row
from edgert.planner.plan_text import board_headline
from edgert.planner.selection import Machine, judged, pareto

BOARD = Machine("orin-nx-16gb", "Jetson Orin NX 16GB", 2**34)
ROW = Row(BOARD.name, "15W", "gpu", (), 2.0, 60.0, 8.0, 9.0, 2**20, 300.0, {"gpu": 0.5}, 0.2)
QUICK = replace(ROW, mode="MAXN", headroom=4.0, fps=120.0, p99_ms=4.0, power_w=14.0, energy_mj=450.0)
FRUGAL = replace(ROW, name="dla", headroom=1.5, fps=45.0, p99_ms=12.0, power_w=7.0, energy_mj=230.0)


@pytest.mark.parametrize(("objective", "best"), [("throughput", QUICK), ("latency", QUICK), ("energy", FRUGAL)])
def test_the_best_row_by_the_objective_is_taken(objective: Objective, best: Row) -> None:
    plan = judged(BOARD, [ROW, QUICK, FRUGAL], BudgetConfig(), objective)
    assert plan.chosen == 0
    assert (plan.rows[0].mode, plan.rows[0].name) == (best.mode, best.name)
    assert plan.advice == ()


@pytest.mark.parametrize(
    ("budgets", "row", "expected"),
    [
        (BudgetConfig(power="10W"), QUICK, "14 of 10 W"),
        (BudgetConfig(latency="10ms"), FRUGAL, "p99 12 of 10 ms"),
        (BudgetConfig(memory="512KiB"), ROW, "1.0 MiB of 512.0 KiB"),
        (BudgetConfig(), replace(ROW, headroom=0.5, fps=15.0), "15 of 30 fps"),
        (BudgetConfig(), replace(ROW, mode_w=8.0), "9 W in a mode of 8 W"),
    ],
)  # fmt: skip
def test_missed_budgets_and_what_would_have_to_be_relaxed(budgets: BudgetConfig, row: Row, expected: str) -> None:
    plan = judged(BOARD, [row], budgets, "throughput")
    assert plan.chosen is None
    assert plan.rows[0].misses == (expected,)
    assert expected in plan.advice[0] and plan.advice[0].startswith("closest")


def test_the_budget_that_is_advised_is_kept() -> None:
    row = replace(ROW, p99_ms=1.1801, power_w=10.04)
    tight = BudgetConfig(latency="1ms", power="10W")
    (advice,) = judged(BOARD, [row], tight, "throughput").advice
    assert advice.endswith("It would do with power: 10.1W, latency: 1.19ms")
    assert judged(BOARD, [row], BudgetConfig(latency="1.19ms", power="10.1W"), "throughput").chosen == 0


def test_rows_that_keep_budgets_come_first_then_the_closest(monkeypatch: pytest.MonkeyPatch) -> None:
    far, near = replace(QUICK, power_w=40.0), replace(ROW, power_w=11.0)
    plan = judged(BOARD, [far, near, FRUGAL], BudgetConfig(power="10W"), "throughput")
    assert [row.power_w for row in plan.rows] == [7.0, 11.0, 40.0]
    assert plan.chosen == 0


def test_pareto_rows_are_marked() -> None:
    beaten = replace(ROW, headroom=1.0, fps=30.0, p99_ms=20.0, power_w=20.0)
    plan = judged(BOARD, [ROW, QUICK, FRUGAL, beaten], BudgetConfig(), "throughput")
    assert {row.power_w: row.is_best for row in plan.rows} == {9.0: True, 14.0: True, 7.0: True, 20.0: False}


def test_latency_that_never_settles_is_a_miss() -> None:
    plan = judged(BOARD, [replace(ROW, p99_ms=float("nan"))], BudgetConfig(latency="10ms"), "throughput")
    assert plan.chosen is None


def test_a_board_of_which_nothing_is_known_is_not_said_to_miss_a_budget() -> None:
    unknown = BoardPlan("thor-t4000", "Jetson T4000", (), None, (), ("clocks unknown",))
    assert board_headline(unknown) == "Jetson T4000 cannot be predicted."
    missed = judged(BOARD, [ROW], BudgetConfig(latency="1ms"), "throughput")
    assert board_headline(missed) == "Jetson Orin NX 16GB keeps every budget in no power mode."


def test_pareto_keeps_what_nothing_beats() -> None:
    rows = [(3, 1), (1, 3), (2, 2), (2, 3), (1, 3), (4, 1)]
    assert pareto(rows, lambda row: row[0], lambda row: row[1]) == [(1, 3), (2, 2), (3, 1)]


def test_a_headline_gives_the_headroom_as_the_page_does() -> None:
    plan = judged(BOARD, [replace(ROW, headroom=107.6, fps=30 * 107.6)], BudgetConfig(), "throughput")
    assert "with room for 108 times as many" in board_headline(plan)
