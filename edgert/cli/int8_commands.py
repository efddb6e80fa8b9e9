"""``edgert calibrate`` and ``edgert quantize``."""

from pathlib import Path
from typing import Annotated

import typer

from edgert.cli import option
from edgert.cli.output import as_typed


def calibrate(
    source: option.SourceArgument,
    model: option.Model = None,
    images: option.CalibrationImages = None,
    input: option.Input = None,
    output: Annotated[Path, option.output("The range file.")] = Path("ranges.json"),
    method: option.Method = None,
    limit: Annotated[int | None, option.limit("256 when left out.")] = None,
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
    overrides: option.Set = None,
    debug: option.Debug = False,
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


_MINUTE_S = 60


def quantize(
    source: option.SourceArgument,
    model: option.Model = None,
    output: Annotated[Path | None, option.output("MODEL.int8.onnx when left out.")] = None,
    ranges: option.Ranges = None,
    images: option.CalibrationImages = None,
    input: option.Input = None,
    task: option.Task = None,
    method: option.Method = None,
    limit: Annotated[int | None, option.limit("256 when left out.")] = None,
    target: Annotated[
        str,
        option.target("With cache, a calibration cache for TensorRT <= 10; gpu and dla are for TensorRT >= 11."),
    ] = "ort",
    trt: Annotated[str, option.trt("It stands in the header of a calibration cache.")] = "10.3.0",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="LAYER", help="Leave a layer in higher precision, by its name or a glob. Repeatable."
        ),
    ] = None,
    data: option.Data = None,
    metric: option.Metric = None,
    max_drop: option.MaxDrop = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes",
            metavar="N",
            min=0.1,
            help="Time for finding the layers to leave in higher precision, in minutes.",
        ),
    ] = 10.0,
    report: option.Report = None,
    overrides: option.Set = None,
    debug: option.Debug = False,
) -> None:
    """Make a model INT8, within an accuracy budget, and report what it costs.

    A model with Q/DQ nodes brings its scales: --target cache and --target dla take these, and no images.

    With --data and --max-drop, or the pipeline's accuracy:, layers are left in higher precision until the budget holds,
    as few as can be; if none do, nothing is written and the layers that cost most are named. Without labels it is
    compared with FP32 on the calibration images, and layers are left only where INT8 throughout would spoil it.

    Examples:

        edgert quantize model.onnx --images photos/ --input 'letterbox rgb std=255' -o model.int8.onnx

        edgert quantize pipeline.yaml --report out/int8.html

        edgert quantize pipeline.yaml --target cache --trt 10.3.0 -o model.cache

        edgert quantize model.qdq.onnx --target cache -o model.cache
    """
    import threading

    from rich.console import Console

    from edgert.cli.progress import ImageBar, stop_on_signal
    from edgert.quantization.to_files import quantize as quantize_model

    console, stop = Console(stderr=True, highlight=False), threading.Event()
    with ImageBar(console) as bar, stop_on_signal(stop.set):
        made = quantize_model(
            source,
            model=model,
            output=output,
            ranges=ranges,
            images=images,
            input=input,
            task=task,
            method=method,
            limit=limit,
            target=target,
            trt=trt,
            keep=keep or (),
            data=data,
            metric=metric,
            max_drop=max_drop,
            budget_s=minutes * _MINUTE_S,
            report=report,
            command=as_typed(),
            overrides=overrides or (),
            log=lambda text: console.print(text, style="dim", markup=False),
            bar=bar,
            stop=stop,
        )
    for text in made.problems:
        console.print(f"warning: {text}", style="yellow", markup=False)
    for line in made.lines:
        console.print(line, markup=False)
    console.print("[green]→[/]", str(made.path), soft_wrap=True)
    if report is not None:
        console.print("[green]→[/]", str(report), soft_wrap=True)
