"""A bar for work that is counted in images."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

import typer

from edgert.cli.run_summary import stage_table

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.pipeline import Pipeline
    from edgert.runtime import Summary


# Ctrl-C and SIGTERM as a request to end, not as an exception in the middle of things.

_IMPATIENT = 3


@dataclass(slots=True)
class Signals:
    """How often a signal came."""

    count: int = 0


@contextmanager
def stop_on_signal(stop: Callable[[], None]) -> Iterator[Signals]:
    """Calls ``stop`` on SIGINT and SIGTERM inside the block; the third signal ends the process at once."""
    seen = Signals()

    def on_signal(number: int, frame: FrameType | None) -> None:
        seen.count += 1
        if seen.count >= _IMPATIENT:
            os._exit(128 + number)
        stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    shows why the start takes so long."""

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


# What a running pipeline looks like: a live table on a terminal, plain lines elsewhere.

_REFRESH_S = 0.25
_LINE_EVERY_S = 5.0


def show(pipeline: Pipeline, *, duration_s: float | None, plain: bool, quiet: bool, label: str = "") -> None:
    """Runs the pipeline to its end, or for ``duration_s``, showing how it goes. Raises its first error.

    Args:
        label: before every line, where what is shown is not this machine's.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    _log_to(console, quiet)
    pipeline.start()
    if quiet:
        _watch(pipeline, duration_s, lambda summary: None, _LINE_EVERY_S)
    elif plain or not console.is_terminal:
        _watch(pipeline, duration_s, lambda summary: typer.echo(_line(summary, label), err=True), _LINE_EVERY_S)
    else:
        from rich.live import Live

        with Live(console=console, refresh_per_second=4, transient=True) as live:

            def update(summary: Summary) -> None:
                live.update(stage_table(summary, console.width, _line(summary, label)))

            _watch(pipeline, duration_s, update, _REFRESH_S)


def _log_to(console: Console, quiet: bool) -> None:
    """edgert's own messages (a camera lost, a live page opened) on the console that the live view shares."""
    from rich.logging import RichHandler

    handler = RichHandler(console=console, show_path=False, show_level=False, log_time_format="%H:%M:%S", markup=False)
    logger = logging.getLogger("edgert")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


def _watch(pipeline: Pipeline, duration_s: float | None, update: Callable[[Summary], None], every_s: float) -> None:
    started = last = time.monotonic()
    while not pipeline.wait(0.1):
        now = time.monotonic()
        if duration_s is not None and now - started >= duration_s:
            pipeline.stop()
            duration_s = None
        if now - last >= every_s:
            last = now
            update(pipeline.summary())


def _line(summary: Summary, label: str) -> str:
    latency = summary.latency_ms
    return (
        f"{label}{'  ' if label else ''}{summary.seconds:7.1f} s  {summary.frames_out} frames  {summary.fps:.1f} fps  "
        f"latency p50 {latency.p50:.1f} p99 {latency.p99:.1f} ms  dropped {summary.dropped}"
    )
