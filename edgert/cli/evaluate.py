"""``edgert eval``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgert.cli import table
from edgert.cli.option import (
    CalibrationImagesOption,
    DataOption,
    DebugOption,
    InputOption,
    JsonOption,
    MaxDropOption,
    MetricOption,
    ModelOption,
    RangesOption,
    ReportOption,
    SetOption,
    TargetArgument,
    TaskOption,
    limit_option,
    precision_option,
)
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import Column, Row
from edgert.cli.target import target_of
from edgert.errors import EXIT_ERROR, CalibrationError, ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from edgert.accuracy import Comparison, Dataset, Standing
    from edgert.cli.target import Target
    from edgert.graph import Model
    from edgert.precision.candidate import Version

_REFERENCE = "fp32"  # what the model is called where its own name is that of a version
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_VERDICT_STYLES = {"within": "green", "probably within": "green", "probably missed": "red", "missed": "red"}


def evaluate(
    target: TargetArgument,
    model: ModelOption = None,
    data: DataOption = None,
    metric: MetricOption = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", metavar="OTHER.onnx", help="Another version of the model to compare with. Repeatable."
        ),
    ] = None,
    max_drop: MaxDropOption = None,
    limit: Annotated[int | None, limit_option("All when left out.")] = None,
    precision: Annotated[list[str] | None, precision_option("It is made that too, and compared. Repeatable.")] = None,
    emulate: Annotated[
        list[str] | None,
        typer.Option(
            "--emulate",
            metavar="NAME",
            help="Compare INT8 as that part of a Jetson computes it, emulated: dla or gpu. Repeatable.",
        ),
    ] = None,
    images: CalibrationImagesOption = None,
    ranges: RangesOption = None,
    report: ReportOption = None,
    task: TaskOption = None,
    input: InputOption = None,
    json: JsonOption = None,
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """How good is the model on my images, and what does another version of it lose?

    Average precision is taken by COCO's own evaluator, with boxes from a score of 0.01 on. Images without labels show
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
    chosen = target_of(target, model=model, task=task, input=input, overrides=overrides or ())
    budget = chosen.config.accuracy
    console = table.console(stderr=is_stdout(json))
    found = _examined(
        console,
        chosen,
        _data(data, chosen),
        against or [],
        {"precisions": precision or (), "emulated": emulate or (), "images": images or "", "ranges": ranges},
        metric=metric or (budget.metric if budget else None),
        max_drop=max_drop if max_drop is not None or budget is None else budget.max_drop,
        limit=limit,
    )
    if found is None:
        console.print("stopped; nothing was measured to the end")
        raise typer.Exit(_INTERRUPTED)
    standing, notes = found.standing, found.dataset.notes
    _print(console, standing, notes)
    if json is not None:
        unfinished = {"unfinished": list(found.unfinished)} if found.unfinished else {}
        write_json({"model": chosen.name, "notes": list(notes), **standing.to_json(), **unfinished}, json)
    if found.unfinished:
        console.print(f"stopped; not evaluated to the end: {', '.join(found.unfinished)}", markup=False)
        raise typer.Exit(_INTERRUPTED)
    if report is not None:
        _report(console, found, chosen, report)
    if not standing.within:
        raise typer.Exit(EXIT_ERROR)


def _data(data: str | None, chosen: Target) -> str:
    if data is not None:
        return data
    if chosen.config.accuracy is not None:
        return str(chosen.config.accuracy.dataset)
    raise ConfigError(
        "no images to evaluate on",
        where=chosen.where,
        fix="--data PATH, or accuracy: {dataset: PATH, metric: map, max_drop: 0.01} in the pipeline",
    )


@dataclass(frozen=True, slots=True)
class _Examined:
    """What was examined, and how it did; ``unfinished`` names what was not, as it was stopped."""

    standing: Standing
    dataset: Dataset
    versions: Mapping[str, Version]
    others: Mapping[str, Model]
    unfinished: tuple[str, ...]


def _examined(
    console: Console,
    chosen: Target,
    data: str,
    against: list[Path],
    asked: Mapping[str, Any],
    *,
    metric: str | None,
    max_drop: float | None,
    limit: int | None,
) -> _Examined | None:
    import threading

    from edgert.accuracy import labels_of, open_dataset, open_exam, side_by_side
    from edgert.cli.progress import PictureBar
    from edgert.cli.signals import stop_on_signal
    from edgert.graph.load import load
    from edgert.precision.candidate import Wanted, versions

    config, where, stop = chosen.config, chosen.where, threading.Event()
    labels = labels_of(config, where)
    model = load(config.onnx)
    others = {_name(path, against): load(path) for path in against}
    dataset = open_dataset(data, config.task, labels, limit=limit)
    exam = open_exam(model, config, dataset, labels=labels, directory=chosen.directory, where=where)
    with PictureBar(console) as bar, stop_on_signal(stop.set):
        tell = _teller(console)
        try:
            made = versions(config, Wanted(**asked), dataset.album, where=where, tell=tell, bar=bar, stop=stop)
        except CalibrationError:
            if stop.is_set():
                return None
            raise
        runs = {name: version.run for name, version in made.items()}
        first = chosen.name if chosen.name not in runs else _REFERENCE
        candidates: dict[str, Any] = {first: model, **others, **runs}
        found = side_by_side(candidates, exam, metric, max_drop=max_drop, progress=bar, stop=stop)
    if found is None:
        return None
    return _Examined(found, dataset, made, others, tuple(candidates)[len(found.results) :])


def _teller(console: Console) -> Callable[[str], object]:
    from rich.markup import escape

    return lambda text: console.print(f"[dim]{escape(text)} …[/]")


def _report(console: Console, found: _Examined, chosen: Target, path: Path) -> None:
    import shlex
    import sys

    from rich.markup import escape

    from edgert.precision.evaluation import evaluation_report
    from edgert.report import save

    labelled, command = found.dataset.truth is not None, shlex.join(["edgert", *sys.argv[1:]])
    page = evaluation_report(
        found.standing, found.versions, found.others, chosen.config, labelled=labelled, command=command
    )
    save(page, path)
    console.print(f"report: {escape(str(path))}")


def _name(path: Path, paths: list[Path]) -> str:
    """A file by its name, or where several have that name, by its path."""
    return path.name if sum(other.name == path.name for other in paths) == 1 else str(path)


def _print(console: Console, standing: Standing, notes: tuple[str, ...]) -> None:
    from rich.markup import escape

    console.print(_table(standing, console.width))
    for result, one in zip(standing.results[1:], standing.comparisons, strict=True):
        if one.max_drop is not None:
            said = f"{result.name}: {one.verdict} the budget of {one.max_drop:g} {one.metric}"
            console.print(f"[bold {_VERDICT_STYLES[one.verdict]}]{escape(said.replace('missed the', 'misses the'))}[/]")
    for note in notes:
        console.print(f"[dim]• {escape(note)}[/]")
    first = standing.results[0]
    console.print(f"[dim]{first.images} images, {first.threads} at a time[/]")


def _table(standing: Standing, width: int) -> Table:
    metrics = list(dict.fromkeys(name for result in standing.results for name in result.values))
    drops = ("drop", "95 % interval") if standing.comparisons else ()
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
        for result, comparison in zip(standing.results, (None, *standing.comparisons), strict=True)
    ]
    return table.table(columns, rows, width=width)


def _drop(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return ["", ""]
    return [f"{comparison.drop:+.3f}", f"{comparison.low:+.3f} {comparison.high:+.3f}"]
