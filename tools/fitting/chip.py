"""Coefficients of one chip with the assumed ones, and its file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy
import yaml

from edgert.board.record import board
from edgert.placement.cost.coefficients import (
    ENOUGH_ROWS,
    Accuracy,
    Coefficients,
    ContentionCost,
    GpuCost,
    Sisters,
    TransitionCost,
)
from edgert.placement.cost.formulas import PRECISIONS, executed_precision
from tools.fitting.parts import Fit, fit_dla, fit_fp16_share, fit_gpu, fit_sparse
from tools.fitting.published import Timing, published
from tools.fitting.solve import Trial

_RANKED = 8  # rows a board must have for the order of its predictions to mean something
_HEAD = (
    "# Written by tools/fit_costs from configs/costs/published.yaml; what the keys mean: docs/costs.md.\n"
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

    def trials(self, group: str = "network") -> list[Trial]:
        """Return the rows of both accelerators, each predicted without its group."""
        return [*self.gpu.trials(group), *(self.dla.trials(group) if self.dla else ())]


def fit_chip(soc: str, contention: ContentionCost, like: Chip | None) -> Chip:
    """Fit one chip, without transitions; ``like`` is the chip with the most rows."""
    gpu = fit_gpu(soc, like.gpu if like else None)
    dla = fit_dla(soc, like.coefficients.dla if like else None) if soc in ("tegra194", "tegra234") else None
    gpu_cost, dla_cost = gpu.solution.cost, dla.solution.cost if dla else None
    assert isinstance(gpu_cost, GpuCost) and not isinstance(dla_cost, GpuCost)
    if dla_cost is not None and board(published()["sparse"]["board"]).soc == soc:
        dla_cost = fit_fp16_share(fit_sparse(dla_cost))
    rows = [*gpu.rows, *(dla.rows if dla else ())]
    found = Coefficients(
        soc=soc,
        gpu=gpu_cost,
        dla=dla_cost,
        transition=TransitionCost(to_dla_us=0, from_dla_us=0),
        contention=contention,
        assumed=_assumed(soc, gpu, dla),
        sources=tuple(dict.fromkeys(row.source for row in rows)),
    )
    return Chip(found, gpu, dla)


def accuracy(chips: Mapping[str, Chip | None]) -> dict[str, dict[str, dict[str, Accuracy]]]:
    """Return chip → accelerator → precision → accuracy of predictions.

    A bar is taken over publishers that the fit had not seen: from a chip's rows of this precision where enough were
    published by two or more, else from all rows of the chip, else from this precision on all chips. Where one
    publisher alone measured a precision, its bar is no narrower than the chip's.

    Args:
        chips: chip → its fits; None: nothing is published for it, and it gets the bars of other chips.
    """
    trials = _whole([trial for chip in chips.values() if chip for trial in chip.trials()])
    strangers = _whole([trial for chip in chips.values() if chip for trial in chip.trials("publisher")])
    found: dict[str, dict[str, dict[str, Accuracy]]] = {soc: {} for soc in chips}
    for soc in chips:
        for kind in ("gpu", "dla"):
            alike = [trial for trial in strangers if kind_of(trial)[0] == kind]
            here = [trial for trial in alike if trial.row.board.soc == soc]
            for precision in PRECISIONS if kind == "gpu" else PRECISIONS[1:]:
                own = [trial for trial in here if kind_of(trial)[1] == precision]
                same = [trial for trial in alike if kind_of(trial)[1] == precision]
                pools = [some for some in (own, here, same, alike) if len(some) >= ENOUGH_ROWS]
                shown = next((some for some in pools if len(publishers(some)) > 1), alike)
                seen = [trial for trial in trials if kind_of(trial) == (kind, precision)]
                seen = [trial for trial in seen if not own or trial.row.board.soc == soc]
                widest = max(bar(shown), bar(own) if len(own) >= ENOUGH_ROWS else 0.0)
                found[soc].setdefault(kind, {})[precision] = accuracy_of(own, seen or trials, widest)
    return found


def publishers(trials: Sequence[Trial]) -> set[str]:
    """Return who measured these rows."""
    return {trial.row.publisher for trial in trials}


def timed_twice(trials: Sequence[Trial]) -> Iterator[tuple[Trial, Trial]]:
    """Yield pairs of times that two publishers measured of one network, size, batch and precision at equal clocks."""
    for pair in combinations(_whole(trials), 2):
        one, other = (trial.row for trial in pair)
        if one.publisher != other.publisher and _subject(one) == _subject(other):
            yield pair


def _subject(row: Timing) -> tuple[object, ...]:
    return row.model, row.size, row.precision, row.batch, row.accelerator, row.board, row.mode


def _whole(trials: Sequence[Trial]) -> list[Trial]:
    """Return the rows of complete networks."""
    return [trial for trial in trials if trial.row.part is None]


def kind_of(trial: Trial) -> tuple[str, str]:
    """Return the accelerator and precision of a time."""
    kind = trial.row.accelerator.rstrip("01")
    return kind, trial.row.precision if kind == "dla" else executed_precision(trial.row.board, trial.row.precision)


def accuracy_of(own: Sequence[Trial], seen: Sequence[Trial], widest: float) -> Accuracy:
    """Return the record of a chip's own rows, the errors of rows predicted without their network, and a bar."""
    errors = [trial.error for trial in seen]
    return Accuracy(
        rows=len(own),
        models=len({trial.row.model for trial in own}),
        publishers=len(publishers(own)),
        median=round(float(np.median(errors)), 3),
        p90=round(float(np.quantile(errors, 0.9)), 3),
        bar=round(widest + 5e-4, 3),
    )


def bar(trials: Sequence[Trial]) -> float:
    """Return the error that nine of ten trials do not exceed."""
    return float(np.quantile([trial.off for trial in trials], 0.9, method="higher"))


def by_board(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return board → trials of complete networks."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.row.part is None:
            found.setdefault(trial.row.board.name, []).append(trial)
    return found


def rank_correlation(trials: Sequence[Trial]) -> float | None:
    """Return Spearman's correlation of predicted and published times; None below eight rows."""
    if len(trials) < _RANKED:
        return None
    return float(scipy.stats.spearmanr([(trial.predicted_ms, trial.row.time_ms) for trial in trials])[0])


def text(found: Coefficients | Sisters) -> str:
    """Return the text of the file of a chip, or of the sisters."""
    data = found.model_dump(exclude_none=True, mode="json")
    return _HEAD + yaml.safe_dump(rounded(data), sort_keys=False, width=118, allow_unicode=True)


def rounded(data: object) -> object:
    """Return data with four digits in every number."""
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    return float(f"{data:.4g}") if isinstance(data, float) else data


def _assumed(soc: str, gpu: Fit, dla: Fit | None) -> dict[str, str]:
    found: dict[str, str] = {}
    seen = {row.precision for row in gpu.rows}
    for precision in ("fp32", "fp16", "int8"):
        if precision not in seen:
            found[f"gpu.dense_{precision}"] = "no published row of this precision; Orin's"
    if not any("mobilenet" in row.model or "mnasnet" in row.model or row.model[:4] == "yolo" for row in gpu.rows):
        found["gpu.plain"] = "no published network with depthwise convolutions; Orin's"
    if dla:
        found["dla.curved_passes"] = "counted: a sigmoid and a product of their own write twice and read three times"
        found["dla.sram_bytes"] = "TensorRT's default for an engine"
        if soc == "tegra234":
            found["dla.fp16_share"] = "fitted to one network's ratio of FP16 to INT8 time"
    if soc != "tegra194":
        found |= {"transition": _NO_CROSSING} if dla else {"contention": _NO_CONTENTION}
    return found
