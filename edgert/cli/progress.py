"""A bar for work that is counted in pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class PictureBar:
    """Counts pictures with their rate and the time left, on a terminal; a context manager to be called.

    Work of another name than before starts the bar again.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        rate = TextColumn("{task.fields[rate]}", style="dim")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._name = ""
        self._task = TaskID(0)

    def __enter__(self) -> PictureBar:
        self._bar.start()
        return self

    def __call__(self, name: str, done: int, total: int) -> None:
        """Moves the bar of the work called ``name``."""
        if name != self._name:
            if self._name:
                self._bar.remove_task(self._task)
            self._name, self._task = name, self._bar.add_task(name, total=total, rate="")
        speed = self._bar.tasks[-1].speed
        self._bar.update(self._task, completed=done, rate=f"{speed:.1f} pictures/s" if speed else "")

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
