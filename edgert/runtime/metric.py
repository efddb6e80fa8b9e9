"""Counting time without keeping all of it: fixed-size histograms and per-stage totals."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.runtime.history import History
from edgert.spread import AT

_BUCKETS_PER_OCTAVE = 64  # neighbouring buckets differ by 2^(1/64), so a percentile is right to 1.1 %
_OCTAVES = 44  # 1 ns to 4.8 hours
_MIDDLES_MS = 2.0 ** ((np.arange(_BUCKETS_PER_OCTAVE * _OCTAVES) + 0.5) / _BUCKETS_PER_OCTAVE) / 1e6


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds, and of how many durations."""

    p50: float
    p95: float
    p99: float
    mean: float
    count: int


class LatencyHistogram:
    """Durations in logarithmic buckets: constant memory however long it runs. One writer, any readers."""

    def __init__(self) -> None:
        self._buckets = np.zeros(_BUCKETS_PER_OCTAVE * _OCTAVES, np.int64)

    def add(self, duration_ns: int) -> None:
        """Counts one duration."""
        bucket = int(math.log2(max(duration_ns, 1)) * _BUCKETS_PER_OCTAVE)
        self._buckets[min(bucket, len(self._buckets) - 1)] += 1

    def percentiles(self, *others: LatencyHistogram) -> Percentiles:
        """Of this and other histograms together; zeros when empty."""
        return _percentiles(np.sum([self._buckets, *(other._buckets for other in others)], axis=0))

    def quantiles_ms(self) -> tuple[float, ...]:
        """At the places of :data:`edgert.spread.AT`, to four digits; empty when nothing was counted."""
        if not self._buckets.any():
            return ()
        return tuple(float(f"{value:.4g}") for value in _quantiles_ms(self.counts(), AT))

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
        return _percentiles(now - then)

    def _now(self) -> npt.NDArray[np.int64]:
        counts = [histogram.counts() for histogram in self._histograms]
        return np.sum(counts, axis=0) if counts else LatencyHistogram().counts()


def _percentiles(counts: npt.NDArray[np.int64]) -> Percentiles:
    total = int(counts.sum())
    if not total:
        return Percentiles(0.0, 0.0, 0.0, 0.0, 0)
    p50, p95, p99 = _quantiles_ms(counts, (0.50, 0.95, 0.99))
    return Percentiles(p50, p95, p99, float(counts @ _MIDDLES_MS) / total, total)


def _quantiles_ms(counts: npt.NDArray[np.int64], places: Sequence[float]) -> list[float]:
    wanted = np.maximum(np.ceil(np.array(places) * int(counts.sum())), 1)
    at = np.searchsorted(np.cumsum(counts), wanted)
    return list(_MIDDLES_MS[at].tolist())


class Lateness:
    """How late a live stream's frames come, by the stream's own times, after the most punctual of them."""

    _DRIFT = 1e-4
    """By how much the clocks of a camera and of this machine may differ: quartz is right to less than that."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None

    def of(self, came_ns: int, media_ns: int) -> int:
        """Nanoseconds, of a frame that came then and is at that position of its stream."""
        behind_ns = came_ns - media_ns
        before_ns, before_media_ns = self._last or (behind_ns, media_ns)
        usual_ns = min(behind_ns, before_ns + round(self._DRIFT * max(media_ns - before_media_ns, 0)))
        self._last = usual_ns, media_ns
        return behind_ns - usual_ns


class StageMeter:
    """What one stage's thread did with its time. Written by that thread alone.

    Attributes:
        history: how long it worked each time before it let something go, for each result that it took meanwhile: one,
            or all of a batch.
        kept, kept_ns: results after which nothing went on yet, and the work on them until then.
        opened_ns: when it was ready for the first; 0 before.
        first_ns: when it let something go for the first time; None before.
    """

    __slots__ = ("_held_ns", "_let_go", "busy_ns", "first_ns", "history", "kept", "kept_ns", "latency", "opened_ns",
                 "results_in", "results_out", "unmatched", "wait_in_ns", "wait_out_ns")  # fmt: skip

    def __init__(self) -> None:
        self.results_in = self.results_out = self.unmatched = self.kept = self._let_go = 0
        self.opened_ns = self.kept_ns = 0
        self.first_ns: int | None = None
        self.busy_ns = self.wait_in_ns = self.wait_out_ns = self._held_ns = 0
        self.latency, self.history = LatencyHistogram(), History()

    def worked(self, duration_ns: int) -> None:
        """On something that it may hold back."""
        self.busy_ns += duration_ns
        self._held_ns += duration_ns

    def keep(self, duration_ns: int) -> None:
        """So long it worked on a result that it holds back."""
        self.kept += 1
        self.kept_ns += duration_ns

    def let_go(self, now_ns: int) -> None:
        """Of what it worked on since the last time."""
        if self.first_ns is None:
            self.first_ns = now_ns
        self.history.add(now_ns, self._held_ns // max(self.results_in - self._let_go, 1))
        self._held_ns, self._let_go = 0, self.results_in
