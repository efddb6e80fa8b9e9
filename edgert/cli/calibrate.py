"""``edgert calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgert.cli.option import (
    CalibrationImagesOption,
    DebugOption,
    InputOption,
    MethodOption,
    ModelOption,
    SetOption,
    SourceArgument,
    limit_option,
    output_option,
)


def calibrate(
    source: SourceArgument,
    model: ModelOption = None,
    images: CalibrationImagesOption = None,
    input: InputOption = None,
    output: Annotated[Path, output_option("The range file.")] = Path("ranges.json"),
    method: MethodOption = None,
    limit: Annotated[int | None, limit_option("256 when left out.")] = None,
    workers: Annotated[
        int,
        typer.Option("--workers", metavar="N", min=1, help="Number of processes; one process already uses all cores."),
    ] = 1,
    dask: Annotated[
        str,
        typer.Option(
            "--dask",
            metavar="ADDRESS",
            help="Address of a Dask scheduler, whose workers measure; needs the extra dask.",
        ),
    ] = "",
    early_stop: Annotated[
        bool,
        typer.Option("--early-stop/--no-early-stop", help="Stop as soon as more images no longer change the ranges."),
    ] = True,
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Measure the ranges of a model's tensors on typical images, for INT8.

    Images stream through the float model by the pipeline's preprocessing. The result does not depend on the
    number of workers. Ctrl-C saves what was counted beside the output; the same command resumes from there.

    Examples:

        edgert calibrate model.onnx --images photos/ --input 'letterbox rgb mean=0 std=255' -o ranges.json

        edgert calibrate pipeline.yaml --model parts
    """
    import threading

    from rich.console import Console
    from rich.text import Text

    from edgert.cli.progress import ImageBar, stop_on_signal
    from edgert.quantization.to_files import calibrate as measure

    console, stop = Console(stderr=True, highlight=False), threading.Event()
    with ImageBar(console) as bar, stop_on_signal(stop.set):
        table = measure(
            source,
            model=model,
            images=images,
            input=input,
            output=output,
            method=method,
            limit=limit,
            workers=workers,
            dask=dask,
            early_stop=early_stop,
            overrides=overrides or (),
            bar=bar,
            stop=stop,
        ).table
    console.print(f"{len(table.histograms)} tensors, {table.images} images, method {table.method}")
    for warning in table.warnings:
        console.print("[yellow]•[/]", Text(warning))
    console.print("[green]→[/]", str(output), soft_wrap=True)
