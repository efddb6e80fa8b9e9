"""``edgert inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgert.cli.option import DebugOption, JsonOption, write_json

if TYPE_CHECKING:
    from edgert.graph import ModelSummary
    from edgert.stages.decode.guess import Guess

    Profile = dict[str, tuple[int, ...]]


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file, or a bundle of edgert build.")],
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="INPUT=1x3x320x320",
            help="Fix a dynamic input, so that its work can be counted. Once per input; an input given again "
            "begins another profile.",
        ),
    ] = None,
    ops: Annotated[bool, typer.Option("--ops", help="A table of operators with their share of the work.")] = False,
    dla: Annotated[
        bool, typer.Option("--dla", help="Say node by node what a board's DLA can run, why not, and what helps.")
    ] = False,
    board: Annotated[
        str | None, typer.Option("--board", metavar="BOARD", help="With --dla: which board; this machine if left out.")
    ] = None,
    trt: Annotated[
        str | None,
        typer.Option("--trt", metavar="VERSION", help="With --dla: TensorRT's version; 10.3 for Orin, 8.5 for Xavier."),
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", metavar="NAME", help="With --dla: int8 (the default) or fp16.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="With --dla: write the check as a page, too.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --dla: rewrite it as a build would; what that changes, proved.")
    ] = False,
    rewritten: Annotated[
        Path | None, typer.Option("--rewritten", metavar="FILE", help="With --dla: write the rewritten model.")
    ] = None,
    skipped: Annotated[
        list[str] | None,
        typer.Option(
            "--skip-rewrite", metavar="NAME", help="With --explain: leave a rewrite out, by name or glob. Repeatable."
        ),
    ] = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Say what an ONNX model takes, gives and costs; with --dla, what a DLA can run of it.

    And which task its outputs look like. Of a bundle: what it holds, after every digest in it was checked, and of the
    engines that boards compiled: time, memory, slowest layers, and where nodes run against where they were to run.

    Examples:

        edgert inspect yolox_nano.onnx --ops

        edgert inspect detector.onnx --shape images=1x3x320x320 --shape images=1x3x640x640

        edgert inspect yolox_nano.onnx --dla --board orin-nx-16gb --html dla.html

        edgert inspect yolox_nano.onnx --dla --board orin-nx-16gb --explain --rewritten for_dla.onnx
    """
    from rich.console import Console

    from edgert.artifact.bundle import is_bundle
    from edgert.cli.inspect_dla import Asked, survey_model, tell
    from edgert.cli.inspection import show, show_ops
    from edgert.graph import inspect as inspect_model
    from edgert.graph import load

    asked = Asked(board, trt, precision, html, explain, rewritten, tuple(skipped or ()))
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
    console = Console(stderr=str(json) == "-", highlight=False)
    show(console, summary, counted, guesses)
    if ops:
        show_ops(console, counted or [({}, summary)])
    told = {"dla": tell(console, loaded, shape, asked, *surveyed)} if surveyed else {}
    if json is not None:
        write_json({**_plain(summary, counted, guesses), **told}, json)


def _inspect_bundle(path: Path, json: Path | None, *, is_bare: bool) -> None:
    from rich.console import Console

    from edgert.cli.inspect_bundle import tell_bundle

    if not is_bare:
        raise typer.BadParameter(f"--shape, --ops and --dla are for ONNX files, and {path} is a bundle")
    told = tell_bundle(Console(stderr=str(json) == "-", highlight=False), path)
    if json is not None:
        write_json(told, json)


def _profiles(texts: list[str]) -> list[Profile]:
    """``["x=1x3", "x=2x3"]`` → one profile for each round of inputs."""
    profiles: list[Profile] = []
    for text in texts:
        name, shape = _shape(text)
        free = next((profile for profile in profiles if name not in profile), None)
        if free is None:
            free = {}
            profiles.append(free)
        free[name] = shape
    return profiles


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, equals, sizes = text.rpartition("=")
    parts = sizes.lower().split("x")
    if not equals or not name or not all(part.isascii() and part.isdigit() for part in parts):
        raise typer.BadParameter(f"cannot understand {text!r}; write INPUT=1x3x320x320", param_hint="--shape")
    return name, tuple(map(int, parts))


def _guesses(summary: ModelSummary) -> list[Guess]:
    """How the outputs can be read, from the picture input: the one with four dimensions, batch first."""
    from edgert.stages.decode.guess import guess

    pictures = [spec for spec in summary.inputs if len(spec.shape) == 4]
    ranked = [spec for spec in summary.outputs if spec.shape]
    if len(pictures) != 1 or len(ranked) != len(summary.outputs):
        return []
    outputs = [_sizes(spec.shape[1:]) for spec in ranked]
    return guess(outputs, [spec.name for spec in ranked], _sizes(pictures[0].shape[1:]), _label_count(summary))


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
