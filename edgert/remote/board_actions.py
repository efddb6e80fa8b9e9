"""The board's side of a remote build: the actions of ``edgert job``, which the workstation calls over ssh.

- ``receive DIGEST BYTES`` receives a bundle, from where an earlier transfer stopped.
- ``start RUN [strict]`` starts a job in its own process group, or joins the one that is running.
- ``follow RUN OFFSET`` sends the events of the job, from an offset to its end.
- ``send RUN OFFSET`` sends the members that the job added to the bundle.
- ``cancel RUN`` asks the job to end.

A broken connection ends the action, never the job.
"""

import errno
import json
import os
import select
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from edgert.errors import ArtifactError, EdgertError, nearest
from edgert.files import digest_of_file
from edgert.remote import board_job as job
from edgert.remote.link import CHUNK_BYTES, write_line

SILENCE_S = 30.0
"""Time without data in seconds after which the sender counts as lost."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def receive(content: job.Content, size_bytes: int, source: BinaryIO, out: BinaryIO) -> None:
    """Receive a bundle, and resume an earlier transfer of it.

    The first answer, ``at``, is the number of bytes that are here. Then the rest is received, everything is checked,
    and ``done`` is sent. Raises ArtifactError for a full disk, or content of another digest, which is deleted.
    """
    with job.hold_lock(content.lock, 2 * SILENCE_S):
        try:
            if content.bundle.is_file() and digest_of_file(content.bundle) == content.digest:  # received before
                os.utime(content.bundle)
                write_line(out, {"at": size_bytes})
            else:
                at = content.part.stat().st_size if content.part.exists() else 0
                if at > size_bytes:  # it is damaged, so the transfer starts again
                    content.part.unlink()
                    at = 0
                write_line(out, {"at": at})
                _append_received(content.part, size_bytes - at, source)
                _check_received(content, size_bytes)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise ArtifactError(f"cannot write {str(content.part)!r} on the board", why=str(error)) from error
            raise ArtifactError(
                "the disk of the board is full",
                why=f"{error.strerror}, while the bundle was received",
                where=str(content.folder),
                fix="free some space there, or point EDGERT_CACHE at another disk; the next build resumes the transfer",
            ) from error
        write_line(out, {"done": True})


def _append_received(part: Path, left: int, source: BinaryIO) -> None:
    """Append at most ``left`` received bytes to a file; stop early if the sender is lost."""
    with part.open("ab") as file:
        while left > 0:
            ready, _, _ = select.select([source], [], [], SILENCE_S)
            chunk = os.read(source.fileno(), min(left, CHUNK_BYTES)) if ready else b""
            if not chunk:
                return
            left -= file.write(chunk)


def _check_received(content: job.Content, size_bytes: int) -> None:
    """Check the received part and rename it to the bundle. Raises ArtifactError: it is incomplete or damaged."""
    have = content.part.stat().st_size
    if have < size_bytes:
        raise ArtifactError(
            "the bundle was not received completely",
            why=f"{have} of {size_bytes} bytes were received",
            fix="build again, which resumes the transfer",
        )
    found = digest_of_file(content.part)
    if found != content.digest:
        content.part.unlink()
        raise ArtifactError(
            "the bundle was damaged on its way to the board",
            why=f"its SHA-256 is {found[:16]}… instead of {content.digest[:16]}…",
            fix="build again, which sends it again",
        )
    content.part.replace(content.bundle)


# The events of a run, from any offset to its end.

BEAT_S = 5.0
"""Interval of heartbeats in seconds, as only a write shows this process that the connection is lost."""
_POLL_S = 0.1
_TAIL_BYTES, _TAIL_LINES = 8192, 20


def follow(run: job.Run, at: int, out: BinaryIO) -> None:
    """Write every event as ``{"at": offset after it, "text": line}``, and finally ``end``.

    Blocks until the job ends. ``end`` has the content of ``end.json``; its ``code`` is None if the process was killed.
    """
    beat_s = time.monotonic()
    while True:
        is_over = run.end.exists() or not job.is_alive(run)  # checked before the events are read for the last time
        with run.events.open("rb") as file:
            file.seek(at)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)  # an incomplete line waits
        for line in lines:
            at += len(line)
            write_line(out, {"at": at, "text": line.decode("utf-8", "replace").rstrip("\n")})
        if is_over:
            write_line(out, {"at": at, "end": _read_end(run)})
            return
        if lines or time.monotonic() - beat_s > BEAT_S:
            beat_s = time.monotonic()
            write_line(out, {"at": at})
        time.sleep(_POLL_S)


def _read_end(run: job.Run) -> dict[str, Any]:
    known = json.loads(run.end.read_text(encoding="utf-8")) if run.end.exists() else {"code": None}
    with run.log.open("rb") as file:
        file.seek(max(0, run.log.stat().st_size - _TAIL_BYTES))
        last = file.read().decode("utf-8", "replace").strip().splitlines()[-_TAIL_LINES:]
    free_bytes = shutil.disk_usage(run.folder).free
    return {**known, "canceled": run.canceled.exists(), "log": "\n".join(last), "free_bytes": free_bytes}


ACTIONS = ("receive", "start", "work", "follow", "send", "cancel")


def perform(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    """Perform ``edgert job ACTION``, given its words; write an error to ``out``, for the workstation, and raise it."""
    if words[0] not in ACTIONS:
        what = f"unknown action {words[0]!r}{nearest(words[0], ACTIONS)}"
        raise ArtifactError(what, fix=f"one of {', '.join(ACTIONS)}")
    try:
        _perform(words, source, out)
    except EdgertError as error:
        write_line(out, {"error": error.to_json()})
        raise


def _perform(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    match words:
        case ["receive", digest, size_bytes]:
            receive(job.find_content(digest), int(size_bytes), source, out)
        case ["start", name, *requested]:
            run, joined = job.start(job.find_run(name), strict=job.STRICT in requested)
            write_line(out, {"run": run.name, "joined": joined, "strict": run.strict.exists()})
        case ["work", name, lock]:
            job.work(job.existing_run(name), int(lock))
        case ["follow", name, at]:
            follow(job.existing_run(name), int(at), out)
        case ["send", name, at]:
            with job.existing_run(name).addition.open("rb") as file:
                file.seek(int(at))
                write_line(out, {"at": int(at)})
                shutil.copyfileobj(file, out)
            out.flush()
        case ["cancel", name]:
            job.cancel(job.existing_run(name))
            write_line(out, {"canceled": True})
        case _:
            raise ArtifactError(
                f"action {words[0]!r} does not take {len(words) - 1} arguments", fix="edgert job --help"
            )
