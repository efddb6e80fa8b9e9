"""``edgert run``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgert.cli.option import DebugOption, JsonOption, PipelineArgument, SetOption, pipeline_path, write_json


def run(
    pipeline: PipelineArgument,
    overrides: SetOption = None,
    duration: Annotated[
        float | None, typer.Option("--duration", metavar="SECONDS", help="Stop after so long.", min=0.1)
    ] = None,
    json: JsonOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live view.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress; only the summary.")] = False,
    debug: DebugOption = False,
) -> None:
    """Run a pipeline until its sources end, or Ctrl-C.

    Ctrl-C and SIGTERM end it within 2 seconds with every file closed. The summary says where the time went.

    Examples:

        edgert run hello

        edgert run pipeline.yaml --set stages.camera.source=clip.mp4
    """
    from edgert.cli.live import show
    from edgert.cli.progress import FirstTimeBar
    from edgert.cli.signals import stop_on_signal
    from edgert.cli.summary import print_summary
    from edgert.pipeline import Pipeline

    with FirstTimeBar(quiet) as bar:
        pipe = Pipeline(pipeline_path(pipeline), overrides or (), bar=bar)
    with pipe as running, stop_on_signal(running.stop):
        show(running, duration_s=duration, plain=plain, quiet=quiet)
        summary = running.summary()
    print_summary(running.file, summary, to_stderr=str(json) == "-")
    if json is not None:
        write_json(summary.to_json(), json)
