"""A memory plan in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from edgert.budget.footprint import Footprint, Part


def show_memory(plan: Footprint, *, to_stderr: bool = False) -> None:
    """Every part, what was changed to make it fit, and whether it does."""
    from rich.console import Console

    console = Console(stderr=to_stderr, highlight=False)
    console.print(parts_table(plan.parts))
    for step in plan.steps:
        console.print(f"made smaller: {step}", markup=False)
    console.print(_verdict(plan), style="green" if plan.fits else "red", markup=False)


def parts_table(parts: Sequence[Part]) -> Table:
    """A row for each part, and their sum."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("part", "on", "for"):
        table.add_column(head, no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for part in parts:
        table.add_row(escape(part.name), part.on, part.kind, format_bytes(part.size_bytes), escape(part.note))
    total_bytes = sum(part.size_bytes for part in parts)
    table.add_row("all", "", "", format_bytes(total_bytes), "predicted peak", style="bold")
    return table


def _verdict(plan: Footprint) -> str:
    word = "fits" if plan.fits else "does not fit"
    machine = f"of the machine's {format_bytes(plan.machine_bytes)}, swap and all"
    if plan.budget_bytes is None or (plan.keeps_budget and not plan.fits):
        return f"{word}: at least {format_bytes(plan.least_bytes)} {machine if plan.machine_bytes else ''}".rstrip()
    told = f"{format_bytes(plan.most_bytes)} with {plan.error:.0%} to spare for the prediction's error"
    return f"{word}: {told}, of the budget's {format_bytes(plan.budget_bytes)}"
