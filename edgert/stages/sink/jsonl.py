"""One JSON object per frame and line. The schema is that of :mod:`edgert.runtime.plain`."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from edgert.errors import StageError
from edgert.runtime.plain import plain_result
from edgert.runtime.record import Result
from edgert.stages.sink.naming import cannot_write, make_parent

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class JsonlSink:
    """Writes results to ``path``, replacing what is there; folders are made.

    Every line goes to the operating system whole, in one call and unbuffered, so it can be read at once and stays
    when the process is killed. When the disk is full the line that did not fit is taken back.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.path = path
        self._where = f"stages.{name}"
        self._file = -1
        self._end_bytes = 0
        self._regular = False

    def open(self) -> None:
        """Creates the file. Raises StageError when it cannot be written."""
        make_parent(self.path, self._where)
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise cannot_write(self.path, error, self._where) from error
        self._regular = stat.S_ISREG(os.fstat(self._file).st_mode)

    def process(self, result: Result) -> None:
        """Writes one line. Raises StageError: disk full, or a record that has no JSON form."""
        # A lone surrogate, which UTF-8 lacks, becomes \udcXX: just how JSON would escape it.
        line = _ENCODER.encode(plain_result(result)).encode("utf-8", "backslashreplace") + b"\n"
        try:
            self._write(line)
        except OSError as error:
            raise self._taken_back(error) from error
        self._end_bytes += len(line)

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, line: bytes) -> None:
        left = memoryview(line)
        while left:
            left = left[os.write(self._file, left) :]

    def _taken_back(self, error: OSError) -> StageError:
        if self._regular:  # a pipe or a device has nothing to take back
            os.ftruncate(self._file, self._end_bytes)
        return cannot_write(self.path, error, self._where, kept="the lines written so far are whole")
