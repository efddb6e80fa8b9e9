"""A build on the board that belongs to no connection: its files, and how it is started, joined and ended.

There is one job per bundle at a time. Its process holds the bundle's ``work`` lock, and so does the compiler, which
inherits it. So a free lock means that no job works, however the last one ended.
"""

import contextlib
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from edgert.errors import ArtifactError, BuildError, EdgertError, cause
from edgert.files import cache_folder, replace_text

BUNDLE_LIFETIME_S = 7 * 86400.0
"""How long a bundle stays after it was last used."""
RUN_LIFETIME_S = 3600.0
"""How long a job's files stay: longer than a workstation that lost its connection retries."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RUN = re.compile(r"([0-9a-f]{64})\.[0-9a-f]{12}")


class _HasFolder(Protocol):
    @property
    def folder(self) -> Path: ...


class _File:
    """A path of a fixed name in the folder of its owner."""

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
    """The bundle, once it is here whole."""
    part = _File("bundle.part")
    """As much of it as has come so far."""
    lock = _File("receive.lock")
    work = _File("work.lock")
    """Its text names the run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One job's files. Its name is the content's digest, a dot, and twelve hexadecimal digits from the workstation."""

    name: str
    content: Content

    @property
    def folder(self) -> Path:
        return self.content.folder / self.name

    events = _File("events.jsonl")
    """Standard output of the compiler: a JSON object per line."""
    log = _File("log.txt")
    """Standard error of the compiler."""
    output = _File("out.edgert")
    """The bundle with its engines."""
    addition = _File("addition.zip")
    """The members that the workstation does not have."""
    canceled = _File("canceled")
    """Exists once a stop was requested."""
    strict = _File("strict")
    """Exists where an engine that would be skipped is an error."""
    process = _File("pid")
    """Process id of the job."""
    end = _File("end.json")
    """Result of the job; exists once it has ended."""


def content_of(digest: str) -> Content:
    """Return the content of a digest. Raises ArtifactError: it is not a SHA-256 in hex."""
    if not _DIGEST.fullmatch(digest):
        raise ArtifactError(f"{digest!r} is not the digest of a bundle", why="it is no SHA-256 in hexadecimal digits")
    return Content(digest, cache_folder() / "remote" / digest)


def run_of(name: str) -> Run:
    """Return the run of a name. Raises ArtifactError: it is not the name of a run."""
    match = _RUN.fullmatch(name)
    if match is None:
        raise ArtifactError(f"unknown job {name!r}", why="expected an id printed by edgert job start")
    return Run(name, content_of(match[1]))


def known_run(name: str) -> Run:
    """Return a run that was started, and whose files still exist. Raises ArtifactError: there is no such run."""
    run = run_of(name)
    if not run.folder.is_dir():
        raise ArtifactError(
            "the board has no such job",
            why=f"its files are not in {run.content.folder}: they were removed, or EDGERT_CACHE is another now",
            fix="build again: what was compiled is in the board's cache",
        )
    return run


def sweep(content: Content) -> None:
    """Remove what is no longer needed: other bundles, and runs of this one; none of them may be alive."""
    old = [(folder, BUNDLE_LIFETIME_S) for folder in content.folder.parent.glob("*") if folder != content.folder]
    old += [(folder, RUN_LIFETIME_S) for folder in content.folder.glob(f"{content.digest}.*")]
    for folder, lifetime_s in old:
        written_s = max(path.stat().st_mtime for path in (folder, *folder.glob("*")))
        if time.time() - written_s > lifetime_s:
            shutil.rmtree(folder, ignore_errors=True)


# A lock that dies with its last holder: the kernel takes it from a process that is gone, so none is ever stale.

_POLL_S = 0.1


def take(path: Path) -> int | None:
    """Return an open file that holds the lock, which a child process may inherit; None where another holds it.

    The caller closes it.

    Raises:
        ArtifactError: the file cannot be made.
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
    """Return whether a living process holds it."""
    if not path.exists():
        return False
    descriptor = take(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@contextmanager
def held(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock in the block, after waiting for it. Raises ArtifactError: ``timeout_s`` have passed."""
    until = time.monotonic() + timeout_s
    while (descriptor := take(path)) is None:
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
"""Seconds that a compiler may take to end on request: TensorRT checks between kernels, a DLA's compiler never."""
STRICT = "strict"
"""The word for a run in which an engine that would be skipped is an error."""
_STABLE_S = 10.0
"""How long it may take from a job's lock to its name, and from its end to the end of its process."""
_JOB_POLL_S = 0.05


def start(run: Run, *, strict: bool = False) -> tuple[Run, bool]:
    """Start a run, or find the one that builds the same bundle: its result is used instead of a second build.

    A repeated call, after a connection was lost before the answer came, starts only one run. :attr:`Run.strict` shows
    whether the other run is strict.

    Returns:
        The run, and whether it is another than the requested one.

    Raises:
        ArtifactError: the bundle is not here, or nothing can be written.
        BuildError: a run is neither alive nor gone.
    """
    content = run.content
    if run.folder.is_dir():
        return run, False
    if not content.bundle.is_file():
        raise ArtifactError("the bundle is not on the board", why=str(content.bundle), fix="build again: it is sent")
    until = time.monotonic() + _STABLE_S
    while (lock := take(content.work)) is None:
        running = _named(content)
        if running is not None and not running.end.exists():
            return running, running != run
        if time.monotonic() > until:
            raise BuildError(
                "a build of this bundle on the board does not end",
                why="its result is there, and its process holds the lock",
                where=str(content.work),
                fix=f"look for it on the board: fuser {content.work}",
            )
        time.sleep(_JOB_POLL_S)
    try:
        _begin(run, lock, strict)
        return run, False
    finally:
        os.close(lock)


def _begin(run: Run, lock: int, strict: bool) -> None:
    """Start a process in its own session, which outlives this one and the connection."""
    sweep(run.content)
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
        job = subprocess.Popen(  # noqa: S603 - ourselves
            [*_ourselves(), "job", "work", run.name, str(lock)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            pass_fds=(lock,),
        )
    replace_text(run.process, str(job.pid))


def work(run: Run, lock: int) -> None:
    """Compile, and record how it ended; runs in the job's own process, and blocks until done."""
    requested: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        requested.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    strict = ["--strict"] if run.strict.exists() else []
    command = [*_ourselves(), "build", str(run.content.bundle), "-o", str(run.output), "--json", "-", *strict]
    compiler = subprocess.Popen(command, pass_fds=(lock,))  # noqa: S603 - ourselves
    ends_at: float | None = None
    while (code := compiler.poll()) is None:  # on a stop request the compiler is asked to end, and killed after a while
        if ends_at is None and requested:
            compiler.terminate()
            ends_at = time.monotonic() + END_TIMEOUT_S
        elif ends_at is not None and time.monotonic() > ends_at:
            compiler.kill()
        time.sleep(_JOB_POLL_S)
    replace_text(run.end, json.dumps({"code": code, **(_result(run) if code == 0 else {})}))


def _result(run: Run) -> dict[str, Any]:
    """Return the file to fetch, with its digest; or why there is none."""
    from edgert.remote.remote_job import pack_addition  # bundles take half a second to import, on every connection

    try:
        made = pack_addition(run.content.bundle, run.output, run.addition)
    except EdgertError as error:
        return {"error": error.to_json()}
    finally:
        run.output.unlink(missing_ok=True)  # the board's own cache has the engines
    return {"result": {"size_bytes": made.size_bytes, "sha256": made.sha256}}


def is_alive(run: Run) -> bool:
    """Return whether a process works on it."""
    return _named(run.content) == run and is_held(run.content.work)


def cancel(run: Run) -> None:
    """Request a run to end, without waiting; one that has ended already is left alone."""
    if not run.end.exists() and is_alive(run):
        run.canceled.touch()
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            os.killpg(int(run.process.read_text(encoding="utf-8")), signal.SIGTERM)


def _named(content: Content) -> Run | None:
    """Return the run named in the lock, alive or not."""
    name = content.work.read_text(encoding="utf-8") if content.work.exists() else ""
    return Run(name, content) if _RUN.fullmatch(name) else None


def _ourselves() -> list[str]:
    """Return the command that calls this edgert again: a script that prepares its environment, or the module."""
    script = Path(sys.argv[0])
    is_module = script.name == "__main__.py" or not os.access(script, os.X_OK)
    return [sys.executable, "-m", "edgert"] if is_module else [str(script.absolute())]
