"""Time of GPU and DLA, chip by chip: which coefficients are fitted, where they start, what stays assumed."""

from __future__ import annotations

from dataclasses import dataclass

from edgert.placement.cost.coefficients import DlaCost, GpuCost
from scripts.fitting.design import Design
from scripts.fitting.row import Timing, timings
from scripts.fitting.solve import Solution, Trial, fit, leave_one_out

GPU_START = GpuCost(
    dense_fp32=0.6, dense_fp16=0.6, dense_int8=0.5, half_depth=64, half_columns=20, plain=0.3, bandwidth=0.7,
    launch_us=3, launch_kcycles=6, run_us=50,
)  # fmt: skip
DLA_START = DlaCost(
    dense=0.8, half_depth=100, half_columns=20, bandwidth=0.25, plain_per_clock=32, layer_us=3, layer_kcycles=1,
    run_us=50, sram_bytes=0, curved_passes=5, fp16_share=0.0625,
)  # fmt: skip
GPU_KEYS = tuple(GpuCost.model_fields)
DLA_KEYS = (
    "dense",
    "half_depth",
    "half_columns",
    "bandwidth",
    "plain_per_clock",
    "layer_us",
    "layer_kcycles",
    "run_us",
)
_SRAM_BYTES = {"tegra194": 0, "tegra234": 2**20}
"""Managed SRAM that TensorRT gives an engine unless told otherwise: 1 MiB from 8.6 on, none before; Xavier's last is
8.5. https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-with-dla.html"""


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients, and how they do on networks that were left out."""

    rows: list[Timing]
    solution: Solution
    trials: list[Trial]


def fit_gpu(soc: str) -> Fit:
    """The GPU of one chip. Precisions without a row keep where they started."""
    rows = timings(soc, "gpu")
    seen = {_ran(row) for row in rows}
    keys = [key for key in GPU_KEYS if not key.startswith("dense_") or key.removeprefix("dense_") in seen]
    found = fit(Design(rows, 1.0), GPU_START, keys)
    return Fit(rows, found, leave_one_out(rows, GPU_START, keys, 1.0))


def fit_dla(soc: str, like: DlaCost | None) -> Fit:
    """The DLA of one chip; ``like`` is that of another, where a chip with few rows starts, but for its shares."""
    shares = {"dense": DLA_START.dense, "bandwidth": DLA_START.bandwidth, "sram_bytes": _SRAM_BYTES[soc]}
    start = (like or DLA_START).model_copy(update=shares)
    rows = timings(soc, "dla0")
    found = fit(Design(rows, start.fp16_share), start, DLA_KEYS)
    return Fit(rows, found, leave_one_out(rows, start, DLA_KEYS, start.fp16_share))


def _ran(row: Timing) -> str:
    return "fp16" if row.precision == "int8" and row.board.gpu.ops_per_clock.int8 is None else row.precision
