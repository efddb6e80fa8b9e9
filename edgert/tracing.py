"""Recorder of what the threads of a pipeline do: a ring of plain tuples for each thread, written without a lock.

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
from typing import Any, Protocol

from edgert.errors import StageError

Event = tuple[str, int, int, str, str, int, Any]
"""Kind, begin and end in nanoseconds of the pipeline's clock, name, stream, number of the frame, and what else belongs.

Kinds and what is last in them: ``give``, a source made a frame: its capture time; ``step``, a stage worked on one;
``submit`` and ``collect`` of an asynchronous stage: (stream, frame) of all results; ``put``, a result waits for the
named stage: the number of the edge; ``room``, a thread waited until there was room before the named stage; ``drop``:
the cause; ``fail``: the error; ``part``, some work within a step; ``copy``: bytes; ``gpu``: number of images;
``operation``: by whom, and what came of it; ``governor``: why."""

AnyFrame = Any
"""A :class:`edgert.runtime.Frame`; this module is below it."""
SIZE = 1 << 15
"""Events that a ring keeps: about five megabytes, and four minutes of a stage at 30 frames a second."""
_MOST_RINGS = 256


class Ring:
    """Ring of the newest events of one thread. Only that thread adds events.

    Attributes:
        events: event ``n`` is at place ``n`` modulo :data:`SIZE`; None where there is none yet.
        count: the number of events ever added.
        thread: the thread's name.
        thread_id: the thread's number in the kernel.
        now_ns: returns the time of the pipeline's clock, in nanoseconds.
    """

    __slots__ = ("count", "events", "now_ns", "thread", "thread_id")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.events: list[Event | None] = [None] * SIZE
        self.count, self.now_ns = 0, now_ns
        self.thread, self.thread_id = threading.current_thread().name, threading.get_native_id()

    def add(self, event: Event) -> None:
        """Add an event; where the ring is full, it replaces the oldest."""
        self.events[self.count % SIZE] = event
        self.count += 1

    def part(self, name: str, began_ns: int) -> int:
        """Add a part of a step that ends now; return the time."""
        now_ns = self.now_ns()
        self.add(("part", began_ns, now_ns, name, "", -1, None))
        return now_ns

    def copied(self, nbytes: int) -> None:
        """Add a copy that was made just now."""
        now_ns = self.now_ns()
        self.add(("copy", now_ns, now_ns, "copy", "", -1, nbytes))

    def since(self, count: int) -> tuple[int, list[Event]]:
        """Return how many events there were by now, and those behind the first ``count``; from any thread."""
        end = self.count
        events = self.events[:]
        return end, [one for n in range(max(count, end - SIZE), end) if (one := events[n % SIZE]) is not None]


class _Here(threading.local):
    """What the current thread records in.

    Attributes:
        ring: while it is in a step of a pipeline that is recorded; None at all other times.
    """

    ring: Ring | None = None


HERE = _Here()


class Sampler(Protocol):
    """Chooser of frames whose way is exported, and taker of errors. Any thread may call it."""

    def give(self, frame: Any, now_ns: int) -> object:
        """Choose a frame of a source, or not."""

    def fail(self, frame: Any, task: str, error: str, now_ns: int) -> object:
        """Take an error of a task, on a frame or on none."""


class Recorder:
    """Rings of all threads of one pipeline.

    Args:
        now_ns: of the pipeline's clock.
        marks: of a profiler, that gets the same steps; None: there is none.

    Attributes:
        rings: of every thread that has added an event.
        lost: events of threads that got no ring, as there were too many.
        sampler: gets each frame of a source, and each error; None: nobody wants them.
    """

    def __init__(self, now_ns: Callable[[], int], marks: _NvtxMarks | None = None) -> None:
        self.now_ns, self.marks, self.lost = now_ns, marks, 0
        self.rings: list[Ring] = []
        self.sampler: Sampler | None = None
        self._own = _Here()
        self._last = Ring(now_ns)  # of the threads that get none: nobody reads it

    def ring(self) -> Ring:
        """Return the ring of the current thread."""
        ring = self._own.ring
        if ring is None:
            if len(self.rings) >= _MOST_RINGS:
                self.lost += 1
                return self._last
            ring = self._own.ring = Ring(self.now_ns)
            self.rings.append(ring)
        return ring


class TaskTrace:
    """Recorder of one task. Every method is called by the thread that does what is recorded.

    Args:
        recorder: of the pipeline.
        task: its name.
    """

    __slots__ = ("_marks", "_recorder", "_task", "now_ns")

    def __init__(self, recorder: Recorder, task: str) -> None:
        self._recorder, self._task, self._marks, self.now_ns = recorder, task, recorder.marks, recorder.now_ns

    def begin(self) -> Ring:
        """Note that a step begins in this thread; return the thread's ring, which :meth:`end` gets."""
        ring = HERE.ring = self._recorder.ring()
        if self._marks is not None:
            self._marks.push(self._task)
        return ring

    def end(self, ring: Ring, kind: str, began_ns: int, ended_ns: int, frame: AnyFrame, more: Any = None) -> None:
        """Note what the step did, and on which frame."""
        HERE.ring = None
        if self._marks is not None:
            self._marks.pop()
        ring.add((kind, began_ns, ended_ns, self._task, frame.stream, frame.index, more))

    def end_all(self, ring: Ring, kind: str, began_ns: int, ended_ns: int, frames: Sequence[AnyFrame]) -> None:
        """Note a step on several frames, or on none, of which nothing but the end is noted."""
        if frames:
            self.end(ring, kind, began_ns, ended_ns, frames[0], [(one.stream, one.index) for one in frames])
            return
        HERE.ring = None
        if self._marks is not None:
            self._marks.pop()

    def collected(self, at_ns: int, frames: Sequence[AnyFrame]) -> None:
        """Note frames that came out of the stage at once, when it took others."""
        about = [(one.stream, one.index) for one in frames]
        self._recorder.ring().add(("collect", at_ns, at_ns, self._task, *about[0], about))

    def more(self, kind: str, began_ns: int, ended_ns: int, frame: AnyFrame) -> None:
        """Note further work on a frame, behind the end of its step."""
        self._recorder.ring().add((kind, began_ns, ended_ns, self._task, frame.stream, frame.index, None))

    def give(self, frames: Iterable[AnyFrame], made_ns: int, worked_ns: int) -> None:
        """Note frames of a source, and the work that they took together."""
        ring, sampler = self._recorder.ring(), self._recorder.sampler
        for frame in frames:
            if sampler is not None:
                sampler.give(frame, made_ns)
            own = frame.stream, frame.index, frame.timestamp_ns
            ring.add(("give", made_ns - worked_ns, made_ns, self._task, *own))
            worked_ns = 0

    def put(self, frame: AnyFrame, edge: int) -> None:
        """Note that a result is about to wait on an edge of the task."""
        now_ns = self.now_ns()
        self._recorder.ring().add(("put", now_ns, now_ns, self._task, frame.stream, frame.index, edge))

    def room(self, began_ns: int) -> None:
        """Note that this thread waited until there was room before the task."""
        self._recorder.ring().add(("room", began_ns, self.now_ns(), self._task, "", -1, None))

    def drop(self, frame: AnyFrame, cause: str) -> None:
        """Note that a result was lost on its way to the task, and why."""
        now_ns = self.now_ns()
        self._recorder.ring().add(("drop", now_ns, now_ns, self._task, frame.stream, frame.index, cause))

    def fail(self, frames: Iterable[AnyFrame], error: str) -> None:
        """Note frames that the task failed on."""
        now_ns, ring, sampler, failed = self.now_ns(), self._recorder.ring(), self._recorder.sampler, [*frames]
        for frame in failed:
            ring.add(("fail", now_ns, now_ns, self._task, frame.stream, frame.index, error))
        if sampler is not None:
            for frame in failed:
                sampler.fail(frame, self._task, error, now_ns)
            if not failed:
                sampler.fail(None, self._task, error, now_ns)


# What was recorded, as plain data: what is written to files, sent to clients, and drawn.


@dataclass(frozen=True, slots=True)
class ThreadEvents:
    """Events of one thread.

    Attributes:
        name: the thread's name.
        thread_id: the thread's number in the kernel; 0 where it is no thread.
        events: events in the order of their ends.
        lost: number of older events that the ring no longer has.
    """

    name: str
    thread_id: int
    events: Sequence[Event]
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recorded events of a pipeline, from one time to another.

    Attributes:
        pipeline: the pipeline's name.
        process: number of its process.
        began_ns, ended_ns: times by the pipeline's clock.
        day_ns: nanoseconds since the epoch at time 0 of that clock.
        threads: events by thread.
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
    """Window of a recording, from its construction to :meth:`end`."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._before = {id(ring): ring.count for ring in recorder.rings}
        self._lost, self._began_ns = recorder.lost, recorder.now_ns()

    def end(self, pipeline: str, label: str = "", more: Iterable[ThreadEvents] = ()) -> Recorded:
        """Return the events of the window.

        Args:
            pipeline: the pipeline's name.
            label: note on times that are not this machine's.
            more: events of other recorders, such as the governor; those outside the window are left out.
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
        record: sets the recorder of all tasks; None: they record nothing.
        now_ns: returns the time of the pipeline's clock, in nanoseconds.
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
        """Record from now on until the block ends.

        Raises:
            StageError: another window is open.
        """
        with self._turn:
            if self._is_watched:
                why = "one at a time, as each holds what it records in memory"
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
    """Ranges of NVTX, as Nsight Systems shows them."""

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
    """Return the ranges of NVTX where its package is installed and not turned off by NVTX_DISABLE."""
    if find_spec("nvtx") is None:
        return None
    import nvtx

    return _NvtxMarks(nvtx) if nvtx.enabled() else None
