"""A task of a pipeline: one source or stage, and records of its wiring, execution, failure policy and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edgert.clock import Clock
from edgert.policy import OnError, Reads, most_under_way
from edgert.runtime.channel import Channel, Inlet
from edgert.runtime.decisions import Journal, TaskJournal
from edgert.runtime.frame import Frame
from edgert.runtime.metrics import Meter
from edgert.runtime.records import Result
from edgert.runtime.stage import Source, Stage
from edgert.runtime.throttle import SourceRateLimiter
from edgert.tracing import Recorder, TaskTrace


@dataclass(slots=True, eq=False)
class Wiring:
    """Inputs and outputs of a task, written by the graph at safe points; see :mod:`edgert.runtime.graph`.

    Attributes:
        inlet: its input.
        outlets: one channel per task that listens to this one; replaced by a new tuple when a listener comes or goes.
        streams: per edge of ``inlet``, the streams that arrive on it; none for a removed edge.
        producers: per edge of ``inlet``, the task at its other end; None for a removed edge.
        joins: whether edges that carry one stream bring parts of the same frames, to be joined; else each edge brings
            separate frames.
        branch: returns the number of the outlet that a result goes to; None: it goes to all.
        reorders: whether a reorder buffer waits for each of its results, lost ones included.
        releases_pixels: whether no later stage reads pixels, so that a frame's lease ends before the task waits for
            room.
    """

    inlet: Inlet = field(default_factory=Inlet)
    outlets: tuple[Channel, ...] = ()
    streams: list[frozenset[str]] = field(default_factory=list)
    producers: list[Task | None] = field(default_factory=list)
    joins: bool = True
    branch: Callable[[Result], int] | None = None
    reorders: bool = False
    releases_pixels: bool = False

    def edges(self) -> Iterator[tuple[Task, Channel]]:
        """Yield each edge that was not removed: its producer and its channel."""
        for producer, channel in zip(self.producers, self.inlet.channels, strict=True):
            if producer is not None:
                yield producer, channel

    def listens_to(self, task: Task) -> bool:
        """Return whether this task gets results of ``task``."""
        return any(producer is task for producer in self.producers)


@dataclass(slots=True, eq=False)
class Execution:
    """How a stage is run; set when the pipeline is assembled.

    Attributes:
        carrier: the task in whose thread this one runs; None: it has a separate thread.
        reads: which pixels the stage reads; unused where frames are never on a GPU.
        download: converts a result for the stage, such as to the host, and takes over its hold; None: the stage gets it
            unchanged.
        limiter: limits the frames of a source that a governor may throttle; None: no frames are held back.
        journal: records the task's decisions for a replay; None: nothing is recorded.
        trace: records when things are done here; None: nothing is recorded. It comes and goes while the task runs.
    """

    carrier: Task | None = None
    reads: Reads = "anywhere"
    download: Callable[[Result], Result] | None = None
    limiter: SourceRateLimiter | None = None
    journal: TaskJournal | None = None
    trace: TaskTrace | None = None


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Policy for a stage that fails or hangs.

    Attributes:
        on_error: see :data:`edgert.policy.OnError`.
        at_start: whether ``on_error`` also holds for its first opening; else the pipeline ends when that fails.
        watchdog_s: seconds after which a call of the stage is reported; 0: never.
        remake: makes a new stage before it is opened again after a failure; None: the same one is opened.
    """

    on_error: OnError = "stop"
    at_start: bool = False
    watchdog_s: float = 0.0
    remake: Callable[[], Stage] | None = None


STOPS = FailurePolicy()
"""Any failure ends the pipeline."""


@dataclass(slots=True, eq=False)
class Task:
    """A source or stage of a pipeline, and its records.

    Attributes:
        name: unique in its pipeline.
        policy: policy for a stage that fails or hangs.
    """

    name: str
    stage: Source | Stage
    wiring: Wiring = field(default_factory=Wiring)
    execution: Execution = field(default_factory=Execution)
    policy: FailurePolicy = STOPS
    meter: Meter = field(default_factory=Meter)

    @property
    def thread(self) -> Task:
        """The task in whose thread this one runs; usually itself."""
        return self.execution.carrier or self

    def limited(self, clock: Clock) -> SourceRateLimiter:
        """Return the limiter of a source's frames; make it the first time."""
        if self.execution.limiter is None:
            self.execution.limiter = SourceRateLimiter(bool(getattr(self.stage, "live", False)), clock)
        return self.execution.limiter

    def note_in(self, journal: Journal) -> None:
        """Record the decisions of this task in a journal. Call it before the start."""
        self.execution.journal = self.wiring.inlet.journal = TaskJournal(journal, self.name)

    def trace_in(self, recorder: Recorder | None) -> None:
        """Record what this task does from now on; None: no more. Any thread may call it."""
        self.execution.trace = self.wiring.inlet.trace = None if recorder is None else TaskTrace(recorder, self.name)

    def drop(self, frame: Frame, cause: str) -> None:
        """Note that a frame is lost here, where that is recorded."""
        if self.execution.journal is not None:
            self.execution.journal.drop(frame, cause)
        if (trace := self.execution.trace) is not None:
            trace.drop(frame, cause)

    def under_way(self) -> int:
        """Return the most results of one stream that can be in flight between its source and this task."""
        edges = [(producer.under_way(), channel.capacity) for producer, channel in self.wiring.edges()]
        return most_under_way(edges, self.wiring.joins)
