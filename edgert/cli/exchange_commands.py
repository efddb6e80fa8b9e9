"""``edgert import`` and ``edgert export``: from another framework, and to other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from edgert import units
from edgert.cli import option, progress, terminal
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgert.exporter.export import Format
    from edgert.importer.conversion import Imported


ImportArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="PyTorch program (.pt2), module:function, torchvision:NAME, timm:NAME, SavedModel folder or .tflite file.",
    ),
]
ExampleInputs = Annotated[
    Path | None, option.named("--inputs", "FILE", "Example inputs to compare on, by name, in an .npz file.")
]
Dynamic = Annotated[
    list[str] | None,
    option.named("--dynamic", "INPUT=batch,_,h,w", "Name the dimensions of a module that stay dynamic. Repeatable."),
]
Signature = Annotated[str, option.named("--signature", "NAME", "Signature of a SavedModel to import.")]
Opset = Annotated[int, option.named("--opset", "N", "Version of the ONNX operators to write.", min=13)]
Tolerance = Annotated[
    float,
    option.named(
        "--tolerance", "0-1", "Largest accepted difference of an output, as a fraction of its largest value.", min=0
    ),
]
Weights = Annotated[str, option.named("--weights", "NAME", "Weights of torchvision:NAME or timm:NAME; random: none.")]
ImageSize = Annotated[
    str | None, option.named("--size", "WxH", "Size of the image that torchvision:NAME or timm:NAME takes.")
]
Python = Annotated[
    Path | None, option.named("--python", "PATH", "Path of another Python, which has the framework installed.")
]


def import_model(
    source: ImportArgument,
    output: Annotated[Path | None, option.output("Default: SOURCE.onnx.")] = None,
    inputs: ExampleInputs = None,
    shape: option.Shape = None,
    dynamic: Dynamic = None,
    signature: Signature = "serving_default",
    opset: Opset = 18,
    tolerance: Tolerance = 1e-3,
    python: Python = None,
    weights: Weights = "DEFAULT",
    size: ImageSize = None,
    json: option.Json = None,
) -> None:
    """Make an ONNX model of a PyTorch or TensorFlow one, and check that it computes the same.

    The file is written only if every output is within the tolerance of the source's on the example inputs. A function
    has to return an nn.Module and example inputs; it is looked for in the current folder.

    Examples:
        edgert import detector.pt2 -o detector.onnx
        edgert import torchvision:fasterrcnn_resnet50_fpn -o detector.onnx
        edgert import torchvision:resnet18 --weights random --size 320x320 --opset 17 --json import.json
        edgert import mine:model --dynamic 'image=batch,_,height,width' --inputs example.npz --tolerance 0.01
        edgert import saved_model/ --python ~/tf/bin/python --signature serving_default --shape image=1x224x224x3
    """
    from edgert.importer.conversion import import_model as run

    open_dims = {}
    for text in dynamic or ():
        name, equals, dims = text.rpartition("=")  # names may have colons and slashes
        if not equals or not name or not dims:
            raise ConfigError(f"cannot understand {text!r}", where="--dynamic", fix="write INPUT=batch,_,height,width")
        open_dims[name] = tuple(None if dim.strip() == "_" else dim.strip() for dim in dims.split(","))
    with progress.show_waiting(f"converting {source}"):
        made = run(
            source,
            output or Path(f"{Path(source.replace(':', '_')).stem}.onnx"),
            inputs=inputs,
            shapes=dict(map(option.parse_shape, shape or ())),
            dynamic=open_dims,
            signature=signature,
            opset=opset,
            tolerance=tolerance,
            python=python,
            weights=weights,
            size=None if size is None else _parse_size(size),
        )
    terminal.write_json(_import_json(made), json)
    console = terminal.console(json)
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


def _parse_size(text: str) -> tuple[int, int]:
    """Return width and height of ``WxH``. Raises ConfigError: the text has another form."""
    try:
        return units.parse_size(text)
    except ValueError as error:
        fix = "write WIDTHxHEIGHT, such as 640x480"
        raise ConfigError(f"cannot understand {text!r}", where="--size", fix=fix) from error


def _import_json(made: Imported) -> dict[str, object]:
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
    option.named(
        "--format",
        "NAME",
        "Format to write: triton, onnx or trtexec; for boards: ansible, compose, systemd or kubernetes.",
    ),
]
Form = Annotated[
    str | None,
    option.named(
        "--form",
        "NAME",
        "Form of the model for --format onnx: float, fp16, int8-qdq or fit (operators that a DLA has). "
        "Default: the form that was built.",
    ),
]
Device = Annotated[
    str | None,
    option.named(
        "--device", "NAME", "Device that Triton runs models on: cpu or gpu. Default for a board's models: gpu."
    ),
]
MaxBatch = Annotated[
    int | None,
    option.named(
        "--max-batch",
        "N",
        "Largest batch that Triton puts together from requests, where the model's batch is open.",
        min=1,
    ),
]


def export(
    sources: Sources,
    format: ExportFormat,
    output: Annotated[Path, option.output("With --format onnx and one model it may be FILE.onnx.")],
    model: Annotated[str | None, option.model("Default: all.")] = None,
    board: Annotated[str | None, option.board("A bundle names its own.")] = None,
    trt: option.Trt = None,
    form: Form = None,
    target: Annotated[str | None, option.target("For --format onnx.")] = None,
    device: Device = None,
    max_batch: MaxBatch = None,
    overrides: option.Set = None,
    json: option.Json = None,
) -> None:
    """Export what was built: to a Triton server, another ONNX runtime or trtexec; or to boards in the field.

    triton writes a model repository: a folder for each model with its file, labels and config.pbtxt. onnx writes plain
    ONNX files, checked and run once. trtexec writes build.sh and the files it names: the command line with which
    TensorRT's own tool builds the same engines. Limitations of the format are printed, and noted in the written files.

    For boards, bundles become a folder of plain files. ansible is a role that rolls a release out, watches it, and goes
    back. systemd is a unit. compose runs edgert in Docker, with Prometheus and Grafana. kubernetes is a DaemonSet for
    each kind of board.

    Examples:
        edgert export hello --format triton --model parts --device cpu --max-batch 8 -o models
        edgert export pipeline.yaml --format onnx --set models.parts.onnx=new.onnx -o parts.onnx
        edgert export hello --board orin-nx-16gb --trt 10.3 --format trtexec --json - -o engines
        edgert export pipeline.yaml --board orin-nx-16gb --format onnx --form int8-qdq --target dla -o dla.onnx
        edgert export dock-orin.edgert dock-thor.edgert --format ansible -o rollout
    """
    from edgert.exporter.fleet import FLEET_FORMATS, export_fleet

    if format in FLEET_FORMATS:
        given = {"--model": model, "--board": board, "--trt": trt, "--form": form, "--target": target}
        more = {"--device": device, "--max-batch": max_batch, "--set": overrides}
        option.refuse({**given, **more}, f"--format {format} takes bundles, whose build has already decided that")
        with progress.show_waiting("checking bundles"):
            files, notes = export_fleet([Path(one) for one in sources], format, output)
        _show_export(files, notes, "Note:", json)
        return
    if len(sources) > 1:
        raise typer.BadParameter(f"--format {format} takes one source", param_hint="SOURCE")
    from edgert.exporter.export import ExportOptions, export as run

    options: dict[str, Any] = {"form": form, "target": target, "device": device, "max_batch": max_batch}
    with progress.build_progress() as on_progress, progress.stop_on_signal(on_progress.stop.set):
        made = run(
            sources[0],
            output,
            format=cast("Format", format),
            model=model,
            board=board,
            tensorrt=trt,
            options=ExportOptions(**options),
            overrides=overrides or (),
            on_progress=on_progress,
        )
    _show_export(made.files, made.limitations, f"What {format} cannot express:", json)


def _show_export(files: Sequence[Path], notes: Sequence[str], heading: str, json: Path | None) -> None:
    terminal.write_json({"files": list(map(str, files)), "limitations": list(notes)}, json)
    console = terminal.console(json)
    for path in files:
        console.print("[green]→[/]", str(path), soft_wrap=True)
    if notes:
        console.print(heading)
    for line in notes:
        console.print(f"  - {line}", markup=False, soft_wrap=True)
