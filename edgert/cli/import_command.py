"""``edgert import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option
from edgert.cli.output import is_stdout, write_json
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from edgert.importer.conversion import Imported


def import_model(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="PyTorch program (.pt2), module:function, SavedModel folder or .tflite file."
        ),
    ],
    output: Annotated[Path | None, option.output("SOURCE.onnx when left out.")] = None,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", metavar="FILE", help="Example inputs to compare on, by name, in an .npz file."),
    ] = None,
    shape: option.Shape = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic", metavar="INPUT=batch,_,h,w", help="Name the dimensions of a module that stay open. Repeatable."
        ),
    ] = None,
    signature: Annotated[
        str, typer.Option("--signature", metavar="NAME", help="Signature of a SavedModel to import.")
    ] = "serving_default",
    opset: Annotated[
        int, typer.Option("--opset", metavar="N", min=13, help="Version of the ONNX operators to write.")
    ] = 18,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="0-1",
            min=0,
            help="Largest accepted difference of an output, as a fraction of its largest value.",
        ),
    ] = 1e-3,
    python: Annotated[
        Path | None,
        typer.Option("--python", metavar="PATH", help="Path of another Python, which has the framework installed."),
    ] = None,
    json: option.Json = None,
    debug: option.Debug = False,
) -> None:
    """Make an ONNX model of a PyTorch or TensorFlow one, and check that it computes the same.

    The file is written only if every output is within the tolerance of the source's on the example inputs. A function
    returns an nn.Module and example inputs; it is looked for in the current folder.

    Examples:

        edgert import detector.pt2 -o detector.onnx

        edgert import mine:model --dynamic 'image=batch,_,height,width'

        edgert import saved_model/ --python ~/tf/bin/python --shape image=1x224x224x3
    """
    from rich.console import Console

    from edgert.importer.conversion import import_model as run

    names = {name: tuple(None if one == "_" else one for one in names) for name, names in map(_split, dynamic or ())}
    made = run(
        source,
        output or Path(f"{Path(source.replace(':', '_')).stem}.onnx"),
        inputs=inputs,
        shapes=dict(map(option.shape_of, shape or ())),
        dynamic=names,
        signature=signature,
        opset=opset,
        tolerance=tolerance,
        python=python,
    )
    if json is not None:
        write_json(_plain(made), json)
    _show(Console(stderr=is_stdout(json), highlight=False), made)


def _split(text: str) -> tuple[str, list[str]]:
    """``NAME=a,b`` in two. Names may have colons and slashes. Raises ConfigError."""
    name, equals, values = text.rpartition("=")
    if not equals or not name or not values:
        raise ConfigError(f"cannot understand {text!r}", where="--dynamic", fix="write INPUT=batch,_,height,width")
    return name, [value.strip() for value in values.split(",")]


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
        console.print(f"  returns {one}", markup=False)
    console.print(f"[green]the same within {made.tolerance:g} of the largest[/], {made.seconds:.1f} s")
    console.print(f"[green]→[/] {made.path}")
