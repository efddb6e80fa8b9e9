"""``edgert job ACTION``, action by action."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from edgert.errors import ArtifactError, EdgertError, nearest
from edgert.remote.board.folder import content_of, known_run, run_of
from edgert.remote.board.follow import follow
from edgert.remote.board.job import STRICT, cancel, start, work
from edgert.remote.board.receive import receive
from edgert.remote.line import write_line

Action = Callable[[Sequence[str], BinaryIO, BinaryIO], None]


def perform(words: Sequence[str], source: BinaryIO, out: BinaryIO) -> None:
    """Does what the words say, the action's name first; an error is told on ``out``, too, for the other side.

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
    write_line(out, {"cancelled": True})


ACTIONS: Mapping[str, Action] = {
    "receive": _receive,
    "start": _start,
    "work": _work,
    "follow": _follow,
    "send": _send,
    "cancel": _cancel,
}
