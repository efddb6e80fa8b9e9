"""Measurements of a pipeline's tasks in constant memory: latency histograms, counters and times."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

import numpy as np
import numpy.typing as npt

_BUCKETS_PER_OCTAVE = 64  # neighboring buckets differ by 2^(1/64), so a percentile is right to 1.1 %
_OCTAVES = 44  # 1 ns to 4.8 hours
_LAST_BUCKET = _BUCKETS_PER_OCTAVE * _OCTAVES - 1
_MIDDLES_MS = 2.0 ** ((np.arange(_BUCKETS_PER_OCTAVE * _OCTAVES) + 0.5) / _BUCKETS_PER_OCTAVE) / 1e6


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in milliseconds, and the number of durations."""

    p50: float
    p95: float
    p99: float
    mean: float
    count: int

    @classmethod
    def from_counts(cls, counts: npt.NDArray[np.int64]) -> Percentiles:
        """Return the percentiles of a histogram's buckets; zeros when they are empty."""
        if not (total := int(counts.sum())):
            return cls(0.0, 0.0, 0.0, 0.0, 0)
        wanted = np.maximum(np.ceil(np.array((0.50, 0.95, 0.99)) * total), 1)
        p50, p95, p99 = _MIDDLES_MS[np.searchsorted(np.cumsum(counts), wanted)].tolist()
        return cls(p50, p95, p99, float(counts @ _MIDDLES_MS) / total, total)


class LatencyHistogram:
    """Histogram of durations in logarithmic buckets, in constant memory. One writer, any readers."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets = array("q", bytes(8 * _BUCKETS_PER_OCTAVE * _OCTAVES))

    def add(self, duration_ns: int, times: int = 1) -> None:
        """Count one duration, ``times`` times."""
        if duration_ns > 1:
            bucket = int(log2(duration_ns) * _BUCKETS_PER_OCTAVE)
            self._buckets[bucket if bucket < _LAST_BUCKET else _LAST_BUCKET] += times
        else:
            self._buckets[0] += times

    def percentiles(self, *others: LatencyHistogram) -> Percentiles:
        """Return percentiles of this and other histograms together; zeros when all are empty."""
        return Percentiles.from_counts(np.sum([self.counts(), *(other.counts() for other in others)], axis=0))

    def counts(self) -> npt.NDArray[np.int64]:
        """Return a copy of the buckets as they are now."""
        return np.array(self._buckets, np.int64)


class RecentLatency:
    """Recent percentiles over several histograms. For one thread at a time.

    Args:
        histograms: histograms whose durations are taken together.
        looks: number of past calls of :meth:`percentiles` that the next one covers.
    """

    def __init__(self, histograms: Iterable[LatencyHistogram], looks: int) -> None:
        self._histograms = tuple(histograms)
        self._before = deque([self._now()], maxlen=looks)

    def percentiles(self) -> Percentiles:
        """Return the percentiles since ``looks`` calls ago; zeros when there were no durations."""
        now, then = self._now(), self._before[0]
        self._before.append(now)
        return Percentiles.from_counts(now - then)

    def _now(self) -> npt.NDArray[np.int64]:
        counts = [histogram.counts() for histogram in self._histograms]
        return np.sum(counts, axis=0) if counts else LatencyHistogram().counts()


UPTO_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)
"""Upper bounds of the buckets that are exported to Prometheus."""
_STEPS_PER_OCTAVE = 12  # buckets of a stream: its percentiles are right to 3 %


def _bounds_ns() -> Iterable[int]:
    """Return the upper bounds of a stream's buckets, from 10 µs to 100 s, including those exported to Prometheus."""
    for low_ms, high_ms in pairwise((0.01, *UPTO_MS, 100_000.0)):
        steps = ceil(_STEPS_PER_OCTAVE * log2(high_ms / low_ms))
        yield from (round(1e6 * low_ms * (high_ms / low_ms) ** (step / steps)) for step in range(1, steps + 1))


BOUNDS_NS = list(_bounds_ns())


Losses = dict[tuple[str, str], int]
"""Numbers of lost results by stream and cause. ``queue``: a queue was full; ``join``: the other part never came;
``end``: the consumer had ended; ``error``: the stage failed or was down."""


@dataclass(slots=True, eq=False)
class Status:
    """State of one task, written by the thread that calls its stage. The watchdog writes ``stuck_s``.

    Attributes:
        since_ns: when the current call of the stage began; 0 between calls.
        was_opened: whether the stage was ever opened.
        has_ended: whether the task has ended.
        is_closing: whether the current call closes the stage.
        opening_s: duration of opening, including a model's first run.
        stuck_s: duration of the current call once it exceeds the watchdog; else 0.
        failing: why results are lost here now; empty while none are lost.
        recovered: when it began to work again, and the seconds it was down; None once that is logged.
        errors, restarts: number of failures that did not end the pipeline, and of restarts of the stage.
    """

    since_ns: int = 0
    was_opened: bool = False
    has_ended: bool = False
    is_closing: bool = False
    opening_s: float = 0.0
    stuck_s: float = 0.0
    failing: str = ""
    recovered: tuple[int, float] | None = None
    errors: int = 0
    restarts: int = 0


class Meter:
    """Counters and times of one task, written by the thread that calls its stage and read by any thread.

    Attributes:
        unmatched: number of results whose other part never came to the join.
        lost: number of results that were lost because the stage failed or was down.
        losses: unmatched and lost results by stream and cause.
        streams: histogram of the time from capture to the end of this stage, by stream. Its buckets end at
            :data:`BOUNDS_NS`; one more counts longer times. The mapping is replaced for a new stream.
        status: current state of the task.
    """

    __slots__ = ("busy_ns", "latency", "losses", "lost", "results_in", "results_out", "status", "streams",
                 "unmatched", "wait_in_ns", "wait_out_ns")  # fmt: skip

    def __init__(self) -> None:
        self.results_in = self.results_out = self.unmatched = self.lost = 0
        self.busy_ns = self.wait_in_ns = self.wait_out_ns = 0
        self.latency = LatencyHistogram()
        self.losses: Losses = {}
        self.streams: dict[str, array[int]] = {}
        self.status = Status()

    def done(self, stream: str, latency_ns: int, results: int = 1) -> None:
        """Count results that the stage passed on, or that a sink received, ``latency_ns`` after their capture."""
        try:
            counts = self.streams[stream]
        except KeyError:
            counts = array("q", bytes(8 * (len(BOUNDS_NS) + 1)))
            self.streams = {**self.streams, stream: counts}
        counts[bisect_left(BOUNDS_NS, latency_ns)] += results


WINDOW_NS = 60_000_000_000
"""Longest period that is reported, counted back from the end of a run."""
