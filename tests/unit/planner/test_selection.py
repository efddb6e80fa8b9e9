"""Rows against budgets."""

from dataclasses import replace

import pytest

from edgert.config.pipeline_file import BudgetConfig
from edgert.placement.plan_record import BoardPlan, EngineRow, ModelRow, Objective, Row, Verdict
from edgert.placement.problem import Network
from edgert.planner.plan_text import board_headline
from edgert.planner.selection import Machine, judge_rows, pareto

BOARD = Machine("orin-nx-16gb", "Jetson Orin NX 16GB", 2**34)
ROW = Row(BOARD.name, "15W", "gpu", (), 2.0, 30.0, 8.0, 9.0, 2**20, 300.0, {"gpu": 0.5}, 0.2, 0.1, 30.0)
QUICK = replace(ROW, mode="MAXN", headroom=4.0, p99_ms=4.0, power_w=14.0, energy_mj=450.0)
FRUGAL = replace(ROW, name="dla", headroom=1.5, p99_ms=12.0, power_w=7.0, energy_mj=230.0)


@pytest.mark.parametrize(("objective", "best"), [("throughput", QUICK), ("latency", QUICK), ("energy", FRUGAL)])
def test_the_best_row_by_the_objective_is_taken(objective: Objective, best: Row) -> None:
    plan = judge_rows(BOARD, [ROW, QUICK, FRUGAL], BudgetConfig(), objective)
    assert plan.chosen == 0
    assert (plan.rows[0].mode, plan.rows[0].name) == (best.mode, best.name)
    assert plan.advice == ()


@pytest.mark.parametrize(
    ("budgets", "row", "expected"),
    [
        (BudgetConfig(power="10W"), QUICK, "14 of 10 W"),
        (BudgetConfig(latency="9ms"), FRUGAL, "p99 12 of 9 ms"),
        (BudgetConfig(memory="512KiB"), ROW, "1.0 MiB of 512.0 KiB"),
        (BudgetConfig(), replace(ROW, headroom=0.5, requested_fps=30.0), "15 of 30 fps"),
    ],
)  # fmt: skip
def test_missed_budgets_and_what_would_have_to_be_relaxed(budgets: BudgetConfig, row: Row, expected: str) -> None:
    plan = judge_rows(BOARD, [row], budgets, "throughput")
    assert plan.chosen is None
    assert plan.rows[0].verdict == "missed" and plan.rows[0].doubts == (expected,)
    assert expected in plan.advice[0] and plan.advice[0].startswith("closest")


def test_the_budget_that_is_advised_is_kept() -> None:
    row = replace(ROW, p99_ms=1.1801, power_w=10.04)
    tight = BudgetConfig(latency="1ms", power="10W")
    (advice,) = judge_rows(BOARD, [row], tight, "throughput").advice
    assert advice.endswith("It would do with power: 11.1W, latency: 1.42ms")
    assert judge_rows(BOARD, [row], BudgetConfig(latency="1.42ms", power="11.1W"), "throughput").verdict == "kept"


@pytest.mark.parametrize(
    ("latency", "error", "expected"),
    [
        ("11ms", 0.33, "kept"),
        ("10ms", 0.33, "close"),
        ("7ms", 0.33, "close"),
        ("6ms", 0.33, "missed"),
        ("1s", None, "unknown"),
        ("1ms", None, "unknown"),
    ],
)
def test_what_an_error_bar_reaches_over_is_too_close_to_tell(
    latency: str, error: float | None, expected: Verdict
) -> None:
    plan = judge_rows(BOARD, [replace(ROW, error=error)], BudgetConfig(latency=latency), "energy")
    check = next(check for check in plan.rows[0].checks if check.name == "latency")
    assert check.verdict == plan.verdict == expected
    assert plan.chosen == (0 if expected in ("kept", "close") else None)
    assert ("too close to tell" in check.words) == (expected == "close")
    assert (check.words in plan.rows[0].doubts) == (expected != "kept")


def test_what_is_not_known_is_neither_kept_nor_missed() -> None:
    unknown = replace(ROW, power_w=None, power_error=None)
    plan = judge_rows(BOARD, [unknown], BudgetConfig(power="999W"), "energy")
    assert plan.verdict == "unknown" and plan.chosen is None
    assert board_headline(plan) == "Whether Jetson Orin NX 16GB keeps every budget is not known."
    guessed = judge_rows(BOARD, [replace(ROW, power_error=None)], BudgetConfig(power="999W"), "energy")
    assert guessed.verdict == "unknown" and "±?: not known" in guessed.rows[0].doubts[0]
    assert judge_rows(BOARD, [replace(ROW, power_error=None)], BudgetConfig(), "energy").verdict == "kept"


def test_what_would_do_for_an_unknown_error_is_a_measurement_and_no_smaller_rate() -> None:
    unknown = replace(ROW, error=None, power_error=None, requested_fps=30.0)
    (advice,) = judge_rows(BOARD, [unknown], BudgetConfig(power="20W"), "energy").advice
    assert advice.endswith("It would do with times measured there (--profile), watts measured there")
    assert "%" not in advice.split("It would do with")[1]
    (advice,) = judge_rows(BOARD, [replace(unknown, power_error=0.1)], BudgetConfig(power="5W"), "energy").advice
    assert advice.endswith("It would do with power: 9.9W, times measured there (--profile)")


@pytest.mark.parametrize(
    ("memory", "expected"), [("512MiB", "kept"), ("400MiB", "close"), ("300MiB", "close"), ("299MiB", "missed")]
)
def test_memory_may_only_be_more_than_planned_and_what_is_advised_is_kept(memory: str, expected: Verdict) -> None:
    row = replace(ROW, memory_bytes=300 * 2**20, memory_error=0.5)
    plan = judge_rows(BOARD, [row], BudgetConfig(memory=memory), "energy")
    assert plan.verdict == expected
    if expected == "close":
        assert plan.rows[0].doubts[0].endswith("MiB, up to + 150\N{NO-BREAK SPACE}MiB: too close to tell")
    if expected != "kept":
        assert plan.advice[0].endswith("It would do with memory: 450.0 MiB")
        assert judge_rows(BOARD, [row], BudgetConfig(memory="450MiB"), "energy").verdict == "kept"


def test_of_rows_as_close_to_a_budget_the_objective_decides() -> None:
    tight = [replace(row, memory_bytes=2**20, memory_error=0.5) for row in (QUICK, FRUGAL)]
    plan = judge_rows(BOARD, tight, BudgetConfig(memory="1MiB"), "energy")
    assert plan.verdict == "close" and plan.rows[0].name == FRUGAL.name


def test_of_rows_that_print_the_same_energy_the_faster_is_taken() -> None:
    slower = replace(ROW, name="dla", energy_mj=299.9, p99_ms=12.0)
    plan = judge_rows(BOARD, [slower, ROW], BudgetConfig(), "energy")
    assert plan.rows[0].name == "gpu"
    assert judge_rows(BOARD, [slower, replace(ROW, energy_mj=302.0)], BudgetConfig(), "energy").rows[0].name == "dla"


def test_a_row_that_surely_keeps_its_budgets_comes_before_one_that_is_too_close_to_tell() -> None:
    close = replace(FRUGAL, p99_ms=9.0)
    plan = judge_rows(BOARD, [close, ROW], BudgetConfig(latency="10ms"), "energy")
    assert [row.verdict for row in plan.rows] == ["kept", "close"] and plan.rows[0].power_w == ROW.power_w


def test_of_energies_that_nobody_can_tell_apart_the_one_with_most_cores_then_fewest_engines_is_taken() -> None:
    engine = EngineRow(("gpu",), 1.0)
    model = ModelRow("net", Network("net", (), (), "gpu", 30.0), (engine,), 30.0, 1.0, 0.0, {})
    few, many = replace(ROW, cores=4), replace(ROW, energy_mj=306.0, cores=8, models=(model,))
    several = replace(many, energy_mj=302.0, models=(replace(model, engines=(engine, engine)),))
    plan = judge_rows(BOARD, [few, several, many], BudgetConfig(), "energy")
    assert [(row.cores, row.energy_mj) for row in plan.rows] == [(8, 306.0), (8, 302.0), (4, 300.0)]
    thirsty = replace(many, energy_mj=340.0)
    assert judge_rows(BOARD, [few, thirsty], BudgetConfig(), "energy").rows[0].cores == 4


def test_rows_that_keep_budgets_come_first_then_the_closest(monkeypatch: pytest.MonkeyPatch) -> None:
    far, near = replace(QUICK, power_w=40.0), replace(ROW, power_w=12.0)
    plan = judge_rows(BOARD, [far, near, FRUGAL], BudgetConfig(power="10W"), "throughput")
    assert [row.power_w for row in plan.rows] == [7.0, 12.0, 40.0]
    assert plan.chosen == 0


def test_pareto_rows_are_marked() -> None:
    beaten = replace(ROW, headroom=1.0, p99_ms=20.0, power_w=20.0)
    plan = judge_rows(BOARD, [ROW, QUICK, FRUGAL, beaten], BudgetConfig(), "throughput")
    assert {row.power_w: row.is_best for row in plan.rows} == {9.0: True, 14.0: True, 7.0: True, 20.0: False}


def test_latency_that_never_settles_is_a_miss() -> None:
    plan = judge_rows(BOARD, [replace(ROW, p99_ms=float("inf"))], BudgetConfig(latency="10ms"), "throughput")
    assert plan.chosen is None


def test_a_board_of_which_nothing_is_known_is_not_said_to_miss_a_budget() -> None:
    unknown = BoardPlan("thor-t4000", "Jetson T4000", (), None, (), ("the clocks of this power mode are unknown",))
    assert board_headline(unknown) == "Jetson T4000 cannot be predicted."
    missed = judge_rows(BOARD, [ROW], BudgetConfig(latency="1ms"), "throughput")
    assert board_headline(missed) == "Jetson Orin NX 16GB keeps every budget in no power mode."


def test_pareto_keeps_what_nothing_beats() -> None:
    rows = [(3, 1), (1, 3), (2, 2), (2, 3), (1, 3), (4, 1)]
    assert pareto(rows, lambda row: row[0], lambda row: row[1]) == [(1, 3), (2, 2), (3, 1)]


def test_a_headline_gives_the_headroom_as_the_page_does() -> None:
    plan = judge_rows(BOARD, [replace(ROW, headroom=107.6)], BudgetConfig(), "throughput")
    assert "with room for 108 times as many" in board_headline(plan)
