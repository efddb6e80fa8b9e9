"""``edgert inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgert.cli.option import (
    AllOption,
    DebugOption,
    JsonOption,
    ReportOption,
    ShapeOption,
    board_option,
    precision_option,
    shape_of,
    trt_option,
)
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import console

if TYPE_CHECKING:
    from edgert.graph import ModelSummary
    from edgert.stages.decode.guess import Guess

    Profile = dict[str, tuple[int, ...]]


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="ONNX file, or bundle of edgert build.")],
    shapes: ShapeOption = None,
    ops: Annotated[
        bool, typer.Option("--ops", help="Show a table of the operators with their share of the work.")
    ] = False,
    dla: Annotated[
        bool,
        typer.Option("--dla", help="Check node by node what a board's DLA can run, why not, and what helps."),
    ] = False,
    board: Annotated[str | None, board_option("For --dla; this machine when left out.")] = None,
    trt: Annotated[str | None, trt_option("For --dla; 10.3 for Orin and 8.5 for Xavier when left out.")] = None,
    precision: Annotated[str | None, precision_option("For --dla; int8 when left out.")] = None,
    every: AllOption = False,
    report: ReportOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Rewrite the model as a build would, and show what that changes (--dla).")
    ] = False,
    rewritten: Annotated[
        Path | None, typer.Option("--rewritten", metavar="FILE", help="Write the rewritten model to this file (--dla).")
    ] = None,
    skipped: Annotated[
        list[str] | None,
        typer.Option(
            "--skip-rewrite", metavar="NAME", help="Leave a rewrite out, by its name or a glob (--dla). Repeatable."
        ),
    ] = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Show what an ONNX model takes, returns and costs; with --dla, what a DLA can run of it.

    And which task its outputs look like. Of a bundle: what it holds, after every digest in it was checked, and of the
    engines that boards compiled: time, memory, slowest layers, and where nodes run against where they were to run.

    An input that is given a second --shape begins another profile, which is counted by itself.

    Examples:

        edgert inspect yolox_nano.onnx --ops

        edgert inspect detector.onnx --shape images=1x3x320x320 --shape images=1x3x640x640

        edgert inspect yolox_nano.onnx --dla --board orin-nx-16gb --report dla.html

        edgert inspect yolox_nano.onnx --dla --board orin-nx-16gb --explain --rewritten for_dla.onnx
    """
    from edgert.bundle.bundle import is_bundle
    from edgert.cli.dla_tables import Asked, survey_model, tell
    from edgert.cli.model_table import show, show_ops
    from edgert.graph import inspect as inspect_model
    from edgert.graph import load

    asked = Asked(board, trt, precision, report, explain, rewritten, tuple(skipped or ()), every)
    if not dla:
        asked.refuse()
    if is_bundle(model):
        _inspect_bundle(model, json, is_bare=not (shapes or ops or dla))
        return
    profiles = _profiles(shapes or [])
    loaded = load(model)
    summary = inspect_model(loaded)
    shape = profiles[0] if profiles else {}
    surveyed = survey_model(loaded, shape, asked) if dla else None  # before anything is printed: it may be refused
    counted = [(profile, inspect_model(loaded, profile)) for profile in profiles]
    guesses = _guesses(counted[0][1] if counted else summary)
    screen = console(stderr=is_stdout(json))
    show(screen, summary, counted, guesses)
    if ops:
        show_ops(screen, counted or [({}, summary)])
    told = {"dla": tell(screen, loaded, shape, asked, *surveyed)} if surveyed else {}
    if json is not None:
        write_json({**_plain(summary, counted, guesses), **told}, json)


def _inspect_bundle(path: Path, json: Path | None, *, is_bare: bool) -> None:
    from edgert.cli.bundle_tables import tell_bundle

    if not is_bare:
        raise typer.BadParameter(f"--shape, --ops and --dla are for ONNX files, and {path} is a bundle")
    told = tell_bundle(console(stderr=is_stdout(json)), path)
    if json is not None:
        write_json(told, json)


def _profiles(texts: list[str]) -> list[Profile]:
    """``["x=1x3", "x=2x3"]`` → one profile for each round of inputs."""
    profiles: list[Profile] = []
    for text in texts:
        name, shape = shape_of(text)
        free = next((profile for profile in profiles if name not in profile), None)
        if free is None:
            free = {}
            profiles.append(free)
        free[name] = shape
    return profiles


def _guesses(summary: ModelSummary) -> list[Guess]:
    """How the outputs can be read, from the image input: the one with four dimensions, batch first."""
    from edgert.stages.decode.guess import guess

    images = [spec for spec in summary.inputs if len(spec.shape) == 4]
    ranked = [spec for spec in summary.outputs if spec.shape]
    if len(images) != 1 or len(ranked) != len(summary.outputs):
        return []
    outputs = [_sizes(spec.shape[1:]) for spec in ranked]
    return guess(outputs, [spec.name for spec in ranked], _sizes(images[0].shape[1:]), _label_count(summary))


def _sizes(shape: tuple[int | str | None, ...]) -> tuple[int | None, ...]:
    return tuple(dim if isinstance(dim, int) else None for dim in shape)


def _label_count(summary: ModelSummary) -> int | None:
    """How many labels the exporter stored; some write ``names`` as a Python dict or list."""
    import ast

    try:
        names = ast.literal_eval(summary.metadata.get("names", ""))
    except (ValueError, SyntaxError):
        return None
    return len(names) if isinstance(names, (dict, list, tuple)) else None


def _plain(summary: ModelSummary, counted: list[tuple[Profile, ModelSummary]], guesses: list[Guess]) -> dict[str, Any]:
    from dataclasses import asdict

    profiles = [
        {"shapes": {name: list(shape) for name, shape in profile.items()}, **_work(one)} for profile, one in counted
    ]
    return {**summary.to_json(), "profiles": profiles, "looks_like": [asdict(one) for one in guesses]}


def _work(summary: ModelSummary) -> dict[str, Any]:
    return {
        "macs": summary.macs,
        "activation_bytes": summary.activation_bytes,
        "outputs": [str(spec) for spec in summary.outputs],
        "uncounted": summary.uncounted,
    }
