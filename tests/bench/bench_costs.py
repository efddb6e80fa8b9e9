"""How far the cost model is off on networks that it has not seen, and on what it must reproduce.

    python tests/bench/bench_costs.py [--json FILE]

Every network with published times is predicted by a fit to all the others, board by board: median error and rank
correlation. HaX-CoNN's totals and the scaling of NVIDIA's table over power modes are predicted by those same fits; what
the shipped coefficients make of them, which were fitted to these rows too, stands beside. Exits 1 above 25 % or below
0.9 on a board, above 15 % on one of the totals or modes. Takes about two minutes; needs no evaluation data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import report

from edgert.benchmark.measure import Figure
from edgert.placement.cost.coefficients import GpuCost, coefficients

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.fitting.chip import Chip, by_board, rank_correlation
from scripts.fitting.main import fit_all
from scripts.fitting.parts import Fit, contention_error
from scripts.fitting.published import Design
from scripts.fitting.solve import Trial

ERROR_BAR, RANK_BAR, TOTAL_BAR = 0.25, 0.9, 0.15
_TABLE = "Deep-Learning-Accelerator-SW"


def board_figures(fit: Fit) -> Iterator[Figure]:
    """Of left-out networks."""
    kind = "gpu" if isinstance(fit.solution.cost, GpuCost) else "dla"
    for board, trials in by_board(fit.trials).items():
        errors = [trial.error for trial in trials]
        detail = {"p90": float(np.quantile(errors, 0.9)), "networks": len({trial.row.model for trial in trials})}
        yield Figure(
            f"{board} {kind}, left out, median error", float(np.median(errors)), "", ERROR_BAR, n=len(errors),
            detail=detail,
        )  # fmt: skip
        rank = rank_correlation(trials)
        if rank is not None:
            yield Figure(f"{board} {kind}, left out, Spearman", rank, "", RANK_BAR, "higher", n=len(errors))


def shipped_ms(fit: Fit, soc: str) -> dict[int, float]:
    """Identity of a row → what the shipped coefficients predict."""
    found = coefficients(soc)
    cost = found.gpu if isinstance(fit.solution.cost, GpuCost) else found.dla
    assert cost is not None
    predicted = Design(fit.rows, found.dla.fp16_share if found.dla else 1.0).predict_ms(cost)
    return dict(zip(map(id, fit.rows), predicted.tolist(), strict=True))


def haxconn(fit: Fit, soc: str) -> Iterator[Figure]:
    """GoogleNet's and AlexNet's totals."""
    seen = shipped_ms(fit, soc)
    for trial in fit.trials:
        if trial.row.model in ("googlenet", "alexnet"):
            shipped = abs(seen[id(trial.row)] / trial.row.time_ms - 1)
            name = f"HaX-CoNN {trial.row.model} {trial.row.accelerator}, left out, error"
            yield Figure(name, trial.error, "", TOTAL_BAR, detail={"shipped": shipped})


def modes(fit: Fit, soc: str) -> Iterator[Figure]:
    """Images a second in a mode over those in MAXN: the worst of NVIDIA's networks."""
    rows = [trial for trial in fit.trials if _TABLE in trial.row.source and trial.row.part is None]
    seen = shipped_ms(fit, soc)
    left_out = {(trial.row.model, trial.row.mode.name): trial.predicted_ms for trial in rows}
    shipped = {(trial.row.model, trial.row.mode.name): seen[id(trial.row)] for trial in rows}
    for mode in sorted({trial.row.mode.name for trial in rows} - {"MAXN"}):
        asked = [trial for trial in rows if trial.row.mode.name == mode]
        errors = {trial.row.model: _off(rows, left_out, trial) for trial in asked}
        detail = {**errors, "worst shipped": max(_off(rows, shipped, trial) for trial in asked)}
        name = f"2 DLAs in {mode} over MAXN, left out, worst error"
        yield Figure(name, max(errors.values()), "", TOTAL_BAR, n=len(errors), detail=detail)


def _off(rows: list[Trial], predicted: dict[tuple[str, str], float], trial: Trial) -> float:
    model, mode = trial.row.model, trial.row.mode.name
    full = next(other for other in rows if other.row.model == model and other.row.mode.name == "MAXN")
    measured = full.row.time_ms / trial.row.time_ms
    return abs(predicted[model, "MAXN"] / predicted[model, mode] / measured - 1)


def of_chip(chip: Chip) -> Iterator[Figure]:
    """Every figure of one chip."""
    soc = chip.coefficients.soc
    for fit in filter(None, (chip.gpu, chip.dla)):
        yield from board_figures(fit)
        if soc == "tegra194":
            yield from haxconn(fit, soc)
    if soc == "tegra234" and chip.dla:
        yield from modes(chip.dla, soc)


def measure() -> Iterator[Figure]:
    """Every figure."""
    for chip in fit_all():
        yield from of_chip(chip)
    cost = coefficients("tegra194").contention
    yield Figure("contention, mean error over PCCS's matrix", contention_error(cost.ceiling, cost.floor), "", n=100)


if __name__ == "__main__":
    report.main("Cost model against published speeds", measure)
