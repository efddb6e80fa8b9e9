"""The board's side of a remote build: the actions of ``edgert job``, which the workstation calls over ssh.

- ``build RUN BYTES EVENTS RESULT [strict]`` receives the bundle, unless it is here, and starts its job, unless that was
  done. Then it sends the job's events and its result, each from an offset.
- ``work RUN [strict]`` is the process of the job, in a session of its own.
- ``cancel RUN`` asks the job to end.

A broken connection ends the action, never the job: the workstation calls ``build`` again. Jobs of one bundle run one
after another, and the second finds the engines of the first in the cache.
"""

import errno
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from edgert import files
from edgert.errors import ArtifactError, EdgertError, cause, raised_as
from edgert.files import cache_folder, digest_of_file, replace_text
from edgert.remote.link import CHUNK_BYTES, STRICT, write_line
from edgert.reporter import Progress

BUNDLE_LIFETIME_S = 7 * 86400.0
"""Time for which a bundle stays after its last use."""
RUN_LIFETIME_S = 3600.0
"""Time for which a job's files stay; a workstation that lost its connection does not retry for so long."""
SILENCE_S = 30.0
"""Time without data in seconds after which the sender counts as lost."""
BEAT_S = 5.0
"""Interval of heartbeats in seconds, as only a write shows this process that the connection is lost."""
END_TIMEOUT_S = 30.0
"""Time that a compiler has to end on request: TensorRT checks between kernels, a DLA's compiler never."""
_POLL_S = 0.1
_TAIL_BYTES, _TAIL_LINES = 8192, 20
_RUN = re.compile(r"([0-9a-f]{64})\.[0-9a-f]{12}")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _File:
    """A path with a fixed name in a job's folder, or in the folder of all jobs of its bundle."""

    def __init__(self, name: str, *, shared: bool = False) -> None:
        self._name, self._shared = name, shared

    def __get__(self, run: "Run", kind: type) -> Path:
        return (run.folder.parent if self._shared else run.folder) / self._name


@dataclass(frozen=True)
class Run:
    """Files of a job. Its name is the bundle's SHA-256, a dot, and twelve hexadecimal digits from the workstation.

    Raises ArtifactError for another name.
    """

    name: str

    bundle = _File("bundle.edgert", shared=True)
    part = _File("bundle.part", shared=True)
    """The part of the bundle that was received so far."""
    receiving = _File("receive.lock", shared=True)
    working = _File("work.lock", shared=True)
    """Lock of the job of this bundle that compiles."""
    alive = _File("alive.lock")
    """Lock of the job's process. The kernel releases it however the process ends."""
    events = _File("events.jsonl")
    """Standard output of the job: a JSON object per line."""
    log = _File("log.txt")
    output = _File("out.edgert")
    addition = _File("addition.zip")
    """The new members, which the workstation does not have."""
    canceled = _File("canceled")
    """A file that exists if the job was canceled, by which its process ends."""
    end = _File("end.json")
    """Result of the job, which exists after its end."""

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.name):
            why = "expected the SHA-256 of its bundle, a dot, and twelve hexadecimal digits"
            raise ArtifactError(f"{self.name!r} is not the name of a job", why=why)

    @property
    def digest(self) -> str:
        """SHA-256 of the bundle in hex."""
        return self.name.partition(".")[0]

    @property
    def folder(self) -> Path:
        """Folder of the job, in that of its bundle."""
        return cache_folder() / "remote" / self.digest / self.name

    def is_alive(self) -> bool:
        """Return whether the process of the job works."""
        if not self.alive.exists():
            return False
        lock = try_lock(self.alive)
        if lock is not None:
            os.close(lock)
        return lock is None


# Locks.


def try_lock(path: Path) -> int | None:
    """Return an open file that holds the lock, which a child process may inherit; None if another process holds it.

    The caller closes the file.
    """
    fix = "point EDGERT_CACHE at a folder that can be written"
    with raised_as(ArtifactError, f"cannot write {str(path)!r}", fix=fix):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if files.try_lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


@contextmanager
def hold_lock(path: Path, gives_up: Callable[[], bool]) -> Iterator[bool]:
    """Wait for the lock until ``gives_up()``, and hold it in the block; yield whether it is held."""
    while (lock := try_lock(path)) is None and not gives_up():
        time.sleep(_POLL_S)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


# The action ``build``: the bundle comes in, its job starts, and its events and result go out.


def receive(run: Run, size_bytes: int, source: BinaryIO, out: BinaryIO) -> None:
    """Receive the bundle of a job, and resume an earlier transfer of it.

    The answer ``receive`` is the number of bytes that are here; the rest is then read and everything is checked. Raises
    ArtifactError for a full disk, or content of another digest, which is deleted.
    """
    until_s = time.monotonic() + 2 * SILENCE_S
    with hold_lock(run.receiving, lambda: time.monotonic() > until_s) as is_held:
        if not is_held:
            raise ArtifactError(
                "this bundle is being copied to the board already",
                why=f"another process has been copying it for {2 * SILENCE_S:g} s",
                where=str(run.receiving),
                fix="wait for the other build, or end it",
            )
        try:
            if run.events.exists() or digest_of_file(run.bundle) == run.digest:  # received before
                os.utime(run.bundle)
                write_line(out, {"receive": size_bytes})
                return
            at = run.part.stat().st_size if run.part.exists() else 0
            if at > size_bytes:  # it is damaged, so the transfer starts again
                run.part.unlink()
                at = 0
            write_line(out, {"receive": at})
            _append_received(run.part, size_bytes - at, source)
            _check_received(run, size_bytes)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise ArtifactError(f"cannot write {str(run.part)!r} on the board", why=str(error)) from error
            raise ArtifactError(
                "the disk of the board is full",
                why=f"{error.strerror}, while the bundle was received",
                where=str(run.part.parent),
                fix="free some space there, or point EDGERT_CACHE at another disk; the next build resumes the transfer",
            ) from error


def _append_received(part: Path, left: int, source: BinaryIO) -> None:
    """Append at most ``left`` received bytes to a file; stop early if the sender is lost."""
    with part.open("ab") as file:
        while left > 0:
            ready, _, _ = select.select([source], [], [], SILENCE_S)
            chunk = os.read(source.fileno(), min(left, CHUNK_BYTES)) if ready else b""
            if not chunk:
                return
            left -= file.write(chunk)


def _check_received(run: Run, size_bytes: int) -> None:
    """Check the received part and rename it to the bundle. Raises ArtifactError: it is incomplete or damaged."""
    have = run.part.stat().st_size
    if have < size_bytes:
        raise ArtifactError(
            "the bundle was not received completely",
            why=f"{have} of {size_bytes} bytes were received",
            fix="build again, which resumes the transfer",
        )
    found = digest_of_file(run.part)
    if found != run.digest:
        run.part.unlink()
        raise ArtifactError(
            "the bundle was damaged on its way to the board",
            why=f"its SHA-256 is {found[:16]}… instead of {run.digest[:16]}…",
            fix="build again, which sends it again",
        )
    run.part.replace(run.bundle)


def start(run: Run, *words: str) -> None:
    """Start a job's process, unless that was done, in its own session, so that it outlives the connection."""
    lock = try_lock(run.alive)
    if lock is None:
        return
    try:
        if run.events.exists():
            return
        remove_old_files(run)
        with run.events.open("ab") as out, run.log.open("ab") as err:
            subprocess.Popen(  # noqa: S603 - ourselves
                [*_edgert_command(), "job", "work", run.name, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                pass_fds=(lock,),
            )
    except OSError as error:
        raise ArtifactError(
            f"cannot write {str(run.folder)!r}", why=cause(error), fix="free some space on the board"
        ) from error
    finally:
        os.close(lock)


def remove_old_files(run: Run) -> None:
    """Remove the files of old bundles, and of old jobs of this bundle that have ended."""
    shared = run.folder.parent
    old = [(folder, BUNDLE_LIFETIME_S) for folder in shared.parent.glob("*") if folder != shared]
    ended = (folder for folder in shared.glob(f"{run.digest}.*") if not Run(folder.name).is_alive())
    old += [(folder, RUN_LIFETIME_S) for folder in ended]
    for folder, lifetime_s in old:
        with suppress(OSError):  # another job removes it
            written_s = max(path.stat().st_mtime for path in (folder, *folder.glob("*")))
            if time.time() - written_s > lifetime_s:
                shutil.rmtree(folder, ignore_errors=True)


def follow(run: Run, at: int, out: BinaryIO) -> bool:
    """Write every event as ``{"at": offset after it, "text": line}``, and finally ``end``; return whether it succeeded.

    Blocks until the job ends. ``end`` has the content of ``end.json``; its ``code`` is None if the process was killed.
    """
    beat_s = float("-inf")  # the first is at once: the job has begun
    while True:
        is_over = run.end.exists() or not run.is_alive()  # checked before the events are read for the last time
        with run.events.open("rb") as file:
            file.seek(at)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)  # an incomplete line waits
        for line in lines:
            at += len(line)
            write_line(out, {"at": at, "text": line.decode("utf-8", "replace").rstrip("\n")})
        if is_over:
            end = _read_end(run)
            write_line(out, {"at": at, "end": end})
            return "result" in end
        if lines or time.monotonic() - beat_s > BEAT_S:
            beat_s = time.monotonic()
            write_line(out, {"at": at})
        time.sleep(_POLL_S)


def _read_end(run: Run) -> dict[str, Any]:
    known = json.loads(run.end.read_text(encoding="utf-8")) if run.end.exists() else {"code": None}
    with run.log.open("rb") as file:
        file.seek(max(0, run.log.stat().st_size - _TAIL_BYTES))
        last = file.read().decode("utf-8", "replace").strip().splitlines()[-_TAIL_LINES:]
    free_bytes = shutil.disk_usage(run.folder).free
    return {**known, "canceled": run.canceled.exists(), "log": "\n".join(last), "free_bytes": free_bytes}


# The action ``work``: the process of a job.


def work(run: Run, *words: str) -> None:
    """Compile the bundle after other jobs of it, and write the result. Blocks until done."""
    requested: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        requested.append(number)

    def shall_end() -> bool:
        return bool(requested) or run.canceled.exists()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    if (lock := try_lock(run.working)) is None:
        detail = "another build of this bundle runs there; this one comes after it"
        write_line(sys.stdout.buffer, Progress("link", "", "note", detail=detail).to_json())
    else:
        os.close(lock)
    with hold_lock(run.working, shall_end):
        code = -signal.SIGTERM if shall_end() else _compile(run, shall_end, STRICT in words)
        replace_text(run.end, json.dumps({"code": code, **(_pack_result(run) if code == 0 else {})}))


def _compile(run: Run, shall_end: Callable[[], bool], strict: bool) -> int:
    """Run ``edgert build`` and return its exit code; terminate it on request, and kill it later."""
    options = ["-o", str(run.output), "--json", "-", *(["--strict"] if strict else [])]
    compiler = subprocess.Popen([*_edgert_command(), "build", str(run.bundle), *options])  # noqa: S603 - ourselves
    ends_at: float | None = None
    while (code := compiler.poll()) is None:
        if ends_at is None and shall_end():
            compiler.terminate()
            ends_at = time.monotonic() + END_TIMEOUT_S
        elif ends_at is not None and time.monotonic() > ends_at:
            compiler.kill()
        time.sleep(_POLL_S)
    return code


def _pack_result(run: Run) -> dict[str, Any]:
    """Pack the file to fetch, and return its size and digest; or the error."""
    from edgert.remote.remote_build import pack_addition  # this import takes half a second, on every connection

    try:
        made = pack_addition(run.bundle, run.output, run.addition)
    except EdgertError as error:
        return {"error": error.to_json()}
    finally:
        run.output.unlink(missing_ok=True)  # the engines stay in the board's cache
    return {"result": {"size_bytes": made.size_bytes, "sha256": made.sha256}}


def _edgert_command() -> list[str]:
    """Return the command that calls this edgert again: the script that started it, or the module."""
    script = Path(sys.argv[0])
    is_module = script.name == "__main__.py" or not os.access(script, os.X_OK)
    return [sys.executable, "-m", "edgert"] if is_module else [str(script.absolute())]


def perform(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    """Perform ``edgert job``, given its words; write an error to ``out``, for the workstation, and raise it."""
    try:
        match words:
            case ["build", name, size_bytes, at, fetched, *options]:
                run = Run(name)
                receive(run, int(size_bytes), source, out)
                start(run, *options)
                if follow(run, int(at), out):
                    with run.addition.open("rb") as file:
                        file.seek(int(fetched))
                        shutil.copyfileobj(file, out)
                    out.flush()
            case ["work", name, *options]:
                work(Run(name), *options)
            case ["cancel", name]:
                run = Run(name)
                if run.is_alive():
                    run.canceled.touch()
                write_line(out, {"canceled": True})
            case _:
                what = f"edgert job cannot do {' '.join(words)!r}"
                fix = "build RUN BYTES EVENTS RESULT [strict], work RUN [strict] or cancel RUN"
                raise ArtifactError(what, why="the workstation has another version of edgert, or it is a typo", fix=fix)
    except EdgertError as error:
        write_line(out, {"error": error.to_json()})
        raise
