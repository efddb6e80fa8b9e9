"""Results as JSON lines, by the schema of :mod:`edgert.runtime.json_form`; given to a function; or forgotten."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

from edgert.runtime.json_form import plain_result
from edgert.runtime.records import Result, Together
from edgert.stages.context import SimpleStage
from edgert.stages.sink.image_files import cannot_write, check_pattern, fill, has_field, make_parent


class NullSink(SimpleStage):
    """Takes results and forgets them; for measuring everything else."""

    def process(self, result: Result) -> None:
        """Forgets the result."""


class CallbackSink(SimpleStage):
    """Calls ``function(result)`` in this stage's thread, one result at a time and in order.

    The frame is valid during the call; whoever keeps it longer retains ``result.frame.lease``. What the function
    returns is ignored; what it raises stops the pipeline.
    """

    def __init__(self, name: str, function: Callable[[Result], object]) -> None:
        self.name, self._function = name, function

    def process(self, result: Result) -> None:
        for one in result.results if isinstance(result, Together) else (result,):
            self._function(one)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class JsonlSink:
    """Writes results to ``path``, replacing what is there; folders are made.

    Every line goes to the operating system whole, in one call and unbuffered, so it can be read at once and stays
    when the process is killed. When the disk is full the line that did not fit is taken back.

    Args:
        path: the file; with ``{stream}`` in it, one file per stream, which appears with the stream's first result.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.pattern = path
        self._where = f"stages.{name}"
        self._files: dict[str, _LineFile] = {}
        self._per_stream = has_field(path, "stream")
        check_pattern(path, ("stream",), self._where)

    def open(self) -> None:
        """Creates the file, unless there is one per stream. Raises StageError when it cannot be written."""
        if not self._per_stream:
            self._files[""] = _LineFile(self.pattern, self._where)

    def process(self, result: Result) -> None:
        """Writes one line. Raises StageError: disk full, or a record that has no JSON form."""
        # A lone surrogate, which UTF-8 lacks, becomes \udcXX: just how JSON would escape it.
        line = _ENCODER.encode(plain_result(result)).encode("utf-8", "backslashreplace") + b"\n"
        stream = result.frame.stream if self._per_stream else ""
        if stream not in self._files:
            self._files[stream] = _LineFile(fill(self.pattern, stream), self._where)
        self._files[stream].add(line)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _LineFile:
    """One open file of whole lines."""

    def __init__(self, path: Path, where: str) -> None:
        self._path, self._where, self._end_bytes = path, where, 0
        make_parent(path, where)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise cannot_write(path, error, where) from error
        self._regular = stat.S_ISREG(os.fstat(self._file).st_mode)

    def add(self, line: bytes) -> None:
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            if self._regular:  # a pipe or a device has nothing to take back
                os.ftruncate(self._file, self._end_bytes)
            raise cannot_write(self._path, error, self._where, kept="the lines written so far are whole") from error
        self._end_bytes += len(line)

    def close(self) -> None:
        os.close(self._file)
