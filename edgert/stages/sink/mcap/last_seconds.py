"""The last seconds of a run, in a ring of files on the disk, which become one file when something happens."""

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
from edgert.files import try_lock
from edgert.recording.recording import has_frames, head_of, join_parts
from edgert.stages.sink.output_file import Files, cannot_write, sync_file
from edgert.stages.sink.retention import matching_files

log = logging.getLogger("edgert.sink")

LONGEST_S = 300.0
"""Longest moment, where one event follows another; the next event begins another moment."""
_SAME_FAILURE_S = 10.0
"""Time within which errors of a stage count as one failure."""
_WORK_S = 0.05
"""Time for joining files between two chunks of the recording."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """A moment to keep: its parts in order, what happened, and whether an earlier process left the parts."""

    paths: Sequence[Path]
    cause: str
    is_left: bool


class LastSeconds:
    """The ring of parts, and the moments that are kept of it. For use in the thread that records.

    Args:
        files: files of the kept moments.
        ring: files of the ring, whose rules remove parts that are older than the seconds to keep.
        after_s: seconds to record after an event.
        rules: rules whose events are kept; all where empty.
    """

    def __init__(self, where: str, files: Files, ring: Files, after_s: float, rules: Sequence[str]) -> None:
        self.ring, self._where, self._files, self._after_s, self._rules = ring, where, files, after_s, rules
        self._parts = dict[Path, float]()  # with the time when each was finished
        self._from_s = self._until_s = self._limit_s = 0.0
        self._cause = ""
        self._failing: dict[str, float] = {}
        self._waiting = deque[_Moment]()
        self._joining: Iterator[None] | None = None

    def open(self) -> None:
        """Check both folders, and queue the parts that an earlier process left in the ring.

        Raises StageError where a folder cannot be written.
        """
        self._files.check()
        self.ring.check()
        self._parts, self._cause = {}, ""
        for paths in _left_in(self.ring):
            self._waiting.append(_Moment(paths, "the sudden end of the run before", is_left=True))

    def take_event(self, rule: str) -> None:
        """Keep the seconds around the beginning of an event, if its rule is among the rules."""
        if not self._rules or rule in self._rules:
            self._keep(f"an event of rule {rule!r}")

    def take_failure(self, task: str) -> None:
        """Keep the seconds around a failure of a stage, unless it failed just before."""
        now_s, before_s = time.monotonic(), self._failing.get(task, -_SAME_FAILURE_S)
        self._failing[task] = now_s
        if now_s - before_s >= _SAME_FAILURE_S:
            self._keep(f"a failure of stage {task!r}")

    def _keep(self, cause: str) -> None:
        now_s = time.monotonic()
        if not self._cause:
            self._cause, self._from_s, self._limit_s = cause, now_s - self.ring.rules.keep_s, now_s + LONGEST_S
        self._until_s = min(now_s + self._after_s, self._limit_s)

    @property
    def is_over(self) -> bool:
        """Whether a moment has ended, so that its last part must be finished."""
        return bool(self._cause) and time.monotonic() >= self._until_s

    def part_finished(self, path: Path) -> None:
        """Take a finished part; queue the moment that ends with it."""
        self._parts = {one: at_s for one, at_s in self._parts.items() if one.exists()} | {path: time.monotonic()}
        if self.is_over:
            self._queue_moment()

    def _queue_moment(self) -> None:
        paths = tuple(path for path, finished_s in self._parts.items() if finished_s >= self._from_s)
        self._waiting.append(_Moment(paths, self._cause, is_left=False))
        self._cause = ""

    def advance(self) -> None:
        """Join parts for up to 0.05 s; remove old files. Raises StageError where the disk is full."""
        until_s = time.monotonic() + _WORK_S
        while self._join_some() and time.monotonic() < until_s:
            pass
        if not self._cause and not self._waiting and self._joining is None:
            self.ring.remove_old()
        self._files.remove_old()

    def make_room(self) -> bool:
        """Remove an old moment, else the oldest part of the ring; return whether there was one."""
        return self._files.make_room() or self.ring.make_room()

    def close(self, has_frames: bool) -> None:
        """Keep the last moment, and remove the ring.

        Args:
            has_frames: whether any frame was recorded.

        Raises:
            StageError: the disk is full; the ring stays then.
        """
        self._keep("the end of the run")
        if has_frames and self._parts:
            self._queue_moment()
        try:
            while self._join_some():
                pass
            _remove(tuple(self._parts))
        finally:
            self._parts, self._cause = {}, ""
            self._files.close()
            self.ring.close()

    def _join_some(self) -> bool:
        """Write one more chunk; return whether there is more to join."""
        if self._joining is None and self._waiting:
            self._joining = self._join(self._waiting.popleft())
        if self._joining is not None:
            with suppress(StopIteration):
                next(self._joining)
                return True
            self._joining = None
        return bool(self._waiting)

    def _join(self, moment: _Moment) -> Iterator[None]:
        """Write the parts of a moment as one file, yielding after each chunk. Raises StageError."""
        try:
            if moment.is_left and not any(map(has_frames, moment.paths)):
                return _remove(moment.paths)
        except ArtifactError as error:  # the ring removes them later, like its own
            log.warning("%s: the last seconds of a run before are lost: %s", self._where, error)
            return None
        file, is_complete = self._files.begin(""), False
        try:
            for data in join_parts(moment.paths, f"edgert {__version__}"):
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
        log.info("%s: %s has the seconds around %s", self._where, file.path, moment.cause)
        if moment.is_left:
            _remove(moment.paths)


def _left_in(ring: Files) -> Iterator[Sequence[Path]]:
    """Yield, for each run of a process that has ended, the parts that it left in a ring, in order."""
    runs: dict[str, list[tuple[int, Path]]] = {}
    for path in matching_files(ring.pattern, ()):
        if not _has_writer(path):
            with suppress(ArtifactError):  # killed before the first chunk; the ring removes the file
                head = head_of(path)
                runs.setdefault(head["run"], []).append((head["part"], path))
    for parts in runs.values():
        yield tuple(path for _, path in sorted(parts))


def _has_writer(path: Path) -> bool:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return not try_lock(descriptor)
        finally:
            os.close(descriptor)
    return False


def _remove(paths: Sequence[Path]) -> None:
    """Remove parts, and their folder if it is empty."""
    with suppress(OSError):  # another process has parts in the folder
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            folder.rmdir()
