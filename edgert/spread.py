"""How times scatter: quantiles of one run after another, each as a ratio to their median, and slow spells."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

AT = (0.0, 0.01, *(number / 20 for number in range(1, 20)), 0.98, 0.99, 0.995, 1.0)
"""Of which parts of all runs a spread tells the quantile; closer together where a p99 is made."""
Spread = tuple[float, ...]
"""The quantile at each of :data:`AT`, 1.0 at the half; empty: times do not scatter, or nobody measured it."""
SLOT_MS = 50.0
"""Of a spell. What is over sooner is a matter of single runs; a core that somebody else slows down stays slow for up to
seconds, and work that has to wait piles up meanwhile."""
AROUND = 5
"""Times that tell what is usual at their moment."""
LEAST_MS = 1e-6
"""Times are taken to be this long at least: a clock's step."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """How a thread's times scatter.

    Attributes:
        spread: of single times about the usual one of their moment.
        spells: what was usual then, slot after slot of :data:`SLOT_MS`, as a ratio to the mean of all times; where
            there was none, as before it. Empty: nobody measured it.
    """

    spread: Spread = ()
    spells: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """The mean of all times, as a ratio to that which spells and single times are told of."""
        return 1.0 if self.spells else mean_of(self.spread)

    def __bool__(self) -> bool:
        """Whether times scatter at all."""
        return bool(self.spread or self.spells)


EVEN = Scatter()
"""Times do not scatter, or nobody measured it."""


def scatter_of(at_ms: npt.NDArray[np.float64], times_ms: npt.NDArray[np.float64], slots: int) -> Scatter:
    """Of times that were taken at those moments, in milliseconds from the beginning of the first of so many slots.

    Usual at a moment is the median of the :data:`AROUND` times nearest to it: one or two that stand out are no spell.
    """
    if not len(times_ms) or not np.any(times_ms):
        return EVEN
    order = np.argsort(at_ms, kind="stable")
    at_ms, times_ms = at_ms[order], np.maximum(times_ms[order], LEAST_MS)
    around = sliding_window_view(np.pad(times_ms, AROUND // 2, mode="reflect"), AROUND)
    usual = np.median(around, axis=1)
    ends = (np.arange(slots) + 1) * SLOT_MS
    last = np.maximum(np.searchsorted(at_ms, ends) - 1, 0)
    return Scatter(_rounded(np.quantile(times_ms / usual, AT)), _rounded(usual[last] / np.mean(times_ms)))


def _rounded(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.4g}") for value in values)


def spread_of(rounds: Sequence[Sequence[float]]) -> Spread:
    """Of times that were taken in rounds, each against the median of its round.

    A machine whose speed changes from round to round does not scatter more for it.
    """
    ratios = np.concatenate([np.asarray(times) / np.median(times) for times in rounds])
    quantiles = np.quantile(ratios, AT)
    return tuple((quantiles / quantiles[AT.index(0.5)]).tolist())


def check_spread(spread: Spread) -> Spread:
    """The same. Raises ValueError for what cannot be quantiles of times."""
    if spread and len(spread) != len(AT):
        raise ValueError(f"a spread has {len(AT)} quantiles, not {len(spread)}")
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in spread) or list(spread) != sorted(spread):
        raise ValueError(f"no quantiles of times: {list(spread)}")
    return spread


def check_spells(spells: tuple[float, ...]) -> tuple[float, ...]:
    """The same. Raises ValueError for what cannot be ratios of times."""
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in spells):
        raise ValueError(f"no ratios of times: {list(spells)}")
    return spells


def mean_of(spread: Spread) -> float:
    """The mean time as a ratio to the median."""
    return float(np.sum((np.array(spread[1:]) + spread[:-1]) / 2 * np.diff(AT))) if spread else 1.0


def draw(spread: Spread, chance: Random) -> float:
    """One time as a ratio to the median: the quantile of an even draw, straight lines between those that are told."""
    if not spread:
        return 1.0
    place = chance.random()
    after = bisect_right(AT, place)
    low, high = AT[after - 1], AT[after]
    return spread[after - 1] + (spread[after] - spread[after - 1]) * (place - low) / (high - low)
