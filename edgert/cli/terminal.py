"""Output of the verbs: text and tables in one style, as wide as the terminal; JSON as a document or as lines."""

from __future__ import annotations

import json as json_text
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edgert.errors import EdgertError, printable
from edgert.files import naming_write_errors, replace_text

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
_UNLIMITED_WIDTH = 1000  # of pipes and files, whose lines are neither folded nor cut
_COLUMN_GAP = 2  # blank columns between two columns
_MIN_WRAPPED_WIDTH = 30  # of a column whose text wraps, if it has as much


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Where the terminal is too narrow, columns of the highest ``rank`` are removed first; those of 0 never.
    """

    heading: str
    is_number: bool = False
    wraps: bool = False
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: a cell for each column, and a style of rich for all cells."""

    cells: Sequence[str | Text]
    style: str = ""


def console(json: Path | None = None, *, stderr: bool = False) -> Console:
    """Return the console of a verb, as wide as the terminal; on a pipe or file, lines are not folded.

    It prints to standard error if asked to, or where ``json`` is standard output.
    """
    from rich.console import Console

    class Safe(Console):
        def render_str(self, text: str, *arguments: Any, **options: Any) -> Text:
            """Render text without control characters, so that text from files cannot steer the terminal."""
            return super().render_str(printable(text), *arguments, **options)

    made = Safe(stderr=stderr or is_stdout(json), highlight=False)
    if made.stderr:  # rich would end the thread that logs, by SystemExit, when the reader of the log is gone
        made.on_broken_pipe = partial(setattr, made, "quiet", True)  # type: ignore[method-assign]
    if not made.is_terminal:
        made.width = _UNLIMITED_WIDTH
    return made


def table(columns: Sequence[Column], rows: Iterable[Row], *, width: int, title: str = "", caption: str = "") -> Table:
    """Return a table of at most ``width`` characters; the columns that do not fit are named below it.

    Where even the columns of rank 0 do not fit, each row becomes a list with a line for each column.
    """
    from rich.table import Table

    lines = list(rows)
    shown = _fitting_columns(columns, lines, width)
    is_list = shown is None
    shown = list(range(len(columns))) if shown is None else shown
    left_out = ", ".join(one.heading for number, one in enumerate(columns) if number not in shown)
    below = "; ".join(filter(None, (caption, left_out and f"in a wider terminal: {left_out}")))
    made = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0), header_style="bold")
    made.title, made.title_justify, made.title_style = _as_text(title) if title else None, "left", "bold"
    made.caption, made.caption_justify, made.caption_style = _as_text(below) if below else None, "left", "dim"
    if is_list:
        made.show_header = False
        made.add_column(overflow="fold")
        for line in lines:
            made.add_row(_row_as_list(columns, line), style=line.style)
        return made
    for column in (columns[number] for number in shown):
        made.add_column(
            _as_text(column.heading),
            justify="right" if column.is_number else "left",
            no_wrap=not column.wraps,
            overflow="fold",
        )
    for line in lines:
        made.add_row(*(_as_text(line.cells[number]) for number in shown), style=line.style)
    return made


def _row_as_list(columns: Sequence[Column], row: Row) -> Text:
    """Return a row as lines: its first cell in bold, then the heading and text of each other filled cell."""
    from rich.text import Text

    first, *rest = map(_as_text, row.cells)
    named = zip(columns[1:], rest, strict=True)
    lines = [Text.assemble(f"  {column.heading} ", cell) for column, cell in named if cell.plain.strip()]
    return Text("\n").join([Text.assemble((first.plain, "bold")), *lines])


def facts(rows: Iterable[tuple[str, str | Text]]) -> Table:
    """Return a table of two columns: names in bold, and their text."""
    from rich.table import Table

    made = Table.grid(padding=(0, 1))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, text in rows:
        made.add_row(_as_text(name), _as_text(text))
    return made


def styled(text: str, style: str) -> Text:
    """Return text in a style of rich, without control characters."""
    from rich.text import Text

    return Text(printable(text), style=style)


def _as_text(cell: str | Text) -> Text:
    """Return a cell as text of rich, in which brackets are not markup; text without control characters."""
    from rich.text import Text

    return Text(printable(cell)) if isinstance(cell, str) else cell


def _fitting_columns(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int] | None:
    """Return the numbers of the columns that fit; None where the columns of rank 0 do not."""
    widths = [_column_width(column, [row.cells[number] for row in rows]) for number, column in enumerate(columns)]
    shown = list(range(len(columns)))
    while sum(widths[number] + _COLUMN_GAP for number in shown) - _COLUMN_GAP > width:
        last = max(shown, key=lambda number: (columns[number].rank, number))
        if columns[last].rank == 0:
            return None
        shown.remove(last)
    return shown


def _column_width(column: Column, cells: Iterable[str | Text]) -> int:
    from rich.cells import cell_len

    most = max([cell_len(column.heading), *(cell_len(str(cell)) for cell in cells)])
    return min(most, _MIN_WRAPPED_WIDTH) if column.wraps else most


def is_stdout(path: Path | None) -> bool:
    """Return whether a path means standard output."""
    return str(path) == "-"


def command_line() -> str:
    """Return the command line of this process, for reports."""
    return shlex.join(["edgert", *sys.argv[1:]])


def write_json(data: object, path: Path | None) -> None:
    """Write plain data as JSON: to a file atomically, to standard output for ``-``, nowhere for None."""
    if path is None:
        return
    text = json_text.dumps(data, indent=2, default=str) + "\n"
    if is_stdout(path):
        typer.echo(text, nl=False)
        return
    replace_text(path, text)


def how_to_open(path: Path) -> str:
    """Return the path of a trace, and the program that opens it."""
    viewer = "a browser" if path.suffix == ".html" else "https://ui.perfetto.dev, which does not upload it"
    return f"{path}: open it in {viewer}"


def write_report(screen: Console, page: Callable[[], str], path: Path | None) -> None:
    """Write a page to a file atomically and name it on the screen; do nothing for None."""
    if path is None:
        return
    replace_text(path, page())
    screen.print(f"report written to {path}", markup=False)


@contextmanager
def json_lines(path: Path | None) -> Iterator[Callable[[object], None]]:
    """Yield a function that writes an object as a line of JSON at once, from any thread.

    An :class:`EdgertError` that leaves the context becomes the last line: ``{"error": {...}}``.
    """
    file, lock = None, threading.Lock()
    guard: Callable[[], AbstractContextManager[None]] = nullcontext
    if path is not None and not is_stdout(path):
        guard = partial(naming_write_errors, path)
        with guard():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w", encoding="utf-8")

    def write(data: object) -> None:
        if path is not None:
            with lock, guard():
                typer.echo(json_text.dumps(data), file=file)  # flushes

    try:
        yield write
    except EdgertError as error:
        with suppress(EdgertError):  # the file cannot be written: the first error matters more
            write({"error": error.to_json()})
        raise
    finally:
        if file is not None:
            with suppress(OSError):  # every line was flushed, so write() has raised this error
                file.close()
