"""A build as it goes on: a line for every step that ended and a bar for the one that counts, or events as JSON."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from edgert.cli.output import JsonLines, is_stdout

if TYPE_CHECKING:
    from rich.progress import TaskID

    from edgert.compiler import Event, Tell

_MARKS = {
    "done": "[green]✓[/]",
    "cached": "[dim]=[/]",
    "damaged": "[yellow]![/]",
    "skipped": "[yellow]–[/]",
    "failed": "[red]✗[/]",
}


@contextmanager
def listener(json: Path | None) -> Iterator[tuple[Tell, JsonLines]]:
    """Gives what takes events, and what takes the last line of JSON.

    Events are shown, unless JSON goes to standard output; and are lines of the JSON.
    """
    with JsonLines(json) as write, nullcontext() if is_stdout(json) else BuildProgress() as show:

        def tell(event: Event) -> None:
            write(event.to_json())
            if show is not None:
                show(event)

        yield tell, write


class FirstTimeProgress:
    """A :class:`BuildProgress` that costs nothing, imports included, until it is first told of something; a context.

    Args:
        quiet: shows nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._shown: BuildProgress | None = None
        self._tell: Tell | None = None

    def __enter__(self) -> Tell:
        return self._told

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.__exit__()

    def _told(self, event: Event) -> None:
        if self._quiet:
            return
        if self._tell is None:
            self._shown = BuildProgress()
            self._tell = self._shown.__enter__()
        self._tell(event)


class BuildProgress(AbstractContextManager["Tell"]):
    """A context that gives what is to be told of events; they may come from several threads."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self._console = Console(stderr=True, highlight=False)
        text = TextColumn("{task.description}")
        columns = (SpinnerColumn(), text, BarColumn(bar_width=20), MofNCompleteColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Tell:
        self._bar.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _tell(self, event: Event) -> None:
        with self._lock:
            if event.state == "started":
                self._start(event)
            elif event.state == "progress":
                self._bar.update(self._tasks[event.step, event.subject], completed=event.done, total=event.total)
            elif event.state == "note":
                self._print(event, "[dim]·[/]")
            else:
                self._end(event)

    def _start(self, event: Event) -> None:
        name = f"{event.subject} {event.step}".strip()
        self._tasks[event.step, event.subject] = self._bar.add_task(name, total=None)

    def _end(self, event: Event) -> None:
        if event.state != "damaged":
            task = self._tasks.pop((event.step, event.subject), None)
            if task is not None:
                self._bar.remove_task(task)
        self._print(event, _MARKS[event.state])

    def _print(self, event: Event, mark: str) -> None:
        from rich.markup import escape

        took = f"{event.seconds:6.2f} s" if event.state in ("done", "cached", "failed") else " " * 8
        detail = escape(event.detail)
        self._console.print(f"{mark} {took}  {event.step:<9} {escape(event.subject)}  [dim]{detail}[/]", soft_wrap=True)
