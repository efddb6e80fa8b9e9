"""Many videos in the terminal: a bar, a line for each finished one, and at the end those that failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edgert.cli.progress import counting_bar, stop_on_signal
from edgert.cli.terminal import console, is_stdout, write_json
from edgert.errors import EXIT_INTERRUPTED, EdgertError, printable
from edgert.reporter import OnProgress, Progress

if TYPE_CHECKING:
    from edgert.assemble import Environment
    from edgert.cli.run_view import View
    from edgert.config import PipelineFile
    from edgert.video_player import VideoResult


def has_videos(file: PipelineFile) -> bool:
    """Return whether a pipeline plays videos one after another."""
    from edgert.config import SourceStage
    from edgert.stages.source.kinds import kind_of

    stages, folder = file.config.stages.values(), file.document.path.parent
    return any(isinstance(stage, SourceStage) and kind_of(stage.source, folder) == "videos" for stage in stages)


def play_videos(
    file: PipelineFile,
    environment: Environment,
    view: View,
    *,
    jobs: int = 1,
    dask: str = "",
    on_progress: OnProgress | None = None,
    strict: bool = False,
) -> None:
    """Play every video, and show the result of each.

    Args:
        file: its only source names videos.
        environment: of each pipeline on this machine.
        view: how they are shown.
        jobs: how many are played at a time.
        dask: address of a Dask scheduler, whose workers play them instead.
        on_progress: see :class:`edgert.Pipeline`.
        strict: see there.

    Raises:
        EdgertError: an error that is no video's.
        typer.Exit: a video is damaged or lacks results; or it was interrupted.
    """
    from edgert.cli import log
    from edgert.config import SourceStage
    from edgert.video_runs import VideoRuns

    screen, stages = console(stderr=True, tables=False), file.config.stages
    sources = [name for name, stage in stages.items() if isinstance(stage, SourceStage)]
    runs = VideoRuns(file, environment, jobs=jobs, dask=dask, on_progress=on_progress, strict=strict)
    log.begin(view.how, screen, quiet=view.quiet, sources=sources, stages=stages)
    for handler in logging.getLogger("edgert").handlers:
        handler.addFilter(_once())
    results: list[VideoResult] = []
    left = 0
    failed: EdgertError | None = None
    is_shown = not view.quiet and view.how in ("terminal", "text")
    with (
        counting_bar(screen, "") if is_shown else nullcontext() as move,
        stop_on_signal(runs.stop, is_last=True),
    ):

        def show(result: VideoResult, done: int, total: int) -> None:
            results.append(result)
            if is_shown:
                screen.print(_line(result, done, total), markup=False, soft_wrap=True)
            elif not view.quiet:
                log.RUN.info("%s", _line(result, done, total))
            if move is not None:
                move(Progress("videos", done=len(results), total=left))

        def begin(before: int, total: int) -> None:
            nonlocal left
            left = total - before
            if before and not view.quiet:
                where = f"; remove {runs.journal.path} to have all played again"
                typer.echo(printable(f"{before} of {total} videos were done before{where}"), err=True)
            if move is not None and left:
                move(Progress("videos", total=left))

        try:
            everything = runs.run(show, begin)
        except EdgertError as error:
            failed, everything = error, results
    _write(everything, failed, len(runs.videos), view.json)
    _print_end(everything, len(runs.videos), quiet=view.quiet, to_stderr=is_stdout(view.json))
    if failed is not None:
        raise failed
    if runs.is_stopped:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not all(result.is_fine for result in everything):
        raise typer.Exit(1)


def _once() -> Callable[[logging.LogRecord], bool]:
    """Return a filter that passes notes only the first time, as every video's pipeline has the same; and all else."""
    seen = set[str]()

    def passes(record: logging.LogRecord) -> bool:
        is_new = record.levelno > logging.INFO or record.getMessage() not in seen
        seen.add(record.getMessage())
        return is_new

    return passes


def _line(result: VideoResult, done: int, total: int) -> str:
    """Return the line of one finished video."""
    skipped = f", {result.skipped} corrupt pieces skipped" if result.skipped else ""
    place = f" on {result.worker}" if result.worker else ""
    came = f"ok, {result.frames} frames in {result.seconds:.1f} s{place}{skipped}"
    what = came if result.state == "ok" else f"{result.state}: {result.why}"
    return printable(f"{done} of {total}  {result.path.name}  {what}")


def _write(results: list[VideoResult], failed: EdgertError | None, count: int, json: Path | None) -> None:
    found: dict[str, object] = {"count": count, "videos": [result.to_json() for result in results]}
    write_json({**found, "error": failed.to_json()} if failed is not None else found, json)


def _print_end(results: list[VideoResult], count: int, *, quiet: bool, to_stderr: bool) -> None:
    """Print how many are done, and those that are not, each with its reason."""
    fine = sum(result.is_fine for result in results)
    typer.echo(f"{fine} of {count} videos are done", err=to_stderr)
    for result in results:
        if not result.is_fine:
            typer.echo(printable(f"{result.path}: {result.state}: {result.why}"), err=to_stderr)
