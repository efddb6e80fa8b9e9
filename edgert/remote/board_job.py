"""A build on the board that does not depend on a connection: its files, and how it is started, joined and ended.

There is one job per bundle at a time. Its process holds the bundle's ``work`` lock, and so does the compiler, which
inherits it. A free lock means that no job runs, however the last one ended.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from edgert.errors import ArtifactError, BuildError, EdgertError, cause
from edgert.files import cache_folder, replace_text

BUNDLE_LIFETIME_S = 7 * 86400.0
"""Time for which a bundle stays after its last use."""
RUN_LIFETIME_S = 3600.0
"""Time for which a job's files stay; a workstation that lost its connection does not retry for so long."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RUN = re.compile(r"([0-9a-f]{64})\.[0-9a-f]{12}")


class _HasFolder(Protocol):
    @property
    def folder(self) -> Path: ...


class _File:
    """A path with a fixed name in the owner's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: _HasFolder, kind: type) -> Path:
        return owner.folder / self._name


@dataclass(frozen=True, slots=True)
class Content:
    """A bundle, identified by the SHA-256 of its bytes; ``lock`` is held during a transfer, ``work`` by its job."""

    digest: str
    folder: Path

    bundle = _File("bundle.edgert")
    part = _File("bundle.part")
    """The part of it that was received so far."""
    lock = _File("receive.lock")
    work = _File("work.lock")
    """Lock of the job; its text is the name of the run."""


@dataclass(frozen=True, slots=True)
class Run:
    """Files of a job. Its name is the bundle's digest, a dot, and twelve hexadecimal digits from the workstation."""

    name: str
    content: Content

    @property
    def folder(self) -> Path:
        return self.content.folder / self.name

    events = _File("events.jsonl")
    """Standard output of the compiler: a JSON object per line."""
    log = _File("log.txt")
    output = _File("out.edgert")
    addition = _File("addition.zip")
    """The new members, which the workstation does not have."""
    canceled = _File("canceled")
    """A file that exists if the job was canceled, by which its process ends."""
    strict = _File("strict")
    """A file that exists if an engine that would be skipped is an error."""
    end = _File("end.json")
    """Result of the job, which exists after its end."""


def find_content(digest: str) -> Content:
    """Return the content of a digest. Raises ArtifactError: it is not a SHA-256 in hex."""
    if not _DIGEST.fullmatch(digest):
        raise ArtifactError(f"{digest!r} is not the digest of a bundle", why="expected a SHA-256 in hexadecimal digits")
    return Content(digest, cache_folder() / "remote" / digest)


def find_run(name: str) -> Run:
    """Return the run of a name. Raises ArtifactError: it is not the name of a run."""
    match = _RUN.fullmatch(name)
    if match is None:
        raise ArtifactError(f"unknown job {name!r}", why="expected an id printed by edgert job start")
    return Run(name, find_content(match[1]))


def existing_run(name: str) -> Run:
    """Return a run whose files exist. Raises ArtifactError: there is no such run."""
    run = find_run(name)
    if not run.folder.is_dir():
        raise ArtifactError(
            "the board has no such job",
            why=f"its files are not in {run.content.folder}: they were removed, or EDGERT_CACHE has changed",
            fix="build again: compiled engines are in the board's cache",
        )
    return run


def remove_old_files(content: Content) -> None:
    """Remove old bundles and old runs of this bundle; none of its runs may be alive."""
    old = [(folder, BUNDLE_LIFETIME_S) for folder in content.folder.parent.glob("*") if folder != content.folder]
    old += [(folder, RUN_LIFETIME_S) for folder in content.folder.glob(f"{content.digest}.*")]
    for folder, lifetime_s in old:
        with suppress(OSError):  # another job removes it
            written_s = max(path.stat().st_mtime for path in (folder, *folder.glob("*")))
            if time.time() - written_s > lifetime_s:
                shutil.rmtree(folder, ignore_errors=True)


# Locks are never stale: the kernel releases the lock of a process that has ended.

_POLL_S = 0.1


def try_lock(path: Path) -> int | None:
    """Return an open file that holds the lock, which a child process may inherit; None if another process holds it.

    The caller closes the file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {str(path)!r}", why=cause(error), fix="point EDGERT_CACHE at a folder that can be written"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock."""
    if not path.exists():
        return False
    descriptor = try_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@contextmanager
def hold_lock(path: Path, timeout_s: float) -> Iterator[None]:
    """Wait for the lock, and hold it in the block. Raises ArtifactError: it is not free after ``timeout_s``."""
    until = time.monotonic() + timeout_s
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > until:
            raise ArtifactError(
                "this bundle is being copied to the board already",
                why=f"another process has been copying it for {timeout_s:g} s",
                where=str(path),
                fix="wait for the other build, or end it",
            )
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)


END_TIMEOUT_S = 30.0
"""Time that a compiler has to end on request: TensorRT checks between kernels, a DLA's compiler never."""
STRICT = "strict"
"""Argument of ``start`` for a strict run, in which an engine that would be skipped is an error."""
_STABLE_S = 10.0
"""Longest time from a job's lock to its name in it, and from its result to the end of its process."""
_JOB_POLL_S = 0.05


def start(run: Run, *, strict: bool = False) -> tuple[Run, bool]:
    """Start a run, or join the running one of the same bundle; return it, and whether it is a joined one.

    A call that is repeated after a lost connection starts no second run. :attr:`Run.strict` shows whether the joined
    run is strict. Raises BuildError where a run has a result, but its process does not end.
    """
    content = run.content
    if run.folder.is_dir():
        return run, False
    if not content.bundle.is_file():
        raise ArtifactError("the bundle is not on the board", why=str(content.bundle), fix="build again: it is sent")
    until = time.monotonic() + _STABLE_S
    while (lock := try_lock(content.work)) is None:
        running = _run_in_lock(content)
        if running is not None and not running.end.exists():
            return running, running != run
        if time.monotonic() > until:
            raise BuildError(
                "a build of this bundle on the board does not end",
                why="it has a result, but its process still holds the lock",
                where=str(content.work),
                fix=f"find the process on the board: fuser {content.work}",
            )
        time.sleep(_JOB_POLL_S)
    try:
        _start_process(run, lock, strict)
        return run, False
    finally:
        os.close(lock)


def _start_process(run: Run, lock: int, strict: bool) -> None:
    """Start the job's process in its own session, so that it outlives this process and the connection."""
    remove_old_files(run.content)
    try:
        run.folder.mkdir(parents=True)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {str(run.folder)!r}", why=cause(error), fix="free some space on the board"
        ) from error
    if strict:
        run.strict.touch()
    os.ftruncate(lock, 0)
    os.pwrite(lock, run.name.encode(), 0)
    with run.events.open("ab") as out, run.log.open("ab") as err:
        subprocess.Popen(  # noqa: S603 - ourselves
            [*_edgert_command(), "job", "work", run.name, str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            pass_fds=(lock,),
        )


def work(run: Run, lock: int) -> None:
    """Compile the bundle, and write the result; this is the job's own process. Blocks until done."""
    requested: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        requested.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    strict = ["--strict"] if run.strict.exists() else []
    command = [*_edgert_command(), "build", str(run.content.bundle), "-o", str(run.output), "--json", "-", *strict]
    compiler = subprocess.Popen(command, pass_fds=(lock,))  # noqa: S603 - ourselves
    ends_at: float | None = None
    while (code := compiler.poll()) is None:  # a stop request terminates the compiler, and later kills it
        if ends_at is None and (requested or run.canceled.exists()):
            compiler.terminate()
            ends_at = time.monotonic() + END_TIMEOUT_S
        elif ends_at is not None and time.monotonic() > ends_at:
            compiler.kill()
        time.sleep(_JOB_POLL_S)
    replace_text(run.end, json.dumps({"code": code, **(_pack_result(run) if code == 0 else {})}))


def _pack_result(run: Run) -> dict[str, Any]:
    """Pack the file to fetch, and return its size and digest; or the error."""
    from edgert.remote.remote_job import pack_addition  # this import takes half a second, on every connection

    try:
        made = pack_addition(run.content.bundle, run.output, run.addition)
    except EdgertError as error:
        return {"error": error.to_json()}
    finally:
        run.output.unlink(missing_ok=True)  # the engines stay in the board's cache
    return {"result": {"size_bytes": made.size_bytes, "sha256": made.sha256}}


def is_alive(run: Run) -> bool:
    """Return whether the process of a run works."""
    return _run_in_lock(run.content) == run and is_held(run.content.work)


def cancel(run: Run) -> None:
    """Ask a run to end, without waiting for its end. Do nothing if it has ended."""
    if not run.end.exists() and is_alive(run):
        run.canceled.touch()


def _run_in_lock(content: Content) -> Run | None:
    name = content.work.read_text(encoding="utf-8") if content.work.exists() else ""
    return Run(name, content) if _RUN.fullmatch(name) else None


def _edgert_command() -> list[str]:
    """Return the command that calls this edgert again: the script that started it, or the module."""
    script = Path(sys.argv[0])
    is_module = script.name == "__main__.py" or not os.access(script, os.X_OK)
    return [sys.executable, "-m", "edgert"] if is_module else [str(script.absolute())]
