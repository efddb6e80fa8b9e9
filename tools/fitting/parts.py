"""Fits of single parts: times of GPU and DLA, transitions, and contention for memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from edgert.board.record import board
from edgert.placement.contention import Contention
from edgert.placement.cost.coefficients import ContentionCost, DlaCost, GpuCost, TransitionCost
from edgert.placement.cost.formulas import (
    PRECISIONS,
    dla_seconds,
    dla_speed,
    executed_precision,
    gpu_speed,
    reformat_ms,
)
from edgert.placement.cost.work import table
from tools.fitting.published import Design, Timing, published, timings, works
from tools.fitting.solve import Solution, Trial, fit, leave_out
from tools.networks.table import family_of, network_of

# Time of GPU and DLA, chip by chip: which coefficients are fitted, where they start, what stays assumed.

GPU_START = GpuCost(
    dense_fp32=0.95, dense_fp16=0.95, dense_int8=0.95, half_depth=250, half_tile=35, int8_depth=250, int8_tile=25,
    attention=0.2, plain=0.25, bandwidth=0.85, cache_bytes=2**19, curved_passes=0.2, int8_curved=1.1, launch_us=0.5,
    launch_kcycles=4, enqueue_us=6, run_us=50,
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
GROUPS: Mapping[str, Callable[[Timing], str]] = {
    "network": lambda row: network_of(row.model),
    "family": lambda row: family_of(row.model),
    "publisher": lambda row: row.publisher,
}
"""What a row is left out with."""
_SRAM_BYTES = {"tegra194": 0, "tegra234": 2**20}
"""Managed SRAM that TensorRT gives an engine by default: 1 MiB from 8.6 on, none before; Xavier's last is
8.5. https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-with-dla.html"""


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients, and their errors on rows that were left out.

    Attributes:
        left_out: kind of group (:data:`GROUPS`) → predictions of rows by a fit without their group, and coefficients
            by the group that they have not seen.
    """

    rows: list[Timing]
    solution: Solution
    left_out: Mapping[str, tuple[list[Trial], dict[str, GpuCost | DlaCost]]]

    def trials(self, group: str = "network") -> list[Trial]:
        """Return predictions of all rows, each by a fit without its group."""
        return self.left_out[group][0]

    def without(self, model: str) -> GpuCost | DlaCost:
        """Return the coefficients fitted without one network."""
        return self.left_out["network"][1].get(network_of(model), self.solution.cost)


def fit_gpu(soc: str, like: Fit | None) -> Fit:
    """Fit the GPU of one chip, with that of the chip with most rows as prior, also for precisions without rows."""
    rows = timings(soc, "gpu")
    unseen = set(PRECISIONS) - {executed_precision(row.board, row.precision) for row in rows}
    keys = [key for key in GPU_KEYS if unseen.isdisjoint(key.split("_"))]
    return _fit(rows, like.solution.cost if like else GPU_START, keys, like)


def fit_dla(soc: str, like: DlaCost | None) -> Fit:
    """Fit the DLA of one chip; ``like`` is the start for a chip with few rows, except for its shares."""
    shares = {"dense": DLA_START.dense, "bandwidth": DLA_START.bandwidth, "sram_bytes": _SRAM_BYTES[soc],
              "sparse_speedup": 1.0}  # fmt: skip
    return _fit(timings(soc, "dla0"), (like or DLA_START).model_copy(update=shares), DLA_KEYS)


def _fit(
    rows: list[Timing],
    start: GpuCost | DlaCost,
    keys: Sequence[str],
    like: Fit | None = None,
) -> Fit:
    """Return the fit; ``like`` returns the start for rows that are left out, which must not depend on them."""
    share = start.fp16_share if isinstance(start, DlaCost) else 1.0
    left_out = {}
    for kind, group in GROUPS.items():
        starts = like.left_out[kind][1] if like else {}
        left_out[kind] = leave_out(rows, start, starts, keys, share, group)
    return Fit(rows, fit(Design(rows, share), start, keys), left_out)


# What two zeros in four weights save on a DLA, from the same networks with dense and with such weights.


def sparse_gains(dla: DlaCost, model: str = "") -> dict[tuple[str, str], tuple[float, float]]:
    """Return network and mode → predicted and published ratio of times with dense and sparse weights."""
    data = published()["sparse"]
    record, found = board(data["board"]), {}
    for name, size, mode, dense, sparse in data["rows"]:
        speed = dla_speed(record, record.mode(mode), "int8", 0, dla.fp16_share)
        assert speed is not None
        columns = table(works(name, size))
        before, after = (
            dla_seconds(one, speed, dla) for one in (columns, replace(columns, is_sparse=columns.is_dense))
        )
        if model in ("", name):
            found[name, mode] = float(before.sum() / after.sum()), sparse / dense
    return found


def fit_fp16_share(dla: DlaCost) -> DlaCost:
    """Return the coefficients with the FP16 rate that fits the published ratios of FP16 to INT8 times best."""
    data = published()["fp16_dla"]
    record = board(data["board"])
    mode = record.mode(data["mode"])

    def error(log_share: float) -> float:
        cost, total = dla.model_copy(update={"fp16_share": float(np.exp(log_share))}), 0.0
        for model, size, batch, ratio in data["rows"]:
            what = (record, mode, model, size)
            times = [
                Design([Timing(*what, precision, batch, "dla0", 1.0, "", "")], cost.fp16_share).predict_ms(cost)[0]
                for precision in ("fp16", "int8")
            ]
            total += abs(np.log(times[0] / times[1] / ratio))
        return total

    found = scipy.optimize.minimize_scalar(error, bounds=(np.log(0.005), np.log(0.5)), method="bounded")
    return dla.model_copy(update={"fp16_share": float(np.exp(found.x))})


def fit_sparse(dla: DlaCost, but: str = "") -> DlaCost:
    """Return the coefficients with the sparse speedup that fits the published gains best, leaving out ``but``."""

    def error(speedup: float) -> float:
        gains = sparse_gains(dla.model_copy(update={"sparse_speedup": speedup}))
        return sum(abs(np.log(made / real)) for (name, _), (made, real) in gains.items() if name != but)

    found = scipy.optimize.minimize_scalar(error, bounds=(1.0, 2.0), method="bounded")
    return dla.model_copy(update={"sparse_speedup": float(found.x)})


# What a transition costs, from HaX-CoNN's GoogleNet whose result was forced out after single layers.

_HALF_BYTES = 2
_ELEMENTS = {  # Caffe layer → elements of its result; the inception modules of GoogleNet in order
    10: 192 * 28 * 28, 24: 256 * 28 * 28, 38: 480 * 28 * 28, 53: 512 * 14 * 14, 67: 512 * 14 * 14, 81: 512 * 14 * 14,
    95: 528 * 14 * 14, 110: 832 * 14 * 14, 124: 832 * 7 * 7,
}  # fmt: skip


def fit_transition(gpu: GpuCost) -> TransitionCost:
    """Return transition times of an AGX Xavier at full clocks: medians of the rest beyond the reformat kernel."""
    record = board("agx-xavier-32gb")
    speed = gpu_speed(record, record.mode("MAXN"), "fp16")
    measured = published()["transitions"]
    rest_us = {
        name: [1e3 * (ms - reformat_ms(_ELEMENTS[layer] * _HALF_BYTES, speed, gpu)) for layer, ms in measured[name]]
        for name in ("gpu", "dla")
    }
    to_dla, from_dla = (max(float(np.median(rest_us[name])), 0.0) for name in ("gpu", "dla"))
    return TransitionCost(to_dla_us=to_dla, from_dla_us=from_dla)


# Ceiling and floor of the bandwidth that is left beside others, from the matrix of PCCS.


def fit_contention() -> ContentionCost:
    """Return the shares of the DRAM's bandwidth with the least mean relative error."""
    found = scipy.optimize.minimize(lambda shares: contention_error(*shares), (0.6, 0.3), method="Nelder-Mead")
    ceiling, floor = found.x
    return ContentionCost(ceiling=float(ceiling), floor=float(floor))


def contention_error(ceiling: float, floor: float) -> float:
    """Return the mean relative error over the matrix."""
    data = published()["contention"]
    full = data["bandwidth_gb_s"]
    memory = Contention(ceiling * full, floor_bytes_s=floor * full)  # the same in any unit
    errors = [
        abs(own / memory.slowdown(own, other) / got - 1)
        for own, row in zip(data["own"], data["achieved"], strict=True)
        for other, got in zip(data["others"], row, strict=True)
    ]
    return float(np.mean(errors))
