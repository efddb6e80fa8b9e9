"""``edgert eval``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgert.cli import option, table
from edgert.cli.output import as_typed, is_stdout, write_json
from edgert.cli.table import Column, Row
from edgert.errors import EXIT_ERROR

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from edgert.evaluation import Comparison, EvaluationResult

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_VERDICT_STYLES = {"within": "green", "probably within": "green", "probably missed": "red", "missed": "red"}


def evaluate(
    source: option.SourceArgument,
    model: option.Model = None,
    data: option.Data = None,
    metric: option.Metric = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", metavar="OTHER.onnx", help="Another version of the model to compare with. Repeatable."
        ),
    ] = None,
    max_drop: option.MaxDrop = None,
    limit: Annotated[int | None, option.limit("All when left out.")] = None,
    precision: Annotated[list[str] | None, option.precision("It is made that too, and compared. Repeatable.")] = None,
    emulate: Annotated[
        list[str] | None,
        typer.Option(
            "--emulate",
            metavar="NAME",
            help="Compare INT8 as that part of a Jetson computes it, emulated: dla or gpu. Repeatable.",
        ),
    ] = None,
    images: option.CalibrationImages = None,
    ranges: option.Ranges = None,
    report: option.Report = None,
    task: option.Task = None,
    input: option.Input = None,
    json: option.Json = None,
    overrides: option.Set = None,
    debug: option.Debug = False,
) -> None:
    """How good is the model on my images, and what does another version of it lose?

    Average precision is taken by COCO's evaluator, with boxes from a score of 0.01 on. Images without labels show
    how far two versions agree. The interval of a loss is a 95 % paired bootstrap over the images. Exit code 1 when
    --max-drop, or the pipeline's accuracy: max_drop, is missed.

    With --precision int8 everything that can becomes INT8, whatever it costs: that is what this measures. What
    --emulate shows is the arithmetic that is publicly known, not a measurement of such a device; its times mean
    nothing.

    Ctrl-C ends it and shows the versions that were evaluated by then; exit code 130.

    Examples:

        edgert eval pipeline.yaml --data coco_val.json

        edgert eval model.onnx --task 'detect yolox' --input 'top_left bgr' --data val.json --against int8.onnx

        edgert eval pipeline.yaml --precision int8 --emulate dla --report out/int8.html
    """
    import threading

    from rich.markup import escape

    from edgert.cli.progress import ImageBar, stop_on_signal
    from edgert.quantization.evaluate import evaluate as evaluate_model

    console, stop = table.console(stderr=is_stdout(json)), threading.Event()
    with ImageBar(console) as bar, stop_on_signal(stop.set):
        found = evaluate_model(
            source,
            model=model,
            data=data,
            metric=metric,
            against=against or (),
            max_drop=max_drop,
            limit=limit,
            precision=precision or (),
            emulate=emulate or (),
            images=images,
            ranges=ranges,
            task=task,
            input=input,
            overrides=overrides or (),
            log=lambda text: console.print(f"[dim]{escape(text)} …[/]"),
            bar=bar,
            stop=stop,
        )
    if found is None:
        console.print("stopped; nothing was measured to the end")
        raise typer.Exit(_INTERRUPTED)
    _print(console, found.result, found.dataset.notes)
    if json is not None:
        write_json(found.to_json(), json)
    if found.unfinished:
        console.print(f"stopped; not evaluated to the end: {', '.join(found.unfinished)}", markup=False)
        raise typer.Exit(_INTERRUPTED)
    if report is not None:
        found.save_report(report, as_typed())
        console.print(f"report: {escape(str(report))}")
    if not found.result.within:
        raise typer.Exit(EXIT_ERROR)


def _print(console: Console, evaluation: EvaluationResult, notes: tuple[str, ...]) -> None:
    from rich.markup import escape

    console.print(_table(evaluation, console.width))
    for result, one in zip(evaluation.results[1:], evaluation.comparisons, strict=True):
        if one.max_drop is not None:
            line = f"{result.name}: {one.verdict} the budget of {one.max_drop:g} {one.metric}"
            console.print(f"[bold {_VERDICT_STYLES[one.verdict]}]{escape(line.replace('missed the', 'misses the'))}[/]")
    for note in notes:
        console.print(f"[dim]• {escape(note)}[/]")
    first = evaluation.results[0]
    console.print(f"[dim]{first.images} images, {first.threads} at a time[/]")


def _table(evaluation: EvaluationResult, width: int) -> Table:
    metrics = list(dict.fromkeys(name for result in evaluation.results for name in result.values))
    drops = ("drop", "95 % interval") if evaluation.comparisons else ()
    columns = (
        Column("", wraps=True),
        *(Column(name, is_number=True) for name in (*metrics, *drops)),
        Column("images/s", is_number=True, rank=1),
        Column("run ms", is_number=True, rank=1),
    )
    rows = [
        Row(
            (
                result.name,
                *(f"{result.values[name]:.3f}" if name in result.values else "" for name in metrics),
                *(_drop(comparison) if drops else []),
                f"{result.images_per_s:.1f}",
                f"{result.run_ms:.2f}",
            )
        )
        for result, comparison in zip(evaluation.results, (None, *evaluation.comparisons), strict=True)
    ]
    return table.table(columns, rows, width=width)


def _drop(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return ["", ""]
    return [f"{comparison.drop:+.3f}", f"{comparison.low:+.3f} {comparison.high:+.3f}"]
