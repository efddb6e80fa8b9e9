"""Sinks that write results as JSON lines (:mod:`edgert.runtime.json_form`), call a function, or discard them."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from edgert.clock import REAL, Clock
from edgert.runtime import json_form
from edgert.runtime.records import Result
from edgert.stages.context import SimpleStage
from edgert.stages.sink.output_file import Files, OutputFile, cannot_write
from edgert.stages.sink.retention import REPLACED, Rules, has_field


class NullSink(SimpleStage):
    """Sink that discards results, for measuring the rest of a pipeline."""

    effort: ClassVar[str] = "little"

    def process(self, result: Result) -> None:
        """Discard the result."""


class CallbackSink(SimpleStage):
    """Sink that calls ``function(result)`` in its own thread, one result at a time and in order.

    The frame is valid during the call. To keep it longer, retain ``result.frame.lease``. The return value is ignored.
    """

    effort: ClassVar[str] = "callback"

    def __init__(self, name: str, function: Callable[[Result], object]) -> None:
        self.name, self._function = name, function

    def process(self, result: Result) -> None:
        self._function(result)


class JsonLines:
    """Writer of JSON lines into one file, or one for each stream. Folders are created.

    Every line goes to the operating system complete, in one unbuffered call. So it can be read at once, and survives
    the process. When the disk is full, a line that does not fit is removed.

    Args:
        path: path of the file; with ``{stream}`` in it, one file per stream, created with the stream's first line.
        rules: whether lines are appended to existing files, and when the next file begins.
    """

    def __init__(self, path: Path, rules: Rules, where: str) -> None:
        self._where, self._files = where, Files(path, rules, where)
        self._open: dict[str, OutputFile] = {}
        self._per_stream = has_field(path, "stream")

    def open(self) -> None:
        """Create the file, unless there is one per stream. Raises StageError when it cannot be written."""
        if not self._per_stream:
            self._open[""] = self._files.begin("", appends=True)

    def write(self, value: Mapping[str, Any], stream: str) -> None:
        """Write one line. Raises StageError where the disk is full, or the value has no JSON form."""
        line = json_form.encoded(value) + b"\n"
        stream = stream if self._per_stream else ""
        file = self._open.get(stream)
        if file is not None and self._files.is_due(file, len(line)):
            del self._open[stream]
            self._files.finish(file)
            file = None
        if file is None:
            file = self._open[stream] = self._files.begin(stream, appends=True)
        self._files.remove_old()
        end_bytes = file.size_bytes
        try:
            file.write(line, self._files.make_room)
        except OSError as error:
            with suppress(OSError):  # the disk is gone
                if file.is_regular:  # pipes and devices cannot be cut
                    file.cut(end_bytes)
            raise cannot_write(file.path, error, self._where, kept="the lines written so far are complete") from error

    def close(self) -> None:
        """Finish every file."""
        for file in self._open.values():
            self._files.finish(file)
        self._open.clear()
        self._files.close()


class JsonlSink(JsonLines):
    """Sink that writes results as :class:`JsonLines`."""

    effort: ClassVar[str] = "little"

    def __init__(self, name: str, path: Path, rules: Rules = REPLACED, clock: Clock = REAL) -> None:
        super().__init__(path, rules, f"stages.{name}")
        self._clock = clock

    def process(self, result: Result) -> None:
        """Write one line. Raises StageError where the disk is full, or a record has no JSON form."""
        self.write(json_form.plain_result(result, self._clock), result.frame.stream)
