"""Builds in a separate process, so that a crash of TensorRT's compiler becomes an error message.

Both processes run the same edgert. They exchange records over a pipe: a request down, and up the log, the steps, and in
the end a result or an error.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from edgert import installation
from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.library import Wanted
from edgert.backend.tensorrt.log import LogRecord, foreign_ends, tail
from edgert.backend.tensorrt.network import Layer
from edgert.errors import BuildError, DeviceError, EdgertError, cause, error_of


class CompileError(BuildError):
    """Failure or crash of TensorRT's compiler, which may succeed with other settings. ``log`` has its lines."""

    log: Sequence[LogRecord] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a phase of the build; phases are nested.

    ``parent`` is the enclosing phase, empty for none; a phase ends when ``step`` is ``steps``.
    """

    phase: str
    parent: str
    step: int
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class BuildResult:
    """A serialized engine, and data about its build.

    Attributes:
        timing_cache: kernel timings for the next build; empty if this TensorRT measures none.
        log: TensorRT's log, without irrelevant verbose lines.
        inspector: JSON of TensorRT's engine inspector; empty if the engine cannot be opened, such as without a GPU.
        refused: nodes placed on a DLA that TensorRT, before the build, reports it cannot run there.
        library: name and version of TensorRT, such as ``TensorRT 10.3.0``.
    """

    plan: bytes
    timing_cache: bytes
    log: tuple[LogRecord, ...]
    inspector: str
    layers: tuple[Layer, ...]
    refused: tuple[str, ...]
    library: str
    seconds: float


_FILES = {"plan", "timing_cache"}
"""Fields of a result that are bytes."""


def plain_result(result: BuildResult) -> dict[str, Any]:
    """Return a result as plain data, without its plan and timing cache."""
    plain: dict[str, Any] = TypeAdapter(BuildResult).dump_python(result, mode="json", exclude=_FILES)
    return plain


def result_of(plain: Mapping[str, Any], plan: bytes) -> BuildResult:
    """Return the result of :func:`plain_result`'s data. Raises ValueError for data of another edgert."""
    return TypeAdapter(BuildResult).validate_python({**plain, "plan": plan, "timing_cache": b""})


Event: TypeAlias = "LogRecord | Progress | BuildResult"
WORKER = "edgert.backend.tensorrt.builder"

STOP_S = 10.0
"""Seconds until the process of a canceled build is killed if it has not reached its next step. Trying one kernel takes
seconds; a DLA compiler cannot be interrupted."""

_POLL_S = 0.1


def build(
    request: BuildRequest,
    *,
    wanted: Wanted = "auto",
    progress: Callable[[Progress], object] | None = None,
    log: Callable[[LogRecord], object] | None = None,
    cancel: threading.Event | None = None,
    worker: str = WORKER,
) -> BuildResult:
    """Build an engine in a separate process. Blocks until it is built; Ctrl-C ends the process, too.

    ``progress`` and ``log`` are called in the caller's thread; ``cancel`` ends the build. Raises CompileError:
    TensorRT's compiler failed or crashed; its log is attached. Raises BuildError: TensorRT does not support the model;
    or the build was canceled. Raises DeviceError: TensorRT is not installed, the DLA core is missing, or the process
    cannot be started.
    """
    with _Worker(wanted, worker) as process:
        for event in process.events(request, cancel):
            if isinstance(event, Progress) and progress is not None:
                progress(event)
            elif isinstance(event, LogRecord) and log is not None:
                log(event)
            elif isinstance(event, BuildResult):
                return event
        if process.is_canceled:
            raise request.refusal("the build was canceled", tail(process.log))
        error = process.error or _crash_error(request, process)
        if isinstance(error, CompileError):
            error.log = tuple(process.log)
        raise error


def _crash_error(request: BuildRequest, process: _Worker) -> CompileError:
    """Return the error of a process that sent neither a result nor an error."""
    code = process.wait()
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
    layer = next((record.layer for record in reversed(process.log) if record.layer), "")
    ends = " to ".join(repr(name) for name in foreign_ends(layer) or (layer,) if name)
    why = f"its last line about a layer names {ends}: " if ends else ""
    printed = process.printed().strip().splitlines()
    if code == -signal.SIGKILL:
        why = f"it was killed from outside, as Linux does when memory runs out; {why}"
    return CompileError(
        f"TensorRT {how} while it was building",
        why=why + (tail(process.log) or " | ".join(printed[-3:]) or "it printed nothing"),
        where=request.title,
        fix="use larger pools, or place these nodes on the GPU",
    )


class _Worker(AbstractContextManager["_Worker"]):
    """Process that builds an engine, until the end of the block.

    ``log`` has its lines so far, and ``error`` that which it sent.
    """

    def __init__(self, wanted: Wanted, module: str) -> None:
        self.log, self.is_canceled = list[LogRecord](), False
        self.error: EdgertError | None = None
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of the block
        self._pipe, theirs = Pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, run by our own interpreter
                [sys.executable, "-m", module, str(theirs.fileno()), wanted],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends the worker
                env={**os.environ, "PYTHONPATH": installation.python_path()},
            )
        except OSError as error:
            self._pipe.close()
            self._printed.close()
            raise DeviceError(
                "cannot start a process that builds an engine",
                why=cause(error),
                fix="end other programs, or raise the limits of processes and memory (ulimit -a)",
            ) from error
        finally:
            theirs.close()

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._pipe.close()
        self._printed.close()

    def events(self, request: BuildRequest, cancel: threading.Event | None) -> Iterator[Event]:
        """Send the request; yield the worker's log, steps and result, until it ends or its time to stop is over."""
        ends_at = math.inf
        with suppress(EOFError, OSError):  # the process has ended
            self._pipe.send(request)
            while time.monotonic() < ends_at:
                if self._pipe.poll(_POLL_S):
                    event = self._pipe.recv()
                    if isinstance(event, dict):
                        self.error = error_of(event)
                        return
                    if isinstance(event, LogRecord):
                        self.log.append(event)
                    yield event
                if cancel is not None and cancel.is_set() and not self.is_canceled:
                    self.is_canceled, ends_at = True, time.monotonic() + STOP_S
                    self._pipe.send(None)

    def wait(self) -> int:
        """Return the exit code, after all events were read. Kills a process that does not end in time."""
        try:
            return self._process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return self._process.wait()

    def printed(self) -> str:
        """Return what the ended process printed."""
        self._printed.seek(0)
        return self._printed.read().decode(errors="replace")

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
