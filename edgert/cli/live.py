"""What a running pipeline looks like: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from edgert.cli.summary import stage_table

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.pipeline import Pipeline
    from edgert.runtime import Summary

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

            def tell(summary: Summary) -> None:
                live.update(stage_table(summary, console.width, _line(summary, label)))

            _watch(pipeline, duration_s, tell, _REFRESH_S)


def _log_to(console: Console, quiet: bool) -> None:
    """edgert's own messages (a camera lost, a live page opened) on the console that the live view shares."""
    from rich.logging import RichHandler

    handler = RichHandler(console=console, show_path=False, show_level=False, log_time_format="%H:%M:%S", markup=False)
    logger = logging.getLogger("edgert")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


def _watch(pipeline: Pipeline, duration_s: float | None, tell: Callable[[Summary], None], every_s: float) -> None:
    started = last = time.monotonic()
    while not pipeline.wait(0.1):
        now = time.monotonic()
        if duration_s is not None and now - started >= duration_s:
            pipeline.stop()
            duration_s = None
        if now - last >= every_s:
            last = now
            tell(pipeline.summary())


def _line(summary: Summary, label: str) -> str:
    latency = summary.latency_ms
    return (
        f"{label}{'  ' if label else ''}{summary.seconds:7.1f} s  {summary.frames_out} frames  {summary.fps:.1f} fps  "
        f"latency p50 {latency.p50:.1f} p99 {latency.p99:.1f} ms  dropped {summary.dropped}"
    )
