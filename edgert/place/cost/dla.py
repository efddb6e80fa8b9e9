"""Time of units on a DLA core: channels in steps, and whatever the managed SRAM does not hold goes through DRAM.

    time = layer + max(products / (peak * share), bytes beyond the SRAM / (bandwidth * share))

Channels come in steps of 16 (FP16) or 32 (INT8); a depthwise convolution fills one of each step. An input of up to four
channels has a format of its own. A sigmoid runs in FP16 by itself, as do the product of a SiLU and what it reads.
Sources: https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-with-dla.html (formats, SRAM),
https://github.com/NVIDIA/Deep-Learning-Accelerator-SW (operators).
"""

from __future__ import annotations

import numpy as np

from edgert.place.cost.coefficients import DlaCost
from edgert.place.cost.speed import Speed
from edgert.place.cost.table import Numbers, Table

_ALIGN = np.array([16.0, 16.0, 32.0])
_PICTURE = 4.0  # channels of the HWC4 format
_HALF_BYTES = 2.0


def dla_seconds(units: Table, speed: Speed, cost: DlaCost) -> Numbers:
    """Seconds of every unit on one core, alone on the board; starting the loadable is not in it."""
    memory = dla_bytes(units, speed, cost) / (np.asarray(speed.bytes_per_s) * cost.bandwidth)
    is_product = units.is_dense + units.is_depthwise
    plain = units.read / (np.asarray(speed.clock_hz) * cost.plain_per_clock)
    compute = is_product * _dense_seconds(units, speed, cost) + (1 - is_product) * plain
    layer = cost.layer_us * 1e-6 / np.asarray(speed.memory_share) + cost.layer_kcycles * 1e3 / np.asarray(
        speed.clock_hz
    )
    return np.asarray(units.is_busy * (layer + np.maximum(compute, memory)))


def dla_bytes(units: Table, speed: Speed, cost: DlaCost) -> Numbers:
    """Bytes of every unit to and from DRAM: weights, and of every tensor what the SRAM does not hold."""
    size = np.asarray(speed.value_bytes)
    spilled = np.maximum(units.read * size - cost.sram_bytes, 0) + np.maximum(units.written * size - cost.sram_bytes, 0)
    curved = cost.curved_passes * np.maximum(units.curved * _HALF_BYTES - cost.sram_bytes, 0)
    return np.asarray(units.is_busy * (spilled + curved + units.weights * size))


def _dense_seconds(units: Table, speed: Speed, cost: DlaCost) -> Numbers:
    align = _ALIGN[np.asarray(speed.precision, dtype=np.intp)]
    is_picture = (units.channels <= _PICTURE) & (units.groups == 1)
    is_grouped = units.groups > 1
    channels = np.where(is_picture, _PICTURE, np.ceil(units.channels / align) * align)
    columns = np.where(is_grouped, units.columns, np.ceil(units.columns / align) * align + cost.half_columns)
    macs = units.rows * units.groups * (channels * units.taps + cost.half_depth) * columns
    return np.asarray(macs / (np.asarray(speed.macs_per_s) * cost.dense))
