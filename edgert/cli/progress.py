"""The progress of work: bars on a terminal, a line for every step of a build, and Ctrl-C as a request to end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from edgert.cli.terminal import console as screen
from edgert.reporter import Reporter

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

    from edgert.reporter import OnProgress, Progress

_SIGNALS_THAT_KILL = 3
_MARKS = {
    "done": "[green]✓[/]",
    "cached": "[dim]=[/]",
    "damaged": "[yellow]![/]",
    "skipped": "[yellow]–[/]",
    "failed": "[red]✗[/]",
    "note": "[dim]·[/]",
}


class Interruption:
    """Whether a signal ended the verb early, so that its error is no failure; and whether Ctrl-C raised it."""

    by_signal = was_raised = False


def raise_interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT: record the interruption, and raise KeyboardInterrupt."""
    Interruption.by_signal = Interruption.was_raised = True
    raise KeyboardInterrupt


@contextmanager
def stop_on_signal(stop: Callable[[], None], *, is_last: bool = False) -> Iterator[None]:
    """Call ``stop`` once, in a thread of its own, on the first SIGINT, SIGTERM or SIGHUP inside the block.

    The third signal ends the process at once. A SIGHUP that is ignored, as under ``nohup``, stays ignored. With
    ``is_last`` the process ends soon after the block, so a second signal must not interrupt the files written after it.
    """
    received, is_over, reader_end, writer_end = 0, False, *os.pipe()

    def on_signal(number: int, frame: FrameType | None) -> None:
        # A signal may interrupt any code, even this handler. So no lock is taken here: stop() may hold it already.
        nonlocal received
        received += 1
        Interruption.by_signal |= not is_last
        if received >= _SIGNALS_THAT_KILL:
            os._exit(128 + number)
        if not is_over:
            os.write(writer_end, b"!")

    def wait() -> None:
        if os.read(reader_end, 1):  # empty when the block has ended
            stop()

    waiter = threading.Thread(target=wait, name="edgert:signals", daemon=True)
    waiter.start()
    caught = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        caught.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in caught}
    try:
        yield
    finally:
        is_over = True
        if not (is_last and received):
            for number, handler in before.items():
                signal.signal(number, handler)
        os.close(writer_end)
        waiter.join()
        os.close(reader_end)


@contextmanager
def counting_bar(console: Console, rate_of: str = "images") -> Iterator[Reporter]:
    """Yield a reporter that moves a bar with the rate of a noun, and prints notes; a new step starts the bar again."""
    from rich import progress as rich

    name, rate = rich.TextColumn("{task.description}"), rich.TextColumn("{task.fields[rate]}", style="dim")
    columns = (name, rich.BarColumn(), rich.MofNCompleteColumn(), rate, rich.TimeRemainingColumn())
    with rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def show(progress: Progress) -> None:
            name, done, total = progress.step, progress.done, progress.total
            if progress.state == "note":
                console.print(progress.detail, style="dim", markup=False)
                return
            if [task.description for task in bar.tasks] != [name]:
                for number in bar.task_ids:
                    bar.remove_task(number)
                bar.add_task(name, total=total, rate="")
            (task,) = bar.tasks
            speed = None if name.startswith("compiling") or not rate_of else task.speed
            bar.update(task.id, completed=done, total=total, rate=f"{speed:.1f} {rate_of}/s" if speed else "")

        yield Reporter(show)


@contextmanager
def planning_bar() -> Iterator[OnProgress]:
    """Yield a function that moves a bar on standard error, with the current board and the time left.

    Where standard error is not a terminal, a line names the first board.
    """
    from rich import progress as rich
    from rich.markup import escape

    console = screen(stderr=True)
    text, left = rich.TextColumn("planning {task.description}"), rich.TextColumn("left:")
    bar_column, times = rich.BarColumn(bar_width=20), (rich.TimeElapsedColumn(), left, rich.TimeRemainingColumn())
    columns = (rich.SpinnerColumn(), text, bar_column, *times)
    with rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def show(progress: Progress) -> None:
            name = escape(progress.step)
            if not bar.task_ids:
                bar.add_task("")
                if not console.is_terminal:
                    console.print(f"planning {name} ...", soft_wrap=True)
            bar.update(bar.task_ids[0], description=name, completed=progress.done, total=progress.total)

        yield show


_WAIT_SHOWN_AFTER_S = 1.0


@contextmanager
def show_waiting(text: str) -> Iterator[None]:
    """Show ``text`` on standard error when the block takes longer than a second.

    A terminal shows it with a spinner, anything else as a line.
    """
    ended = threading.Event()

    def show() -> None:
        if ended.wait(_WAIT_SHOWN_AFTER_S):
            return
        console = screen(stderr=True)
        with suppress(OSError):  # the terminal is gone
            if not console.is_terminal:
                console.print(f"{text} ...", soft_wrap=True, markup=False)
                return
            with console.status(f"{text} ..."):
                ended.wait()

    thread = threading.Thread(target=show, name="edgert:waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def first_time_bar() -> Iterator[OnProgress]:
    """Yield a function that moves a bar on standard error, and first explains why this start takes longer."""
    console = screen(stderr=True)
    explained = False
    with counting_bar(console) as bar:

        def show(progress: Progress) -> None:
            nonlocal explained
            if not explained:
                first = "engines are compiled once; the next start finds them in the cache"
                other = "INT8 is made once, from the calibration images; the next start finds it in the cache"
                console.print(first if progress.step.startswith("compiling") else other)
                explained = True
            bar(progress)

        yield show


@contextmanager
def build_progress() -> Iterator[Reporter]:
    """Yield a reporter of a build, which may be called from any thread.

    It prints a line for each finished step, and shows a bar for a step that counts.
    """
    from rich import progress as rich
    from rich.markup import escape

    console, lock, tasks = screen(stderr=True), threading.Lock(), dict[tuple[str, str], rich.TaskID]()
    text_column, bar_column = rich.TextColumn("{task.description}"), rich.BarColumn(bar_width=20)
    columns = (rich.SpinnerColumn(), text_column, bar_column, rich.MofNCompleteColumn())
    with rich.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def show(event: Progress) -> None:
            key = (event.model, event.step)
            if event.state == "started":
                tasks[key] = bar.add_task(" ".join(key).strip(), total=None)
                return
            if event.state == "progress":
                bar.update(tasks[key], completed=event.done, total=event.total)
                return
            if event.state not in ("damaged", "note") and key in tasks:
                bar.remove_task(tasks.pop(key))
            took = f"{event.seconds:6.2f} s" if event.state in ("done", "cached", "failed") else " " * 8
            text = f"{took}  {event.step:<9} {escape(event.model)}  [dim]{escape(event.detail)}[/]"
            console.print(f"{_MARKS[event.state]} {text}", soft_wrap=True)

        def locked(event: Progress) -> None:
            with lock:
                show(event)

        yield Reporter(locked)


@contextmanager
def on_first_call(
    make: Callable[[], AbstractContextManager[Callable[..., Any]]], quiet: bool = False
) -> Iterator[Callable[..., None]]:
    """Yield a function that enters a context on its first call, and passes every call to what that context yields.

    Without a call nothing is imported for the context. If ``quiet``, calls do nothing.
    """
    with ExitStack() as stack:
        entered = cache(lambda: stack.enter_context(make()))

        def call(*arguments: Any) -> None:
            if not quiet:
                entered()(*arguments)

        yield call
