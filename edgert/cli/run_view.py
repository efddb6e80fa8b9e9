"""A run in the terminal: its progress and its summary."""

from __future__ import annotations

import glob
import math
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edgert.cli.progress import stop_on_signal
from edgert.cli.terminal import Column, Row, console, how_to_open, is_stdout, styled, table, write_json
from edgert.clock import REAL
from edgert.errors import EdgertError
from edgert.meters.over_current import listed
from edgert.units import format_bytes, format_ms

if TYPE_CHECKING:
    from rich.table import Table

    from edgert.cli import log
    from edgert.clock import Clock
    from edgert.config import PipelineFile
    from edgert.pipeline import Pipeline
    from edgert.runtime import Summary

_STAGE_COLUMNS = (
    Column("stage"),
    Column("in", is_number=True, rank=1),
    Column("out", is_number=True),
    Column("dropped", is_number=True),
    Column("busy", is_number=True),
    Column("ms each", is_number=True),
    Column("starved", is_number=True, rank=2),
    Column("blocked", is_number=True, rank=2),
)
_SHOWN_EVENTS = 20  # of a governor, the last ones; the JSON has more
_REFRESH_S = 0.25
_LINE_EVERY_S = 5.0
_RECORD_EVERY_S = 60.0
SUMMARY_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class View:
    """Display options of a run; ``json`` and ``trace`` are files to write, at ``duration_s`` it is stopped."""

    how: log.LogFormat = "terminal"
    json: Path | None = None
    duration_s: float | None = None
    plain: bool = False
    quiet: bool = False
    trace: Path | None = None


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run: its summary, and the error that ended it."""

    summary: Summary
    error: EdgertError | None

    def check(self) -> None:
        """Raise the error that ended the run; raise Exit with code 1 where a stage was down at the end."""
        if self.error is not None:
            raise self.error
        if any(stage.state.failing for stage in self.summary.stages.values()):
            raise typer.Exit(1)  # its output is incomplete


def run_with_view(
    pipeline: Pipeline,
    view: View,
    *,
    report: Callable[[Summary], Mapping[str, Any]],
    label: str = "",
    clock: Clock | None = None,
) -> RunOutcome:
    """Run a pipeline to its end, show it, and write its summary as JSON every hour and at the end.

    Args:
        pipeline: pipeline that is not started yet.
        view: display options.
        report: function that returns what the JSON has beside the summary.
        label: text before every line, where the figures are not this machine's.
        clock: clock of the duration; None: this machine's.
    """
    failed: EdgertError | None = None

    def write(summary: Summary) -> None:
        error = {} if failed is None else {"error": failed.to_json()}
        write_json({**report(summary), **summary.to_json(), **error}, view.json)

    began_s, to_stdout = time.time(), is_stdout(view.json)
    keep = None if view.json is None or to_stdout else write
    try:
        with ExitStack() as stack:
            running = stack.enter_context(pipeline)
            stack.enter_context(stop_on_signal(running.stop, is_last=True))
            stack.enter_context(systemd_notified(running))
            if view.trace is not None:
                stack.enter_context(running.control.traced(view.trace))
            try:
                run_with_progress(running, view, label=label, clock=clock, keep=keep)
            finally:
                summary = running.summary()
    except EdgertError as error:  # the summary of the results so far is still written
        failed = error
    write(summary)  # before anything is printed: the terminal may be gone
    if failed is not None and not summary.frames_out:
        raise failed
    if not to_stdout or view.how != "json":
        print_summary(running.file, summary, began_s, to_stderr=to_stdout)
        if view.trace is not None and failed is None:
            console(stderr=to_stdout).print("[green]→[/]", styled(how_to_open(view.trace), ""), soft_wrap=True)
    return RunOutcome(summary, failed)


@contextmanager
def systemd_notified(pipeline: Pipeline) -> Iterator[None]:
    """Report the pipeline's state to systemd inside the block, where systemd started this process to do so."""
    from edgert.runtime.health import Heartbeat, notify

    if not notify("STATUS=starting"):
        yield
        return
    heartbeat = Heartbeat(pipeline.state)
    heartbeat.start()
    try:
        yield
    finally:
        heartbeat.stop()


# During the run: a live table on a terminal, plain lines elsewhere.


def run_with_progress(
    pipeline: Pipeline, view: View, *, label: str, clock: Clock | None, keep: Callable[[Summary], None] | None
) -> None:
    """Run the pipeline to its end and show its progress. Raises the pipeline's first error."""
    from edgert.cli import log  # --help starts without logging

    screen = console(stderr=True)
    log.start_log(view.how, screen, quiet=view.quiet, stages=lambda: pipeline.file.config.stages)
    pipeline.start()
    now_ns = (clock or REAL).now_ns
    ends_ns = None if view.duration_s is None else now_ns() + round(1e9 * view.duration_s)

    def is_over() -> bool:
        return ends_ns is not None and now_ns() >= ends_ns

    watch = partial(_watch, pipeline, is_over, keep)
    if view.quiet:
        watch(lambda summary: None, _LINE_EVERY_S)
    elif view.how in ("json", "journal"):
        code = {"code": "run.status"}
        watch(
            lambda summary: log.RUN_LOG.info("%s", _progress_line(summary, label).strip(), extra=code), _RECORD_EVERY_S
        )
    elif view.plain or not screen.is_terminal:
        watch(lambda summary: typer.echo(_progress_line(summary, label), err=True), _LINE_EVERY_S)
    else:
        from rich.live import Live

        with Live(console=screen, refresh_per_second=4, transient=True) as live:

            def update(summary: Summary) -> None:
                live.update(stage_table(summary, screen.width, _progress_line(summary, label)))

            watch(update, _REFRESH_S)


def _watch(
    pipeline: Pipeline,
    is_over: Callable[[], bool],
    keep: Callable[[Summary], None] | None,
    update: Callable[[Summary], None],
    every_s: float,
) -> None:
    """Call ``update`` regularly until the run ends; after an OSError, such as a closed pipe, call it no more."""
    last = kept = time.monotonic()
    keeper = threading.Thread()
    while not pipeline.wait(0.1):
        now = time.monotonic()
        if is_over():
            pipeline.stop()
        if keep is not None and now - kept >= SUMMARY_EVERY_S and not keeper.is_alive():
            kept = now
            keeper = threading.Thread(
                target=_write_summary, args=(keep, pipeline.summary()), name="edgert:summary", daemon=True
            )
            keeper.start()
        if now - last >= every_s:
            last = now
            try:
                update(pipeline.summary())
            except OSError:  # the reader of standard error is gone
                every_s = math.inf


def _write_summary(keep: Callable[[Summary], None], summary: Summary) -> None:
    """Write the hourly summary; a failure is only a warning, as a full disk may have space again at the end."""
    from edgert.cli import log

    try:
        keep(summary)
    except EdgertError as error:
        log.RUN_LOG.warning("the summary is not written: %s", error)


def _progress_line(summary: Summary, label: str) -> str:
    recent = summary.recent
    latency = recent.latency_ms
    down = [name for name, stage in summary.stages.items() if stage.source and stage.source.up is False]
    return (
        f"{label}{'  ' if label else ''}{summary.seconds:7.1f} s  {summary.frames_out} frames  {recent.fps:.1f} fps  "
        f"latency p50 {format_ms(latency.p50)} p99 {format_ms(latency.p99)}  dropped {sum(recent.dropped.values())}/min"
        + (f"  down: {', '.join(down)}" if down else "")
    )


def stage_table(summary: Summary, width: int, title: str = "") -> Table:
    """Return a table with each stage's results, drops, and use of its thread's time."""
    rows = [
        Row(
            (
                name,
                str(stage.results_in),
                str(stage.results_out),
                str(stage.dropped) if stage.dropped else "",
                f"{stage.busy_percent:.0f} %",
                f"{stage.busy_ms_per_result:.2f}",
                f"{stage.wait_in_percent:.0f} %",
                f"{stage.wait_out_percent:.0f} %",
            )
        )
        for name, stage in summary.stages.items()
    ]
    return table(_STAGE_COLUMNS, rows, width=width, title=title)


# After the run.


def print_summary(file: PipelineFile, summary: Summary, began_s: float = 0.0, to_stderr: bool = False) -> None:
    """Print the summary, and the files that were written since ``began_s`` (seconds since the epoch)."""
    screen = console(stderr=to_stderr)
    latency = summary.latency_ms
    screen.print(stage_table(summary, screen.width))
    screen.print(
        f"[bold]{summary.frames_out}[/] of {summary.frames_in} frames in {summary.seconds:.1f} s: "
        f"[bold]{summary.fps:.1f} fps[/], latency "
        + " ".join(f"{name} {format_ms(getattr(latency, name))}" for name in ("p50", "p95", "p99"))
    )
    memory = summary.memory
    screen.print(
        f"{memory.copies_per_frame:.2f} host copies ({format_bytes(memory.bytes_copied_per_frame)}) per frame, "
        f"peak memory {format_bytes(memory.peak_rss_bytes)}"
    )
    for name, place in summary.notes.frames.items():
        screen.print(f"frames of {name}: {place}", markup=False)
    for name, limits in summary.notes.tracks.items():
        screen.print(f"{name}: {limits}", markup=False)
    for name, count in summary.notes.left_out.items():
        what = "not finite, without a size, or outside of the image"
        screen.print(f"model {name}: {count} boxes left out: {what}", style="yellow", markup=False)
    skipped = dict[str, None]()  # engines of the chain that do not run, each once
    for name, engine in summary.engine.items():
        threads = engine.get("threads")
        counted = f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""
        made = "from the cache" if engine.get("cached") else "compiled now"
        backend = " ".join(filter(None, (engine.get(part) for part in ("backend", "version", "precision"))))
        requested = getattr(file.config.models.get(name), "precision", "")
        backend += " (precision: auto)" if requested == "auto" and engine.get("precision") else ""
        graph = f", CUDA graph: {engine['graph']}" if "graph" in engine else ""
        batch = f", batches: {engine['batch']}" if "batch" in engine else ""
        screen.print(f"model {name}: {backend}{counted}, {made}{graph}{batch}", markup=False)
        for one in engine.get("skipped", ()):
            skipped[f"{one['engine']} skipped{f' for model {name}' if one['model'] else ''}: {one['why']}"] = None
    if skipped and file.passed_over is not None:  # the default engines, not requested ones
        screen.print(f"engines: is left out, so the best here; {'; '.join(skipped)}", markup=False)
    else:
        for line in skipped:
            screen.print(line, style="yellow", markup=False)
    for line in _governor_lines(summary.budgets, summary.frames_out):
        screen.print(line, markup=False)
    events = listed(summary.notes.over_current)
    drew = [f"the board lowered its clocks as it drew too much: {events} events; see docs/meters.md"] if events else []
    for line in (*_stage_troubles(summary), *drew, *_exceeded_budgets(file, summary)):
        screen.print(line, style="yellow", markup=False)
    for stage in file.config.stages.values():
        if (path := getattr(stage, "path", None)) is not None:
            for line in written_files(path, began_s):
                screen.print("[green]→[/]", styled(line, ""), soft_wrap=True)


_PATH_FIELD = re.compile(r"\{[^{}]*\}")
_SHOWN_FILES = 3
_FILE_TIME_ERROR_S = 2.0
"""Largest error of a file's modification time: FAT stores it in steps of two seconds."""


def written_files(pattern: Path, began_s: float) -> Iterator[str]:
    """Yield the files of a sink that were written since a time; of more than a few, their number and the last."""
    found, root = list[tuple[float, Path]](), Path(pattern.anchor)
    spots = _PATH_FIELD.split(str(pattern.relative_to(root)))
    for path in root.glob("*".join(map(glob.escape, spots))):
        with suppress(OSError):
            file = path.stat()
            if not stat.S_ISREG(file.st_mode) or (file.st_size and file.st_mtime >= began_s - _FILE_TIME_ERROR_S):
                found.append((file.st_mtime, path))
    paths = [path for _, path in sorted(found)]
    if len(paths) <= _SHOWN_FILES:
        yield from map(str, paths)
    else:
        folder = os.path.commonpath([path.parent for path in paths]) or "."
        yield f"{len(paths)} files in {folder}, the last: {paths[-1].name}"


def _stage_troubles(summary: Summary) -> Iterator[str]:
    for name, stage in summary.stages.items():
        state = stage.state
        if state.errors:
            again = f", opened again {state.restarts} times" if state.restarts else ""
            yield f"{name}: failed {state.errors} times{again}"
        if state.failing:
            yield f"{name}: down at the end: {state.failing}"
        if stage.source and stage.source.skipped:
            yield f"{name}: {stage.source.skipped} packets or messages skipped: damaged, or out of order"
        if stage.source and stage.source.reconnects:
            yield f"{name}: reconnected {stage.source.reconnects} times"
        if stage.source and stage.source.ended:
            yield f"{name}: {stage.source.reason}"
        elif stage.source and stage.source.reason:
            yield f"{name}: down for the last {stage.source.state_s or 0.0:.0f} s: {stage.source.reason}"


def _governor_lines(budgets: Mapping[str, Any], frames: int) -> Iterator[str]:
    """Yield the governor's settings and actions, the power or CPU time used, and memory compared with the plan."""
    governor, used, plan = budgets.get("governor"), budgets.get("used"), budgets.get("memory")
    if not governor:
        return
    seconds = sum(governor["seconds"].values()) or 1.0
    shares = sorted(governor["seconds"].items(), key=lambda one: -one[1])
    shown = ", ".join(f"{name} {share / seconds:.0%} of the time" for name, share in shares)
    yield f"budgets: {shown}" + (f"; {budgets['throttled']} frames throttled" if budgets["throttled"] else "")
    if used is not None and used["mean"] is not None:
        is_power = used["unit"] == "W"
        each = f", {used['total'] / frames:.3g} J a frame" if is_power and frames else ""
        parts = [f"{used[f'{kind}_s']:.0f} s {kind}" for kind in ("modeled", "missing") if used[f"{kind}_s"] >= 0.5]
        doubt = f" ({', '.join(parts)})" if parts else ""
        taken = f"{used['mean']:.3g} of {used['limit']:g} {used['unit']} on average"
        yield f"{'power' if is_power else 'CPU time'}: {taken}{each}{doubt}"
    if plan is not None:
        more, planned = plan["more_bytes"], format_bytes(plan["total_bytes"])
        difference = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'} than the {planned} planned"
        mapped = "" if plan["nvmap_bytes"] is None else f"; mapped by GPU and DLA {format_bytes(plan['nvmap_bytes'])}"
        yield f"memory: peak {format_bytes(plan['measured_bytes'])}, {difference}{mapped}"
        yield from plan["steps"]
    for event in governor["events"][-_SHOWN_EVENTS:]:
        yield f"  {event['at_s']:7.1f} s  {event['kind']}: {event['reason']}"
    yield from (f"  note: {note}" for note in governor["notes"])


def _exceeded_budgets(file: PipelineFile, summary: Summary) -> Iterator[str]:
    budgets, used, p99 = file.config.budgets, summary.budgets.get("used"), summary.latency_ms.p99
    if budgets.latency is not None and p99 > budgets.latency * 1e3:
        yield f"over budget: latency p99 {format_ms(p99)}, promised {format_ms(budgets.latency * 1e3)}"
    if used is not None and (used["mean"] or 0.0) > used["limit"]:
        name = "power" if used["unit"] == "W" else "CPU time"
        yield f"over budget: {name} {used['mean']:.3g} {used['unit']}, promised {used['limit']:g}"
    if budgets.memory is not None and summary.memory.peak_rss_bytes > budgets.memory:
        peak = format_bytes(summary.memory.peak_rss_bytes)
        yield f"over budget: memory {peak}, promised {format_bytes(budgets.memory)}"
