"""What a verb writes besides its text: JSON, as one document or a line for each thing that happens."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import IO

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


class JsonLines(AbstractContextManager["JsonLines"]):
    """Writes plain data as JSON, one object per line and as it comes, from any thread; a context to be called.

    An :class:`EdgertError` that leaves the context is its last line: ``{"error": {...}}``.

    Args:
        path: a file, ``-`` for standard output, or None for nowhere.

    Raises:
        ArtifactError: the file cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> JsonLines:
        if self._path is not None and not is_stdout(self._path):
            from edgert.files import written

            with written(self._path):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, EdgertError):
            self({"error": error.to_json()})
        if self._file is not None:
            self._file.close()

    def __call__(self, data: object) -> None:
        """Writes one line."""
        if self._path is None:
            return
        with self._lock:
            typer.echo(json.dumps(data), file=self._file)  # flushes
