"""``edgert inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli.bundle_tables import show_bundle
from edgert.cli.dla_tables import show_dla
from edgert.cli.model_table import show_model
from edgert.cli.option import (
    AllOption,
    DebugOption,
    JsonOption,
    ReportOption,
    ShapeOption,
    board_option,
    precision_option,
    refuse,
    shape_of,
    trt_option,
)
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import console

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.inspection import DlaInspection


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
    from edgert.inspection import inspect as inspect_model

    screen = console(stderr=is_stdout(json))
    for_dla = {"--board": board, "--trt": trt, "--precision": precision, "--report": report, "--explain": explain,
               "--rewritten": rewritten, "--skip-rewrite": skipped, "--all": every}  # fmt: skip
    if not dla:
        refuse(for_dla, "it goes together with --dla")
    if is_bundle(model):
        refuse({"--shape": shapes, "--ops": ops, "--dla": dla}, f"it is for ONNX files, and {model} is a bundle")
        _inspect_bundle(screen, model, json)
        return
    found = inspect_model(
        model,
        profiles=_profiles(shapes or []),
        dla=dla,
        board=board,
        tensorrt=trt,
        precision=precision or "int8",
        rewrite=explain or bool(rewritten or skipped),
        skip_rewrites=skipped or (),
    )
    show_model(screen, found, ops)
    if found.dla is not None:
        show_dla(screen, found.dla, every)
        _write(screen, found.dla, model.name, report, rewritten)
    if json is not None:
        write_json(found.to_json(), json)


def _inspect_bundle(screen: Console, path: Path, json: Path | None) -> None:
    from edgert.inspection import inspect_bundle

    found = inspect_bundle(path)
    show_bundle(screen, found)
    if json is not None:
        write_json(found.to_json(), json)


def _write(screen: Console, found: DlaInspection, model: str, report: Path | None, rewritten: Path | None) -> None:
    """Writes the page and the rewritten model where they are wanted."""
    if report is not None:
        from edgert.report.dla_page import save_survey

        save_survey(found.survey, model, found.board.title, report)
        screen.print(f"report written to {report}", markup=False)
    if rewritten is not None and found.rewritten is not None:
        found.rewritten.save(rewritten)
        screen.print(f"rewritten model written to {rewritten}", markup=False)


def _profiles(texts: list[str]) -> list[dict[str, tuple[int, ...]]]:
    """``["x=1x3", "x=2x3"]`` → one profile for each round of inputs."""
    profiles: list[dict[str, tuple[int, ...]]] = []
    for text in texts:
        name, shape = shape_of(text)
        free = next((profile for profile in profiles if name not in profile), None)
        if free is None:
            free = {}
            profiles.append(free)
        free[name] = shape
    return profiles
