"""What a search tried, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgert.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.tune.trial import Trial, Tuned


def show_tuned(console: Console, name: str, tuned: Tuned) -> None:
    """Prints every tactic of a model, fastest first, and the gain."""
    from rich.markup import escape
    from rich.table import Table

    kind = "cameras" if tuned.live else "files"
    table = Table(title=f"{escape(name)}: {len(tuned.tried)} tactics, for {kind}", title_justify="left")
    table.add_column("tactic", overflow="fold")
    for title in ("ms a frame", "10–90 %", "× default", "n", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for trial in tuned.tried:
        table.add_row(*map(escape, _row(trial, tuned)), style="bold" if trial.tactic == tuned.chosen else "")
    console.print(table)
    console.print(f"[green]→[/] {escape(name)}: gain {tuned.gain:.2f} ×; {escape(tuned.told)}")


def _row(trial: Trial, tuned: Tuned) -> list[str]:
    frame = trial.frame
    times = ["–"] * 2 if frame is None else [f"{frame.median_ms:.2f}", f"{frame.low_ms:.2f}–{frame.high_ms:.2f}"]
    gain = "–" if trial.gain is None else f"{trial.gain:.2f}"
    memory = "–" if trial.memory_bytes is None else format_bytes(trial.memory_bytes)
    return [str(trial.tactic), *times, gain, str(frame.runs) if frame else "–", memory, _verdict(trial, tuned)]


def _verdict(trial: Trial, tuned: Tuned) -> str:
    words = [
        *(["default"] if trial.tactic == tuned.default else []),
        *(["chosen"] if trial.tactic == tuned.chosen else []),
    ]
    return ", ".join(words) or trial.barred
