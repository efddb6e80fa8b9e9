"""Builds in a separate process, so that a crash of TensorRT's compiler becomes an error message.

Request and result are passed between the processes as files in a folder.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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


RecordT = TypeVar("RecordT")
_REQUEST, _RESULT, _ERROR, _PRINTED = "request.json", "result.json", "error.json", "printed.txt"
_REQUEST_FILES = {"model": "model.onnx", "timing_cache": "timing.in"}
_RESULT_FILES = {"plan": "plan.bin", "timing_cache": "timing.out"}


def write_request(request: BuildRequest, folder: Path) -> None:
    """Write a request: its bytes as separate files, the rest as JSON. Raises BuildError."""
    _write_record(request, _REQUEST_FILES, folder, _REQUEST)


def read_request(folder: Path) -> BuildRequest:
    """Read a request that :func:`write_request` wrote."""
    plain = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    content = {name: (folder / file).read_bytes() for name, file in _REQUEST_FILES.items()}
    return _record_of(BuildRequest, plain, content)


def write_result(result: BuildResult, folder: Path) -> None:
    """Write a result, its JSON last, so that a folder with JSON is complete. Raises BuildError."""
    _write_record(result, _RESULT_FILES, folder, _RESULT)


def read_result(folder: Path) -> BuildResult | None:
    """Read a result; return None if the folder has none."""
    path = folder / _RESULT
    if not path.exists():
        return None
    content = {name: (folder / file).read_bytes() for name, file in _RESULT_FILES.items()}
    return result_of(json.loads(path.read_text(encoding="utf-8")), **content)


def plain_result(result: BuildResult) -> dict[str, Any]:
    """Return a result as plain data, without its plan and timing cache."""
    return _plain_record(result, _RESULT_FILES)


def result_of(plain: Mapping[str, Any], plan: bytes, timing_cache: bytes = b"") -> BuildResult:
    """Return the result of :func:`plain_result`'s data. Raises ValueError for data of another edgert."""
    return _record_of(BuildResult, plain, {"plan": plan, "timing_cache": timing_cache})


def write_error(error: EdgertError, folder: Path) -> None:
    """Write an EdgertError."""
    _write_file(folder / _ERROR, json.dumps(error.to_json()).encode())


def read_error(folder: Path) -> EdgertError | None:
    """Read an error as one of the same class; return None if the folder has none."""
    path = folder / _ERROR
    return error_of(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _plain_record(record: BuildRequest | BuildResult, files: Mapping[str, str]) -> dict[str, Any]:
    plain: dict[str, Any] = TypeAdapter(type(record)).dump_python(record, mode="json", exclude=set(files))
    return plain


def _record_of(kind: type[RecordT], plain: Mapping[str, Any], content: Mapping[str, bytes]) -> RecordT:
    return TypeAdapter(kind).validate_python({**plain, **content})


def _write_record(record: BuildRequest | BuildResult, files: Mapping[str, str], folder: Path, name: str) -> None:
    for attribute, file in files.items():
        _write_file(folder / file, getattr(record, attribute))
    _write_file(folder / name, json.dumps(_plain_record(record, files)).encode())


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BuildError(
            "cannot write the files of a build",
            why=str(error),
            where=str(path),
            fix="free some space, or set TMPDIR to a folder with space",
        ) from error


WORKER = "edgert.backend.tensorrt.builder"

STOP_S = 10.0
"""Seconds until the process of a canceled build is killed if it has not reached its next step. Trying one kernel takes
seconds; a DLA compiler cannot be interrupted."""

_POLL_S = 0.1

_CHUNK_BYTES = 1 << 16


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
    or the build was canceled, or its files cannot be written. Raises DeviceError: TensorRT is not installed, the DLA
    core is missing, or the process cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="edgert-trt-") as name:
        folder = Path(name)
        write_request(request, folder)
        process = _Worker(folder, wanted, worker)
        try:
            for event in process.events(cancel):
                if isinstance(event, Progress) and progress is not None:
                    progress(event)
                elif isinstance(event, LogRecord) and log is not None:
                    log(event)
            code = process.wait()
        finally:
            process.kill()
        result = read_result(folder) if code == 0 else None
        if result is not None:
            return result
        if process.is_canceled:
            raise request.refusal("the build was canceled", tail(process.log))
        error = read_error(folder) or _crash_error(request, process, code)
        if isinstance(error, CompileError):
            error.log = tuple(process.log)
        raise error


def _crash_error(request: BuildRequest, process: _Worker, code: int) -> CompileError:
    """Return the error of a process that left neither a result nor an error."""
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
    layer = next((record.layer for record in reversed(process.log) if record.layer), "")
    ends = " to ".join(repr(name) for name in foreign_ends(layer) or (layer,) if name)
    why = f"its last line about a layer names {ends}: " if ends else ""
    printed = (process.folder / _PRINTED).read_text(errors="replace").strip().splitlines()
    if code == -signal.SIGKILL:
        why = f"it was killed from outside, as Linux does when memory runs out; {why}"
    return CompileError(
        f"TensorRT {how} while it was building",
        why=why + (tail(process.log) or " | ".join(printed[-3:]) or "it printed nothing"),
        where=request.title,
        fix="use larger pools, or place these nodes on the GPU",
    )


class _Worker:
    """Process that builds an engine; ``log`` has its lines so far."""

    def __init__(self, folder: Path, wanted: Wanted, module: str) -> None:
        self.folder, self.log, self.is_canceled = folder, list[LogRecord](), False
        read, write = os.pipe()
        self._events = os.fdopen(read, "rb", buffering=0)
        try:
            with (folder / _PRINTED).open("wb") as out:
                self._process = subprocess.Popen(  # noqa: S603 - our own module, run by our own interpreter
                    [sys.executable, "-m", module, str(folder), str(write), wanted],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    pass_fds=(write,),
                    start_new_session=True,  # Ctrl-C reaches this process only, which then ends the worker
                    env={**os.environ, "PYTHONPATH": installation.python_path()},
                )
        except OSError as error:
            self._events.close()
            raise DeviceError(
                "cannot start a process that builds an engine",
                why=cause(error),
                fix="end other programs, or raise the limits of processes and memory (ulimit -a)",
            ) from error
        finally:
            os.close(write)

    def events(self, cancel: threading.Event | None) -> Iterator[LogRecord | Progress]:
        """Yield the worker's log and steps, until it ends or its time to stop is over."""
        ends_at: float | None = None
        for line in self._lines():
            if line:
                event = json.loads(line)
                if "log" in event:
                    self.log.append(LogRecord(**event["log"]))
                yield self.log[-1] if "log" in event else Progress(**event["step"])
            now = time.monotonic()
            if cancel is not None and cancel.is_set() and not self.is_canceled:
                self.is_canceled = True
                (self.folder / "cancel").touch()
                ends_at = now + STOP_S
            if ends_at is not None and now > ends_at:
                return

    def wait(self) -> int:
        """Return the exit code, after all events were read. Kills a process that does not end in time."""
        try:
            return self._process.wait(timeout=0 if self.is_canceled else STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _lines(self) -> Iterator[bytes]:
        """Yield complete lines as they arrive, and an empty line after every read and every pause."""
        rest = b""
        with self._events, selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            while True:
                if not selector.select(_POLL_S):
                    yield b""
                    continue
                chunk = self._events.read(_CHUNK_BYTES)
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
                yield b""
