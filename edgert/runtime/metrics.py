"""Counting time without keeping all of it: fixed-size histograms and per-stage totals."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BUCKETS_PER_OCTAVE = 64  # neighboring buckets differ by 2^(1/64), so a percentile is right to 1.1 %
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

    def quantiles_ms(self, places: Sequence[float]) -> list[float]:
        """At those parts of all durations, 0 to 1; empty when nothing was counted."""
        return _quantiles_ms(self.counts(), places) if self._buckets.any() else []

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


class StageMeter:
    """Totals of what one stage's thread did with its time. Written by that thread alone."""

    __slots__ = ("busy_ns", "latency", "results_in", "results_out", "unmatched", "wait_in_ns", "wait_out_ns")

    def __init__(self) -> None:
        self.results_in = self.results_out = self.unmatched = 0
        self.busy_ns = self.wait_in_ns = self.wait_out_ns = 0
        self.latency = LatencyHistogram()
