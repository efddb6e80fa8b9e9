"""How times jitter: quantiles of one run after another, each as a ratio to their median, and slow phases."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

AT = (0.0, 0.01, *(number / 20 for number in range(1, 20)), 0.98, 0.99, 0.995, 1.0)
"""Of which parts of all runs the quantiles are kept; closer together where a p99 is made."""
Quantiles = tuple[float, ...]
"""The quantile at each of :data:`AT`, 1.0 at the half; empty: times do not jitter, or nobody measured it."""
SLOT_MS = 50.0
"""Of a slow phase. What is over sooner is a matter of single runs; a core that somebody else slows down stays slow for
up to seconds, and work that has to wait piles up meanwhile."""
AROUND = 5
"""Neighboring times whose median is the usual time at a moment."""
LEAST_MS = 1e-6
"""Times are taken to be this long at least: a clock's step."""


@dataclass(frozen=True, slots=True)
class Jitter:
    """How a thread's times jitter.

    Attributes:
        quantiles: of single times about the usual one of their moment.
        slow_phases: what was usual then, slot after slot of :data:`SLOT_MS`, as a ratio to the mean of all times; where
            there was none, as before it. Empty: nobody measured it.
    """

    quantiles: Quantiles = ()
    slow_phases: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """The mean of all times, as a ratio to that which slow phases and single times are given against."""
        return 1.0 if self.slow_phases else mean_of(self.quantiles)

    def __bool__(self) -> bool:
        """Whether times jitter at all."""
        return bool(self.quantiles or self.slow_phases)


STEADY = Jitter()
"""Times do not jitter, or nobody measured it."""


def jitter_of(at_ms: npt.NDArray[np.float64], times_ms: npt.NDArray[np.float64], slots: int) -> Jitter:
    """Of times that were taken at those moments, in milliseconds from the beginning of the first of so many slots.

    Usual at a moment is the median of the :data:`AROUND` times nearest to it: one or two that stand out are no slow
    phase.
    """
    if not len(times_ms) or not np.any(times_ms):
        return STEADY
    order = np.argsort(at_ms, kind="stable")
    at_ms, times_ms = at_ms[order], np.maximum(times_ms[order], LEAST_MS)
    around = sliding_window_view(np.pad(times_ms, AROUND // 2, mode="reflect"), AROUND)
    usual = np.median(around, axis=1)
    ends = (np.arange(slots) + 1) * SLOT_MS
    last = np.maximum(np.searchsorted(at_ms, ends) - 1, 0)
    return Jitter(_rounded(np.quantile(times_ms / usual, AT)), _rounded(usual[last] / np.mean(times_ms)))


def _rounded(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)


def quantiles_of(rounds: Sequence[Sequence[float]]) -> Quantiles:
    """Of times that were taken in rounds, each against the median of its round.

    A machine whose speed changes from round to round does not jitter more for it.
    """
    ratios = np.concatenate([np.asarray(times) / np.median(times) for times in rounds])
    quantiles = np.quantile(ratios, AT)
    return tuple((quantiles / quantiles[AT.index(0.5)]).tolist())


def check_quantiles(quantiles: Quantiles) -> Quantiles:
    """The same. Raises ValueError for what cannot be quantiles of times."""
    if quantiles and len(quantiles) != len(AT):
        raise ValueError(f"jitter has {len(AT)} quantiles, not {len(quantiles)}")
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in quantiles) or list(quantiles) != sorted(quantiles):
        raise ValueError(f"no quantiles of times: {list(quantiles)}")
    return quantiles


def check_slow_phases(slow_phases: tuple[float, ...]) -> tuple[float, ...]:
    """The same. Raises ValueError for what cannot be ratios of times."""
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in slow_phases):
        raise ValueError(f"no ratios of times: {list(slow_phases)}")
    return slow_phases


def mean_of(quantiles: Quantiles) -> float:
    """The mean time as a ratio to the median."""
    return float(np.sum((np.array(quantiles[1:]) + quantiles[:-1]) / 2 * np.diff(AT))) if quantiles else 1.0


def draw(quantiles: Quantiles, rng: Random) -> float:
    """One time as a ratio to the median: the quantile of an even draw, straight lines between those that are given."""
    if not quantiles:
        return 1.0
    place = rng.random()
    after = bisect_right(AT, place)
    low, high = AT[after - 1], AT[after]
    return quantiles[after - 1] + (quantiles[after] - quantiles[after - 1]) * (place - low) / (high - low)
