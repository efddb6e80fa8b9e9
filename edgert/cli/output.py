"""What a verb writes besides its text: JSON, as one document or a line for each thing that happens."""

import json
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import typer

from edgert.errors import EdgertError


def is_stdout(path: Path | None) -> bool:
    """Whether JSON goes to standard output, which leaves standard error for the text."""
    return str(path) == "-"


def as_typed() -> str:
    """The command that runs, for reports."""
    return shlex.join(["edgert", *sys.argv[1:]])


def write_json(data: object, path: Path) -> None:
    """Writes plain data as JSON to a file, whole or not at all, or to standard output for ``-``.

    Raises:
        ArtifactError: the file cannot be written.
    """
    text = json.dumps(data, indent=2, default=str) + "\n"
    if is_stdout(path):
        typer.echo(text, nl=False)
        return
    from edgert.files import replace_text

    replace_text(path, text)


@contextmanager
def json_lines(path: Path | None) -> Iterator[Callable[[object], None]]:
    """Gives what writes plain data as JSON, one object per line and as it comes, from any thread.

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
                typer.echo(json.dumps(data), file=file)  # flushes

    with nullcontext() if file is None else file:
        try:
            yield write
        except EdgertError as error:
            write({"error": error.to_json()})
            raise
