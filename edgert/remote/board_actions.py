"""The board's side of a remote build: what ``edgert job ACTION`` does, for the workstation that calls it over ssh.

receive DIGEST BYTES     takes a bundle in, from where an earlier transfer broke off
start RUN [strict]       starts a job of its own process group, or joins the one that is running
follow RUN OFFSET        passes on the events of the job, from an offset to its end
send RUN OFFSET          sends what the job added to the bundle
cancel RUN               asks the job to end

A connection that breaks ends the action and never the job.
"""

import errno
import hashlib
import json
import os
import select
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from edgert.errors import ArtifactError, EdgertError, nearest
from edgert.remote.board_job import STRICT, cancel, held, is_alive, start, work
from edgert.remote.job_folder import Content, Run, content_of, known_run, run_of
from edgert.remote.link import write_line

SILENCE_S = 30.0
"""How long the sender may send nothing before it is taken for gone."""
_CHUNK_BYTES = 1 << 18
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def receive(content: Content, size_bytes: int, source: BinaryIO, out: BinaryIO) -> None:
    """Answers how many bytes are here (``at``), takes the rest, checks all of it, and answers ``done``. Blocks.

    Raises:
        ArtifactError: the disk is full; or what came is not what was announced, and is deleted.
    """
    with held(content.lock, 2 * SILENCE_S):
        try:
            if _is_here(content):
                write_line(out, {"at": size_bytes})
                write_line(out, {"done": True})
                return
            at = _whole_part(content.part, size_bytes)
            write_line(out, {"at": at})
            _append(content.part, size_bytes - at, source)
            _accept(content, size_bytes)
        except OSError as error:
            raise _cannot_keep(content, error) from error
        write_line(out, {"done": True})


def _is_here(content: Content) -> bool:
    """Whether the bundle came in before, and is still what it was."""
    if not content.bundle.is_file() or _sha256(content.bundle) != content.digest:
        return False
    os.utime(content.bundle)
    return True


def _whole_part(part: Path, size_bytes: int) -> int:
    """How much of the part can be gone on from: all of it, unless it is longer than it may be."""
    have = part.stat().st_size if part.exists() else 0
    if have > size_bytes:
        part.unlink()
        return 0
    return have


def _append(part: Path, left: int, source: BinaryIO) -> None:
    """Appends what comes, up to so many bytes; ends early when the sender is gone."""
    with part.open("ab", buffering=0) as file:
        while left > 0:
            ready, _, _ = select.select([source], [], [], SILENCE_S)
            chunk = os.read(source.fileno(), min(left, _CHUNK_BYTES)) if ready else b""
            if not chunk:
                return
            left -= _write(file.fileno(), chunk)


def _write(descriptor: int, chunk: bytes) -> int:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    return len(chunk)


def _accept(content: Content, size_bytes: int) -> None:
    """Lets the part become the bundle. Raises ArtifactError when it is cut short, or is not what was announced."""
    have = content.part.stat().st_size
    if have < size_bytes:
        raise ArtifactError(
            "the bundle did not come in whole", why=f"{have} of {size_bytes} bytes came", fix="build again: it goes on"
        )
    found = _sha256(content.part)
    if found != content.digest:
        content.part.unlink()
        raise ArtifactError(
            "the bundle was damaged on its way to the board",
            why=f"SHA-256 {found[:16]}…, {content.digest[:16]}… was sent",
            fix="build again: it is sent anew",
        )
    content.part.replace(content.bundle)


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def _cannot_keep(content: Content, error: OSError) -> ArtifactError:
    if error.errno in _FULL:
        return ArtifactError(
            "the disk of the board is full",
            why=f"{error.strerror}, while the bundle came in",
            where=str(content.folder),
            fix="free some space there, or point EDGERT_CACHE at another disk; the next build resumes the transfer",
        )
    return ArtifactError(f"cannot write {str(content.part)!r} on the board", why=str(error))


# The events of a run, from any offset to its end.

BEAT_S = 5.0
"""Between two heartbeats: writing is how this process learns that the connection is gone."""
_POLL_S = 0.1
_TAIL_BYTES, _TAIL_LINES = 8192, 20


def follow(run: Run, at: int, out: BinaryIO) -> None:
    """Writes every line of the events as ``{"at": offset after it, "text": line}``, and ``end`` at last. Blocks.

    The end has the content of ``end.json``; ``code`` is None for a job whose process is gone without an end.
    """
    beat_s = time.monotonic()
    while True:
        is_over = run.end.exists() or not is_alive(run)  # asked before the last look at the events
        sent = _emit(run, at, out)
        at += sent
        if is_over:
            write_line(out, {"at": at, "end": _end(run)})
            return
        if sent or time.monotonic() - beat_s > BEAT_S:
            beat_s = time.monotonic()
            write_line(out, {"at": at})
        time.sleep(_POLL_S)


def _emit(run: Run, at: int, out: BinaryIO) -> int:
    """Tells the lines that are whole; returns how many bytes they have."""
    with run.events.open("rb") as file:
        file.seek(at)
        content = file.read()
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    sent = 0
    for line in lines:
        sent += len(line)
        write_line(out, {"at": at + sent, "text": line.decode("utf-8", "replace").rstrip("\n")})
    return sent


def _end(run: Run) -> dict[str, Any]:
    known = json.loads(run.end.read_text(encoding="utf-8")) if run.end.exists() else {"code": None}
    free_bytes = shutil.disk_usage(run.folder).free
    return {**known, "canceled": run.canceled.exists(), "log": _tail(run), "free_bytes": free_bytes}


def _tail(run: Run) -> str:
    """The last lines of the log."""
    with run.log.open("rb") as file:
        file.seek(max(0, run.log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


# ``edgert job ACTION``, action by action.

Action = Callable[[Sequence[str], BinaryIO, BinaryIO], None]


def perform(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    """Performs an action: its name and arguments. An error is also written to ``out``, for the workstation.

    Raises:
        EdgertError: as the action does; ArtifactError when there is no such action, or it takes other words.
    """
    name, *rest = words
    if name not in ACTIONS:
        raise ArtifactError(f"there is no action {name!r}{nearest(name, ACTIONS)}", fix=f"one of {', '.join(ACTIONS)}")
    try:
        ACTIONS[name](rest, source, out)
    except EdgertError as error:
        write_line(out, {"error": error.to_json()})
        raise


def _receive(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    digest, size_bytes = words
    receive(content_of(digest), int(size_bytes), source, out)


def _start(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    name, *asked = words
    run, joined = start(run_of(name), strict=STRICT in asked)
    write_line(out, {"run": run.name, "joined": joined, "strict": run.strict.exists()})


def _work(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    name, lock = words
    work(known_run(name), int(lock))


def _follow(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    name, at = words
    follow(known_run(name), int(at), out)


def _send(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    name, at = words
    with known_run(name).addition.open("rb") as file:
        file.seek(int(at))
        write_line(out, {"at": int(at)})
        shutil.copyfileobj(file, out)
    out.flush()


def _cancel(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    (name,) = words
    cancel(known_run(name))
    write_line(out, {"canceled": True})


ACTIONS: Mapping[str, Action] = {
    "receive": _receive,
    "start": _start,
    "work": _work,
    "follow": _follow,
    "send": _send,
    "cancel": _cancel,
}
