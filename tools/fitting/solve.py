"""Robust least squares on the logarithm of predicted over published time, with the start as a weak prior."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy

from edgert.placement.cost.coefficients import DlaCost, GpuCost
from edgert.placement.cost.work import Numbers
from tools.fitting.published import CALL_US, Design, Timing

HIGHEST = {
    **dict.fromkeys(("dense_fp32", "dense_fp16", "dense_int8", "dense", "plain", "attention"), 1.0),
    "bandwidth": 0.93,
}
"""What no share can be above. Of the DRAM's rate, refreshing takes about 7 %:
https://docs.amd.com/r/en-US/pg313-network-on-chip/LPDDR4-Refresh-Options; the most that PCCS drives an AGX Xavier to is
127.4 of 136.5 GB/s: https://github.com/processorcentricmodel/PCCS/blob/51ffb72/model_construction/input.txt."""
_PULL = 0.1
"""A coefficient e times its start costs as much as a network that is off by this much."""
_OUTLIER = 0.1
"""Relative errors beyond this count linearly, not squared."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Prediction for a row by coefficients that do not depend on it."""

    row: Timing
    predicted_ms: float

    @property
    def error(self) -> float:
        return abs(self.predicted_ms / self.row.time_ms - 1)

    @property
    def off(self) -> float:
        """Excess of the larger over the smaller time, which an error bar must cover."""
        return max(self.predicted_ms / self.row.time_ms, self.row.time_ms / self.predicted_ms) - 1


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients, and the time of a Python call in timings that include one."""

    cost: GpuCost | DlaCost
    call_us: Mapping[str, float] = field(default_factory=dict)


def fit(
    design: Design, start: GpuCost | DlaCost, keys: Sequence[str], first: GpuCost | DlaCost | None = None
) -> Solution:
    """Fit the coefficients ``keys`` to timings, drawn to ``start``, with equal weight per network; others stay."""
    counts = Counter(design.models)
    weights = np.array([counts[model] ** -0.5 for model in design.models])
    calls = [CALL_US[name] for name in design.callers]
    prior = np.log([getattr(start, key) for key in keys] + calls)
    begin = np.log([getattr(first or start, key) for key in keys] + calls)
    highest = np.log([HIGHEST.get(key, np.inf) for key in keys] + [np.inf] * len(calls))
    measured = np.log(design.measured_ms)

    def solution(values: Numbers) -> Solution:
        numbers = np.exp(values).tolist()
        cost = start.model_copy(update=dict(zip(keys, numbers, strict=False)))
        return Solution(cost, dict(zip(design.callers, numbers[len(keys) :], strict=True)))

    def residuals(values: Numbers) -> Numbers:
        found = solution(values)
        errors = weights * (np.log(design.predict_ms(found.cost, found.call_us)) - measured)
        return np.concatenate([errors, _PULL * (values - prior)])

    found = scipy.optimize.least_squares(
        residuals, np.minimum(begin, highest - 1e-3), bounds=(-np.inf, highest), loss="cauchy", f_scale=_OUTLIER,
        max_nfev=60,
    )  # fmt: skip
    return solution(found.x)


def leave_out(
    rows: Sequence[Timing],
    start: GpuCost | DlaCost,
    starts: Mapping[str, GpuCost | DlaCost],
    keys: Sequence[str],
    share: float,
    group: Callable[[Timing], str],
) -> tuple[list[Trial], dict[str, GpuCost | DlaCost]]:
    """Predict each group of rows by a fit to all other rows; also return the coefficients of those fits.

    Args:
        start: what every number is drawn to; predicts a group where there are no others.
        starts: the same for groups that have one of their own.
        group: what a row is left out with: its network, the family of it, or its publisher.
    """
    whole = fit(Design(rows, share), start, keys).cost
    trials: list[Trial] = []
    without: dict[str, GpuCost | DlaCost] = {}
    for name in dict.fromkeys(map(group, rows)):
        known = [row for row in rows if group(row) != name]
        left = Design([row for row in rows if group(row) == name], share)
        first = starts.get(name, start)
        found = fit(Design(known, share), first, keys, whole) if known else Solution(first)
        without[name] = found.cost
        predicted = left.predict_ms(found.cost, {**CALL_US, **found.call_us})
        trials += [Trial(*pair) for pair in zip(left.rows, predicted.tolist(), strict=True)]
    return trials, without
