"""The data behind a plan's chart: points, bars, order, colors, and the same in plain characters."""

import math
from dataclasses import replace

import pytest
from rich.console import Console

from edgert.cli.plan_command import show_plan
from edgert.config.pipeline_file import BudgetConfig
from edgert.placement.plan_record import BoardPlan, Plan, Row
from edgert.planner import pareto
from edgert.planner.plan_page import render
from edgert.planner.selection import judge_rows
from tests.unit.planner.test_selection import BOARD, FRUGAL, QUICK, ROW

UNKNOWN = replace(ROW, mode="10W", requested_fps=30.0, power_w=None, power_error=None)


def board(*rows: Row, power: str = "10W") -> BoardPlan:
    known = [replace(row, requested_fps=30.0) for row in rows]
    return judge_rows(BOARD, known, BudgetConfig(power=power), "energy")


def plan(*boards: BoardPlan) -> Plan:
    return Plan("p", "energy", boards, boards[0].board, ())


def test_points_are_numbered_as_the_table_and_carry_what_the_rows_have() -> None:
    made = board(ROW, QUICK, FRUGAL)
    points = pareto.board_points(made)
    assert [one.label for one in points] == ["1", "2", "3"] and [one.row for one in points] == list(made.rows)
    assert [one.is_chosen for one in points] == [True, False, False]
    assert [one.row for one in points] == list(made.rows)
    assert pareto.watts_limit(points) == pytest.approx(10.0)


def test_bars_reach_as_far_as_verdicts_reckon_with() -> None:
    (point,) = pareto.board_points(board(replace(ROW, error=0.25, power_error=0.5)))
    assert point.fps_bar == pytest.approx((60 / 1.25, 60 * 1.25)) and point.watts_bar == pytest.approx((6.0, 13.5))
    (unsure,) = pareto.board_points(board(replace(ROW, error=None, power_error=None)))
    assert unsure.fps_bar is None and unsure.watts_bar is None
    assert "±?" in unsure.detail and "at most 60 ±25% fps, 9.0 ±50% W" in point.detail


def test_what_never_settles_or_nobody_knows_is_drawn_all_the_same() -> None:
    late = replace(ROW, mode="7W", headroom=0.5, p99_ms=math.inf)
    points = pareto.board_points(board(ROW, late, UNKNOWN))
    dots = {one.mode: dot for one, dot in zip((point.row for point in points), pareto.dots(points), strict=True)}
    assert dots["7W"].heat == 4 and dots["10W"].y is None and dots["10W"].y_bar is None
    assert pareto.watts_limit(pareto.board_points(board(UNKNOWN))) is None
    text = render(plan(board(ROW, late, UNKNOWN)))
    assert "W not known" in text and "☐ not known" in text and "✕ missed" in text


def test_of_several_boards_each_has_its_best_row_and_the_others_are_small() -> None:
    first, second = board(ROW, QUICK), replace(board(FRUGAL), board="b", title="B")
    none = BoardPlan("c", "C", (), None, (), ("unknown: clocks",))
    points = pareto.plan_points(plan(none, first, second))
    assert [(one.label, one.name.split(":")[0]) for one in points] == [
        ("2", BOARD.title),
        ("", BOARD.title),
        ("3", "B"),
    ]
    assert [dot.kind for dot in pareto.dots(points)] == ["", "small", ""]
    chosen = pareto.plan_points(replace(plan(first, second), smallest="b"))
    assert [one.is_chosen for one in chosen] == [False, False, True]


def test_what_is_estimated_is_marked() -> None:
    points = pareto.board_points(board(replace(ROW, estimated=("gpu_mhz",))))
    assert pareto.dots(points)[0].label == "1~" and "estimated" in points[0].detail
    assert "~ estimated" in render(plan(board(replace(ROW, estimated=("gpu_mhz",)), QUICK)))


def test_a_plan_without_rows_has_no_chart() -> None:
    empty = BoardPlan("c", "C", (), None, (), ("unknown: clocks",))
    assert pareto.plan_points(plan(empty)) == () and 'class="chart series scatter"' not in render(plan(empty))
    assert pareto.grid((), 80) == []
    assert 'class="chart series scatter"' not in render(plan(board(ROW)))  # nor one without a choice
    assert 'class="chart series scatter"' in render(plan(board(ROW, QUICK)))


@pytest.mark.parametrize("width", [40, 80, 110])
def test_a_terminal_draws_every_point_where_it_belongs(width: int) -> None:
    points = pareto.board_points(board(ROW, QUICK, FRUGAL, UNKNOWN))
    lines = pareto.grid(points, width)
    texts = ["".join(cell[0] for cell in line) for line in lines]
    assert {len(line) for line in texts[1:17]} == {width} and all(len(line) <= width for line in texts)
    named = pareto.letters(points)
    at = {
        one.row.name + one.row.mode: (x, y)
        for one in points
        for y, line in enumerate(texts[1:17])
        for x, character in enumerate(line)
        if character == named[one.label]
    }
    assert set(at) == {"gpu15W", "gpuMAXN", "dla15W"}
    assert at["dla15W"][0] < at["gpu15W"][0] < at["gpuMAXN"][0]  # frames a second
    assert at["gpuMAXN"][1] < at["gpu15W"][1] < at["dla15W"][1]  # watts, the most above
    unknown = next(one.label for one in points if one.row.power_w is None)
    assert list(pareto.notes_below(points, width)) == [f"watts not known: {named[unknown]}"]
    assert "-" in texts[at["gpu15W"][1] + 1] and any("|" in line[9:] for line in texts[1:17])
    assert all(one.isascii() for one in texts)


def test_rows_in_one_place_are_named_below() -> None:
    twin = replace(ROW, name="dla")
    points = pareto.board_points(board(ROW, twin))
    assert list(pareto.notes_below(points, 80)) == ["in the same place as a: b"]


def test_more_rows_than_letters_are_still_drawn() -> None:
    points = pareto.board_points(board(*(replace(ROW, mode=f"m{n}", headroom=2.0 + n) for n in range(60))))
    assert list(pareto.letters(points).values())[50:54] == ["Y", "Z", "*", "*"]
    assert pareto.grid(points, 80)


def test_a_chart_stands_below_the_table_when_it_is_asked_for() -> None:

    made = plan(board(ROW, QUICK))
    for requested in (False, True):
        console = Console(width=100, record=True)
        show_plan(console, made, chart=requested)
        text = console.export_text()
        assert ("frames a second at most" in text) is requested and ("a→" in text) is requested
        assert ("ms: a" in text) is requested  # p99 by letters, too, not by color alone


def test_a_row_that_misses_a_budget_is_shown_in_full_too() -> None:
    missed = board(ROW, power="1W")
    assert missed.chosen is None and f'id="{BOARD.name}-memory"' in render(plan(missed))
