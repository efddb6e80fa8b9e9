"""Measurements of a pipeline's tasks in constant memory: counts of latencies, counters and times."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

import numpy as np
import numpy.typing as npt

UPTO_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)
"""Upper bounds of the buckets that are exported to Prometheus."""
_STEPS_PER_OCTAVE = 32  # neighboring buckets differ by 2^(1/32), so a percentile is right to 1.1 %


def _bounds_ns() -> Iterable[int]:
    """Return the upper bounds of buckets of latencies, from 10 µs to 100 s, with those exported to Prometheus."""
    for low_ms, high_ms in pairwise((0.01, *UPTO_MS, 100_000.0)):
        steps = ceil(_STEPS_PER_OCTAVE * log2(high_ms / low_ms))
        yield from (round(1e6 * low_ms * (high_ms / low_ms) ** (step / steps)) for step in range(1, steps + 1))


BOUNDS_NS = list(_bounds_ns())
_EDGES_MS = np.array([BOUNDS_NS[0], *BOUNDS_NS, BOUNDS_NS[-1]]) / 1e6
MIDDLES_MS = np.sqrt(_EDGES_MS[:-1] * _EDGES_MS[1:])
"""Latency that each bucket stands for."""
_PLACES = np.array([0.50, 0.95, 0.99])


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in milliseconds, and the number of durations."""

    p50: float
    p95: float
    p99: float
    mean: float
    count: int


def percentiles_of(counts: npt.NDArray[np.int64]) -> list[Percentiles]:
    """Return the percentiles of each row of (R, buckets) counts; zeros for a row without any."""
    summed = np.cumsum(counts, axis=1)
    numbers = summed[:, -1]
    wanted = np.maximum(np.ceil(_PLACES * numbers[:, None]), 1)
    at = np.stack([(summed < place[:, None]).sum(axis=1) for place in wanted.T], axis=1)
    found_ms = np.where(numbers[:, None] > 0, MIDDLES_MS[np.minimum(at, len(MIDDLES_MS) - 1)], 0.0)
    means_ms = counts @ MIDDLES_MS / np.maximum(numbers, 1)
    rows = zip(found_ms.tolist(), means_ms.tolist(), numbers.tolist(), strict=True)
    return [Percentiles(p50, p95, p99, mean, number) for (p50, p95, p99), mean, number in rows]


def latency_counts(meters: Iterable[Meter]) -> npt.NDArray[np.int64]:
    """Return the (1, buckets) counts of latencies of these tasks together, of all streams."""
    counts = [np.array(latencies, np.int64) for meter in meters for latencies in meter.streams.values()]
    total: npt.NDArray[np.int64] = np.sum([np.zeros_like(MIDDLES_MS, np.int64), *counts], axis=0)
    return total[None]


class RecentLatency:
    """Recent percentiles of several tasks together. For one thread at a time.

    Args:
        meters: meters of the tasks.
        looks: number of past calls of :meth:`percentiles` that the next one covers.
    """

    def __init__(self, meters: Iterable[Meter], looks: int) -> None:
        self._meters = tuple(meters)
        self._before = deque([latency_counts(self._meters)], maxlen=looks)

    def percentiles(self) -> Percentiles:
        """Return the percentiles since ``looks`` calls ago; zeros when there were no durations."""
        now, then = latency_counts(self._meters), self._before[0]
        self._before.append(now)
        return percentiles_of(now - then)[0]


Losses = Counter[tuple[str, str]]
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
        losses: results that were lost because their other part never came to the join, or the stage failed or was down.
        streams: histogram of the time from capture to the end of this stage, by stream. Its buckets end at
            :data:`BOUNDS_NS`; one more counts longer times. The mapping is replaced for a new stream.
        status: current state of the task.
    """

    __slots__ = ("busy_ns", "losses", "results_in", "results_out", "status", "streams",
                 "wait_in_ns", "wait_out_ns")  # fmt: skip

    def __init__(self) -> None:
        self.results_in = self.results_out = 0
        self.busy_ns = self.wait_in_ns = self.wait_out_ns = 0
        self.losses: Losses = Counter()
        self.streams: dict[str, array[int]] = {}
        self.status = Status()

    def done(self, stream: str, latency_ns: int) -> None:
        """Count a result that the stage passed on, or that a sink received, ``latency_ns`` after its capture."""
        try:
            counts = self.streams[stream]
        except KeyError:
            counts = array("q", bytes(8 * len(MIDDLES_MS)))
            self.streams = {**self.streams, stream: counts}
        counts[bisect_left(BOUNDS_NS, latency_ns)] += 1


WINDOW_NS = 60_000_000_000
"""Longest period that is reported, counted back from the end of a run."""
