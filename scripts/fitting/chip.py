"""All coefficients of one chip, what was assumed among them, and its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import yaml
from scipy.stats import spearmanr

from edgert.placement.cost.coefficients import Accuracy, Coefficients, ContentionCost, DlaCost, GpuCost, TransitionCost
from scripts.fitting.parts import Fit, fit_dla, fit_gpu
from scripts.fitting.solve import Trial

_RANKED = 8  # rows a board must have for the order of its predictions to mean something
_HEAD = (
    "# Written by scripts/fit_costs from configs/costs/published.yaml; what the keys mean: docs/costs.md.\n"
    "# The accuracies are of networks that the fit had not seen.\n"
)
_NO_CROSSING = "fitted on AGX Xavier; nothing is published for this chip"
_NO_CONTENTION = "fitted on AGX Xavier, as shares of the bandwidth; nothing is published for this chip"


@dataclass(frozen=True, slots=True)
class Chip:
    """A fitted chip; ``gpu`` and ``dla`` hold the trials behind its accuracies."""

    coefficients: Coefficients
    gpu: Fit
    dla: Fit | None


def fit_chip(soc: str, contention: ContentionCost, transition: TransitionCost | None, like: DlaCost | None) -> Chip:
    """Fits one chip.

    Args:
        transition: of an AGX Xavier; None while that is being fitted.
        like: the DLA of the chip with the most rows; None: that is this one. Chips without a DLA ignore it.
    """
    gpu = fit_gpu(soc)
    dla = fit_dla(soc, like) if soc in ("tegra194", "tegra234") else None
    gpu_cost, dla_cost = gpu.solution.cost, dla.solution.cost if dla else None
    assert isinstance(gpu_cost, GpuCost) and not isinstance(dla_cost, GpuCost)
    rows = [*gpu.rows, *(dla.rows if dla else ())]
    found = Coefficients(
        soc=soc,
        gpu=gpu_cost,
        dla=dla_cost,
        transition=transition or TransitionCost(to_dla_us=0, from_dla_us=0),
        contention=contention,
        gpu_accuracy=accuracy(gpu.trials),
        dla_accuracy=accuracy(dla.trials) if dla else None,
        assumed=_assumed(soc, gpu, dla),
        sources=tuple(dict.fromkeys(row.source for row in rows)),
    )
    return Chip(found, gpu, dla)


def accuracy(trials: Sequence[Trial]) -> Accuracy:
    """Of whole networks; single layers do not count."""
    whole = [trial for trial in trials if trial.row.part is None]
    errors = [trial.error for trial in whole]
    ranks = [rank for rank in map(rank_correlation, by_board(whole).values()) if rank is not None]
    return Accuracy(
        rows=len(whole),
        models=len({trial.row.model for trial in whole}),
        median=round(float(np.median(errors)), 3),
        p90=round(float(np.quantile(errors, 0.9)), 3),
        spearman=round(min(ranks), 3) if ranks else None,
    )


def by_board(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Trials of whole networks, by the name of their board."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.row.part is None:
            found.setdefault(trial.row.board.name, []).append(trial)
    return found


def rank_correlation(trials: Sequence[Trial]) -> float | None:
    """Spearman's, of predicted and published times; None below eight rows."""
    if len(trials) < _RANKED:
        return None
    return float(spearmanr([trial.predicted_ms for trial in trials], [trial.row.time_ms for trial in trials])[0])


def text(found: Coefficients) -> str:
    """The file of a chip."""
    data = found.model_dump(exclude_none=True, mode="json")
    return _HEAD + yaml.safe_dump(rounded(data), sort_keys=False, width=118, allow_unicode=True)


def rounded(data: object) -> object:
    """The same, with four digits in every number."""
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    return float(f"{data:.4g}") if isinstance(data, float) else data


def _assumed(soc: str, gpu: Fit, dla: Fit | None) -> dict[str, str]:
    found: dict[str, str] = {}
    seen = {row.precision for row in gpu.rows}
    for precision in ("fp32", "fp16", "int8"):
        if precision not in seen:
            found[f"gpu.dense_{precision}"] = "no published row of this precision; where the fit starts"
    if not any("mobilenet" in row.model or "mnasnet" in row.model or row.model[:4] == "yolo" for row in gpu.rows):
        found["gpu.plain"] = "no published network with depthwise convolutions; where the fit starts"
    if dla:
        found["dla.curved_passes"] = "counted: a sigmoid and a product of their own write twice and read three times"
        found["dla.sram_bytes"] = "TensorRT's default for an engine"
        if soc == "tegra234":
            found["dla.fp16_share"] = "NVIDIA publishes only: up to twice as slow as Xavier's"
    if soc != "tegra194":
        found["contention"] = _NO_CONTENTION
        if dla:
            found["transition"] = _NO_CROSSING
    return found
