"""``edgert run``: on this machine, as another board, or only its memory plan."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, run_view
from edgert.installation import pipeline_path

if TYPE_CHECKING:
    from edgert.cli.log import LogFormat


Plain = Annotated[bool, option.flag("--plain", "Print plain lines instead of the live view.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, only the summary.")]
DryRun = Annotated[
    bool,
    option.flag(
        "--dry-run",
        "Only print the memory plan and what power control may change. Exit code 1 when memory does not suffice.",
    ),
]
AsBoard = Annotated[
    str | None, option.named("--as", "BOARD", "Emulate a board: its predicted times, power and temperature.")
]
PowerControl = Annotated[
    bool,
    option.flag(
        "--allow-power-control",
        "Also lower clocks and power modes of this Jetson to keep a power budget; restore them at the end.",
    ),
]
Log = Annotated[
    str | None, option.named("--log", "text|json", "Write the log as lines of text, or as one JSON object per line.")
]
Trace = Annotated[
    Path | None,
    option.named("--trace", "FILE", "Record what every thread does: .pftrace for Perfetto, .json, or .html, a page."),
]
Jobs = Annotated[int, option.named("--jobs", "N", "Videos of a videos: source to play at a time.", min=1)]


def run(
    pipeline: option.BundleArgument,
    overrides: option.Set = None,
    duration: Annotated[float | None, option.Duration] = None,
    json: option.Json = None,
    plain: Plain = False,
    quiet: Quiet = False,
    strict: option.Strict = False,
    dry_run: DryRun = False,
    as_board: AsBoard = None,
    mode: Annotated[str | None, option.mode("For --as. Default: the one that edgert plan chooses.")] = None,
    profiles: option.Profiles = None,
    allow_power_control: PowerControl = False,
    log: Log = None,
    jobs: Jobs = 1,
    trace: Trace = None,
    signers: option.Signers = None,
    dask: Annotated[str, option.dask("They play a videos: source, a file a task.")] = "",
) -> None:
    """Run a pipeline until its sources end, or Ctrl-C.

    Ctrl-C and SIGTERM end it within 2 seconds with every file closed. The summary shows where the time went. Exit code
    1 also when a stage that may fail (on_error) was down at the end; 0 when it worked again.

    A source like videos:FOLDER/*.mp4 is played file by file, and each file's result is shown. After an interruption the
    same command skips finished videos. Exit code 1 when a video is damaged. With --dask, workers on other machines play
    them; all see the pipeline, models, videos and outputs by the same paths.

    Examples:
        edgert run hello
        edgert run pipeline.yaml --set stages.camera.source=clip.mp4 --plain --log json
        edgert run dock.edgert --quiet --strict --signers allowed_signers
        edgert run pipeline.yaml --as orin-nx-16gb --mode 15W --profile profile.json
        edgert run pipeline.yaml --duration 20 --trace run.pftrace
        edgert run pipeline.yaml --set "stages.camera.source=videos:clips/*.mp4" --jobs 2
    """
    from edgert.bundle.bundle import is_bundle

    if trace is not None:
        from edgert.timeline.trace_file import check_trace_path

        check_trace_path(trace)  # before models are loaded
        option.refuse({"--trace": dry_run}, "nothing is run")
    view = run_view.View(_log_format(log), json=json, duration_s=duration, plain=plain, quiet=quiet, trace=trace)
    path = pipeline_path(pipeline)
    if not is_bundle(path):
        option.refuse({"--signers": signers}, f"it is for bundles, and {path} is a pipeline file")
    if as_board is None:
        option.refuse({"--mode": mode, "--profile": profiles}, "it goes with --as")
    from edgert.cli import run_here

    asked = run_here.Asked(path, overrides or (), view, strict, allow_power_control, jobs, dask, signers)
    if dry_run:
        option.refuse({"--as": as_board}, "--dry-run plans this machine's memory; edgert plan --board plans a board's")
        run_here.plan_memory(asked)
    elif as_board is not None:
        one = {"--jobs": jobs > 1, "--dask": dask, "--allow-power-control": allow_power_control}
        option.refuse(one, "it is for runs on this machine; --as emulates another board")
        run_here.run_emulated(asked, as_board, mode, profiles or ())
    elif dask:
        option.refuse({"--trace": trace}, "it records one run; a videos: source has one for each file")
        option.refuse({"--jobs": jobs > 1}, "each Dask worker plays as many videos at a time as its --nthreads")
        option.refuse({"--allow-power-control": allow_power_control}, "it is for runs on this machine")
        run_here.run_on_workers(asked)
    else:
        run_here.run_here(asked)


def _log_format(log: str | None) -> LogFormat:
    if log not in (None, "text", "json"):
        raise typer.BadParameter(f"{log!r} is neither text nor json", param_hint="--log")
    from edgert.cli.log import json_stderr, log_format

    how = log_format(log, sys.stderr)
    if how == "json":
        json_stderr()
    return how
