"""``edgert check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from edgert.cli import table
from edgert.cli.option import (
    AllOption,
    DebugOption,
    JsonOption,
    ModelOption,
    PhotosOption,
    PipelineArgument,
    SetOption,
    output_option,
)
from edgert.cli.output import is_stdout, write_json
from edgert.cli.table import Column
from edgert.shipped import pipeline_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table

    from edgert.wiring.report import CheckReport, Row

_SHOWN = 8


def check(
    pipeline: PipelineArgument,
    images: Annotated[list[str], PhotosOption],
    model: ModelOption = None,
    output: Annotated[Path | None, output_option("It shows the first image with the best answer drawn on it.")] = None,
    every: AllOption = False,
    json: JsonOption = None,
    overrides: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Is my model wired right? Try the plausible settings on images and report which line looks wrong.

    Color order, scale, resize, decoder: each is tried, and ranked by how well the answers hang together: confirmed by
    the mirrored image, absent from noise of the same colors, and matching what the model remembers of its training.
    No labels are needed. Exit code 0 also when a line looks wrong; the verdict is in the JSON.

    Examples:

        edgert check pipeline.yaml --images photo.jpg

        edgert check pipeline.yaml --images photos/ --model parts -o best.png --json check.json
    """
    from edgert.config import load_pipeline
    from edgert.wiring.check import check as check_wiring
    from edgert.wiring.show import save_picture

    screen = table.console(stderr=is_stdout(json))
    file = load_pipeline(pipeline_path(pipeline), overrides or ())
    with progress_bar(screen) as progress:
        report = check_wiring(file, images, model, progress)
    print_report(screen, report, None if every else _SHOWN)
    if output is not None:
        save_picture(report, output)
        screen.print(f"[green]→[/] {output}")
    if json is not None:
        write_json(report.to_json(), json)


class progress_bar:  # noqa: N801 - used like a function
    """A bar that counts runs of the engine, on a terminal; a context manager that gives the function to call."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("trying settings"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("runs", total=None)

    def __enter__(self) -> progress_bar:
        self._bar.start()
        return self

    def __call__(self, done: int, planned: int) -> None:
        """Moves the bar."""
        self._bar.update(self._task, completed=done, total=planned)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def print_report(console: Console, report: CheckReport, limit: int | None) -> None:
    """The ranking as a table, then the verdict, the lines to change, and what could not be told."""
    from rich.markup import escape

    console.print(_table(report, limit, console.width))
    style = {"fine": "green", "wrong": "red", "unclear": "yellow"}[report.verdict]
    console.print(f"[bold {style}]{escape(report.summary)}[/]")
    for finding in report.findings:
        console.print(f"  [bold]{escape(finding.where)}[/]")
        said = "not written, which means" if finding.missing else "written"
        console.print(f"    {said:<8} [red]{escape(finding.written)}[/]")
        console.print(f"    {'better' if finding.sure else 'probably':<8} [green]{escape(finding.better)}[/]")
    for tie in report.ties:
        console.print(f"[dim]• {escape(tie)}[/]")
    images = f"{len(report.photos)} image{'' if len(report.photos) == 1 else 's'}"
    console.print(f"[dim]{images}, {report.runs} runs of the engine[/]")


def _table(report: CheckReport, limit: int | None, width: int) -> Table:
    shown = [row for n, row in enumerate(report.rows) if limit is None or n < limit or row.written]
    groups = _shown_groups(shown)
    columns = (
        Column(""),
        *(Column(heading, wraps=True) for heading in groups),
        Column("score", is_number=True),
        Column("answers", is_number=True, rank=2),
        *([Column("memory", is_number=True, rank=2)] if shown[0].memory else []),
        Column("behind", is_number=True, rank=1),
    )
    rows = [
        table.Row(
            ("yours" if row.written else "", *(row.names[group] for group in groups), *_numbers(row)),
            "bold" if row.written else "",
        )
        for row in shown
    ]
    hidden = len(report.rows) - len(shown)
    caption = f"{hidden} more that were tried: --all" if hidden else ""
    return table.table(columns, rows, width=width, title=f"model {report.model}", caption=caption)


def _shown_groups(rows: Sequence[Row]) -> list[str]:
    """Columns worth a place: the task only where several were tried."""
    varied = len({row.names["task"] for row in rows}) > 1
    return ["color", "scale", "placement", *(["task"] if varied else [])]


def _numbers(row: Row) -> list[str]:
    memory = [f"{sum(row.memory.values()) / len(row.memory):.2f}"] if row.memory else []
    return [f"{row.score:.2f}", f"{row.answers:.2f}", *memory, f"{row.behind:.1f} σ" if row.behind else ""]
