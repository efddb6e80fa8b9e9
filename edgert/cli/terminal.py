"""Output of a verb: text and tables of one look, as wide as the terminal, and JSON.

The JSON is one document, or a line for each event.
"""

from __future__ import annotations

import json as json_text
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edgert.errors import EdgertError, printable

if TYPE_CHECKING:
    from rich.console import Console as Console
    from rich.table import Table as Table
    from rich.text import Text as Text

NONE = "–"
"""Sign for a part that does not exist."""
UNKNOWN = "?"
"""Sign for an unknown value."""
VERDICTS = {"kept": "green", "close": "yellow", "unknown": "dim", "missed": "red"}
"""Rich styles of budget verdicts."""
_WIDTH = 1000  # of pipes and files, whose lines are neither folded nor cut
_GAP = 2  # blank columns between two columns
_LEAST = 30  # of a column whose text wraps, if it has as much


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    Attributes:
        heading: above it.
        is_number: right-aligned.
        wraps: its text may take several lines; others stand on one.
        rank: columns of the highest rank go first where the terminal is too narrow; those of rank 0 stay.
    """

    heading: str
    is_number: bool = False
    wraps: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a cell for each column, and a style of rich for all of them."""

    cells: Sequence[str | Text]
    style: str = ""


def console(json: Path | None = None, *, stderr: bool = False) -> Console:
    """Return the console of a verb: as wide as the terminal, and without a limit where there is none.

    Args:
        json: where its JSON goes; the text goes to standard error where that is standard output.
        stderr: prints to standard error in any case.
    """
    from rich.console import Console

    class Safe(Console):
        def render_str(self, text: str, *arguments: Any, **options: Any) -> Text:
            """Render text without control characters, so that text from files cannot steer the terminal."""
            return super().render_str(printable(text), *arguments, **options)

    made = Safe(stderr=stderr or is_stdout(json), highlight=False)
    if made.stderr:  # the reader of the log may go away: rich would end the thread that logs, as by sys.exit
        made.on_broken_pipe = partial(setattr, made, "quiet", True)  # type: ignore[method-assign]
    if not made.is_terminal:
        made.width = _WIDTH
    return made


def table(columns: Sequence[Column], rows: Iterable[Row], *, width: int, title: str = "", caption: str = "") -> Table:
    """Return a table of at most ``width`` characters; columns left out for that are named below it.

    Where the rest is still too wide, each row becomes a list with a line for each column: no digit is cut off.

    Args:
        columns: of the table.
        rows: of the table.
        width: of the terminal.
        title: above it.
        caption: below it.
    """
    from rich.table import Table

    lines = list(rows)
    shown = _shown(columns, lines, width)
    is_list = shown is None
    shown = list(range(len(columns))) if shown is None else shown
    left_out = ", ".join(one.heading for number, one in enumerate(columns) if number not in shown)
    below = "; ".join(filter(None, (caption, left_out and f"in a wider terminal: {left_out}")))
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    made.title, made.title_justify, made.title_style = _text(title) if title else None, "left", "bold"
    made.caption, made.caption_justify, made.caption_style = _text(below) if below else None, "left", "dim"
    if is_list:
        made.show_header = False
        made.add_column(overflow="fold")
        for line in lines:
            made.add_row(_listed(columns, line), style=line.style)
        return made
    for column in (columns[number] for number in shown):
        made.add_column(
            _text(column.heading),
            justify="right" if column.is_number else "left",
            no_wrap=not column.wraps,
            overflow="fold",
        )
    for line in lines:
        made.add_row(*(_text(line.cells[number]) for number in shown), style=line.style)
    return made


def _listed(columns: Sequence[Column], row: Row) -> Text:
    """Return a row as a heading, its first cell, and a line for each other cell that is not empty."""
    from rich.text import Text

    first, *rest = map(_text, row.cells)
    named = zip(columns[1:], rest, strict=True)
    lines = [Text.assemble(f"  {column.heading} ", cell) for column, cell in named if cell.plain.strip()]
    return Text("\n").join([Text.assemble((first.plain, "bold")), *lines])


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names in bold, each with its text."""
    from rich.table import Table

    made = Table.grid(padding=(0, 1))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, text in rows:
        made.add_row(_text(name), _text(text))
    return made


def marked(text: str, style: str) -> Text:
    """Return text in a style of rich."""
    from rich.text import Text

    return Text(printable(text), style=style)


def _text(cell: str | Text) -> Text:
    """Return plain text as it is: brackets are no markup, and control characters do not steer the terminal."""
    from rich.text import Text

    return Text(printable(cell)) if isinstance(cell, str) else cell


def _shown(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int] | None:
    """Return numbers of the columns that fit; None where those that must stay do not."""
    widths = [_width(column, [row.cells[number] for row in rows]) for number, column in enumerate(columns)]
    shown = list(range(len(columns)))
    while sum(widths[number] + _GAP for number in shown) - _GAP > width:
        last = max(shown, key=lambda number: (columns[number].rank, number))
        if columns[last].rank == 0:
            return None
        shown.remove(last)
    return shown


def _width(column: Column, cells: Iterable[str | Text]) -> int:
    from rich.cells import cell_len

    most = max([cell_len(column.heading), *(cell_len(str(cell)) for cell in cells)])
    return min(most, _LEAST) if column.wraps else most


def is_stdout(path: Path | None) -> bool:
    """Return whether JSON goes to standard output, which leaves standard error for the text."""
    return str(path) == "-"


def as_typed() -> str:
    """Return the command that runs, for reports."""
    return shlex.join(["edgert", *sys.argv[1:]])


def write_json(data: object, path: Path | None) -> None:
    """Write plain data as JSON to a file atomically, to standard output for ``-``, and nowhere for None.

    Raises:
        ArtifactError: the file cannot be written.
    """
    if path is None:
        return
    text = json_text.dumps(data, indent=2, default=str) + "\n"
    if is_stdout(path):
        typer.echo(text, nl=False)
        return
    from edgert.files import replace_text

    replace_text(path, text)


def opened_by(path: Path) -> str:
    """Return the path of a trace, and what opens it."""
    viewer = "a browser" if path.suffix == ".html" else "https://ui.perfetto.dev, which sends nothing of it anywhere"
    return f"{path}: open it in {viewer}"


def write_report(screen: Console, page: Callable[[], str], path: Path | None) -> None:
    """Write a page to a file atomically and name it on the screen; do nothing for None.

    Raises:
        ArtifactError: the file cannot be written.
    """
    if path is None:
        return
    from edgert.files import replace_text

    replace_text(path, page())
    screen.print(f"report written to {path}", markup=False)


@contextmanager
def json_lines(path: Path | None) -> Iterator[Callable[[object], None]]:
    """Yield a function that writes plain data as JSON, one object per line at once, from any thread.

    An :class:`EdgertError` that leaves the context is its last line: ``{"error": {...}}``.

    Args:
        path: a file, ``-`` for standard output, or None for nowhere.

    Raises:
        ArtifactError: the file cannot be opened.
    """
    file, lock = None, threading.Lock()
    if path is not None and not is_stdout(path):
        from edgert.files import written

        with written(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w", encoding="utf-8")

    def write(data: object) -> None:
        if path is not None:
            with lock:
                typer.echo(json_text.dumps(data), file=file)  # flushes

    with nullcontext() if file is None else file:
        try:
            yield write
        except EdgertError as error:
            write({"error": error.to_json()})
            raise
