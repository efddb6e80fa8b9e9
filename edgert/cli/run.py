"""``edgert run``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli.option import DebugOption, JsonOption, SetOption, pipeline_path, write_json

if TYPE_CHECKING:
    from edgert.build import Unpacked
    from edgert.compiler import Tell
    from edgert.config import PipelineFile


def run(
    pipeline: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE", help="A pipeline file, a bundle of edgert build, or a shipped name, like hello."
        ),
    ],
    overrides: SetOption = None,
    duration: Annotated[
        float | None, typer.Option("--duration", metavar="SECONDS", help="Stop after so long.", min=0.1)
    ] = None,
    json: JsonOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live view.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the summary.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="An error instead of an engine further down the chain (engines:).")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell the memory it will take, part by part; 1 if that is too much.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Run a pipeline until its sources end, or Ctrl-C.

    Ctrl-C and SIGTERM end it within 2 seconds with every file closed. The summary says where the time went.

    Examples:

        edgert run hello

        edgert run pipeline.yaml --set stages.camera.source=clip.mp4

        edgert run dock.edgert
    """
    from edgert.cli.build_progress import FirstTimeProgress
    from edgert.cli.live import show
    from edgert.cli.progress import FirstTimeBar
    from edgert.cli.signals import stop_on_signal
    from edgert.cli.summary import print_summary
    from edgert.pipeline import Pipeline

    with ExitStack() as stack:
        with FirstTimeBar(quiet) as bar, FirstTimeProgress(quiet) as tell:
            file, bundle = _opened(stack, pipeline_path(pipeline), overrides or (), strict, tell)
            if dry_run:
                _tell_memory(file, json)
                return
            pipe = Pipeline(file, bar=bar, engines=bundle.engines if bundle else None, strict=strict)
        with pipe as running, stop_on_signal(running.stop):
            show(running, duration_s=duration, plain=plain, quiet=quiet)
            summary = running.summary()
        print_summary(running.file, summary, to_stderr=str(json) == "-")
        if bundle is not None:
            _tell_bundle(bundle)
        if json is not None:
            write_json({**summary.to_json(), **_engine(bundle)}, json)


def _tell_memory(file: PipelineFile, json: Path | None) -> None:
    """The memory plan as a table and as JSON; leaves with 1 where it does not fit."""
    from edgert.assemble.memory import planned
    from edgert.cli.memory_table import show_memory

    plan = planned(file)
    show_memory(plan, to_stderr=str(json) == "-")
    if json is not None:
        write_json({"memory": plan.to_json()}, json)
    if not plan.fits:
        raise typer.Exit(1)


def _opened(
    stack: ExitStack, path: Path, overrides: Sequence[str], strict: bool, tell: Tell
) -> tuple[PipelineFile, Unpacked | None]:
    """The pipeline, and the bundle that it comes out of, whose files are there until the stack is left."""
    from edgert.artifact.bundle import is_bundle
    from edgert.config import load_pipeline

    if not is_bundle(path):
        return load_pipeline(path, overrides), None
    from edgert.build import unpacked

    bundle = stack.enter_context(unpacked(path, overrides, strict=strict, tell=tell))
    for one in bundle.skipped:
        typer.secho(str(one), fg="yellow", err=True)
    _tell_bundle(bundle)
    return bundle.file, bundle


def _tell_bundle(bundle: Unpacked) -> None:
    """Says which engine runs a bundle."""
    typer.echo(f"bundle for {bundle.manifest.board}: runs with {bundle.engine}", err=True)
    for line in bundle.tuned:
        typer.echo(line, err=True)


def _engine(bundle: Unpacked | None) -> dict[str, object]:
    """For the summary's JSON."""
    if bundle is None:
        return {}
    skipped = [{"engine": one.engine, "why": one.why} for one in bundle.skipped]
    return {"bundle": {"board": bundle.manifest.board, "engine": bundle.engine, "skipped": skipped}}
