"""``edgert import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli.option import DebugOption, JsonOption, write_json
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.importer import Imported


def import_model(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="A .pt2 program, module:function, SavedModel folder or .tflite file."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The ONNX file; SOURCE.onnx by default.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", metavar="FILE.npz", help="Example inputs to compare on, by name.")
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="NAME=1,224,224,3", help="Of a made-up example, where sizes are open."),
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option("--dynamic", metavar="NAME=batch,_,h,w", help="Dimensions of a module that stay open, by name."),
    ] = None,
    signature: Annotated[str, typer.Option("--signature", metavar="NAME", help="Of a SavedModel.")] = "serving_default",
    opset: Annotated[int, typer.Option("--opset", metavar="N", min=13, help="Version of the ONNX operators.")] = 18,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", metavar="PART", min=0, help="Of an output's largest value that it may differ by."),
    ] = 1e-3,
    python: Annotated[
        Path | None, typer.Option("--python", metavar="PATH", help="Another Python, which has the framework.")
    ] = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Make an ONNX model of a PyTorch or TensorFlow one, and see that it computes the same.

    The file is written only if every output is within the tolerance of the source's on the example inputs. A function
    returns an nn.Module and example inputs; it is looked for in the current folder.

    Examples:

        edgert import detector.pt2 -o detector.onnx

        edgert import mine:model --dynamic 'picture=batch,_,height,width'

        edgert import saved_model/ --python ~/tf/bin/python --shape picture=1,224,224,3
    """
    from rich.console import Console

    from edgert.importer import import_model as run
    from edgert.importer.make import Wanted

    wanted = Wanted(
        inputs,
        {name: tuple(map(_size, sizes)) for name, sizes in map(_split, shape or ())},
        {name: tuple(None if one == "_" else one for one in names) for name, names in map(_split, dynamic or ())},
        signature,
        opset,
        tolerance,
        python,
    )
    made = run(source, output or Path(f"{Path(source.replace(':', '_')).stem}.onnx"), wanted)
    if json is not None:
        write_json(_plain(made), json)
        return
    _show(Console(highlight=False), made)


def _split(text: str) -> tuple[str, list[str]]:
    """``NAME=a,b`` in two. Names may have colons and slashes. Raises ConfigError."""
    name, equals, values = text.rpartition("=")
    if not equals or not name or not values:
        raise ConfigError(f"cannot understand {text!r}", fix="write NAME=1,3,224,224")
    return name, [value.strip() for value in values.split(",")]


def _size(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{text!r} is no size", where="--shape", fix="write NAME=1,3,224,224")
    return int(text)


def _plain(made: Imported) -> dict[str, object]:
    return {
        "path": str(made.path),
        "opset": made.opset,
        "nodes": made.nodes,
        "inputs": [str(spec) for spec in made.inputs],
        "outputs": [str(spec) for spec in made.outputs],
        "tolerance": made.tolerance,
        "differences": {
            one.name: {"absolute": one.absolute, "relative": one.relative, "largest": one.largest}
            for one in made.differences
        },
        "versions": dict(made.versions),
        "seconds": round(made.seconds, 3),
    }


def _show(console: Console, made: Imported) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    console.print(f"{made.nodes} nodes, opset {made.opset}, by {versions}", markup=False)
    for spec in made.inputs:
        console.print(f"  takes {spec}", markup=False)
    for one in made.differences:
        console.print(f"  gives {one}", markup=False)
    console.print(f"[green]the same within {made.tolerance:g} of the largest[/], {made.seconds:.1f} s")
    console.print(f"[green]→[/] {made.path}")
