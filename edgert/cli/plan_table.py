"""A plan in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgert.cli import table
from edgert.cli.run_summary import parts_table
from edgert.cli.table import Column
from edgert.planner.plan_text import NUMBERS, basis, board_headline, headline, listed, numbers, to_spare, why_not

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from edgert.placement.plan_record import BoardPlan, ModelRow, Plan, Row

_MOST_REASONS = 6
_RANKS = {"memory": 1, "DLA": 2, "mJ/frame": 3, "±": 4}  # columns that a narrow terminal leaves out


def show_plan(console: Console, plan: Plan) -> None:
    """Verdict, then a row for each mode and placement, or for each board."""
    from rich.markup import escape

    good = plan.smallest is not None
    console.print(f"[bold {'green' if good else 'red'}]{escape(headline(plan))}[/]")
    if len(plan.boards) == 1:
        _show_board(console, plan.boards[0])
    else:
        _show_boards(console, plan)
    for note in plan.notes:
        console.print(f"[dim]note: {escape(note)}[/]")


def _show_board(console: Console, board: BoardPlan) -> None:
    from rich.markup import escape

    chosen = None if board.chosen is None else board.rows[board.chosen]
    rows = [(heads, row, row is chosen) for heads, row in listed(board)]
    _table(console, ("mode", "placement"), rows, basis(board))
    if chosen is not None:
        for row in [row for row in board.rows if row is not chosen][:_MOST_REASONS]:
            console.print(f"[dim]not {escape(why_not(row, chosen))}[/]")
        _show_models(console, chosen)
        console.print(parts_table(chosen.memory, console.width))
        for step in chosen.steps:
            console.print(f"made smaller: {step}", markup=False)
    for text in board.advice:
        console.print(escape(text))
    for text in board.skipped:
        console.print(f"[yellow]{escape(text)}: not planned[/]")


def _show_models(console: Console, chosen: Row) -> None:
    """Where each model runs, fallback models included."""
    from rich.markup import escape

    models: dict[str, ModelRow] = {}
    for row in (chosen, *chosen.fallbacks):
        models.update({model.name: model for model in row.models if model.name not in models})
    for model in models.values():
        for engine in model.engines:
            counts = {name: engine.assignment.count(name) for name in engine.accelerators}
            units = ", ".join(f"{count} units on {name}" for name, count in counts.items())
            console.print(f"{escape(model.name)}: {engine.share:.0%} of its frames, {units}")


def _show_boards(console: Console, plan: Plan) -> None:
    from rich.markup import escape

    rows = []
    for board in plan.boards:
        row = board.best
        if row is not None:
            rows.append(((board.board, f"{row.mode}, {row.name}"), row, board.board == plan.smallest))
    _table(console, ("board", "mode, placement"), rows, basis(plan.boards[0]))
    for board in plan.boards:
        if not board.rows:
            console.print(f"[yellow]{escape(board_headline(board))} {escape('; '.join(board.skipped))}[/]")


def _table(
    screen: Console, heads: tuple[str, str], rows: Iterable[tuple[tuple[str, str], Row, bool]], basis: str
) -> None:
    columns = (
        Column(""),
        *map(Column, heads),
        *(Column(name, is_number=True, rank=_RANKS.get(name, 0)) for name in NUMBERS),
        Column("budgets", wraps=True),
    )
    shown = [
        table.Row(
            ("→" if is_chosen else "·" if row.is_best else "", *names, *(text for text, _ in numbers(row)), _kept(row)),
            "bold" if is_chosen else "",
        )
        for names, row, is_chosen in rows
    ]
    screen.print(table.table(columns, shown, width=screen.width))
    screen.print(f"[dim]→ chosen, · Pareto; {basis}[/]")


def _kept(row: Row) -> Text:
    if row.misses:
        return table.marked("; ".join(row.misses), "red")
    return table.marked(f"kept, {to_spare(row)}", "green")
