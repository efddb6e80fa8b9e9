"""Journal of decisions that depend on the timing of threads, so that a replay can repeat them.

Two runs of a pipeline differ only in the following. Each is one entry here:

- which frames a stage received, in which order, and which of them ran together;
- which part of a joined frame came first;
- settings that changed, and stages that were replaced.

Entries are numbered in order. A consumer's entry has a higher number than the entry of the producer whose result it
processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from edgert.runtime.frame import Frame
    from edgert.runtime.records import Result

Kind = Literal["give", "part", "step", "submit", "collect", "fail", "drop", "settings", "replace", "file"]
"""Kind of an entry, in order: a source gave a frame; a part of a frame came to a join; a stage processed a result; an
asynchronous stage received one, or returned ``more`` results; a step failed; a result was lost; settings changed; a
stage or decoder was replaced; the pipeline file was replaced."""

_MAX_ENTRIES = 200_000
"""Maximum number of entries that wait to be written: about a minute of sixteen cameras."""


class Entry(NamedTuple):
    """One decision.

    Attributes:
        number: position in the order of all entries.
        kind: what happened; see :data:`Kind`.
        task: name of the task that decided.
        stream, frame: stream and number of the frame; "" and -1 where the entry is not about a frame.
        at_ns: time by the pipeline's clock.
        more: additional data, depending on the kind; see :class:`TaskJournal`.
    """

    number: int
    kind: Kind
    task: str
    stream: str
    frame: int
    at_ns: int
    more: Any


class Journal:
    """Queue of the entries of all tasks, which one thread reads. Any thread may add entries, without a lock.

    Args:
        settings: function that returns settings that stages read while they run, such as the degradation level.

    Attributes:
        lost: number of entries for which there was no room; a recording can be replayed only up to the first of them.
        pixels: functions that record the images of a source, by stream; called with each frame in the source's thread.
    """

    def __init__(self, settings: Callable[[], tuple[int, ...]] = tuple) -> None:
        self.settings, self.lost = settings, 0
        self.pixels: dict[str, Callable[[Frame], object]] = {}
        self._entries, self._numbers = deque[Entry](), count()

    def add(self, kind: Kind, task: str, stream: str, frame: int, at_ns: int, more: Any = None) -> None:
        """Add an entry with the next number."""
        if len(self._entries) >= _MAX_ENTRIES:
            self.lost += 1
            return
        self._entries.append(Entry(next(self._numbers), kind, task, stream, frame, at_ns, more))

    def take(self) -> list[Entry]:
        """Remove and return all entries so far. A later call may return an entry with a lower number."""
        return [self._entries.popleft() for _ in range(len(self._entries))]


class TaskJournal:
    """Journal of one task. Called by the thread that calls the stage, except for :meth:`drop`.

    Args:
        journal: journal of the pipeline.
        task: name of the task.
    """

    def __init__(self, journal: Journal, task: str) -> None:
        self._journal, self._task = journal, task
        self._settings: tuple[int, ...] = ()

    def give(self, frames: Iterable[Frame], at_ns: int) -> None:
        """Record frames of a source; ``more`` has the frame's properties without its pixels."""
        journal = self._journal
        for frame in frames:
            more = frame.timestamp_ns, frame.media_ns, frame.extra.sender_ns, frame.width, frame.height
            journal.add("give", self._task, frame.stream, frame.index, at_ns, more)
            if (record := journal.pixels.get(frame.stream)) is not None:
                record(frame)

    def part(self, producer: str, result: Result) -> None:
        """Record that a part of a frame arrived at a join; ``more`` is the name of the producer."""
        frame = result.frame
        self._journal.add("part", self._task, frame.stream, frame.index, frame.timestamp_ns, producer)

    def work(self, kind: Literal["step", "submit"], stage: object, results: Sequence[Result], at_ns: int) -> None:
        """Record the results that a stage is about to process, after the settings where these changed."""
        journal, task = self._journal, self._task
        settings = (getattr(stage, "every", 0), *journal.settings())
        if settings != self._settings:
            self._settings = settings
            journal.add("settings", task, "", -1, at_ns, settings)
        for result in results:
            journal.add(kind, task, result.frame.stream, result.frame.index, at_ns)

    def collect(self, count: int, at_ns: int) -> None:
        """Record that an asynchronous stage returned results together; ``more`` is their number."""
        self._journal.add("collect", self._task, "", -1, at_ns, count)

    def fail(self, results: Iterable[Result], at_ns: int) -> None:
        """Record results that were lost because the stage failed on them or was down."""
        for result in results:
            self._journal.add("fail", self._task, result.frame.stream, result.frame.index, at_ns)

    def drop(self, frame: Frame, cause: str) -> None:
        """Record that a result was lost before it reached the task; ``more`` is the cause. Callable from any thread."""
        self._journal.add("drop", self._task, frame.stream, frame.index, frame.timestamp_ns, cause)

    def replace(self, at_ns: int) -> None:
        """Record that the stage or its decoder was replaced."""
        self._journal.add("replace", self._task, "", -1, at_ns)
