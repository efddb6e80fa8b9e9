"""What the threads of a pipeline measure of themselves, in constant memory however long they run.

Latencies in histograms, totals of each thread's time, and how its times vary, which a simulation of the run draws from.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from edgert.jitter import AT, SLOT_MS, Jitter, Quantiles, jitter_of

_BUCKETS_PER_OCTAVE = 64  # neighboring buckets differ by 2^(1/64), so a percentile is right to 1.1 %
_OCTAVES = 44  # 1 ns to 4.8 hours
_LAST_BUCKET = _BUCKETS_PER_OCTAVE * _OCTAVES - 1
_MIDDLES_MS = 2.0 ** ((np.arange(_BUCKETS_PER_OCTAVE * _OCTAVES) + 0.5) / _BUCKETS_PER_OCTAVE) / 1e6


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds, and of how many durations."""

    p50: float
    p95: float
    p99: float
    mean: float
    count: int

    @classmethod
    def of(cls, counts: npt.NDArray[np.int64]) -> Percentiles:
        """Of the durations in a histogram's buckets; zeros when there are none."""
        if not (total := int(counts.sum())):
            return cls(0.0, 0.0, 0.0, 0.0, 0)
        p50, p95, p99 = _quantiles_ms(counts, (0.50, 0.95, 0.99))
        return cls(p50, p95, p99, float(counts @ _MIDDLES_MS) / total, total)


def _quantiles_ms(counts: npt.NDArray[np.int64], places: Sequence[float]) -> list[float]:
    wanted = np.maximum(np.ceil(np.array(places) * int(counts.sum())), 1)
    at = np.searchsorted(np.cumsum(counts), wanted)
    return list(_MIDDLES_MS[at].tolist())


class LatencyHistogram:
    """Durations in logarithmic buckets: constant memory however long it runs. One writer, any readers."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets = array("q", bytes(8 * _BUCKETS_PER_OCTAVE * _OCTAVES))

    def add(self, duration_ns: int, times: int = 1) -> None:
        """Counts one duration, so many times."""
        if duration_ns > 1:
            bucket = int(log2(duration_ns) * _BUCKETS_PER_OCTAVE)
            self._buckets[bucket if bucket < _LAST_BUCKET else _LAST_BUCKET] += times
        else:
            self._buckets[0] += times

    def percentiles(self, *others: LatencyHistogram) -> Percentiles:
        """Of this and other histograms together; zeros when empty."""
        return Percentiles.of(np.sum([self.counts(), *(other.counts() for other in others)], axis=0))

    def quantiles_ms(self, places: Sequence[float]) -> list[float]:
        """At those parts of all durations, 0 to 1; empty when nothing was counted."""
        counts = self.counts()
        return _quantiles_ms(counts, places) if counts.any() else []

    def counts(self) -> npt.NDArray[np.int64]:
        """The buckets as they are now, a copy."""
        return np.array(self._buckets, np.int64)


class RecentLatency:
    """Percentiles of what several histograms counted lately. For one thread at a time.

    Args:
        looks: how many calls back "lately" goes.
    """

    def __init__(self, histograms: Iterable[LatencyHistogram], looks: int) -> None:
        self._histograms = tuple(histograms)
        self._before = deque([self._now()], maxlen=looks)

    def percentiles(self) -> Percentiles:
        """Since ``looks`` calls ago; zeros when nothing came."""
        now, then = self._now(), self._before[0]
        self._before.append(now)
        return Percentiles.of(now - then)

    def _now(self) -> npt.NDArray[np.int64]:
        counts = [histogram.counts() for histogram in self._histograms]
        return np.sum(counts, axis=0) if counts else LatencyHistogram().counts()


UPTO_MS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)
"""Bounds of the buckets that Prometheus gets."""
_STEPS_PER_OCTAVE = 12  # of a stream's buckets: percentiles are right to 3 %


def _bounds_ns() -> Iterable[int]:
    """Upper bounds of a stream's buckets, from 10 microseconds to 100 seconds, Prometheus' own among them."""
    for low_ms, high_ms in pairwise((0.01, *UPTO_MS, 100_000.0)):
        steps = ceil(_STEPS_PER_OCTAVE * log2(high_ms / low_ms))
        yield from (round(1e6 * low_ms * (high_ms / low_ms) ** (step / steps)) for step in range(1, steps + 1))


BOUNDS_NS = list(_bounds_ns())


Losses = dict[tuple[str, str], int]
"""Results that were lost, by stream and cause: ``queue``, it was full; ``join``, the other part never came; ``end``,
whoever was to take it had ended; ``error``, it failed, or had failed before."""


class StageMeter:
    """Totals of what one stage's thread did with its time. Written by that thread alone.

    Attributes:
        unmatched: results that a join never got the other part of.
        errors, restarts: failures of the stage that the pipeline outlived, and how often it was opened again.
        lost: results that it failed on, or that came while it was down.
        losses: the unmatched and the lost, by stream and cause.
        streams: of each stream, the results that it was done with, by the time since their capture: above the bound
            before and at most :data:`BOUNDS_NS`, and one more for what took longer than all of them. Replaced by
            another mapping when there is a new one.
    """

    __slots__ = ("busy_ns", "errors", "latency", "losses", "lost", "restarts", "results_in", "results_out", "streams",
                 "unmatched", "wait_in_ns", "wait_out_ns")  # fmt: skip

    def __init__(self) -> None:
        self.results_in = self.results_out = self.unmatched = 0
        self.errors = self.restarts = self.lost = 0
        self.busy_ns = self.wait_in_ns = self.wait_out_ns = 0
        self.latency = LatencyHistogram()
        self.losses: Losses = {}
        self.streams: dict[str, array[int]] = {}

    def done(self, stream: str, latency_ns: int, results: int = 1) -> None:
        """Counts results that the stage passed on, or took where it is the last, so long after their capture."""
        try:
            counts = self.streams[stream]
        except KeyError:
            counts = array("q", bytes(8 * (len(BOUNDS_NS) + 1)))
            self.streams = {**self.streams, stream: counts}
        counts[bisect_left(BOUNDS_NS, latency_ns)] += results


RESULTS = 8192
"""Results that are remembered; two numbers each."""
WINDOW_NS = 60_000_000_000
"""The most that is reported, counted from the end of a run."""


@dataclass(frozen=True, slots=True)
class StageTiming:
    """How a thread's times varied in the last minute of a run that has ended.

    Attributes:
        jitter, slow_phases: of the time of one result, or of each in a batch, at any moment and from one to the next;
            see :class:`edgert.jitter.Jitter`.
        wakeup_latency_ms: how late it went on when something came that it waited for, or how late a live source's
            frames came by the stream's own times: quantiles at :data:`edgert.jitter.AT`.
        batch_fill_ms: of its time, what it takes until a result waits for others, in stages that pass several on at
            once.
        startup_ms: when it was ready, after the first result of all threads went on; 0: before that.
        first_result_ms: when its first result went on, after that of the first of all threads; None where none did.
    """

    jitter: Quantiles = ()
    slow_phases: tuple[float, ...] = ()
    wakeup_latency_ms: tuple[float, ...] = ()
    batch_fill_ms: float = 0.0
    startup_ms: float = 0.0
    first_result_ms: float | None = None


class Timing:
    """One thread's times, in constant memory however long it runs. Written by that thread alone, read by any.

    Attributes:
        wakeup: how late it went on.
        opened_ns: when it was ready for the first result; 0 before.
        first_ns: when it passed something on for the first time; None before.
    """

    __slots__ = ("_at_ns", "_count", "_fill_ns", "_filled", "_pending_ns", "_taken", "_worked_ns", "first_ns",
                 "opened_ns", "wakeup")  # fmt: skip

    def __init__(self) -> None:
        self.wakeup = LatencyHistogram()
        self.opened_ns = 0
        self.first_ns: int | None = None
        self._at_ns, self._worked_ns = array("q", bytes(8 * RESULTS)), array("q", bytes(8 * RESULTS))
        self._count = self._pending_ns = self._taken = self._filled = self._fill_ns = 0

    def worked(self, duration_ns: int, results: int = 1) -> None:
        """Adds the time spent on so many new results, which may not have gone on yet."""
        self._pending_ns += duration_ns
        self._taken += results

    def filled(self, duration_ns: int, results: int = 1) -> None:
        """Adds the time spent on so many results that wait for others of their batch."""
        self._filled += results
        self._fill_ns += duration_ns

    def passed_on(self, now_ns: int) -> None:
        """What it worked on since the last time went on."""
        if self.first_ns is None:
            self.first_ns = now_ns
        place = self._count % RESULTS
        self._at_ns[place] = now_ns
        self._worked_ns[place] = self._pending_ns if self._taken < 2 else self._pending_ns // self._taken
        self._count += 1
        self._pending_ns = self._taken = 0

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From when to when results are remembered; None where there never was one."""
        if not self._count:
            return None
        newest = (self._count - 1) % RESULTS
        oldest = self._count % RESULTS if self._count > RESULTS else 0
        return self._at_ns[oldest], self._at_ns[newest]

    def jitter(self, start_ns: int, end_ns: int) -> Jitter:
        """How its times varied between two moments, slot after slot from the first."""
        count = min(self._count, RESULTS)
        at_ns, worked_ns = np.array(self._at_ns[:count], np.int64), np.array(self._worked_ns[:count], np.int64)
        chosen = (at_ns >= start_ns) & (at_ns <= end_ns)
        slots = int((end_ns - start_ns) / 1e6 // SLOT_MS) + 1
        return jitter_of((at_ns[chosen] - start_ns) / 1e6, worked_ns[chosen] / 1e6, slots)

    def report(self, span_ns: tuple[int, int], start_ns: int) -> StageTiming:
        """Everything.

        Args:
            span_ns: of what moments the jitter is.
            start_ns: when the first of all threads passed something on.
        """
        jitter = self.jitter(*span_ns)
        return StageTiming(
            jitter=jitter.quantiles,
            slow_phases=jitter.slow_phases,
            wakeup_latency_ms=tuple(float(f"{value:.4g}") for value in self.wakeup.quantiles_ms(AT)),
            batch_fill_ms=self._fill_ns / self._filled / 1e6 if self._filled else 0.0,
            startup_ms=max(self.opened_ns - start_ns, 0) / 1e6,
            first_result_ms=(self.first_ns - start_ns) / 1e6 if self.first_ns is not None else None,
        )


class Lateness:
    """How late a live stream's frames come, by the stream's own times, after the most punctual of them."""

    _DRIFTS = 10_000
    """By such a part the clocks of a camera and of this machine may differ: quartz is right to less than that."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def of(self, came_ns: int, media_ns: int) -> int:
        """Nanoseconds, of a frame that came then and is at that position of its stream."""
        behind_ns = came_ns - media_ns
        before_ns, before_media_ns = self._last or (behind_ns, media_ns)
        usual_ns = before_ns
        if media_ns > before_media_ns:
            usual_ns += (media_ns - before_media_ns) // self._DRIFTS
        if behind_ns < usual_ns:
            usual_ns = behind_ns
        self._last = usual_ns, media_ns
        return behind_ns - usual_ns
