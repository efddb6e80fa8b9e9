"""A run's events, told from any place on, to its end."""

from __future__ import annotations

import json
import shutil
import time
from typing import Any, BinaryIO

from edgert.remote.board.folder import Run
from edgert.remote.board.job import is_alive
from edgert.remote.line import write_line

BEAT_S = 5.0
"""Between two signs of life: writing is how this process learns that nobody listens any more."""
_LOOK_S = 0.1
_TAIL_BYTES, _TAIL_LINES = 8192, 20


def follow(run: Run, at: int, out: BinaryIO) -> None:
    """Writes every line of the events as ``{"at": offset after it, "text": line}``, and ``end`` at last. Blocks.

    The end has what ``end.json`` says; ``code`` is None for a job whose process is gone without a word.
    """
    beat_s = time.monotonic()
    while True:
        is_over = run.end.exists() or not is_alive(run)  # asked before the last look at the events
        told = _tell(run, at, out)
        at += told
        if is_over:
            write_line(out, {"at": at, "end": _end(run)})
            return
        if told or time.monotonic() - beat_s > BEAT_S:
            beat_s = time.monotonic()
            write_line(out, {"at": at})
        time.sleep(_LOOK_S)


def _tell(run: Run, at: int, out: BinaryIO) -> int:
    """Tells the lines that are whole; returns how many bytes they have."""
    with run.events.open("rb") as file:
        file.seek(at)
        content = file.read()
    lines = content[: content.rfind(b"\n") + 1].splitlines(keepends=True)
    told = 0
    for line in lines:
        told += len(line)
        write_line(out, {"at": at + told, "text": line.decode("utf-8", "replace").rstrip("\n")})
    return told


def _end(run: Run) -> dict[str, Any]:
    known = json.loads(run.end.read_text(encoding="utf-8")) if run.end.exists() else {"code": None}
    free_bytes = shutil.disk_usage(run.folder).free
    return {**known, "cancelled": run.cancelled.exists(), "log": _tail(run), "free_bytes": free_bytes}


def _tail(run: Run) -> str:
    """The last lines of the log."""
    with run.log.open("rb") as file:
        file.seek(max(0, run.log.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-_TAIL_LINES:])
