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
        inlet: input of the task.
        outlets: one channel per listening task. The graph replaces the tuple when a listener comes or goes.
        streams: streams that arrive on each edge of ``inlet``; empty for a removed edge.
        producers: task at the other end of each edge of ``inlet``; None for a removed edge.
        joins: whether edges that carry one stream bring parts of the same frames, to be joined; else each edge brings
            separate frames.
        branch: function that returns the number of the outlet for a result; None: each result goes to all outlets.
        reorders: whether a reorder buffer waits for each result of this task, lost ones included.
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
        """Yield the producer and the channel of each edge that was not removed."""
        for producer, channel in zip(self.producers, self.inlet.channels, strict=True):
            if producer is not None:
                yield producer, channel

    def listens_to(self, task: Task) -> bool:
        """Return whether this task receives results of ``task``."""
        return any(producer is task for producer in self.producers)


@dataclass(slots=True, eq=False)
class Execution:
    """How a stage is run; set when the pipeline is assembled.

    Attributes:
        carrier: task in whose thread this one runs; None: it has a separate thread.
        reads: which pixels the stage reads; unused where frames are never on a GPU.
        download: function that copies a result for the stage, such as to the host, and takes over its hold; None: the
            stage gets the result unchanged.
        limiter: rate limiter of a source that a governor may throttle; None: every frame passes.
        journal: journal of the task's decisions for a replay; None: they are not recorded.
        trace: trace of the task's activity; None: it is not recorded. It may be set and removed while the task runs.
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
        on_error: reaction to an error; see :data:`edgert.policy.OnError`.
        at_start: whether ``on_error`` also covers the first opening; else a failure there ends the pipeline.
        watchdog_s: seconds after which a call of the stage is reported as stuck; 0: never.
        remake: function that makes a new stage for a restart; None: the same stage is opened again.
    """

    on_error: OnError = "stop"
    at_start: bool = False
    watchdog_s: float = 0.0
    remake: Callable[[], Stage] | None = None


STOP_ON_FAILURE = FailurePolicy()
"""Policy by which any failure ends the pipeline."""


@dataclass(slots=True, eq=False)
class Task:
    """A source or stage of a pipeline, and its records.

    Attributes:
        name: name of the task, unique in its pipeline.
        policy: reaction to a stage that fails or hangs.
    """

    name: str
    stage: Source | Stage
    wiring: Wiring = field(default_factory=Wiring)
    execution: Execution = field(default_factory=Execution)
    policy: FailurePolicy = STOP_ON_FAILURE
    meter: Meter = field(default_factory=Meter)

    @property
    def thread(self) -> Task:
        """Task in whose thread this one runs; usually itself."""
        return self.execution.carrier or self

    def rate_limiter(self, clock: Clock) -> SourceRateLimiter:
        """Return the rate limiter of this source; create it at the first call."""
        if self.execution.limiter is None:
            self.execution.limiter = SourceRateLimiter(bool(getattr(self.stage, "live", False)), clock)
        return self.execution.limiter

    def use_journal(self, journal: Journal) -> None:
        """Record the decisions of this task in ``journal`` from now on. Call it before the pipeline starts."""
        self.execution.journal = self.wiring.inlet.journal = TaskJournal(journal, self.name)

    def use_recorder(self, recorder: Recorder | None) -> None:
        """Record the activity of this task from now on; None ends the recording. Callable from any thread."""
        self.execution.trace = self.wiring.inlet.trace = None if recorder is None else TaskTrace(recorder, self.name)

    def drop(self, frame: Frame, cause: str) -> None:
        """Record the loss of a frame in the journal and the trace, if there are any."""
        if self.execution.journal is not None:
            self.execution.journal.drop(frame, cause)
        if (trace := self.execution.trace) is not None:
            trace.drop(frame, cause)

    def max_in_flight(self) -> int:
        """Return the most results of one stream that can be in flight between its source and this task."""
        edges = [(producer.max_in_flight(), channel.capacity) for producer, channel in self.wiring.edges()]
        return most_under_way(edges, self.wiring.joins)
