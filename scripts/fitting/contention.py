"""Ceiling and floor of the bandwidth that is left beside others, from the matrix of PCCS."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from edgert.placement.contention import Contention
from edgert.placement.cost.coefficients import ContentionCost
from scripts.fitting.row import published


def fit_contention() -> ContentionCost:
    """Shares of the DRAM's bandwidth with the least mean relative error."""
    found = minimize(lambda shares: contention_error(*shares), (0.6, 0.3), method="Nelder-Mead")
    ceiling, floor = found.x
    return ContentionCost(ceiling=float(ceiling), floor=float(floor))


def contention_error(ceiling: float, floor: float) -> float:
    """Mean relative error over the matrix."""
    data = published()["contention"]
    full = data["bandwidth_gb_s"]
    memory = Contention(ceiling * full, floor_bytes_s=floor * full)  # the same in any unit
    errors = [
        abs(own / memory.slowdown(own, other) / got - 1)
        for own, row in zip(data["own"], data["achieved"], strict=True)
        for other, got in zip(data["others"], row, strict=True)
    ]
    return float(np.mean(errors))
