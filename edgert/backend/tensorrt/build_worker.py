"""Builds one engine in this process: ``python -m edgert.backend.tensorrt.build_worker FOLDER EVENTS LIBRARY``.

FOLDER has the request and gets the result, EVENTS is the number of a pipe that gets one JSON object per line of the log
and per step, LIBRARY is ``auto``, ``tensorrt`` or ``tensorrt_rtx``. When the other end of the pipe is closed, or a
file ``cancel`` is put into the folder, the build is canceled. Whatever a compiler does to this process, it does to
nobody else.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from edgert.backend.tensorrt.build_process import read_request, write_error, write_result
from edgert.backend.tensorrt.compiling import compile_engine
from edgert.backend.tensorrt.log import LogRecord
from edgert.backend.tensorrt.result import Progress
from edgert.backend.tensorrt.version import Wanted, load
from edgert.errors import EXIT_ERROR, EXIT_OK, EdgertError

CANCEL = "cancel"
"""Name of the file that cancels a build."""


class Events:
    """The pipe to whoever waits. Thread-safe: TensorRT calls from threads of its own."""

    def __init__(self, descriptor: int, folder: Path) -> None:
        self._descriptor, self._cancel = descriptor, folder / CANCEL
        self._lock = threading.Lock()
        self._closed = False

    def log(self, record: LogRecord) -> None:
        """Sends a line of the log."""
        self._send({"log": asdict(record)})

    def step(self, progress: Progress) -> bool:
        """Sends a step; False when the build is to stop."""
        self._send({"step": asdict(progress)})
        return not (self._closed or self._cancel.exists())

    def _send(self, event: Mapping[str, Any]) -> None:
        line = memoryview(json.dumps(event).encode() + b"\n")
        with self._lock:
            while line and not self._closed:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BrokenPipeError:
                    self._closed = True  # nobody waits any more


def main(folder: Path, descriptor: int, wanted: Wanted) -> int:
    """Builds; returns the exit code."""
    faulthandler.enable()  # a crash in the compiler then tells on which of our lines
    events = Events(descriptor, folder)
    try:
        write_result(compile_engine(load(wanted), read_request(folder), events.log, events.step), folder)
    except EdgertError as error:
        write_error(error, folder)
        return EXIT_ERROR
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), cast(Wanted, sys.argv[3])))
