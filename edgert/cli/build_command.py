"""``edgert build``, and ``edgert job``, which is the board's side of ``edgert build --remote``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option
from edgert.cli.output import is_stdout
from edgert.installation import pipeline_path

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.bundle.manifest import Manifest
    from edgert.compiler.build_pipeline import Built
    from edgert.tuner.trials import Tuned


def build(
    pipeline: option.BundleArgument,
    board: option.Board = None,
    mode: Annotated[str | None, option.mode("The one that the board boots into when left out.")] = None,
    output: Annotated[Path | None, option.output("NAME.edgert when left out, with the pipeline's name.")] = None,
    trt: option.Trt = None,
    folder: Annotated[
        bool, typer.Option("--folder", help="Write a folder of plain files, to look into, instead of one file.")
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search for the settings that run each model fastest on this machine.")
    ] = False,
    strict: option.Strict = False,
    remote: Annotated[
        str | None,
        typer.Option(
            "--remote", metavar="USER@HOST", help="Compile on this board over ssh, and bring the engines back."
        ),
    ] = None,
    remote_edgert: Annotated[
        str | None,
        typer.Option(
            "--remote-edgert",
            metavar="PATH",
            help="Path of edgert on that board, from its home folder. Searched for when left out.",
        ),
    ] = None,
    overrides: option.Set = None,
    json: option.Json = None,
    debug: option.Debug = False,
) -> None:
    """Prepare a pipeline for a board on any machine, and pack all of it into one file; or finish that file on a board.

    Models are checked, given static shapes, rewritten for the DLA, calibrated, quantized, placed and compared with
    what they were. Every step is cached under what it depends on: a second build does nothing, and one that was
    interrupted goes on. Engines are compiled on the board, once: no x86 machine can build them. Given a bundle, this
    verb does just that: it compiles what is missing here, checks and times it, and with -o packs it.

    --json writes one line for every event, and the result as the last line.

    Examples:

        edgert build pipeline.yaml --board orin-nx-16gb -o dock.edgert

        edgert build hello --board orin-nx-16gb --trt 10.3 --json build.jsonl

        edgert build pipeline.yaml --tune

        edgert build pipeline.yaml --remote user@jetson -o dock.edgert
    """
    import threading

    from edgert.bundle.bundle import is_bundle

    source = pipeline_path(pipeline)
    if remote is not None:
        from edgert.cli.build_steps import build_remotely

        build_remotely(
            source,
            output,
            remote,
            remote_edgert,
            target={"board": board, "mode": mode, "tensorrt": trt},
            overrides=overrides or (),
            json=json,
            strict=strict,
            foreign={"--folder": folder, "--tune": tune},
        )
        return
    option.refuse({"--remote-edgert": remote_edgert}, "it names where edgert is on the board of --remote")
    if is_bundle(source):
        from edgert.cli.build_steps import finish_here

        given = {"--board": board, "--mode": mode, "--trt": trt, "--set": overrides, "--tune": tune}
        finish_here(source, output, folder, json, strict, given)
        return
    if strict:
        raise typer.BadParameter(
            f"it is for bundles and --remote, where engines are compiled, and {source} is a pipeline file",
            param_hint="--strict",
        )
    from edgert.cli.build_steps import listener
    from edgert.cli.progress import stop_on_signal
    from edgert.compiler.build_pipeline import build as build_pipeline
    from edgert.config import load_pipeline

    file = load_pipeline(source, overrides or ())
    path = output or option.bundle_of(file)
    stop = threading.Event()
    with listener(json) as (on_event, write), stop_on_signal(stop.set):
        built = build_pipeline(
            file, path, board=board, mode=mode, tensorrt=trt, folder=folder, tune=tune, on_event=on_event, stop=stop
        )
        found = _tuned(built) if tune else {}
        tuned = {"tuned": {name: one.to_json() for name, one in found.items()}} if tune else {}
        write({"bundle": str(built.path), "written": built.written, **_sizes(built), **tuned})
    if not is_stdout(json):
        _show(built, found)


def _sizes(built: Built) -> dict[str, object]:
    return {
        "size_bytes": built.size_bytes,
        "models_bytes": built.manifest.onnx_bytes,
        "seconds": round(built.seconds, 3),
        "board": built.manifest.board,
        "engines": built.manifest.engines,
    }


def _tuned(built: Built) -> Mapping[str, Tuned]:
    from edgert.compiler.unpack import tuned_models

    return tuned_models(built.path)


def _show(built: Built, tuned: Mapping[str, Tuned]) -> None:
    from rich.console import Console

    from edgert.cli.bundle_tables import show_tuned
    from edgert.units import format_bytes

    console = Console(highlight=False)
    for name, one in tuned.items():
        show_tuned(console, name, one)
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


def job(
    words: Annotated[list[str], typer.Argument(metavar="ACTION WORDS...", help="See edgert.remote.board_actions.")],
) -> None:
    """Do the board's part of a remote build; a workstation calls this over ssh."""
    from edgert.remote.board_actions import perform

    perform(words, sys.stdin.buffer, sys.stdout.buffer)
