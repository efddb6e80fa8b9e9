"""``edgert import`` and ``edgert export``: from PyTorch, to other runtimes and to boards in the field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from edgert.cli import option, terminal
from edgert.cli.progress import build_progress, stop_on_signal, waiting
from edgert.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgert.exporter.export import Form, Target
    from edgert.importer.conversion import Imported


ImportArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="PyTorch program (.pt2), module:function, torchvision:NAME or timm:NAME.",
    ),
]
ExampleInputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE", help="Example inputs to compare on, by name, in an .npz file."),
]
Dynamic = Annotated[
    list[str] | None,
    typer.Option(
        "--dynamic", metavar="INPUT=batch,_,h,w", help="Name the dimensions of a module that stay open. Repeatable."
    ),
]
Opset = Annotated[int, typer.Option("--opset", metavar="N", min=13, help="Version of the ONNX operators to write.")]
Tolerance = Annotated[
    float,
    typer.Option(
        "--tolerance",
        metavar="0-1",
        min=0,
        help="Largest accepted difference of an output, as a fraction of its largest value.",
    ),
]
Weights = Annotated[
    str,
    typer.Option("--weights", metavar="NAME", help="Weights of torchvision:NAME or timm:NAME; random: none."),
]
ImageSize = Annotated[
    str | None,
    typer.Option("--size", metavar="WxH", help="Size of the image that torchvision:NAME or timm:NAME takes."),
]
Python = Annotated[
    Path | None,
    typer.Option("--python", metavar="PATH", help="Path of another Python, which has the framework installed."),
]


def import_model(
    source: ImportArgument,
    output: Annotated[Path | None, option.output("Default: SOURCE.onnx.")] = None,
    inputs: ExampleInputs = None,
    dynamic: Dynamic = None,
    opset: Opset = 18,
    tolerance: Tolerance = 1e-3,
    python: Python = None,
    weights: Weights = "DEFAULT",
    size: ImageSize = None,
    json: option.Json = None,
) -> None:
    """Make an ONNX model of a PyTorch one, and check that it computes the same.

    The file is written only if every output is within the tolerance of the source's on the example inputs. A function
    has to return an nn.Module and example inputs; it is looked for in the current folder.

    Examples:

        edgert import detector.pt2 -o detector.onnx

        edgert import torchvision:fasterrcnn_resnet50_fpn -o detector.onnx

        edgert import mine:model --dynamic 'image=batch,_,height,width' --python ~/torch/bin/python
    """
    from edgert.importer.conversion import import_model as run

    open_dims = {}
    for text in dynamic or ():
        name, equals, dims = text.rpartition("=")  # names may have colons and slashes
        if not equals or not name or not dims:
            raise ConfigError(f"cannot understand {text!r}", where="--dynamic", fix="write INPUT=batch,_,height,width")
        open_dims[name] = tuple(None if dim.strip() == "_" else dim.strip() for dim in dims.split(","))
    with waiting(f"converting {source}"):
        made = run(
            source,
            output or Path(f"{Path(source.replace(':', '_')).stem}.onnx"),
            inputs=inputs,
            dynamic=open_dims,
            opset=opset,
            tolerance=tolerance,
            python=python,
            weights=weights,
            size=_size_of(size),
        )
    terminal.write_json(_plain(made), json)
    console = terminal.console(json, tables=False)
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    console.print(f"{made.nodes} nodes, opset {made.opset}, by {versions}", markup=False)
    if made.exporter:
        console.print(f"  exported by {made.exporter}", markup=False)
    for spec in made.inputs:
        console.print(f"  takes {spec}", markup=False)
    for one in made.differences:
        console.print(f"  returns {one}", markup=False)
    same = "boxes agree" if made.differences[0].boxes else f"the same within {made.tolerance:g} of the largest"
    console.print(f"[green]{same}[/], {made.seconds:.1f} s")
    console.print(f"[green]→[/] {made.path}")


def _size_of(text: str | None) -> tuple[int, int] | None:
    """Return width and height of ``WxH``. Raises ConfigError for other texts."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}", text):
        raise ConfigError(f"cannot understand {text!r}", where="--size", fix="write WIDTHxHEIGHT, such as 640x480")
    width, height = map(int, text.split("x"))
    return width, height


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
        "exporter": made.exporter,
        "seconds": round(made.seconds, 3),
    }


Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Pipeline file, ONNX file, or bundle of edgert build; for boards, a bundle for each kind of them.",
    ),
]
ExportFormat = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Format to write: onnx; for boards: ansible, compose, systemd or kubernetes.",
    ),
]
FormOption = Annotated[
    str | None,
    typer.Option(
        "--form",
        metavar="NAME",
        help="Form of the model for --format onnx: float, fp16, int8-qdq or fit (operators that a DLA has). "
        "Default: the form that was built.",
    ),
]


def export(
    sources: Sources,
    format: ExportFormat,
    output: Annotated[Path, option.output("With --format onnx and one model it may be FILE.onnx.")],
    model: Annotated[str | None, option.model("Default: all.")] = None,
    board: Annotated[str | None, option.board("A bundle names its own.")] = None,
    form: FormOption = None,
    target: Annotated[str | None, option.target("For --format onnx.")] = None,
    overrides: option.Set = None,
    json: option.Json = None,
) -> None:
    """Export what was built: to another ONNX runtime or server, or to boards in the field.

    onnx writes plain ONNX files, checked and run once. What they cannot express is printed.

    For boards, bundles become a folder of plain files. ansible is a role that rolls a release out, watches it, and goes
    back. systemd is a unit. compose runs edgert in Docker, with Prometheus and Grafana. kubernetes is a DaemonSet for
    each kind of board.

    Examples:

        edgert export dock.edgert --format onnx -o models

        edgert export pipeline.yaml --board orin-nx-16gb --format onnx --form int8-qdq --target dla -o dla.onnx

        edgert export dock-orin.edgert dock-thor.edgert --format ansible -o rollout
    """
    from edgert.exporter.fleet import FLEET_FORMATS

    if format in FLEET_FORMATS:
        given = {"--model": model, "--board": board, "--form": form, "--target": target, "--set": overrides}
        option.refuse(given, f"--format {format} takes bundles, for which that is settled")
        _export_fleet(sources, format, output, json)
        return
    if format != "onnx":
        known = ("onnx", *FLEET_FORMATS)
        raise ConfigError(f"no {format!r}{nearest(format, known)}", where="--format", fix=f"one of {', '.join(known)}")
    if len(sources) > 1:
        raise typer.BadParameter(f"--format {format} takes one source", param_hint="SOURCE")
    from edgert.exporter.export import export as run

    with build_progress() as on_progress, stop_on_signal(on_progress.stop.set):
        made = run(
            sources[0],
            output,
            model=model,
            board=board,
            form=cast("Form | None", form),
            target=cast("Target | None", target),
            overrides=overrides or (),
            on_progress=on_progress,
        )
    _show_export(made.files, made.limitations, f"What {format} cannot express:", json)


def _export_fleet(sources: Sequence[str], format: str, output: Path, json: Path | None) -> None:
    from edgert.exporter.fleet import FleetFormat, export_fleet

    with waiting("checking bundles"):
        files, notes = export_fleet([Path(one) for one in sources], cast("FleetFormat", format), output)
    _show_export(files, notes, "Note:", json)


def _show_export(files: Sequence[Path], notes: Sequence[str], heading: str, json: Path | None) -> None:
    """Print the written files, and notes below a heading."""
    terminal.write_json({"files": list(map(str, files)), "limitations": list(notes)}, json)
    console = terminal.console(json, tables=False)
    for path in files:
        console.print("[green]→[/]", str(path), soft_wrap=True)
    if notes:
        console.print(heading)
    for line in notes:
        console.print(f"  - {line}", markup=False, soft_wrap=True)
