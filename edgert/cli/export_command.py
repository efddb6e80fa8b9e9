"""``edgert export``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from edgert.cli import option
from edgert.cli.output import is_stdout, write_json


def export(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Pipeline file, ONNX file, or bundle of edgert build.")
    ],
    format: Annotated[str, typer.Option("--format", metavar="NAME", help="Format to write: triton, onnx or trtexec.")],
    output: Annotated[Path, option.output("With --format onnx and one model it may be FILE.onnx.")],
    model: Annotated[str | None, option.model("All models when left out.")] = None,
    board: Annotated[str | None, option.board("A bundle names its own.")] = None,
    trt: option.Trt = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--form",
            metavar="NAME",
            help="Form of the model for --format onnx: float, fp16, int8-qdq or fit (operators that a DLA has). The "
            "form that was built when left out.",
        ),
    ] = None,
    target: Annotated[str | None, option.target("For --format onnx.")] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Device that Triton runs models on: cpu or gpu. gpu for a board's models when left out.",
        ),
    ] = None,
    max_batch: Annotated[
        int | None,
        typer.Option(
            "--max-batch",
            metavar="N",
            min=1,
            help="Largest batch that Triton puts together from requests, where the model's batch is open.",
        ),
    ] = None,
    overrides: option.Set = None,
    json: option.Json = None,
    debug: option.Debug = False,
) -> None:
    """Take what was built to a Triton server, another ONNX runtime, or trtexec.

    triton writes a model repository: a folder for each model with its file, labels and config.pbtxt. onnx writes plain
    ONNX files, checked and run once. trtexec writes build.sh, the command line that TensorRT's own tool builds the same
    engines with, and the files it names. What a format cannot express is printed, and noted in what is written.

    Examples:

        edgert export hello --format triton -o models

        edgert export dock.edgert --format trtexec -o engines

        edgert export pipeline.yaml --board orin-nx-16gb --format onnx --form int8-qdq --target dla -o dla.onnx
    """
    import threading

    from edgert.cli.build_steps import BuildProgress
    from edgert.cli.progress import stop_on_signal
    from edgert.exporter.export import export as run

    options: dict[str, Any] = {"format": format, "form": form, "target": target, "device": device}
    stop = threading.Event()
    with BuildProgress() as on_event, stop_on_signal(stop.set):
        made = run(
            source,
            output,
            model=model,
            max_batch=max_batch,
            board=board,
            tensorrt=trt,
            overrides=overrides or (),
            on_event=on_event,
            stop=stop,
            **options,
        )
    if json is not None:
        write_json({"files": [str(path) for path in made.files], "limitations": list(made.limitations)}, json)
    _show(made.files, made.limitations, format, quiet=is_stdout(json))


def _show(files: tuple[Path, ...], limitations: tuple[str, ...], format: str, quiet: bool) -> None:
    from rich.console import Console

    console = Console(stderr=quiet, highlight=False)
    for path in files:
        console.print("[green]→[/]", str(path), soft_wrap=True)
    if limitations:
        console.print(f"What {format} cannot express:")
    for line in limitations:
        console.print(f"  - {line}", markup=False, soft_wrap=True)
