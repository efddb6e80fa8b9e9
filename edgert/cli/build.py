"""``edgert build``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli.option import DebugOption, PipelineArgument, SetOption, pipeline_path

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.artifact.manifest import Manifest
    from edgert.build import Built
    from edgert.compiler import Tell
    from edgert.config import PipelineFile


def build(
    pipeline: PipelineArgument,
    board: Annotated[
        str | None,
        typer.Option("--board", "-b", metavar="BOARD", help="A board's name or file; the pipeline's own if left out."),
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="MODE", help="A power mode; the one it boots into if left out.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The bundle; NAME.edgert if left out.")
    ] = None,
    trt: Annotated[
        str | None, typer.Option("--trt", metavar="VERSION", help="TensorRT on the board, like 10.3; its JetPack's.")
    ] = None,
    folder: Annotated[
        bool, typer.Option("--folder", help="Write a folder of plain files, to look into, instead of one file.")
    ] = False,
    overrides: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print every event as one line of JSON.")] = False,
    debug: DebugOption = False,
) -> None:
    """Prepare a pipeline for a board on any machine, and pack all of it into one file.

    Models are checked, given static shapes, rewritten for the DLA, calibrated, quantised, placed and compared with
    what they were. Every step is kept under what it depends on: a second build does nothing, and one that was
    interrupted goes on. Engines are compiled on the board, once: no x86 machine can build them.

    Examples:

        edgert build pipeline.yaml --board orin-nx-16gb -o dock.edgert

        edgert build hello --board orin-nx-16gb --trt 10.3 --json
    """
    import threading

    from edgert.build.make import build as build_pipeline
    from edgert.cli.signals import stop_on_signal
    from edgert.config import load_pipeline

    file = load_pipeline(pipeline_path(pipeline), overrides or ())
    path = output or Path(f"{_plain(file.config.name)}.edgert")
    stop = threading.Event()
    with _listener(json) as tell, stop_on_signal(stop.set):
        built = build_pipeline(file, path, board=board, mode=mode, tensorrt=trt, folder=folder, tell=tell, stop=stop)
    if json:
        typer.echo(_line({"bundle": str(built.path), "written": built.written, **_sizes(built)}))
    else:
        _show(built, file)


def _plain(name: str) -> str:
    """A pipeline's name as that of a file."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name) or "pipeline"


class _Lines:
    """Every event as one line of JSON on standard output."""

    def __enter__(self) -> Tell:
        return lambda event: typer.echo(_line(event.to_json()))

    def __exit__(self, *_: object) -> None:
        return None


def _listener(json: bool) -> _Lines:
    if json:
        return _Lines()
    from edgert.cli.build_progress import BuildProgress

    return BuildProgress()  # type: ignore[return-value]  # another context that gives a Tell


def _line(data: object) -> str:
    import json

    return json.dumps(data)


def _sizes(built: Built) -> dict[str, object]:
    return {
        "size_bytes": built.size_bytes,
        "models_bytes": built.manifest.onnx_bytes,
        "seconds": round(built.seconds, 3),
        "board": built.manifest.board,
        "engines": built.manifest.engines,
    }


def _show(built: Built, file: PipelineFile) -> None:
    from rich.console import Console

    from edgert.units import format_bytes

    console = Console(highlight=False)
    word = "written" if built.written else "nothing has changed; left as it is"
    models = format_bytes(built.manifest.onnx_bytes)
    console.print(
        f"[green]→[/] {built.path}: {format_bytes(built.size_bytes)}, {models} of it models; {word} "
        f"({built.seconds:.1f} s)"
    )
    if built.manifest.tensorrt:
        _show_what_is_left(console, built.manifest, built.path)


def _show_what_is_left(console: Console, manifest: Manifest, path: Path) -> None:
    """What this machine could not do, and what happens on the board."""
    console.print(
        f"Not compiled here: no x86 machine can build an engine for {manifest.board}. A TensorRT engine belongs to the "
        "GPU, TensorRT and system it was made on, and a DLA's part needs the DLA."
    )
    console.print(
        f"On the board: copy {path.name} there and type  edgert run {path.name}  — it is compiled once by its TensorRT "
        f"(the bundle expects {manifest.tensorrt}). Here it runs with ONNX Runtime.",
        markup=False,
    )
