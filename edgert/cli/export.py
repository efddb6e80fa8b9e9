"""``edgert export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edgert.cli.option import DebugOption, JsonOption, SetOption, pipeline_path, write_json


def export(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A pipeline file, an ONNX file, or a bundle of edgert build.")
    ],
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="triton, onnx or trtexec.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", help="A folder; of onnx also FILE.onnx for one model.")
    ],
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Only this model.")] = None,
    board: Annotated[
        str | None, typer.Option("--board", "-b", metavar="BOARD", help="What it is for, unless it is a bundle.")
    ] = None,
    trt: Annotated[
        str | None, typer.Option("--trt", metavar="VERSION", help="TensorRT on the board, like 10.3; its JetPack's.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--form",
            metavar="NAME",
            help="With onnx: float, fp16, int8-qdq or fit (operators that a DLA has); what was built if left out.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--for", metavar="NAME", help="With onnx: whose INT8 form: ort, gpu or dla.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="With triton: cpu or gpu; gpu for a board's models.")
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option("--max-batch", min=1, help="With triton: requests put together, if the batch is open."),
    ] = None,
    overrides: SetOption = None,
    json: JsonOption = None,
    debug: DebugOption = False,
) -> None:
    """Take what was built to a Triton server, another ONNX runtime, or trtexec.

    triton writes a model repository: a folder for each model with its file, labels and config.pbtxt. onnx writes plain
    ONNX files, checked and run once. trtexec writes build.sh, the command line that TensorRT's own tool builds the same
    engines with, and the files it names. What a format has no words for is printed, and stands in what is written.

    Examples:

        edgert export hello --format triton -o models

        edgert export dock.edgert --format trtexec -o engines

        edgert export pipeline.yaml --board orin-nx-16gb --format onnx --form int8-qdq --for dla -o dla.onnx
    """
    import threading

    from edgert.cli.build_progress import BuildProgress
    from edgert.cli.signals import stop_on_signal
    from edgert.export import FORMATS, Outline, Wanted, check_leave, leave, open_source
    from edgert.export.plain import FORMS, TARGETS
    from edgert.export.triton import DEVICES

    options: dict[str, Any] = {
        "form": _one_of(form, FORMS, "--form"),
        "target": _one_of(target, TARGETS, "--for"),
        "device": _one_of(device, DEVICES, "--device"),
        "max_batch": max_batch,
    }
    known: Any = _one_of(format, FORMATS, "--format")
    wanted = Wanted(known, output, **options)
    stop = threading.Event()

    def check(outline: Outline) -> None:
        check_leave(outline.only(model) if model else outline, wanted)

    asked: dict[str, Any] = {"check": check, "overrides": tuple(overrides or ()), "board": board, "tensorrt": trt}
    with (
        BuildProgress() as tell,
        stop_on_signal(stop.set),
        open_source(pipeline_path(source), **asked, tell=tell, stop=stop) as opened,
    ):
        left = leave(opened.only(model) if model else opened, wanted)
    if json is not None:
        write_json({"files": [str(path) for path in left.files], "unsaid": list(left.unsaid)}, json)
    _show(left.files, left.unsaid, known, quiet=str(json) == "-")


def _one_of(value: str | None, known: tuple[str, ...], option: str) -> str | None:
    from edgert.errors import ConfigError, nearest

    if value is None or value in known:
        return value
    raise ConfigError(f"no {value!r}{nearest(value, known)}", where=option, fix=f"one of {', '.join(known)}")


def _show(files: tuple[Path, ...], unsaid: tuple[str, ...], format: str, quiet: bool) -> None:
    from rich.console import Console

    console = Console(stderr=quiet, highlight=False)
    for path in files:
        console.print("[green]→[/]", str(path), soft_wrap=True)
    if unsaid:
        console.print(f"What {format} has no words for:")
    for line in unsaid:
        console.print(f"  - {line}", markup=False, soft_wrap=True)
