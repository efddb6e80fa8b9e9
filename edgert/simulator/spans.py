"""One second of a simulation in detail: what ran where and when, and the lengths of queues."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from edgert.placement.schedule import Callback, Timeline
from edgert.placement.segment_engines import Step
from edgert.simulator.hardware import ANY_CORE
from edgert.simulator.threads import Channel, Perform

MOST = 6000
"""Maximum number of spans, and of changes of queues, of one second; after it the rest of the second is cut off."""
_LONGER = 1 + 1e-3  # smallest ratio at which a p99 counts as longer


@dataclass(frozen=True, slots=True)
class Span:
    """Interval in which a step ran.

    Attributes:
        where: accelerator or core; ``cpu`` for any free core.
        stage: stage that the step belongs to.
        start_ms, end_ms: times since the simulation began, limited to the recorded second.
        threads: number of cores.
    """

    where: str
    stage: str
    start_ms: float
    end_ms: float
    threads: int = 1


@dataclass(frozen=True, slots=True)
class QueueLengths:
    """Number of results waiting in a queue over time.

    Attributes:
        producer, consumer: nodes that the queue connects.
        capacity: maximum number of results that may wait.
        changes: (time in milliseconds, number from then on), the first one at the beginning.
    """

    producer: str
    consumer: str
    capacity: int
    changes: tuple[tuple[float, int], ...]

    @property
    def most(self) -> int:
        """Maximum number of results at any time."""
        return max(length for _, length in self.changes)


@dataclass(frozen=True, slots=True)
class Second:
    """Recorded second.

    Attributes:
        start_ms, end_ms: times since the simulation began.
        p99_ms: 99th percentile of the latency of its results; None without results.
        spans: spans in the order of their ends.
        queues: lengths of all queues.
        cores: names of the CPU cores.
        is_cut: whether the end is cut off because more happened than can be recorded.
    """

    start_ms: float
    end_ms: float
    p99_ms: float | None
    spans: tuple[Span, ...]
    queues: tuple[QueueLengths, ...]
    cores: tuple[str, ...]
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """Activity of one accelerator or core; spans overlap only on shared cores."""

    name: str
    spans: tuple[Span, ...]


class Recorder:
    """Recorder of one second of a simulation: the second with the longest p99 after the first one.

    Args:
        timeline: simulated time.
        perform: function that runs steps.
        cores: names of the CPU cores.
        most: maximum number of spans, and of changes of queues, of a second.
    """

    def __init__(self, timeline: Timeline, perform: Perform, cores: Sequence[str], most: int = MOST) -> None:
        self._time, self._run_steps, self._cores, self._most = timeline, perform, tuple(cores), most
        self._numbers = count()
        self._running: dict[
            int, tuple[str, Step, float]
        ] = {}  # steps that were queued and have not ended, in this order
        self._free_ms: dict[str, float] = {}  # accelerator → when its last step ended
        self._channels: list[Channel] = []
        self._start_ms, self._cut_ms = 0.0, float("inf")
        self._spans: list[Span] = []
        self._lengths: list[list[tuple[float, int]]] = []
        self._changes = 0
        self._best: Second | None = None
        self._seconds = 0

    def perform_for(self, stage: str) -> Perform:
        """Return a function that runs a stage's steps and records them."""
        return partial(self._perform, stage)

    def watch(self, channels: Iterable[Channel]) -> None:
        """Record the lengths of these queues from now on."""
        for channel in channels:
            channel.on_change = partial(self._record_length, len(self._channels), channel)
            self._channels.append(channel)
        self._begin(self._time.now_ms)

    def end_second(self, at_ms: float, p99_ms: float | None) -> None:
        """Keep the second that ends now if its p99 is the longest so far, and begin the next."""
        if at_ms <= self._start_ms:
            return
        is_worse = self._best is None or (p99_ms or 0.0) > (self._best.p99_ms or 0.0) * _LONGER
        if self._seconds < 2 or is_worse:  # the pipeline starts in the first second
            self._best = self._recorded_second(at_ms, p99_ms)
        self._seconds += 1
        self._begin(at_ms)

    def result(self, now_ms: float) -> Second:
        """Return the kept second, or all recorded so far if no second was over."""
        return self._best or self._recorded_second(now_ms, None)

    def _perform(self, stage: str, steps: Sequence[Step], then: Callback) -> None:
        if not steps:
            self._run_steps((), then)
            return
        first, *rest = steps
        follow = partial(self._perform, stage, rest, then) if rest else then
        if first.accelerator is None:
            self._run_steps((first,), follow)
            return
        number = next(self._numbers)
        self._running[number] = stage, first, self._time.now_ms
        self._run_steps((first,), partial(self._record_span, number, follow))

    def _record_span(self, number: int, then: Callback) -> None:
        stage, step, handed_in_ms = self._running.pop(number)
        end_ms, where = self._time.now_ms, step.accelerator or ""
        if len(self._spans) < self._most:
            self._spans.append(Span(where, stage, self._started(step, handed_in_ms), end_ms, step.threads))
        else:
            self._cut_ms = min(self._cut_ms, self._spans[-1].end_ms)
        self._free_ms[where] = end_ms
        then()

    def _started(self, step: Step, handed_in_ms: float) -> float:
        """Return the time when a step started: on a core at once, on an accelerator after the step before."""
        where = step.accelerator or ""
        waited = where == ANY_CORE or where in self._cores
        return handed_in_ms if waited else max(handed_in_ms, self._free_ms.get(where, 0.0))

    def _record_length(self, number: int, channel: Channel) -> None:
        if self._changes < self._most:
            self._lengths[number].append((self._time.now_ms, len(channel.items)))
            self._changes += 1
        else:
            self._cut_ms = min(self._cut_ms, max(one[-1][0] for one in self._lengths))

    def _begin(self, at_ms: float) -> None:
        self._start_ms, self._cut_ms, self._changes = at_ms, float("inf"), 0
        self._spans = []
        self._lengths = [[(at_ms, len(channel.items))] for channel in self._channels]

    def _recorded_second(self, end_ms: float, p99_ms: float | None) -> Second:
        start_ms, is_cut = self._start_ms, self._cut_ms < end_ms
        end_ms = min(end_ms, self._cut_ms)
        found = [*self._spans, *self._unfinished(end_ms)]
        spans = [
            Span(one.where, one.stage, max(one.start_ms, start_ms), min(one.end_ms, end_ms), one.threads)
            for one in found
            if one.end_ms > start_ms and one.start_ms < end_ms
        ]
        queues = [
            QueueLengths(
                channel.edge.producer,
                channel.consumer.node.name,
                channel.edge.capacity,
                tuple(change for change in changes if change[0] <= end_ms),
            )
            for channel, changes in zip(self._channels, self._lengths, strict=True)
        ]
        return Second(start_ms, end_ms, p99_ms, tuple(spans), tuple(queues), self._cores, is_cut)

    def _unfinished(self, end_ms: float) -> Iterable[Span]:
        """Yield the steps that run at the end; of the steps queued for an accelerator only the first runs."""
        busy: set[str] = set()
        for stage, step, handed_in_ms in self._running.values():
            where = step.accelerator or ""
            is_core = where == ANY_CORE or where in self._cores
            if is_core or where not in busy:
                busy.add(where)
                yield Span(where, stage, self._started(step, handed_in_ms), end_ms, step.threads)


SHARED = "shared"
"""Lane for work that shares cores while more threads work than there are cores."""
_FIRST = ("gpu", "dla0", "dla1", "nvdec", "nvenc")


def lanes(second: Second) -> tuple[Lane, ...]:
    """Return the lanes of accelerators, then of cores; a step for any core is shown on a free one."""
    found: dict[str, list[Span]] = {}
    free_ms = dict.fromkeys(second.cores, 0.0)
    for span in sorted(second.spans, key=lambda one: (one.start_ms, one.end_ms)):
        if span.where != ANY_CORE:
            found.setdefault(span.where, []).append(span)
            if span.where in free_ms:
                free_ms[span.where] = max(free_ms[span.where], span.end_ms)
            continue
        free = [core for core, until_ms in free_ms.items() if until_ms <= span.start_ms + 1e-9][: span.threads]
        for core in free or [SHARED]:
            found.setdefault(core, []).append(span)
            if core in free_ms:
                free_ms[core] = span.end_ms
    others = sorted(set(found) - {*_FIRST, *second.cores, SHARED})
    order = [*_FIRST, *others, *second.cores, SHARED]
    return tuple(Lane(name, tuple(found[name])) for name in sorted(found, key=order.index))
