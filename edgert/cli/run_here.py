"""``edgert run``: a pipeline file, a bundle, many videos, as another board would run it, or only its memory plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edgert.assemble import Environment, with_default_engines
from edgert.bundle.bundle import is_bundle
from edgert.cli import log, option, progress
from edgert.cli.run_view import View, run_with_view
from edgert.cli.terminal import VERDICTS, console, is_stdout, write_json
from edgert.config import PipelineFile, SourceStage, engine_choice, load_pipeline
from edgert.errors import EXIT_INTERRUPTED, DeviceError, EdgertError, printable
from edgert.pipeline import pipeline_in
from edgert.reporter import OnProgress, Progress
from edgert.stages.source.kinds import kind_of
from edgert.units import format_bytes

if TYPE_CHECKING:
    from edgert.budget.footprint import Footprint
    from edgert.compiler.unpack import Unpacked
    from edgert.video_player import VideoResult

_NO_DURATION = "each video has an end; limit: in the file takes the first frames of each"


@dataclass(frozen=True, slots=True)
class Asked:
    """What ``edgert run`` was asked to run: a pipeline file or bundle, and options of a run on this machine."""

    path: Path
    overrides: Sequence[str]
    view: View
    strict: bool = False
    power: bool = False
    jobs: int = 1
    dask: str = ""
    signers: Path | None = None


# Many videos: a bar, a line for each finished one, and at the end those that failed.


def has_videos(file: PipelineFile) -> bool:
    """Return whether a pipeline plays videos one after another."""
    stages, folder = file.config.stages.values(), file.document.path.parent
    return any(isinstance(stage, SourceStage) and kind_of(stage.source, folder) == "videos" for stage in stages)


def play_videos(asked: Asked, file: PipelineFile, environment: Environment) -> None:
    """Play every video, ``jobs`` at a time or by the workers of a Dask scheduler, and show the result of each.

    Raises Exit where a video is damaged or lacks results, or the run was interrupted.
    """
    from edgert.video_runs import VideoRuns

    screen, view = console(stderr=True), asked.view
    runs = VideoRuns(file, environment, jobs=asked.jobs, dask=asked.dask)
    log.start_log(view.how, screen, quiet=view.quiet, stages=lambda: file.config.stages)
    for handler in logging.getLogger("edgert").handlers:
        handler.addFilter(_new_notes_only())
    results: list[VideoResult] = []
    left = 0
    failed: EdgertError | None = None
    is_shown = not view.quiet and view.how in ("terminal", "text")
    with (
        progress.counting_bar(screen, "") if is_shown else nullcontext() as move,
        progress.stop_on_signal(runs.stop, is_last=True),
    ):

        def show(result: VideoResult, done: int, total: int) -> None:
            results.append(result)
            if is_shown:
                screen.print(_video_line(result, done, total), markup=False, soft_wrap=True)
            elif not view.quiet:
                log.RUN_LOG.info("%s", _video_line(result, done, total))
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
    found = {"count": len(runs.videos), "videos": [result.to_json() for result in everything]}
    write_json(found if failed is None else {**found, "error": failed.to_json()}, view.json)
    to_stderr = is_stdout(view.json)
    typer.echo(f"{sum(result.is_fine for result in everything)} of {len(runs.videos)} videos are done", err=to_stderr)
    for result in everything:
        if not result.is_fine:
            line = printable(f"{result.path}: {result.state}: {result.why}").replace("\n", "\\n")
            typer.echo(line, err=to_stderr)
    if failed is not None:
        raise failed
    if runs.is_stopped:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not all(result.is_fine for result in everything):
        raise typer.Exit(1)


def _new_notes_only() -> Callable[[logging.LogRecord], bool]:
    """Return a log filter that drops repeated notes, because the pipeline of every video logs the same ones."""
    seen = set[str]()

    def passes(record: logging.LogRecord) -> bool:
        is_new = record.levelno > logging.INFO or record.getMessage() not in seen
        seen.add(record.getMessage())
        return is_new

    return passes


def _video_line(result: VideoResult, done: int, total: int) -> str:
    skipped = f", {result.skipped} corrupt pieces skipped" if result.skipped else ""
    place = f" on {result.worker}" if result.worker else ""
    came = f"ok, {result.frames} frames in {result.seconds:.1f} s{place}{skipped}"
    what = came if result.state == "ok" else f"{result.state}: {result.why}"
    return printable(f"{done} of {total}  {result.path.name}  {what}").replace("\n", "\\n")  # a name may have one


def run_here(asked: Asked) -> None:
    """Run a pipeline with this machine's engines.

    Raises Exit where a stage was down at the end, or a video is damaged.
    """
    view = asked.view
    with ExitStack() as stack:
        with (
            progress.on_first_call(progress.first_time_bar, view.quiet) as bar,
            progress.on_first_call(progress.build_progress, view.quiet) as on_progress,
        ):
            file, bundle = open_pipeline(stack, asked, on_progress)
            videos = has_videos(file)
            option.refuse({"--jobs": asked.jobs > 1 and not videos}, "it is for a videos: source")
            if not asked.power:
                warn_of_unrestored_settings(Path("/"))
            if videos:
                option.refuse({"--duration": view.duration_s}, _NO_DURATION)
                option.refuse({"--trace": view.trace}, "each file has a run of its own: --set stages.NAME.source=FILE")
            environment = _make_environment(stack, file, bundle, asked.power)
            environment = replace(environment, on_progress=bar, strict=asked.strict)
            if videos:
                play_videos(asked, file, environment)
                return
            pipe = pipeline_in(environment, file)
        ended = run_with_view(pipe, view, report=lambda _: _bundle_json(bundle))
        if bundle is not None:
            _show_engines(bundle)
        ended.check()


def run_on_workers(asked: Asked) -> None:
    """Run the videos of a pipeline on the workers of a Dask cluster. Raises Exit where one is damaged."""
    option.refuse({"--dask": is_bundle(asked.path)}, "a bundle has the engines of one board; give the pipeline file")
    file = load_pipeline(asked.path.absolute(), asked.overrides)
    option.refuse({"--dask": not has_videos(file)}, "it is for a videos: source")
    option.refuse({"--duration": asked.view.duration_s}, _NO_DURATION)
    play_videos(asked, file, Environment(strict=asked.strict))


def open_pipeline(
    stack: ExitStack, asked: Asked, on_progress: OnProgress, *, builds: bool = True
) -> tuple[PipelineFile, Unpacked | None]:
    """Open a pipeline file or a bundle; the files of a bundle exist until the stack is left.

    A pipeline file that names the DLA becomes a bundle in the cache, because a DLA needs what only a build makes,
    unless ``builds`` is False. The bundle is None where the pipeline file is run as it is.
    """
    bundle: Unpacked | None
    if is_bundle(asked.path):
        from edgert.bundle.signature import signers_here
        from edgert.compiler.unpack import unpacked

        made = unpacked(
            asked.path,
            asked.overrides,
            strict=asked.strict,
            signers=signers_here(asked.signers),
            on_progress=on_progress,
        )
        bundle = stack.enter_context(made)
    else:
        file, chosen = with_default_engines(load_pipeline(asked.path, asked.overrides))
        if chosen and not asked.view.quiet:
            typer.echo(chosen, err=True)
        if not builds or engine_choice.TENSORRT_DLA not in file.config.engines:
            return file, None
        from edgert.compiler.unpack import built_here

        bundle = stack.enter_context(built_here(file, strict=asked.strict, on_progress=on_progress))
        if bundle is None:
            return file, None
    for one in bundle.skipped:
        typer.secho(str(one), fg="yellow", err=True)
    _show_engines(bundle)
    return bundle.file, bundle


def _bundle_json(bundle: Unpacked | None) -> dict[str, Any]:
    if bundle is None:
        return {}
    skipped = [{"engine": one.engine, "why": one.why} for one in bundle.skipped]
    return {"bundle": {"board": bundle.manifest.board, "engine": bundle.engine, "skipped": skipped}}


def _show_engines(bundle: Unpacked) -> None:
    typer.echo(f"bundle for {bundle.manifest.board}: runs with {bundle.engine}", err=True)
    for line in bundle.tuned:
        typer.echo(line, err=True)


def warn_of_unrestored_settings(root: Path) -> None:
    """Warn of power settings that a crashed run left changed: only a run with power control may restore them."""
    from edgert.budget.control import PowerControl

    try:
        left = "; ".join(map(str, PowerControl(root=root).left()))
    except DeviceError as error:
        left = f"{error.what}: {error.why}"
    if left:
        fix = "the next edgert run with --allow-power-control, as root, restores them"
        typer.secho(f"power settings that a crashed run left: {left}; {fix}", fg="yellow", err=True)


def _make_environment(stack: ExitStack, file: PipelineFile, bundle: Unpacked | None, may_control: bool) -> Environment:
    """Return the environment of a run: a bundle's engines, power control, and predictions of a plan.

    Clocks that the governor changes are restored when the stack is left. Predictions are made only where the pipeline
    has fallback models.
    """
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


# The memory plan of a dry run, and what power control may change. Nothing runs.


def plan_memory(asked: Asked) -> None:
    """Show the memory plan, and what power control would change. Raises Exit where memory does not suffice."""
    from edgert.assemble import memory

    to_stderr = is_stdout(asked.view.json)
    with ExitStack() as stack, progress.on_first_call(progress.build_progress, asked.view.quiet) as on_progress:
        file, bundle = open_pipeline(stack, asked, on_progress, builds=False)
        plan = memory.plan_memory(file, has_engines=bundle is not None and bundle.engines is not None)
        show_memory(plan, to_stderr=to_stderr)
        found: dict[str, Any] = {"memory": plan.to_json()}
        if asked.power:
            found["power"] = show_power_steps(file, Path("/"), is_placed=bundle is not None, to_stderr=to_stderr)
        write_json(found, asked.view.json)
        if not plan.fits:
            raise typer.Exit(1)


def show_memory(plan: Footprint, *, to_stderr: bool = False) -> None:
    """Print the memory of each part, the changes that reduced it, and whether it fits."""
    from edgert.cli.plan_command import parts_table

    screen = console(stderr=to_stderr)
    screen.print(parts_table(plan.parts, screen.width))
    for step in plan.steps:
        screen.print(f"made smaller: {step}", markup=False)
    word = "fits" if plan.fits else "does not fit"
    if plan.budget_bytes is None or (plan.keeps_budget and not plan.fits):
        machine = f" of the machine's {format_bytes(plan.machine_bytes)}, swap and all" if plan.machine_bytes else ""
        verdict = f"{word}: at least {format_bytes(plan.least_bytes)}{machine}"
    else:
        most = f"{format_bytes(plan.most_bytes)} with {plan.error:.0%} to spare for the prediction's error"
        verdict = f"{word}: {most}, of the budget's {format_bytes(plan.budget_bytes)}"
    screen.print(verdict, style="green" if plan.fits else "red", markup=False)


def show_power_steps(
    file: PipelineFile, root: Path, *, is_placed: bool, to_stderr: bool = False
) -> list[dict[str, Any]]:
    """Print, and return as plain data, the clocks and power modes that a governor would choose among."""
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


# A run with the predicted times and power of a board.

_NOTICED_SLOWDOWN = 1.05  # times slower than the board


def run_emulated(asked: Asked, board: str, mode: str | None, profiles: Sequence[Path]) -> None:
    """Run a pipeline with the predicted speed and power of a board. Raises Exit where a stage was down at the end."""
    from edgert.emulation import emulate

    view, why = asked.view, "it works with pipeline files only; a bundle already targets one board"
    option.refuse({"--as": is_bundle(asked.path)}, why)
    file = load_pipeline(asked.path, asked.overrides)
    option.refuse({"--as": has_videos(file)}, "a board is emulated with one video: --set stages.NAME.source=FILE")
    with progress.on_first_call(progress.planning_bar, view.quiet) as bar:
        place = emulate(file, board, mode, profiles=profiles, on_progress=bar)
    typer.secho(place.environment.label, fg="yellow", err=True)
    for note in place.notes:
        typer.secho(f"note: {note}", err=True)
    with progress.on_first_call(progress.first_time_bar, view.quiet) as bar:
        pipe = pipeline_in(replace(place.environment, on_progress=bar), place.file)
    ended = run_with_view(pipe, view, report=place.report, label=place.environment.label, clock=place.environment.clock)
    print_emulated(place.report(ended.summary))
    ended.check()


def print_emulated(report: Mapping[str, Any]) -> None:
    """Print the report of :meth:`edgert.emulation.Emulation.report`.

    It has the board's power, temperature and memory, whether they keep the budgets, and the slowdown of this machine.
    """
    screen, figures, degrees = console(stderr=True), report["figures"], report["temperature_c"]
    watts, energy_mj = figures["power_w"], figures["energy_mj_per_frame"]
    power = "" if watts is None or energy_mj is None else f": {watts:.1f} W, {energy_mj / 1e3:.3g} J a frame"
    heat = ": power unknown" if degrees is None else f", {degrees:.0f} °C"
    memory = format_bytes(figures["memory_bytes"])
    screen.print(f"{report['simulated']}{power}{heat}, {memory} planned", style="yellow", markup=False)
    screen.print(report["words"], style=VERDICTS[report["verdict"]], markup=False)
    if report["slower"] > _NOTICED_SLOWDOWN:
        what = f"this machine cannot emulate {figures['fps']:.3g} frames a second"
        slowed = f"{what}: slowed down {report['slower']:.1f} times; all figures are in the board's time"
        screen.print(slowed, style="yellow", markup=False)
