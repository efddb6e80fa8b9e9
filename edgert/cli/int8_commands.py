"""``edgert calibrate``, ``edgert quantize`` and ``edgert eval``: a model in INT8, and how good it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, terminal
from edgert.cli.progress import counting_bar, stop_on_signal
from edgert.errors import EXIT_ERROR, EXIT_INTERRUPTED

if TYPE_CHECKING:
    from edgert.evaluation import EvaluationResult

_VERDICT_STYLES = {"within": "green", "probably within": "green", "probably missed": "red", "missed": "red"}


Workers = Annotated[
    int, option.named("--workers", "N", "Number of processes; one process already uses all cores.", min=1, max=256)
]


def calibrate(
    source: option.SourceArgument,
    model: option.Model = None,
    images: option.CalibrationImages = None,
    input: option.Input = None,
    output: Annotated[Path, option.output("The range file.")] = Path("ranges.json"),
    method: option.Method = None,
    limit: Annotated[int | None, option.limit("Default: 256.")] = None,
    workers: Workers = 1,
    dask: Annotated[str, option.dask("They measure.")] = "",
    overrides: option.Set = None,
) -> None:
    """Measure the ranges of a model's tensors on typical images, for INT8.

    Images stream through the float model with the pipeline's preprocessing. The result does not depend on the number of
    workers. Ctrl-C saves the counts beside the output; the same command resumes from there.

    Examples:
        edgert calibrate model.onnx --images photos/ --input 'letterbox rgb mean=0 std=255' -o ranges.json
        edgert calibrate pipeline.yaml --model parts --method entropy --limit 500 --workers 4
        edgert calibrate pipeline.yaml --set models.parts.onnx=new.onnx
    """
    from edgert.quantization.to_files import CalibrateOptions, calibrate as measure

    console = terminal.console(stderr=True)
    options = CalibrateOptions(method, limit, workers, dask)
    with counting_bar(console) as bar, stop_on_signal(bar.stop.set):
        ranges = measure(
            source,
            images,
            model=model,
            input=input,
            output=output,
            options=options,
            overrides=overrides or (),
            on_progress=bar,
        )
    console.print(f"{len(ranges.histograms)} tensors, {ranges.images} images, method {ranges.method}")
    for warning in ranges.warnings:
        console.print("[yellow]•[/]", terminal.styled(warning, ""))
    console.print("[green]→[/]", str(output), soft_wrap=True)


Target = Annotated[
    str, option.target("With cache, a calibration cache for TensorRT <= 10; gpu and dla are for TensorRT >= 11.")
]
Keep = Annotated[
    list[str] | None,
    option.named("--keep", "LAYER", "Leave a layer in higher precision, by its name or a glob. Repeatable."),
]


def quantize(
    source: option.SourceArgument,
    model: option.Model = None,
    output: Annotated[Path | None, option.output("Default: MODEL.int8.onnx.")] = None,
    ranges: option.Ranges = None,
    images: option.CalibrationImages = None,
    input: option.Input = None,
    task: option.Task = None,
    method: option.Method = None,
    limit: Annotated[int | None, option.limit("Default: 256.")] = None,
    target: Target = "ort",
    trt: Annotated[str, option.trt("It stands in the header of a calibration cache.")] = "10.3.0",
    keep: Keep = None,
    data: option.Data = None,
    metric: option.Metric = None,
    max_drop: option.MaxDrop = None,
    report: option.Report = None,
    overrides: option.Set = None,
) -> None:
    """Make a model INT8, within an accuracy budget, and report what it costs.

    A model with Q/DQ nodes has its own scales: --target cache and --target dla use these, and need no images.

    With --data and --max-drop, or the pipeline's accuracy:, layers are left in higher precision until the budget holds,
    as few as possible. If it cannot hold, nothing is written and the layers that cost most are named. Without labels
    the model is compared with FP32 on the calibration images, and layers are left only where INT8 throughout would
    spoil it.

    Examples:
        edgert quantize model.onnx --images photos/ --input 'letterbox rgb std=255' -o model.int8.onnx
        edgert quantize pipeline.yaml --report out/int8.html
        edgert quantize pipeline.yaml --model parts --ranges ranges.json --set models.parts.onnx=new.onnx
        edgert quantize model.onnx --images photos/ --method minmax --limit 500 --keep 'head*'
        edgert quantize model.onnx --images photos/ --task 'detect yolox' --data val.json --metric map50 --max-drop 0.02
        edgert quantize pipeline.yaml --target cache --trt 10.3.0 -o model.cache
        edgert quantize model.qdq.onnx --target cache -o model.cache
    """
    from edgert.quantization.to_files import QuantizeOptions, quantize as quantize_model

    console = terminal.console(stderr=True)
    options = QuantizeOptions(
        ranges=ranges,
        task=task,
        method=method,
        limit=limit,
        target=target,
        tensorrt=trt,
        keep=keep or (),
        data=data,
        metric=metric,
        max_drop=max_drop,
    )
    with counting_bar(console) as bar, stop_on_signal(bar.stop.set):
        made = quantize_model(
            source,
            images,
            model=model,
            input=input,
            output=output or Path(),
            options=options,
            overrides=overrides or (),
            on_progress=bar,
        )
        if report is not None:
            made.save_report(report, terminal.command_line())
    for text in made.problems:
        console.print(f"warning: {text}", style="yellow", markup=False)
    for line in made.lines:
        console.print(line, markup=False, soft_wrap=True)  # a command in it is copied
    console.print("[green]→[/]", str(made.path), soft_wrap=True)
    if report is not None:
        console.print("[green]→[/]", str(report), soft_wrap=True)


Against = Annotated[
    list[Path] | None,
    option.named("--against", "OTHER.onnx", "Another version of the model to compare with. Repeatable."),
]
Emulate = Annotated[
    list[str] | None,
    option.named(
        "--emulate", "NAME", "Compare INT8 as that part of a Jetson computes it, emulated: dla or gpu. Repeatable."
    ),
]


def evaluate(
    source: option.SourceArgument,
    model: option.Model = None,
    data: option.Data = None,
    metric: option.Metric = None,
    against: Against = None,
    max_drop: option.MaxDrop = None,
    limit: Annotated[int | None, option.limit("Default: all.")] = None,
    precision: Annotated[list[str] | None, option.precision("It is made that too, and compared. Repeatable.")] = None,
    emulate: Emulate = None,
    images: option.CalibrationImages = None,
    report: option.Report = None,
    task: option.Task = None,
    input: option.Input = None,
    json: option.Json = None,
    dask: Annotated[str, option.dask("They judge the images.")] = "",
    overrides: option.Set = None,
) -> None:
    """Measure how good a model is on your images, and what another version of it loses.

    Average precision is that of COCO's evaluator, with boxes from a score of 0.01 on. Without labels, versions are
    compared with each other. The interval of a loss is a 95 % paired bootstrap over the images. Exit code 1 when
    --max-drop, or the pipeline's accuracy: max_drop, is missed.

    --precision int8 makes every possible layer INT8, so that the full loss is measured. --emulate uses publicly known
    arithmetic: it is no measurement of a device, and its times mean nothing.

    Ctrl-C shows the versions that are done; exit code 130.

    Examples:
        edgert eval pipeline.yaml --data coco_val.json
        edgert eval pipeline.yaml --model parts --metric map50 --max-drop 0.02 --limit 500 --json eval.json
        edgert eval pipeline.yaml --precision int8 --images photos/ --set models.parts.task.score=0.1
        edgert eval model.onnx --task 'detect yolox' --input 'top_left bgr' --data val.json --against int8.onnx
        edgert eval pipeline.yaml --precision int8 --emulate dla --report out/int8.html
    """
    from edgert.quantization.evaluate import EvaluateOptions, evaluate as evaluate_model

    console = terminal.console(json)
    options = EvaluateOptions(metric, max_drop, limit, precision or (), emulate or (), images, task=task, dask=dask)
    with counting_bar(console) as bar, stop_on_signal(bar.stop.set):
        found = evaluate_model(
            source,
            data=data,
            model=model,
            against=against or (),
            input=input,
            options=options,
            overrides=overrides or (),
            on_progress=bar,
        )
    if found is None:
        console.print("stopped; nothing was measured to the end")
        raise typer.Exit(EXIT_INTERRUPTED)
    _print_evaluation(console, found.result, found.dataset.notes)
    for text in found.warnings:
        console.print(f"warning: {text}", style="yellow", markup=False)
    terminal.write_json(found.to_json(), json)
    if found.unfinished:
        console.print(f"stopped; not evaluated to the end: {', '.join(found.unfinished)}", markup=False)
        raise typer.Exit(EXIT_INTERRUPTED)
    if report is not None:
        found.save_report(report, terminal.command_line())
        console.print(f"report: {report}", markup=False)
    if not found.result.within:
        raise typer.Exit(EXIT_ERROR)


def _print_evaluation(console: terminal.Console, evaluation: EvaluationResult, notes: tuple[str, ...]) -> None:
    metrics = list(dict.fromkeys(name for result in evaluation.results for name in result.values))
    drops = ("drop", "95 % interval") if evaluation.comparisons else ()
    columns = (
        terminal.Column("", wraps=True),
        *(terminal.Column(name, is_number=True) for name in (*metrics, *drops)),
        terminal.Column("images/s", is_number=True, rank=1),
        terminal.Column("run ms", is_number=True, rank=1),
    )
    rows = []
    for result, one in zip(evaluation.results, (None, *evaluation.comparisons), strict=True):
        cells = [f"{result.values[name]:.3f}" if name in result.values else "" for name in metrics]
        if one is not None:
            cells += [f"{one.drop:+.3f}", f"{one.low:+.3f} {one.high:+.3f}"]
        cells += [""] * (len(metrics) + len(drops) - len(cells))
        rows.append(terminal.Row((result.name, *cells, f"{result.images_per_s:.1f}", f"{result.run_ms:.2f}")))
    console.print(terminal.table(columns, rows, width=console.width))
    for result, one in zip(evaluation.results[1:], evaluation.comparisons, strict=True):
        if one.max_drop is not None:
            budget = f"{one.verdict.replace('missed', 'misses')} the budget of {one.max_drop:g} {one.metric}"
            console.print(f"{result.name}: {budget}", style=f"bold {_VERDICT_STYLES[one.verdict]}", markup=False)
    for note in notes:
        console.print(f"• {note}", style="dim", markup=False)
    first = evaluation.results[0]
    console.print(f"[dim]{first.images} images, {first.threads} at a time[/]")
