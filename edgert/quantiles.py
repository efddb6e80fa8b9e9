"""Quantiles of measured times, as ratios to their median."""

import math
from collections.abc import Sequence

import numpy as np

AT = (0.0, 0.01, *(number / 20 for number in range(1, 20)), 0.98, 0.99, 0.995, 1.0)
"""Probabilities of the quantiles, from the shortest time to the longest; denser above 0.98, for a p99."""
Quantiles = tuple[float, ...]
"""Quantile for each of :data:`AT`, 1.0 for the median; empty without measurements."""


def quantiles_of(times: Sequence[float]) -> Quantiles:
    """Return the quantiles of positive times."""
    return tuple(np.quantile(np.asarray(times) / np.median(times), AT).tolist())


def check_quantiles(quantiles: Quantiles) -> None:
    """Raise ValueError for numbers that cannot be quantiles of times."""
    if quantiles and len(quantiles) != len(AT):
        raise ValueError(f"there are {len(AT)} quantiles, not {len(quantiles)}")
    if not all(math.isfinite(ratio) and ratio > 0 for ratio in quantiles) or list(quantiles) != sorted(quantiles):
        raise ValueError(f"no quantiles of times: {list(quantiles)}")
