"""How times scatter: quantiles of one run after another, each as a ratio to their median."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from random import Random

import numpy as np

AT = (0.0, 0.01, *(number / 20 for number in range(1, 20)), 0.98, 0.99, 0.995, 1.0)
"""Of which parts of all runs a spread tells the quantile; closer together where a p99 is made."""
Spread = tuple[float, ...]
"""The quantile at each of :data:`AT`, 1.0 at the half; empty: times do not scatter, or nobody measured it."""


def spread_of(rounds: Sequence[Sequence[float]]) -> Spread:
    """Of times that were taken in rounds, each against the median of its round.

    A machine whose speed changes from round to round does not scatter more for it.
    """
    ratios = np.concatenate([np.asarray(times) / np.median(times) for times in rounds])
    return spread_at(np.quantile(ratios, AT).tolist())


def spread_at(quantiles: Sequence[float]) -> Spread:
    """Of times whose quantiles at :data:`AT` are known; empty without."""
    if not quantiles:
        return ()
    median = quantiles[AT.index(0.5)]
    return tuple(quantile / median for quantile in quantiles)


def check_spread(spread: Spread) -> Spread:
    """The same. Raises ValueError for what cannot be quantiles of times."""
    if spread and len(spread) != len(AT):
        raise ValueError(f"a spread has {len(AT)} quantiles, not {len(spread)}")
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in spread) or list(spread) != sorted(spread):
        raise ValueError(f"no quantiles of times: {list(spread)}")
    return spread


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
