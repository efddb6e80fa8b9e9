"""A bar for work that is counted in images."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class ImageBar:
    """Counts images with their rate and the time left, on a terminal; a context manager to be called.

    Work of another name than before starts the bar again.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        rate = TextColumn("{task.fields[rate]}", style="dim")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._name = ""
        self._task = TaskID(0)

    def __enter__(self) -> ImageBar:
        self._bar.start()
        return self

    def __call__(self, name: str, done: int, total: int) -> None:
        """Moves the bar of the work called ``name``."""
        if name != self._name:
            if self._name:
                self._bar.remove_task(self._task)
            self._name, self._task = name, self._bar.add_task(name, total=total, rate="")
        speed = None if name.startswith("compiling") else self._bar.tasks[-1].speed
        self._bar.update(self._task, completed=done, rate=f"{speed:.1f} images/s" if speed else "")

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _first_time(name: str) -> str:
    if name.startswith("compiling"):
        return "engines are compiled once; the next start finds them in the cache"
    return "INT8 is made once, from the calibration images; the next start finds it in the cache"


class FirstTimeBar:
    """A :class:`ImageBar` on standard error that costs nothing, imports included, until it is first moved, and then
    says why the start takes so long."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: ImageBar | None = None

    def __enter__(self) -> FirstTimeBar:
        return self

    def __call__(self, name: str, done: int, total: int) -> None:
        """Moves the bar of the work called ``name``."""
        if self._quiet:
            return
        if self._bar is None:
            from rich.console import Console

            console = Console(stderr=True, highlight=False)
            console.print(_first_time(name))
            self._bar = ImageBar(console).__enter__()
        self._bar(name, done, total)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.__exit__()
