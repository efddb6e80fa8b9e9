"""A task of a pipeline: one source or stage, and four records of how it is wired, run, allowed to fail, and doing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from edgert.clock import Clock
from edgert.policy import OnError, Reads, most_under_way
from edgert.runtime.channel import Channel, Inlet
from edgert.runtime.decisions import Journal, TaskJournal
from edgert.runtime.metrics import Meter
from edgert.runtime.records import Result
from edgert.runtime.stage import Source, Stage
from edgert.runtime.throttle import SourceRateLimiter


@dataclass(slots=True, eq=False)
class Wiring:
    """Inputs and outputs of a task, written by the graph at safe points; see :mod:`edgert.runtime.graph`.

    Attributes:
        inlet: what it listens to.
        outlets: one channel per task that listens to this one; replaced by a new tuple when a listener comes or goes.
        streams: per edge of ``inlet``, the streams that arrive on it; none on an edge that was removed.
        producers: per edge of ``inlet``, the task at its other end; None of an edge that was removed.
        joins: whether several edges that carry one stream bring parts of the same frames, to be joined; otherwise
            each brings frames of its own.
        branch: which one of the outlets a result goes to, by number; None: to all.
        reorders: whether a reorder buffer waits for each of its results, one that was lost, too.
        releases_pixels: whether no one behind looks at pixels, so that a frame's lease ends before the task waits for
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
        """Yield every edge that was not removed: the task at its other end, and the channel."""
        for producer, channel in zip(self.producers, self.inlet.channels, strict=True):
            if producer is not None:
                yield producer, channel

    def listens_to(self, task: Task) -> bool:
        """Return whether results of a task come here."""
        return any(producer is task for producer in self.producers)


@dataclass(slots=True, eq=False)
class Execution:
    """Way in which a stage is run, set when the pipeline is assembled.

    Attributes:
        carrier: the task in whose thread this one runs, too; None: it has a thread of its own.
        reads: which pixels the stage looks at; nothing of that where frames are never on a GPU.
        download: makes of a result what the stage gets, such as one on the host, and takes over its hold; None: the
            stage gets it as it is.
        limiter: limits the frames of a source that a governor may throttle; None: all of them go on.
        journal: records what is decided here, for a replay; None: nobody records.
    """

    carrier: Task | None = None
    reads: Reads = "anywhere"
    download: Callable[[Result], Result] | None = None
    limiter: SourceRateLimiter | None = None
    journal: TaskJournal | None = None


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Rules for a stage that fails or hangs.

    Attributes:
        on_error: see :data:`edgert.policy.OnError`.
        at_start: whether that holds for its first opening, too; else the pipeline ends when that fails.
        watchdog_s: a call of it that takes longer is reported; 0: none is.
        remake: makes the stage anew, before it is opened again after a failure; None: the same one is opened.
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
        policy: what holds when the stage fails or hangs.
    """

    name: str
    stage: Source | Stage
    wiring: Wiring = field(default_factory=Wiring)
    execution: Execution = field(default_factory=Execution)
    policy: FailurePolicy = STOPS
    meter: Meter = field(default_factory=Meter)

    @property
    def thread(self) -> Task:
        """The task in whose thread this one runs: itself, mostly."""
        return self.execution.carrier or self

    def limited(self, clock: Clock) -> SourceRateLimiter:
        """Return the limiter of a source's frames, which is made the first time."""
        if self.execution.limiter is None:
            self.execution.limiter = SourceRateLimiter(bool(getattr(self.stage, "live", False)), clock)
        return self.execution.limiter

    def note_in(self, journal: Journal) -> None:
        """Have what is decided in this task noted in a journal, from its start on."""
        self.execution.journal = self.wiring.inlet.journal = TaskJournal(journal, self.name)

    def under_way(self) -> int:
        """Return the most results of one stream that can be between its source and this task, by the slowest path."""
        edges = [(producer.under_way(), channel.capacity) for producer, channel in self.wiring.edges()]
        return most_under_way(edges, self.wiring.joins)
