"""The last seconds of a run: a ring of files on the disk, and one file of them when something happened."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgert._version import __version__
from edgert.errors import ArtifactError
from edgert.recording.recording import has_frames, head_of, join_parts
from edgert.stages.sink.output_file import cannot_write, lock, sync_file
from edgert.stages.sink.output_files import Files, written_by

log = logging.getLogger("edgert.sink")

LONGEST_S = 300.0
"""A moment in which one event follows the other ends after so long; the next event begins another."""
_AGAIN_S = 10.0
"""A stage that fails again within this time is still the same failure."""
_WORK_S = 0.05
"""Time for joining files between two chunks of the recording."""


@dataclass(frozen=True, slots=True)
class _Joined:
    """Parts that become one file, why, and whether nothing else needs them: an earlier process left them."""

    paths: Sequence[Path]
    cause: str
    is_left: bool


class LastSeconds:
    """The ring and the files that are made of it. For the thread that records.

    Args:
        where: the stage, for messages.
        files: of the moments that are kept.
        ring: of the parts that a moment is joined of; by its rules those are removed that are older than what is kept.
        after_s: recorded after an event.
        rules: those whose events are kept; all where empty.
    """

    def __init__(self, where: str, files: Files, ring: Files, after_s: float, rules: Sequence[str]) -> None:
        self.ring, self._where, self._files, self._after_s, self._rules = ring, where, files, after_s, rules
        self._parts = dict[Path, float]()  # and when each was finished
        self._from_s = self._until_s = self._limit_s = 0.0
        self._cause = ""
        self._failing: dict[str, float] = {}
        self._waiting = deque[_Joined]()
        self._joining: Iterator[None] | None = None

    def open(self) -> None:
        """Check both folders, and begin to join what an earlier process left in the ring.

        Raises StageError for a folder that cannot be written.
        """
        self._files.check()
        self.ring.check()
        self._parts, self._cause = {}, ""
        for paths in _left_in(self.ring):
            self._waiting.append(_Joined(paths, "the end of the run before, which came without notice", is_left=True))

    def take_event(self, rule: str) -> None:
        """Keep the seconds around the beginning of an event, if its rule is one of those."""
        if not self._rules or rule in self._rules:
            self._keep(f"an event of rule {rule!r}")

    def take_failure(self, task: str) -> None:
        """Keep the seconds around a failure of a stage, unless it has been failing."""
        now_s, before_s = time.monotonic(), self._failing.get(task, -_AGAIN_S)
        self._failing[task] = now_s
        if now_s - before_s >= _AGAIN_S:
            self._keep(f"a failure of stage {task!r}")

    def _keep(self, cause: str) -> None:
        now_s = time.monotonic()
        if not self._cause:
            self._cause, self._from_s, self._limit_s = cause, now_s - self.ring.rules.keep_s, now_s + LONGEST_S
        self._until_s = min(now_s + self._after_s, self._limit_s)

    @property
    def is_over(self) -> bool:
        """Whether a moment has ended, so that its last part is to be finished."""
        return bool(self._cause) and time.monotonic() >= self._until_s

    def part_finished(self, path: Path) -> None:
        """Take a finished part; join those of a moment where it is over."""
        self._parts = {one: at_s for one, at_s in self._parts.items() if one.exists()} | {path: time.monotonic()}
        if self.is_over:
            self._finish()

    def _finish(self) -> None:
        paths = tuple(path for path, finished_s in self._parts.items() if finished_s >= self._from_s)
        self._waiting.append(_Joined(paths, self._cause, is_left=False))
        self._cause = ""

    def tend(self) -> None:
        """Join files for a moment; remove what is too old where nothing needs it. Raises StageError: no room."""
        until_s = time.monotonic() + _WORK_S
        while self._advance() and time.monotonic() < until_s:
            pass
        if not self._cause and not self._waiting and self._joining is None:
            self.ring.tend()
        self._files.tend()

    def make_room(self) -> bool:
        """Remove an old moment, else the oldest part of the ring, as the disk is full; return whether there was one."""
        return self._files.make_room() or self.ring.make_room()

    def close(self, has_frames: bool) -> None:
        """Join what is left, and remove the ring. Raises StageError: no room; the ring is left then.

        Args:
            has_frames: whether anything was recorded.
        """
        self._keep("the end of the run")
        if has_frames and self._parts:
            self._finish()
        try:
            while self._advance():
                pass
            _remove(tuple(self._parts))
        finally:
            self._parts, self._cause = {}, ""
            self._files.close()
            self.ring.close()

    def _advance(self) -> bool:
        """Join a little more; return whether there is more to do."""
        if self._joining is None and self._waiting:
            self._joining = self._join(self._waiting.popleft())
        if self._joining is not None:
            with suppress(StopIteration):
                next(self._joining)
                return True
            self._joining = None
        return bool(self._waiting)

    def _join(self, what: _Joined) -> Iterator[None]:
        """Write parts as one file, a chunk each time; remove those that were left. Raises StageError."""
        try:
            if what.is_left and not any(map(has_frames, what.paths)):
                return _remove(what.paths)
        except ArtifactError as error:  # the ring removes them as it removes its own
            log.warning("%s: the last seconds of a run before are lost: %s", self._where, error)
            return None
        file, is_complete = self._files.begin(""), False
        try:
            for data in join_parts(what.paths, f"edgert {__version__}"):
                file.write(data, self._files.make_room)
                yield
            sync_file(file.path)
            is_complete = True
        except OSError as error:
            kept = f"its parts stay in {self.ring.pattern.parent}"
            raise cannot_write(file.path, error, self._where, kept) from error
        finally:
            if not is_complete:
                file.cut(0)
            self._files.finish(file, may_be_empty=False)
        log.info("%s: %s has the seconds around %s", self._where, file.path, what.cause)
        if what.is_left:
            _remove(what.paths)


def _left_in(ring: Files) -> Iterator[Sequence[Path]]:
    """Yield the parts that processes which have ended left in a ring, in their order, for each run."""
    runs: dict[str, list[tuple[int, Path]]] = {}
    for path in written_by(ring.pattern, ()):
        if not _has_writer(path):
            with suppress(ArtifactError):  # it was killed before the first chunk; the ring removes the file
                head = head_of(path)
                runs.setdefault(head["run"], []).append((head["part"], path))
    for parts in runs.values():
        yield tuple(path for _, path in sorted(parts))


def _has_writer(path: Path) -> bool:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return not lock(descriptor)
        finally:
            os.close(descriptor)
    return False


def _remove(paths: Sequence[Path]) -> None:
    """Remove parts, and their folder where it is empty."""
    with suppress(OSError):  # one that was removed already; or another process has parts in the folder
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            folder.rmdir()
