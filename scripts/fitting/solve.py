"""Robust least squares on the logarithm of predicted over published time, drawn weakly to where each number starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from edgert.placement.cost.coefficients import DlaCost, GpuCost
from edgert.placement.cost.work import Numbers
from scripts.fitting.published import Design, Timing

HIGHEST = {**dict.fromkeys(("dense_fp32", "dense_fp16", "dense_int8", "dense", "plain"), 1.0), "bandwidth": 0.93}
"""What no share can be above. Of the DRAM's rate, refreshing takes about 7 %:
https://docs.amd.com/r/en-US/pg313-network-on-chip/LPDDR4-Refresh-Options; the most that PCCS drives an AGX Xavier to is
127.4 of 136.5 GB/s: https://github.com/processorcentricmodel/PCCS/blob/51ffb72/model_construction/input.txt."""
_PULL = 0.1
"""A coefficient e times its start costs as much as a network that is off by this much."""
_OUTLIER = 0.1
"""Relative errors beyond this count linearly, not squared."""
_CALL_US = 200.0
"""Where the fit starts for what a Python call adds."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What was predicted for a row by coefficients that never saw its network."""

    row: Timing
    predicted_ms: float

    @property
    def error(self) -> float:
        """Relative."""
        return abs(self.predicted_ms / self.row.time_ms - 1)


@dataclass(frozen=True, slots=True)
class Solution:
    """Coefficients, and what a Python call added to those timings that were taken around one."""

    cost: GpuCost | DlaCost
    call_us: float


def fit(design: Design, start: GpuCost | DlaCost, keys: Sequence[str]) -> Solution:
    """Coefficients for these timings; ``keys`` are fitted, the others stay. Every network counts the same."""
    counts = Counter(design.models)
    weights = np.array([counts[model] ** -0.5 for model in design.models])
    first = np.log([getattr(start, key) for key in keys] + [_CALL_US] * design.has_calls)
    highest = np.log([HIGHEST.get(key, np.inf) for key in keys] + [np.inf] * design.has_calls)
    measured = np.log(design.measured_ms)

    def residuals(values: Numbers) -> Numbers:
        found = _solution(start, keys, values)
        errors = weights * (np.log(design.predict_ms(found.cost, found.call_us)) - measured)
        return np.concatenate([errors, _PULL * (values - first)])

    found = least_squares(
        residuals, np.minimum(first, highest - 1e-3), bounds=(-np.inf, highest), loss="cauchy", f_scale=_OUTLIER,
        max_nfev=60,
    )  # fmt: skip
    return _solution(start, keys, found.x)


def leave_one_out(rows: Sequence[Timing], start: GpuCost | DlaCost, keys: Sequence[str], share: float) -> list[Trial]:
    """Each network predicted by a fit to all the others."""
    trials = []
    for model in dict.fromkeys(row.model for row in rows):
        known = [row for row in rows if _same(row.model) != _same(model)]
        left = [row for row in rows if row.model == model]
        found = fit(Design(known, share), start, keys) if known else Solution(start, _CALL_US)
        predicted = Design(left, share).predict_ms(found.cost, found.call_us)
        trials += [Trial(*pair) for pair in zip(left, predicted.tolist(), strict=True)]
    return trials


def _same(model: str) -> str:
    """Networks that differ in name only are left out together."""
    return {"resnet50-v1.5": "resnet50", "vgg11_bn": "vgg11", "vgg19_bn": "vgg19"}.get(model, model)


def _solution(start: GpuCost | DlaCost, keys: Sequence[str], values: Numbers) -> Solution:
    numbers = np.exp(values).tolist()
    call_us = numbers[len(keys)] if len(numbers) > len(keys) else 0.0
    return Solution(start.model_copy(update=dict(zip(keys, numbers, strict=False))), call_us)
