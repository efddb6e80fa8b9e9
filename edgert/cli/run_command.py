"""``edgert run``."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgert.cli import option
from edgert.cli.progress import build_progress, first_time_bar, on_first_call, planning_bar, stop_on_signal
from edgert.cli.run_view import print_emulated, print_summary, show, show_memory
from edgert.cli.terminal import is_stdout, write_json
from edgert.errors import DeviceError, EdgertError
from edgert.gc_control import gc_frequent
from edgert.installation import pipeline_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from edgert.assemble import Environment
    from edgert.compiler.unpack import Unpacked
    from edgert.config import PipelineFile
    from edgert.emulation import Emulation
    from edgert.pipeline import Pipeline
    from edgert.runtime import Summary
    from edgert.steps import OnEvent


def run(
    pipeline: option.BundleArgument,
    overrides: option.Set = None,
    duration: Annotated[float | None, option.Duration] = None,
    json: option.Json = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print plain lines instead of the live view.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the summary.")] = False,
    strict: option.Strict = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only show how much memory it will take, part by part, and what power control may change. Exit code 1 "
            "when the memory does not fit.",
        ),
    ] = False,
    as_board: Annotated[
        str | None,
        typer.Option("--as", metavar="BOARD", help="Emulate a board: its predicted times, power and temperature."),
    ] = None,
    mode: Annotated[str | None, option.mode("For --as; the one that edgert plan chooses when left out.")] = None,
    profiles: option.Profiles = None,
    allow_power_control: Annotated[
        bool,
        typer.Option(
            "--allow-power-control",
            help="Keep a power budget by lower clocks and power modes of this Jetson, too; they are restored at the "
            "end.",
        ),
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            "--log", metavar="text|json", help="Write the log as lines of text, or as one JSON object per line."
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", metavar="N", min=1, help="Play so many of the videos of a videos: source at a time."),
    ] = 1,
    debug: option.Debug = False,
) -> None:
    """Run a pipeline until its sources end, or Ctrl-C.

    Ctrl-C and SIGTERM end it within 2 seconds with every file closed. The summary shows where the time went. Exit code
    1 also when a stage that may fail (on_error) was down at the end; 0 when it worked again.

    A source like videos:FOLDER/*.mp4 is played file by file, and each file's result is shown. After an interruption the
    same command skips finished videos. Exit code 1 when a video is damaged.

    Examples:

        edgert run hello

        edgert run pipeline.yaml --set stages.camera.source=clip.mp4

        edgert run dock.edgert

        edgert run pipeline.yaml --as orin-nx-16gb --mode 15W

        edgert run pipeline.yaml --set "stages.camera.source=videos:clips/*.mp4" --jobs 2
    """
    if log not in (None, "text", "json"):
        raise typer.BadParameter(f"{log!r} is neither text nor json", param_hint="--log")
    from edgert.cli.log import json_stderr, way
    from edgert.cli.videos_view import has_videos, play_videos
    from edgert.pipeline import Pipeline

    how = way(log, sys.stderr)
    if how == "json":
        json_stderr()
    with ExitStack() as stack:
        with on_first_call(first_time_bar, quiet) as bar, on_first_call(build_progress, quiet) as on_event:
            path, is_here = pipeline_path(pipeline), as_board is None
            file, bundle = _opened(
                stack, path, overrides or (), on_event, strict=strict, is_here=is_here, dry_run=dry_run, quiet=quiet
            )
            if dry_run:
                _dry(file, json, bundle, as_board, allow_power_control)
                return
            videos = has_videos(file)
            option.refuse({"--jobs": jobs if jobs > 1 and not videos else None}, "it is for a videos: source")
            if not allow_power_control:
                warn_of_settings_left(Path("/"))
            place = _emulated(file, as_board, mode, profiles or (), bundle, quiet)
            if allow_power_control and as_board is not None:
                why = "a board that is not here has no clocks to change"
                raise typer.BadParameter(why, param_hint="--allow-power-control")
            if videos:
                why = "each video has an end; limit: in the file takes the first frames of each"
                option.refuse({"--duration": duration}, why)
                option.refuse({"--as": as_board}, "a board is emulated with one video: --set stages.NAME.source=FILE")
                environment = _environment(stack, file, bundle, allow_power_control)
                play_videos(file, environment, jobs=jobs, json=json, quiet=quiet, how=how, bar=bar, strict=strict)
                return
            if place is None:
                environment = _environment(stack, file, bundle, allow_power_control)
                pipe = Pipeline.within(environment, file, bar=bar, strict=strict)
            else:
                pipe = Pipeline.within(place.environment, place.file, bar=bar)
        label = place.label if place else ""
        failed: EdgertError | None = None
        clock = place.clock if place else None

        def write(summary: Summary) -> None:
            found = {**(place.report(summary) if place else {}), **summary.to_json()}
            if failed is not None:
                found["error"] = failed.to_json()
            if bundle is not None:
                skipped = [{"engine": one.engine, "why": one.why} for one in bundle.skipped]
                found["bundle"] = {"board": bundle.manifest.board, "engine": bundle.engine, "skipped": skipped}
            write_json(found, json)

        began_s = time.time()
        keep = None if json is None or is_stdout(json) else write
        try:
            with pipe as running, stop_on_signal(running.stop, is_last=True), told_to_systemd(running), gc_frequent():
                try:
                    show(
                        running,
                        duration_s=duration,
                        plain=plain,
                        quiet=quiet,
                        how=how,
                        label=label,
                        clock=clock,
                        keep=keep,
                    )
                finally:
                    summary = running.summary()
        except EdgertError as error:  # after an error the results so far matter even more
            failed = error
        write(summary)  # before anything is shown: the terminal may be gone
        if failed is not None and not summary.frames_in:  # nothing was run, so there is nothing to show of it
            raise failed
        if not is_stdout(json) or how != "json":
            print_summary(running.file, summary, began_s, to_stderr=is_stdout(json))
        if emulated := place.report(summary) if place else {}:
            print_emulated(emulated)
        if bundle is not None:
            _show_engines(bundle)
        if failed is not None:
            raise failed
        if any(stage.failing for stage in summary.stages.values()):
            raise typer.Exit(1)  # what it wrote lacks something


@contextmanager
def told_to_systemd(pipeline: Pipeline) -> Iterator[None]:
    """Report the pipeline's state to systemd, where systemd asks for it."""
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


def _opened(
    stack: ExitStack,
    path: Path,
    overrides: Sequence[str],
    on_event: OnEvent,
    *,
    strict: bool,
    is_here: bool,
    dry_run: bool,
    quiet: bool,
) -> tuple[PipelineFile, Unpacked | None]:
    """Open the pipeline, with the bundle of its models, whose files exist until the stack is left.

    Args:
        stack: closes what is opened.
        path: of the pipeline file or bundle.
        overrides: ``KEY=VALUE`` of ``--set``.
        on_event: called for what happens while engines are compiled.
        strict: refuses to fall back to another engine.
        is_here: whether a pipeline file is run by this machine's engines. If it is for its DLA, it is built here first,
            unless ``dry_run``.
        dry_run: whether nothing is run.
        quiet: whether the chosen engines are not printed.
    """
    from edgert.assemble import with_default_engines
    from edgert.bundle.bundle import is_bundle
    from edgert.config import load_pipeline
    from edgert.config.engine_choice import TENSORRT_DLA

    bundle: Unpacked | None
    if is_bundle(path):
        from edgert.compiler.unpack import unpacked

        bundle = stack.enter_context(unpacked(path, overrides, strict=strict, on_event=on_event))
    else:
        file, chosen = load_pipeline(path, overrides), ""
        if is_here:
            file, chosen = with_default_engines(file)
        if chosen and not quiet:
            typer.echo(chosen, err=True)
        if not is_here or dry_run or TENSORRT_DLA not in file.config.engines:
            return file, None
        from edgert.compiler.unpack import built_here

        bundle = stack.enter_context(built_here(file, strict=strict, on_event=on_event))
        if bundle is None:
            return file, None
    for one in bundle.skipped:
        typer.secho(str(one), fg="yellow", err=True)
    _show_engines(bundle)
    return bundle.file, bundle


def _show_engines(bundle: Unpacked) -> None:
    """Print which engine runs a bundle."""
    typer.echo(f"bundle for {bundle.manifest.board}: runs with {bundle.engine}", err=True)
    for line in bundle.tuned:
        typer.echo(line, err=True)


def _dry(file: PipelineFile, json: Path | None, bundle: Unpacked | None, as_board: str | None, power: bool) -> None:
    """Show the memory plan, and what power control would change, in the terminal and as JSON.

    Exits with code 1 where the memory does not fit.
    """
    from edgert.assemble.memory import planned

    if as_board is not None:
        raise typer.BadParameter("it plans this machine; edgert plan --board has a board's memory", param_hint="--as")
    to_stderr = is_stdout(json)
    plan = planned(file, has_engines=bundle is not None and bundle.engines is not None)
    show_memory(plan, to_stderr=to_stderr)
    found: dict[str, Any] = {"memory": plan.to_json()}
    if power:
        found["power"] = show_power_steps(file, Path("/"), is_placed=bundle is not None, to_stderr=to_stderr)
    write_json(found, json)
    if not plan.fits:
        raise typer.Exit(1)


def warn_of_settings_left(root: Path) -> None:
    """Warn of settings that a crashed run left changed, as they may not be restored without consent."""
    from edgert.budget.control import PowerControl

    try:
        left = "; ".join(map(str, PowerControl(root=root).left()))
    except DeviceError as error:
        left = f"{error.what}: {error.why}"
    if left:
        fix = "the next edgert run with --allow-power-control, as root, restores them"
        typer.secho(f"power settings that a crashed run left: {left}; {fix}", fg="yellow", err=True)


def show_power_steps(
    file: PipelineFile, root: Path, *, is_placed: bool, to_stderr: bool = False
) -> list[dict[str, Any]]:
    """Show the clocks and power modes that a governor would choose among, with the changes each takes; change none.

    Args:
        file: with budgets.
        root: where the files of a Linux are.
        is_placed: see :func:`edgert.planner.simulation.power_steps`.
        to_stderr: prints to standard error.

    Returns:
        The same as plain data.

    Raises:
        BudgetError: there is nothing to govern by clocks.
    """
    from edgert.budget.control import PowerControl
    from edgert.planner.simulation import power_steps

    found: list[dict[str, Any]] = []
    with PowerControl(dry_run=True, root=root) as control:
        steps = power_steps(file, control, is_placed=is_placed, root=root)
        for step in steps.steps:
            steps.take(step)
            changes = [str(change) for change in control.changes]
            name = step.name or "as it is now"
            found.append({"name": name, "power_w": step.power_w, "changes": changes})
            text = f"power: {name}: {step.power_w:.1f} W predicted, {'; '.join(changes) or 'no change'}"
            typer.echo(text, err=to_stderr)
    return found


def _emulated(
    file: PipelineFile,
    board: str | None,
    mode: str | None,
    profiles: Sequence[Path],
    bundle: Unpacked | None,
    quiet: bool,
) -> Emulation | None:
    """Return the emulation of a board, where one is named."""
    if board is None:
        option.refuse({"--mode": mode, "--profile": profiles}, "it goes with --as")
        return None
    if bundle is not None:
        raise typer.BadParameter(
            "--as works with pipeline files only; a bundle already targets one board", param_hint="--as"
        )
    from edgert.emulation import emulate

    with on_first_call(planning_bar, quiet) as bar:
        place = emulate(file, board, mode, profiles=profiles, progress=bar)
    typer.secho(place.label, fg="yellow", err=True)
    for note in place.notes:
        typer.secho(f"note: {note}", err=True)
    return place


def _environment(stack: ExitStack, file: PipelineFile, bundle: Unpacked | None, may_control: bool) -> Environment:
    """Return the environment of a run: a bundle's engines, power control, and predictions.

    Clocks that the governor changes are restored when the stack is left. Predictions come from a plan, where the
    pipeline has models to choose among.
    """
    from edgert.assemble import Environment

    engines = bundle.engines if bundle else None
    has_fallback = any(model.degrade_to is not None for model in file.config.models.values())
    if not may_control and not has_fallback:
        return Environment(engines=engines)
    from edgert.planner.simulation import levels_here, power_steps

    power = None
    if may_control:
        from edgert.budget.control import PowerControl

        control = stack.enter_context(PowerControl(allow=True))
        power = power_steps(file, control, is_placed=bundle is not None)
    return Environment(engines=engines, power=power, predicted=levels_here(file) if has_fallback else ())
