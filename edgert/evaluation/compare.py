"""Comparison of two models on the same images: loss and its confidence interval."""

import threading
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from edgert.cluster import Cluster
from edgert.dataset import labels, layouts
from edgert.errors import ConfigError, nearest
from edgert.evaluation import evaluate_model, score, track_metric
from edgert.report.quantization_record import ROUNDING

RESAMPLES = 1000
_INTERVAL = (2.5, 97.5)  # percentiles
_NUMBERS = 4_000_000  # maximum number of weights in memory, 32 MB


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of a reference and another model.

    Attributes:
        drop: loss of the other model: ``reference - other``, or ``other - reference`` for an error; negative for a
            gain.
        low, high: 95 % interval of the drop, by a paired bootstrap over images.
    """

    metric: str
    reference: float
    other: float
    drop: float
    low: float
    high: float
    images: int
    max_drop: float | None = None

    @property
    def within(self) -> bool | None:
        """Whether the drop is within the budget, ignoring rounding errors; None without one."""
        return None if self.max_drop is None else self.drop <= self.max_drop + ROUNDING

    @property
    def verdict(self) -> Literal["", "within", "probably within", "probably missed", "missed"]:
        """``within`` or ``missed`` if the interval lies on one side of the budget; empty without a budget."""
        if self.max_drop is None:
            return ""
        if self.within:
            return "within" if self.high <= self.max_drop + ROUNDING else "probably within"
        return "missed" if self.low > self.max_drop else "probably missed"

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {**asdict(self), "within": self.within, "verdict": self.verdict}


def compare(
    reference: evaluate_model.Accuracy,
    other: evaluate_model.Accuracy,
    metric: str | None = None,
    *,
    max_drop: float | None = None,
) -> Comparison:
    """Return the comparison of two models' results on the same images.

    The interval is a percentile bootstrap over images (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993,
    ch. 13), with the same images drawn for both models. Average precision is computed exactly for each draw from the
    evaluator's matches. Agreement and cosine compare with the reference itself, whose value is 1 by definition. Raises
    ConfigError: the results are for different images, or have no such metric.
    """
    if reference.images != other.images:
        raise ConfigError(f"cannot compare results of {reference.images} and {other.images} images")
    name = chosen_metric(other.values, metric)
    first, second = reference.scores.get(name), other.scores[name]
    sign = -1.0 if name in score.LOWER_IS_BETTER else 1.0
    draws = sign * _drops(first, second, other.images)
    low, high = np.nanpercentile(draws, _INTERVAL) if np.isfinite(draws).any() else (np.nan, np.nan)
    before = reference.values[name] if first else 1.0
    after = other.values[name]
    return Comparison(name, before, after, sign * (before - after), float(low), float(high), other.images, max_drop)


def chosen_metric(values: Mapping[str, float], metric: str | None) -> str:
    """Return the requested metric, or the first one; raise ConfigError if there is no such metric."""
    names = list(values)
    if not names:
        raise ConfigError("cannot compare without labels or a reference", why="there are no labels and no reference")
    if metric is not None and metric not in names:
        raise ConfigError(f"no metric {metric!r} here{nearest(metric, names)}", fix=f"use one of {', '.join(names)}")
    return metric or names[0]


def _drops(reference: score.ImageScores | None, other: score.ImageScores, images: int) -> labels.F64:
    """Return (:data:`RESAMPLES`,) drops for images drawn with replacement, always the same draws."""
    random, even = np.random.default_rng(0), np.full(images, 1 / images)
    drops, step = [], max(_NUMBERS // images, 1)
    for start in range(0, RESAMPLES, step):
        weights = random.multinomial(images, even, size=min(step, RESAMPLES - start)).astype(np.float64)
        drops.append((reference.values(weights) if reference else 1.0) - other.values(weights))
    return np.concatenate(drops)


OnProgress = Callable[[str, int, int], object]
"""Function that is called with the name of a version, its number of finished images, and the number of all images."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationResult:
    """Several versions of one model, evaluated on the same images. The reference comes first."""

    metric: str
    results: tuple[evaluate_model.Accuracy, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def within(self) -> bool:
        """Whether no version misses the budget."""
        return all(one.within is not False for one in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        drops = [one.to_json() for one in self.comparisons]
        compared = [{"name": a.name, **drop} for a, drop in zip(self.results[1:], drops, strict=True)]
        return {"metric": self.metric, "results": [one.to_json() for one in self.results], "comparisons": compared}


def evaluate_versions(
    candidates: Mapping[str, evaluate_model.Candidate],
    setup: evaluate_model.EvaluationSetup,
    metric: str | None = None,
    *,
    max_drop: float | None = None,
    threads: int | None = None,
    dask: str = "",
    progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> EvaluationResult | None:
    """Evaluate versions of a model on the same images, one after the other.

    The first is the reference, normally FP32. After a stop, return the result of the finished versions, or None if
    these cannot be compared. Raises ConfigError: the metric is unknown, or there is one version and no labels; raised
    before anything runs. Raises BuildError, ModelError: a version cannot be evaluated, as in
    :func:`~edgert.evaluation.evaluate_model`. Raises DeviceError: the cluster cannot be used, as in
    :class:`edgert.cluster.Cluster`.
    """
    name = _metric(setup, metric, len(candidates))
    results: list[evaluate_model.Accuracy] = []
    with closing(Cluster(dask)) if dask else nullcontext() as cluster:
        for version, candidate in candidates.items():
            on_progress = None if progress is None else partial(progress, version)
            reference = results[0] if results else None
            result = evaluate_model.evaluate(
                candidate,
                setup,
                name=version,
                reference=reference,
                threads=threads,
                cluster=cluster,
                progress=on_progress,
                stop=stop,
            )
            if result is None:
                break
            results.append(result)
    values = results[-1].values if results else {}
    if len(results) < len(candidates) and (not values or name not in (None, *values)):
        return None
    name = chosen_metric(values, name)
    comparisons = tuple(compare(results[0], one, name, max_drop=max_drop) for one in results[1:])
    return EvaluationResult(name, tuple(results), comparisons)


def _metric(setup: evaluate_model.EvaluationSetup, metric: str | None, versions: int) -> str | None:
    if metric in track_metric.METRICS:
        track_metric.needs_trackeval()
    if metric is not None:
        chosen_metric(dict.fromkeys(setup.scorer.metrics, 0.0), metric)
    is_labeled = setup.dataset.ground_truth is not None
    if versions < 2 and (not is_labeled or metric == "cosine"):
        raise ConfigError(
            "cannot score without labels or a second model",
            why="cosine compares two models, and only one is given"
            if is_labeled
            else f"{setup.dataset.path} has no labels that edgert understands, and only one model is given",
            fix=f"give labeled images ({layouts.LOOKED_FOR}), or a second model to compare with: --against other.onnx",
        )
    return metric
