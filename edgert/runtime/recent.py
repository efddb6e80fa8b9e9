"""Statistics of a pipeline's last minute, by stage, by camera and in total: frames, latencies, and losses by cause.

Every stage counts its results by stream since the start, at almost no cost per frame
(:meth:`edgert.runtime.metrics.Meter.done`). A thread copies these counts every five seconds. The last minute is the
difference between the counts now and those of a minute ago.
"""

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.clock import Clock
from edgert.runtime import metrics
from edgert.runtime.stage import Source
from edgert.runtime.task import Task
from edgert.runtime.worker import StepThread

_EVERY_NS = 5_000_000_000
_POLL_S = 1.0
_LOG = logging.getLogger(__name__)
_ENDS = [metrics.BOUNDS_NS.index(round(bound * 1e6)) for bound in metrics.UPTO_MS]

Key = tuple[str, str]
"""Name of a stage and name of a stream."""
Counts = npt.NDArray[np.uint32]
"""Counts of results by latency; their differences are right even after an overflow."""


@dataclass(frozen=True, slots=True)
class Share:
    """Statistics of a stage, or of a camera's frames, in the last minute.

    Attributes:
        fps: frames per second that the stage finished; for a camera, that the last stages finished.
        latency_ms: time from capture until the stage finished a frame; for a camera, until the last stages did.
        dropped: number of frames lost before the stage, by cause; for a camera, lost anywhere. Causes without losses
            are left out.
        streams: statistics of each stream at the stage; empty for a camera.
        busy_percent: part of the time in which the stage worked; None for a stream.
    """

    fps: float
    latency_ms: metrics.Percentiles
    dropped: Mapping[str, int] = field(default_factory=dict)
    streams: Mapping[str, "Share"] = field(default_factory=dict)
    busy_percent: float | None = None


@dataclass(frozen=True, slots=True)
class Recent:
    """Statistics of the last minute, or of a shorter run.

    Attributes:
        seconds: length of the period, up to 65.
        fps, latency_ms, dropped: statistics of the complete pipeline, as in its summary.
        stages, streams: statistics by name of the stage and by name of the camera.
    """

    seconds: float
    fps: float
    latency_ms: metrics.Percentiles
    dropped: Mapping[str, int]
    stages: Mapping[str, Share]
    streams: Mapping[str, Share]


@dataclass(frozen=True, slots=True)
class Total:
    """Counts of one stream at one stage, since the start.

    Attributes:
        results: number of results that the stage finished.
        latency_s: sum of their latencies since capture, computed from the middles of buckets.
        upto: number of results with at most the latency, for each of :data:`~edgert.runtime.metrics.UPTO_MS`.
        dropped: number of results lost before the stage, by cause.
        is_last: whether the stage has no listeners.
    """

    results: int
    latency_s: float
    upto: Sequence[int]
    dropped: Mapping[str, int]
    is_last: bool


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Counts by meter, because a new source may have the name of a removed one."""

    at_ns: int
    counts: Mapping[tuple[metrics.Meter, str], Counts]
    busy_ns: Mapping[metrics.Meter, int]
    lost: Mapping[tuple[metrics.Meter, str, str], int]


class History:
    """Thread that copies the counters of a running pipeline's stages, from :meth:`start` to :meth:`stop`.

    Args:
        tasks: function that returns the current tasks of the pipeline.
        began: function that returns the time at which the pipeline began.
    """

    def __init__(self, tasks: Callable[[], Sequence[Task]], clock: Clock, began: Callable[[], int]) -> None:
        self._tasks, self._clock, self._began = tasks, clock, began
        self._snapshots: deque[_Snapshot] = deque(maxlen=metrics.WINDOW_NS // _EVERY_NS + 1)
        self._thread = StepThread(_POLL_S)

    def start(self) -> None:
        """Start the thread. If the system refuses one, log it; statistics then cover the complete run."""
        try:
            self._thread.start("edgert:history", lambda is_last: self.take_snapshot(), lambda: None)
        except RuntimeError as error:
            _LOG.warning("statistics cover the complete run, not the last minute: cannot start a thread: %s", error)

    def stop(self) -> None:
        """End the thread. May be called before :meth:`start`, and more than once."""
        self._thread.stop()

    def take_snapshot(self) -> None:
        """Copy all counts, if five seconds have passed."""
        if not self._snapshots or self._clock.now_ns() - self._snapshots[-1].at_ns >= _EVERY_NS:
            self._snapshots.append(_snapshot_of(self._tasks(), self._clock.now_ns()))

    def recent(self, now_ns: int | None = None) -> Recent:
        """Return statistics of the last minute. Callable from any thread.

        After ten seconds, the first five are left out, because models are still warming up then.

        Args:
            now_ns: time at which the run ended; None while it runs.
        """
        if now_ns is None:
            self.take_snapshot()  # for a run without the thread
        tasks = self._tasks()
        now, snapshots = _snapshot_of(tasks, self._clock.now_ns() if now_ns is None else now_ns), tuple(self._snapshots)
        began_ns = self._began()
        usable = [one for one in snapshots if one.at_ns - began_ns >= _EVERY_NS and now.at_ns - one.at_ns >= _EVERY_NS]
        first = usable[0] if usable else _Snapshot(began_ns, {}, {}, {})
        since = next((one for one in reversed(usable) if now.at_ns - one.at_ns >= metrics.WINDOW_NS), first)
        return _statistics_between(tasks, since, now)


def _snapshot_of(tasks: Sequence[Task], at_ns: int) -> _Snapshot:
    counts, lost = dict[tuple[metrics.Meter, str], Counts](), dict[tuple[metrics.Meter, str, str], int]()
    for task in tasks:
        for stream, latencies in task.meter.streams.items():
            counts[task.meter, stream] = np.array(latencies, np.uint32)
        for (stream, cause), number in losses_of(task).items():
            lost[task.meter, stream, cause] = number
    return _Snapshot(at_ns, counts, {task.meter: task.meter.busy_ns for task in tasks}, lost)


def losses_of(task: Task) -> metrics.Losses:
    """Return the numbers of results lost at a stage since the start, by stream and cause."""
    found = Counter(task.meter.losses)  # a copy at once, as the task's thread keeps counting
    for channel in task.wiring.inlet.channels:
        found.update(Counter(channel.losses))
    return found


def totals(tasks: Iterable[Task]) -> dict[str, dict[str, Total]]:
    """Return the counts of each stage and stream since the start."""
    found = dict[str, dict[str, Total]]()
    for task in tasks:
        lost, streams = losses_of(task), task.meter.streams
        of_task = found.setdefault(task.name, {})
        for stream in dict.fromkeys([*streams, *(stream for stream, _ in lost)]):
            dropped = {cause: number for (name, cause), number in lost.items() if name == stream}
            counts = np.array(streams.get(stream, [0] * len(metrics.MIDDLES_MS)), np.int64)
            upto, sum_s = np.cumsum(counts), float(counts @ metrics.MIDDLES_MS) / 1e3
            of_task[stream] = Total(int(upto[-1]), sum_s, upto[_ENDS].tolist(), dropped, not task.wiring.outlets)
    return found


def _statistics_between(tasks: Sequence[Task], since: _Snapshot, now: _Snapshot) -> Recent:
    """Return the statistics between two copies of the counts."""
    seconds = max(now.at_ns - since.at_ns, 1) / 1e9
    zeros = np.zeros_like(metrics.MIDDLES_MS, np.uint32)
    name_of = {task.meter: task.name for task in tasks}
    new = {(name_of[key[0]], key[1]): counts - since.counts.get(key, zeros) for key, counts in now.counts.items()}
    lost = {key: more for key, number in now.lost.items() if (more := number - since.lost.get(key, 0))}
    streams = list(dict.fromkeys(stream for _, stream in new))
    lasts = [task for task in tasks if not task.wiring.outlets]
    ends = {task.name for task in lasts if not isinstance(task.stage, Source)} or {task.name for task in lasts}
    rows = {
        **new,
        **{(one, ""): _sum(zeros, (new[key] for key in new if key[0] == one)) for one in name_of.values()},
        **{("", one): _sum(zeros, (new[key] for key in new if key[1] == one and key[0] in ends)) for one in streams},
        ("", ""): _sum(zeros, (new[key] for key in new if key[0] in ends)),
    }
    # Not np.stack: it makes a tuple of the rows, and CPython 3.11 keeps up to 2000 tuples of 20 without reusing them.
    latency = dict(zip(rows, metrics.percentiles_of(np.array([*rows.values()], np.int64)), strict=True))
    dropped, finished = defaultdict[Key, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
    for (meter, stream, cause), number in lost.items():
        for key in ((name_of[meter], stream), (name_of[meter], ""), ("", stream), ("", "")):
            dropped[key][cause] += number
    for name, stream in new:
        for key_stream in (stream, "") if name in ends else ():
            finished[key_stream][name] += latency[name, stream].count

    def share(name: str, stream: str, **more: Any) -> Share:
        count = latency[name, stream].count if name else max(finished[stream].values(), default=0)
        return Share(count / seconds, latency[name, stream], dict(dropped[name, stream]), **more)

    def stage(meter: metrics.Meter, name: str) -> Share:
        busy_ns = now.busy_ns[meter] - since.busy_ns.get(meter, 0)
        by_stream = {stream: share(at, stream) for at, stream in new if at == name}
        return share(name, "", streams=by_stream, busy_percent=100e-9 * busy_ns / seconds)

    total = share("", "")
    stages = {name: stage(meter, name) for meter, name in name_of.items()}
    cameras = {stream: share("", stream) for stream in streams}
    return Recent(seconds, total.fps, total.latency_ms, total.dropped, stages, cameras)


def _sum(zeros: Counts, counts: Iterable[Counts]) -> Counts:
    total: Counts = np.sum([zeros, *counts], axis=0, dtype=np.uint32)
    return total
