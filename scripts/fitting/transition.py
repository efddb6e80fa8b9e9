"""What handing a tensor over costs, from HaX-CoNN's GoogleNet whose result was forced out after single layers."""

from __future__ import annotations

import numpy as np

from edgert.board.record import board
from edgert.placement.cost.coefficients import GpuCost, TransitionCost
from edgert.placement.cost.speeds import gpu_speed
from edgert.placement.cost.times import Reformat
from scripts.fitting.row import published

_HALF_BYTES = 2
_ELEMENTS = {  # Caffe layer → elements of its result; the inception modules of GoogleNet in order
    10: 192 * 28 * 28, 24: 256 * 28 * 28, 38: 480 * 28 * 28, 53: 512 * 14 * 14, 67: 512 * 14 * 14, 81: 512 * 14 * 14,
    95: 528 * 14 * 14, 110: 832 * 14 * 14, 124: 832 * 7 * 7,
}  # fmt: skip


def fit_transition(gpu: GpuCost) -> TransitionCost:
    """Of an AGX Xavier at full clocks: the medians of what the reformat kernel does not explain."""
    record = board("agx-xavier-32gb")
    reformat = Reformat.on(gpu_speed(record, record.mode("MAXN"), "fp16"), gpu)
    measured = published()["transitions"]
    rest_us = {
        name: [1e3 * (ms - reformat.time_ms(_ELEMENTS[layer] * _HALF_BYTES)) for layer, ms in measured[name]]
        for name in ("gpu", "dla")
    }
    to_dla, from_dla = (max(float(np.median(rest_us[name])), 0.0) for name in ("gpu", "dla"))
    return TransitionCost(to_dla_us=to_dla, from_dla_us=from_dla)
