"""Builds in a separate process, so that a crash in TensorRT's compiler is an error message.

Request and result travel between the processes as files of a folder.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from edgert import installation
from edgert.backend.tensorrt.build_request import BuildRequest
from edgert.backend.tensorrt.library import Wanted
from edgert.backend.tensorrt.log import LogRecord, foreign_ends, tail
from edgert.backend.tensorrt.network import Layer
from edgert.errors import BuildError, EdgertError, error_of


class CompileError(BuildError):
    """TensorRT's compiler failed, or crashed: with other settings it may succeed. ``log`` has its lines."""

    log: Sequence[LogRecord] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a phase; phases are nested.

    Attributes:
        phase: what TensorRT calls it.
        parent: the phase it is part of, empty for none.
        step, steps: how far it is; ``step == steps`` ends it.
    """

    phase: str
    parent: str
    step: int
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class BuildResult:
    """An engine and how it came about.

    Attributes:
        plan: the serialized engine.
        timing_cache: what was measured, for the next build; empty where this TensorRT measures nothing.
        log: TensorRT's lines, without the verbose lines that mean nothing to edgert.
        inspector: its own JSON about the engine's layers; empty where the engine cannot be opened, as without a GPU.
        layers: of the network that TensorRT's parser made.
        refused: nodes placed on a DLA whose layers TensorRT reports it cannot run there, before building.
        library: ``TensorRT 10.3.0``.
        seconds: spent building.
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
_REQUEST, _RESULT, _ERROR = "request.json", "result.json", "error.json"
_BYTES = {"model": "model.onnx", "timing_cache": "timing.in"}
_MADE = {"plan": "plan.bin", "timing_cache": "timing.out"}


def write_request(request: BuildRequest, folder: Path) -> None:
    """Write a request: its bytes as separate files, the rest as JSON. Raises BuildError."""
    _write(request, _BYTES, folder, _REQUEST)


def read_request(folder: Path) -> BuildRequest:
    """Read what :func:`write_request` wrote."""
    plain = json.loads((folder / _REQUEST).read_text(encoding="utf-8"))
    return _record(BuildRequest, plain, {name: (folder / file).read_bytes() for name, file in _BYTES.items()})


def write_result(result: BuildResult, folder: Path) -> None:
    """Write a result; its JSON comes last, so that a folder with JSON is complete. Raises BuildError."""
    _write(result, _MADE, folder, _RESULT)


def read_result(folder: Path) -> BuildResult | None:
    """Read a result; None where the folder has none."""
    path = folder / _RESULT
    if not path.exists():
        return None
    given = {name: (folder / file).read_bytes() for name, file in _MADE.items()}
    return result_of(json.loads(path.read_text(encoding="utf-8")), **given)


def plain_result(result: BuildResult) -> dict[str, Any]:
    """Return a result as plain data, without its plan and timing cache."""
    return _plain(result, _MADE)


def result_of(plain: Mapping[str, Any], plan: bytes, timing_cache: bytes = b"") -> BuildResult:
    """Return the result of :func:`plain_result`'s data. Raises ValueError for data of another edgert."""
    return _record(BuildResult, plain, {"plan": plan, "timing_cache": timing_cache})


def write_error(error: EdgertError, folder: Path) -> None:
    """Write an EdgertError."""
    _store(folder / _ERROR, json.dumps(error.to_json()).encode())


def read_error(folder: Path) -> EdgertError | None:
    """Read it as an error of the same class; None where there is none."""
    path = folder / _ERROR
    return error_of(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _plain(record: BuildRequest | BuildResult, files: Mapping[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = TypeAdapter(type(record)).dump_python(record, mode="json", exclude=set(files))
    return made


def _record(kind: type[RecordT], plain: Mapping[str, Any], given: Mapping[str, bytes]) -> RecordT:
    return TypeAdapter(kind).validate_python({**plain, **given})


def _write(record: BuildRequest | BuildResult, files: Mapping[str, str], folder: Path, name: str) -> None:
    for attribute, file in files.items():
        _store(folder / file, getattr(record, attribute))
    _store(folder / name, json.dumps(_plain(record, files)).encode())


def _store(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise BuildError(
            "there is no room for a build",
            why=str(error),
            where=str(path),
            fix="free some space, or point TMPDIR at a folder that has some",
        ) from error


WORKER = "edgert.backend.tensorrt.builder"

STOP_S = 10.0
"""Seconds that a canceled builder may take to its next step before its process is killed. Trying one kernel takes
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
    """Build an engine in a separate process. Blocks until done; Ctrl-C ends the process, too.

    Args:
        request: what to build.
        wanted: which TensorRT.
        progress: called with each step, in the caller's thread.
        log: called with each line of the log, in the caller's thread.
        cancel: ends the build when it is set.
        worker: the module that is run.

    Raises:
        CompileError: TensorRT's compiler failed or crashed; its log is attached.
        BuildError: TensorRT refuses the model, or was canceled; or there is no room for files.
        DeviceError: TensorRT is not installed, or the DLA core is missing.
    """
    with tempfile.TemporaryDirectory(prefix="edgert-trt-") as name:
        folder = Path(name)
        write_request(request, folder)
        run = _Run(folder, wanted, worker)
        try:
            for event in run.events(cancel):
                if isinstance(event, Progress) and progress is not None:
                    progress(event)
                elif isinstance(event, LogRecord) and log is not None:
                    log(event)
            code = run.wait()
        finally:
            run.kill()
        made = read_result(folder) if code == 0 else None
        if made is not None:
            return made
        if run.stopped:
            raise request.refusal(f"the build was {run.stopped}", tail(run.log))
        error = read_error(folder) or _crash(request, run, code)
        if isinstance(error, CompileError):
            error.log = tuple(run.log)
        raise error


def _crash(request: BuildRequest, run: _Run, code: int) -> CompileError:
    """Return the error of a process that left no answer."""
    how = f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
    suspects = next((record.layer for record in reversed(run.log) if record.layer), "")
    ends = " to ".join(repr(name) for name in foreign_ends(suspects)) or (repr(suspects) if suspects else "")
    why = f"its last line about a layer names {ends}: " if ends else ""
    printed = (run.folder / "printed.txt").read_text(errors="replace").strip().splitlines()
    if code == -signal.SIGKILL:
        why = f"it was killed from outside, as Linux does when memory runs out; {why}"
    return CompileError(
        f"TensorRT {how} while it was building",
        why=why + (tail(run.log) or " | ".join(printed[-3:]) or "it printed nothing"),
        where=request.title,
        fix="larger pools, or these nodes on the GPU",
    )


@dataclass
class _Run:
    """One worker process."""

    folder: Path
    wanted: Wanted
    worker: str
    log: list[LogRecord] = field(default_factory=list)
    stopped: str = ""

    def __post_init__(self) -> None:
        read, write = os.pipe()
        self._read = os.fdopen(read, "rb", buffering=0)
        command = [sys.executable, "-m", self.worker, str(self.folder), str(write), self.wanted]
        with (self.folder / "printed.txt").open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, run by our own interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                start_new_session=True,  # Ctrl-C reaches this process, which then ends that one
                env={**os.environ, "PYTHONPATH": installation.python_path()},
            )
        os.close(write)

    def events(self, cancel: threading.Event | None) -> Iterator[LogRecord | Progress]:
        """Yield the worker's log and steps, until it ends or is killed."""
        ends_at: float | None = None
        for line in self._lines():
            if line:
                event = json.loads(line)
                if "log" in event:
                    self.log.append(LogRecord(**event["log"]))
                yield self.log[-1] if "log" in event else Progress(**event["step"])
            now = time.monotonic()
            if cancel is not None and cancel.is_set():
                self.stopped = "canceled"
            if self.stopped and ends_at is None:
                (self.folder / "cancel").touch()
                ends_at = now + STOP_S
            if ends_at is not None and now > ends_at:
                return

    def wait(self) -> int:
        """Return the exit code, after all events were read; kill a process that was to stop and does not."""
        try:
            return self._process.wait(timeout=0 if self.stopped else STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _lines(self) -> Iterator[bytes]:
        """Yield complete lines as they come, and an empty one whenever nothing came for a while."""
        rest = b""
        with self._read, selectors.DefaultSelector() as selector:
            selector.register(self._read, selectors.EVENT_READ)
            while True:
                if not selector.select(_POLL_S):
                    yield b""
                    continue
                chunk = self._read.read(_CHUNK_BYTES)
                if not chunk:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
                yield b""
