"""What a search tried, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from edgert.cli.table import Column, Row, table
from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.tune.trial import Trial, Tuned


_COLUMNS = (
    Column("tactic", wraps=True),
    Column("ms a frame", is_number=True),
    Column("× default", is_number=True),
    Column("n", is_number=True, rank=2),
    Column("memory", is_number=True, rank=1),
    Column("", wraps=True),
)


def show_tuned(console: Console, name: str, tuned: Tuned) -> None:
    """Prints every tactic of a model that ran, fastest first, why others did not, and the gain."""
    from rich.markup import escape

    kind = "cameras" if tuned.live else "files"
    rows = [
        Row(_row(trial, tuned), "bold" if trial.tactic == tuned.chosen else "")
        for trial in tuned.tried
        if trial.frame is not None
    ]
    console.print(table(_COLUMNS, rows, width=console.width, title=f"{name}: {len(tuned.tried)} tactics, for {kind}"))
    for line in (*_not_run(tuned), *(f"left out: {what}: {why}" for what, why in tuned.left_out.items())):
        console.print(escape(line), style="dim", soft_wrap=True)
    console.print(f"[green]→[/] {escape(name)}: gain {tuned.gain:.2f} ×; {escape(tuned.told)}", soft_wrap=True)


def _row(trial: Trial, tuned: Tuned) -> list[str]:
    assert trial.frame is not None  # asked by the caller
    memory = "" if trial.memory_bytes is None else format_bytes(trial.memory_bytes)
    words = [
        *(["default"] if trial.tactic == tuned.default else []),
        *(["chosen"] if trial.tactic == tuned.chosen else []),
    ]
    times = [f"{trial.frame.median_ms:.2f}", f"{trial.gain:.2f}", str(trial.frame.runs), memory]
    return [str(trial.tactic), *times, ", ".join(words) or trial.barred]


def _not_run(tuned: Tuned) -> Iterator[str]:
    """Reasons, each with one of the tactics that it holds for."""
    barred = sorted((trial.barred, str(trial.tactic)) for trial in tuned.tried if trial.frame is None)
    for why, group in groupby(barred, key=lambda pair: pair[0]):
        tactics = [tactic for _, tactic in group]
        more = f" and {len(tactics) - 1} more" if len(tactics) > 1 else ""
        yield f"{tactics[0]}{more}: {why}"
