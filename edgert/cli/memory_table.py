"""A memory plan in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgert.cli.table import Column, Row, console, table
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from edgert.budget.footprint import Footprint, Part


COLUMNS = (
    Column("part"),
    Column("on", rank=1),
    Column("for", rank=2),
    Column("memory", is_number=True),
    Column("", wraps=True),
)


def show_memory(plan: Footprint, *, to_stderr: bool = False) -> None:
    """Every part, what was changed to make it fit, and whether it does."""
    screen = console(stderr=to_stderr)
    screen.print(parts_table(plan.parts, screen.width))
    for step in plan.steps:
        screen.print(f"made smaller: {step}", markup=False)
    screen.print(_verdict(plan), style="green" if plan.fits else "red", markup=False)


def parts_table(parts: Sequence[Part], width: int) -> Table:
    """A row for each part, and their sum."""
    total_bytes = sum(part.size_bytes for part in parts)
    rows = [Row((part.name, part.on, part.kind, format_bytes(part.size_bytes), part.note)) for part in parts]
    rows.append(Row(("all", "", "", format_bytes(total_bytes), "predicted peak"), "bold"))
    return table(COLUMNS, rows, width=width)


def _verdict(plan: Footprint) -> str:
    word = "fits" if plan.fits else "does not fit"
    machine = f"of the machine's {format_bytes(plan.machine_bytes)}, swap and all"
    if plan.budget_bytes is None or (plan.keeps_budget and not plan.fits):
        return f"{word}: at least {format_bytes(plan.least_bytes)} {machine if plan.machine_bytes else ''}".rstrip()
    most = f"{format_bytes(plan.most_bytes)} with {plan.error:.0%} to spare for the prediction's error"
    return f"{word}: {most}, of the budget's {format_bytes(plan.budget_bytes)}"
