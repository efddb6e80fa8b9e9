"""Recorder of a pipeline's threads: a ring of plain tuples for each thread, written without a lock.

While nothing is recorded, tasks have no :class:`TaskTrace`, and threads have no ring in :data:`HERE`. A test for None
is then the only cost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from edgert.errors import StageError

Event = tuple[str, int, int, str, str, int, Any]
"""Kind, begin and end in nanoseconds of the pipeline's clock, name, stream, frame index, and a detail.

Details by kind: ``give``, a source made a frame: its capture time. ``step``, a stage worked on a frame: None.
``submit`` and ``collect`` of an asynchronous stage: (stream, frame index) of all results. ``put``, a result begins to
wait for the named stage: number of the edge. ``room``, a thread waited for room before the named stage: None. ``drop``:
cause. ``fail``: error. ``part``, work within a step: None. ``copy``: bytes. ``gpu``: number of images. ``operation``:
client and outcome. ``governor``: reason."""

AnyFrame = Any
"""A :class:`edgert.runtime.Frame`, which this module may not import."""
SIZE = 1 << 15
"""Capacity of a ring in events: about 5 MB, and four minutes of a stage at 30 frames a second."""
_MOST_RINGS = 256


class Ring:
    """Ring of the newest events of one thread. Only that thread adds events.

    Attributes:
        events: event ``n`` at index ``n`` modulo :data:`SIZE`; None where there is none yet.
        count: number of events ever added.
        thread_id: the kernel's id of the thread.
        now_ns: function that returns the time of the pipeline's clock in nanoseconds.
    """

    __slots__ = ("count", "events", "now_ns", "thread", "thread_id")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.events: list[Event | None] = [None] * SIZE
        self.count, self.now_ns = 0, now_ns
        self.thread, self.thread_id = threading.current_thread().name, threading.get_native_id()

    def add(self, event: Event) -> None:
        """Add an event; in a full ring, replace the oldest."""
        self.events[self.count % SIZE] = event
        self.count += 1

    def part(self, name: str, began_ns: int) -> int:
        """Add a part of a step that ends now; return the time."""
        now_ns = self.now_ns()
        self.add(("part", began_ns, now_ns, name, "", -1, None))
        return now_ns

    def copied(self, nbytes: int) -> None:
        """Add a copy that was just made."""
        now_ns = self.now_ns()
        self.add(("copy", now_ns, now_ns, "copy", "", -1, nbytes))

    def since(self, count: int) -> tuple[int, list[Event]]:
        """Return the number of events so far, and those after the first ``count``. Any thread may call it."""
        end = self.count
        events = self.events[:]
        return end, [one for n in range(max(count, end - SIZE), end) if (one := events[n % SIZE]) is not None]


class _Here(threading.local):
    """State of the current thread.

    Attributes:
        ring: ring to record in during a step of a recorded pipeline; None at all other times.
    """

    ring: Ring | None = None


HERE = _Here()


class Recorder:
    """The rings of all threads of one pipeline.

    Args:
        now_ns: function that returns the time of the pipeline's clock in nanoseconds.
        marks: ranges of a profiler, for the same steps; None: there is none.

    Attributes:
        rings: rings of all threads that have added an event.
        lost: number of events of threads without a ring, because there are too many threads.
        sampler: :class:`edgert.timeline.telemetry.Sampler`, which gets frames of sources and errors; None without one.
    """

    def __init__(self, now_ns: Callable[[], int], marks: _NvtxMarks | None = None) -> None:
        self.now_ns, self.marks, self.lost = now_ns, marks, 0
        self.rings: list[Ring] = []
        self.sampler: Any = None
        self._own = _Here()
        self._unread = Ring(now_ns)  # shared by threads beyond the limit; nobody reads it

    def ring(self) -> Ring:
        """Return the ring of the current thread."""
        ring = self._own.ring
        if ring is None:
            if len(self.rings) >= _MOST_RINGS:
                self.lost += 1
                return self._unread
            ring = self._own.ring = Ring(self.now_ns)
            self.rings.append(ring)
        return ring


class TaskTrace:
    """Recorder of one task. Every method is called by the thread that does the recorded work."""

    __slots__ = ("_marks", "_recorder", "_task", "now_ns")

    def __init__(self, recorder: Recorder, task: str) -> None:
        self._recorder, self._task, self._marks, self.now_ns = recorder, task, recorder.marks, recorder.now_ns

    def begin(self) -> Ring:
        """Begin a step in this thread; return the thread's ring, for :meth:`end`."""
        ring = HERE.ring = self._recorder.ring()
        if self._marks is not None:
            self._marks.push(self._task)
        return ring

    def end(self, ring: Ring, kind: str, began_ns: int, ended_ns: int, frame: AnyFrame, more: Any = None) -> None:
        """End the step, and record it with its frame."""
        HERE.ring = None
        if self._marks is not None:
            self._marks.pop()
        ring.add((kind, began_ns, ended_ns, self._task, frame.stream, frame.index, more))

    def end_all(self, ring: Ring, kind: str, began_ns: int, ended_ns: int, frames: Sequence[AnyFrame]) -> None:
        """End the step, and record it with its frames; record nothing without frames."""
        if frames:
            self.end(ring, kind, began_ns, ended_ns, frames[0], [(one.stream, one.index) for one in frames])
            return
        HERE.ring = None
        if self._marks is not None:
            self._marks.pop()

    def collected(self, at_ns: int, frames: Sequence[AnyFrame]) -> None:
        """Record frames that the stage returned at once, when it took others."""
        about = [(one.stream, one.index) for one in frames]
        self._recorder.ring().add(("collect", at_ns, at_ns, self._task, *about[0], about))

    def more(self, kind: str, began_ns: int, ended_ns: int, frame: AnyFrame) -> None:
        """Record further work on a frame, after the end of its step."""
        self._recorder.ring().add((kind, began_ns, ended_ns, self._task, frame.stream, frame.index, None))

    def give(self, frames: Iterable[AnyFrame], made_ns: int, worked_ns: int) -> None:
        """Record frames of a source, and their work, which counts for the first."""
        ring, sampler = self._recorder.ring(), self._recorder.sampler
        for frame in frames:
            if sampler is not None:
                sampler.sample(frame, made_ns)
            own = frame.stream, frame.index, frame.timestamp_ns
            ring.add(("give", made_ns - worked_ns, made_ns, self._task, *own))
            worked_ns = 0

    def put(self, frame: AnyFrame, edge: int) -> None:
        """Record that a result begins to wait on an edge of the task."""
        now_ns = self.now_ns()
        self._recorder.ring().add(("put", now_ns, now_ns, self._task, frame.stream, frame.index, edge))

    def room(self, began_ns: int) -> None:
        """Record that this thread waited for room before the task."""
        self._recorder.ring().add(("room", began_ns, self.now_ns(), self._task, "", -1, None))

    def drop(self, frame: AnyFrame, cause: str) -> None:
        """Record that a result was lost before the task, with the cause."""
        now_ns = self.now_ns()
        self._recorder.ring().add(("drop", now_ns, now_ns, self._task, frame.stream, frame.index, cause))

    def fail(self, frames: Iterable[AnyFrame], error: str) -> None:
        """Record an error of the task, with its frames."""
        now_ns, ring, sampler, failed = self.now_ns(), self._recorder.ring(), self._recorder.sampler, [*frames]
        for frame in failed:
            ring.add(("fail", now_ns, now_ns, self._task, frame.stream, frame.index, error))
        if sampler is not None:
            for frame in failed or [None]:
                sampler.add_error(frame, self._task, error, now_ns)


# Recordings as plain data.


@dataclass(frozen=True, slots=True)
class ThreadEvents:
    """Events of one thread.

    Attributes:
        thread_id: the kernel's id of the thread; 0 where it is no thread.
        events: events in the order of their ends.
        lost: number of older events that the ring no longer has.
    """

    name: str
    thread_id: int
    events: Sequence[Event]
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording: the events of a pipeline in a period.

    Attributes:
        began_ns, ended_ns: ends of the period, by the pipeline's clock.
        day_ns: nanoseconds since the epoch at time 0 of that clock.
        label: note on times that are not this machine's; empty for none.
    """

    pipeline: str
    process: int
    began_ns: int
    ended_ns: int
    day_ns: int
    threads: Sequence[ThreadEvents]
    label: str = ""

    @property
    def lost(self) -> int:
        """Number of events that the rings no longer have."""
        return sum(thread.lost for thread in self.threads)


class Window:
    """The period of a recording, from the construction to :meth:`end`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._before = {id(ring): ring.count for ring in recorder.rings}
        self._lost, self._began_ns = recorder.lost, recorder.now_ns()

    def end(self, pipeline: str, label: str = "", more: Iterable[ThreadEvents] = ()) -> Recorded:
        """Return the recording.

        Args:
            pipeline: name of the pipeline.
            label: note on times that are not this machine's.
            more: other events, such as the governor's; those outside of the period are left out.
        """
        recorder, began_ns, ended_ns = self._recorder, self._began_ns, self._recorder.now_ns()
        threads = []
        for ring in recorder.rings[:]:
            before = self._before.get(id(ring), 0)
            end, events = ring.since(before)
            if events:
                threads.append(ThreadEvents(ring.thread, ring.thread_id, events, end - before - len(events)))
        if recorder.lost > self._lost:
            threads.append(ThreadEvents("further threads", 0, (), recorder.lost - self._lost))
        for one in more:
            if events := [event for event in one.events if began_ns <= event[1] <= ended_ns]:
                threads.append(ThreadEvents(one.name, one.thread_id, events, one.lost))
        day_ns = time.time_ns() - ended_ns
        return Recorded(pipeline, os.getpid(), began_ns, ended_ns, day_ns, threads, label)


class Tracing:
    """The recorder of one pipeline, shared by its users, from the first :meth:`begin` to the last :meth:`end`.

    Args:
        record: function that sets the recorder of all tasks; with None, they record nothing.
        now_ns: function that returns the time of the pipeline's clock in nanoseconds.
    """

    def __init__(self, record: Callable[[Recorder | None], object], now_ns: Callable[[], int]) -> None:
        self._record, self._now_ns = record, now_ns
        self._turn, self._users = threading.Lock(), 0
        self._is_watched = False
        self.recorder: Recorder | None = None

    def begin(self) -> Recorder:
        """Return the recorder; the first user starts it. Each call needs one :meth:`end`."""
        with self._turn:
            self._users += 1
            if self.recorder is None:
                self.recorder = Recorder(self._now_ns, profiler_marks())
                self._record(self.recorder)
            return self.recorder

    def end(self) -> None:
        """End one use of the recorder; the last user stops it."""
        with self._turn:
            self._users -= 1
            if not self._users:
                self._record(None)
                self.recorder = None

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Record until the end of the block. Raises StageError during another recording."""
        with self._turn:
            if self._is_watched:
                why = "only one is recorded at a time, because it is held in memory"
                raise StageError("a trace is under way", why=why, fix="try again when it is over")
            self._is_watched = True
        try:
            recorder = self.begin()
            try:
                yield Window(recorder)
            finally:
                self.end()
        finally:
            self._is_watched = False


class _NvtxMarks:
    """Ranges of NVTX, which Nsight Systems shows."""

    def __init__(self, nvtx: Any) -> None:
        self._domain, self._known = nvtx.get_domain("edgert"), dict[str, Any]()

    def push(self, name: str) -> None:
        """Begin a range in the current thread."""
        if name not in self._known:
            self._known[name] = self._domain.get_event_attributes(message=name)
        self._domain.push_range(self._known[name])

    def pop(self) -> None:
        """End the newest range of the current thread."""
        self._domain.pop_range()


def profiler_marks() -> _NvtxMarks | None:
    """Return the ranges of NVTX; None where its package is not installed, or disabled by NVTX_DISABLE."""
    if find_spec("nvtx") is None:
        return None
    import nvtx

    return _NvtxMarks(nvtx) if nvtx.enabled() else None
