"""Rates of GPU and DLA at the same time: published ones, predictions, and the contention that they show."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from edgert.board.record import Board
from edgert.board.sections import Mode
from edgert.placement.contention import Contention
from edgert.placement.cost import formulas
from edgert.placement.cost.coefficients import ContentionCost, DlaCost, GpuCost
from edgert.placement.cost.work import Numbers, table
from tools.fitting.parts import Fit
from tools.fitting.published import groups, works

CLOSELY = ("tegra194",)
"""Chips whose contention was measured for pairs of demands, which says more than rates do."""
_ROUNDS = 8  # until demands and slowdowns agree
_PULL, _OUTLIER = 0.3, 0.1


@dataclass(frozen=True, slots=True)
class Together:
    """One published rate, in INT8, of the GPU and all DLA cores together."""

    board: Board
    mode: Mode
    model: str
    size: int
    gpu_batch: int
    dla_batch: int
    fps: float
    source: str


def rates(soc: str) -> list[Together]:
    found = (Together(record, mode, *group["row"], group["source"]) for record, mode, group in groups("together"))
    return [one for one in found if one.board.soc == soc]


def predict_fps(row: Together, gpu: GpuCost, dla: DlaCost, contention: ContentionCost | None) -> float:
    """Return the frames per second of all accelerators, slowed down by the others' use of memory; None: not slowed."""
    engines = [_on_gpu(row, gpu), *([_on_dla(row, dla)] * row.mode.dla_cores)]
    full = 1e9 * (row.board.bandwidth_gb_s(row.mode) or 0.0)
    slowdowns = [np.ones(len(seconds)) for seconds, *_ in engines]
    if contention is not None:
        memory = Contention(contention.ceiling * full, floor_bytes_s=contention.floor * full)
        for _ in range(_ROUNDS):
            asked = [moved.sum() / ((seconds * slow).sum() + start)
                     for (seconds, moved, start, _), slow in zip(engines, slowdowns, strict=True)]  # fmt: skip
            slowdowns = [
                np.array([memory.slowdown(own, sum(asked) - mine) for own in (moved / seconds).tolist()])
                for (seconds, moved, *_), mine in zip(engines, asked, strict=True)
            ]
    return float(sum(batch / ((seconds * slow).sum() + start)
                     for (seconds, _, start, batch), slow in zip(engines, slowdowns, strict=True)))  # fmt: skip


def _on_gpu(row: Together, cost: GpuCost) -> tuple[Numbers, Numbers, float, int]:
    """Return seconds and bytes of every unit, seconds to start a run, and frames of a run."""
    columns = table(works(row.model, row.size), row.gpu_batch)
    speed = formulas.gpu_speed(row.board, row.mode, "int8")
    seconds = formulas.gpu_seconds(columns, speed, cost, 0.0)
    return seconds, formulas.gpu_bytes(columns, speed, cost), cost.run_us * 1e-6, row.gpu_batch


def _on_dla(row: Together, cost: DlaCost) -> tuple[Numbers, Numbers, float, int]:
    columns = table(works(row.model, row.size), row.dla_batch)
    speed = formulas.dla_speed(row.board, row.mode, "int8", 0, cost.fp16_share)
    assert speed is not None
    seconds = formulas.dla_seconds(columns, speed, cost)
    return seconds, formulas.dla_bytes(columns, speed, cost), cost.run_us * 1e-6, row.dla_batch


def fit_shares(rows: Sequence[Together], gpu: GpuCost, dla: DlaCost, start: ContentionCost) -> ContentionCost:
    """Fit ceiling and floor to a chip's rates, with those of the most measured chip as prior."""
    first = np.log([start.ceiling, start.floor])

    def cost(values: Numbers) -> ContentionCost:
        ceiling, floor = np.exp(values).tolist()
        return ContentionCost(ceiling=ceiling, floor=min(floor, ceiling))

    def residuals(values: Numbers) -> Numbers:
        errors = [np.log(predict_fps(row, gpu, dla, cost(values)) / row.fps) for row in rows]
        return np.concatenate([errors, _PULL * (values - first)])

    how = {"loss": "cauchy", "f_scale": _OUTLIER, "diff_step": 0.02}
    found = scipy.optimize.least_squares(residuals, first, bounds=(-np.inf, 0.0), **how)
    return cost(found.x)


def leave_out_rates(soc: str, gpu: Fit, dla: Fit, start: ContentionCost) -> list[tuple[Together, float, float]]:
    """Predict each rate by coefficients without its network, with and without contention."""
    rows, found = rates(soc), []
    for model in dict.fromkeys(row.model for row in rows):
        gpu_cost, dla_cost = gpu.without(model), dla.without(model)
        assert isinstance(gpu_cost, GpuCost) and isinstance(dla_cost, DlaCost)
        known = [row for row in rows if row.model != model]
        shares = start if soc in CLOSELY else fit_shares(known, gpu_cost, dla_cost, start)
        for row in (row for row in rows if row.model == model):
            with_it, without = (predict_fps(row, gpu_cost, dla_cost, one) for one in (shares, None))
            found.append((row, with_it, without))
    return found
