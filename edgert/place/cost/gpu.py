"""Time of units on the GPU: a roofline with a fixed cost per kernel.

    time = launch + max(products / (peak * share), bytes / (bandwidth * share))

A matrix product of depth k and width n reaches the share s * k/(k + k0) * n/(n + n0) of the peak: filling and draining
the pipeline, and operands that are read for few results, cost the same however little there is to multiply. Depth and
width are rounded up to what a tensor core takes at once. Roofline: https://doi.org/10.1145/1498765.1498785.
"""

from __future__ import annotations

import numpy as np

from edgert.place.cost.coefficients import GpuCost
from edgert.place.cost.speed import Speed
from edgert.place.cost.table import Numbers, Table

_ALIGN = np.array([4.0, 8.0, 16.0])
"""Channels that FP32 (TF32), FP16 and INT8 tensor core instructions take: 16 bytes; Tensor Core requirements in
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html"""


def gpu_seconds(units: Table, speed: Speed, cost: GpuCost) -> Numbers:
    """Seconds of every unit alone on the board, launch included; the engine's own start is not."""
    compute = units.is_dense * _dense_seconds(units, speed, cost)
    macs = units.rows * units.groups * units.columns * units.taps
    compute = compute + units.is_depthwise * macs / (np.asarray(speed.plain_macs_per_s) * cost.plain)
    memory = gpu_bytes(units, speed) / (np.asarray(speed.bytes_per_s) * cost.bandwidth)
    launch = cost.launch_us * 1e-6 + cost.launch_kcycles * 1e3 / np.asarray(speed.clock_hz)
    return np.asarray(units.launches * launch + units.is_busy * np.maximum(compute, memory))


def gpu_bytes(units: Table, speed: Speed) -> Numbers:
    """Bytes of every unit to and from DRAM, as if nothing stayed in a cache."""
    return np.asarray(units.is_busy * (units.read + units.written + units.weights) * speed.value_bytes)


def _dense_seconds(units: Table, speed: Speed, cost: GpuCost) -> Numbers:
    precision = np.asarray(speed.precision, dtype=np.intp)
    align = _ALIGN[precision]
    share = np.array([cost.dense_fp32, cost.dense_fp16, cost.dense_int8])[precision]
    depth = np.ceil(units.channels / align) * align * units.taps
    columns = np.ceil(units.columns / align) * align
    macs = units.rows * units.groups * (depth + cost.half_depth) * (columns + cost.half_columns)
    return np.asarray(macs / (np.asarray(speed.macs_per_s) * share))
