"""Two models on the same pictures: how much is lost, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from edgert.accuracy.evaluate import Accuracy
from edgert.accuracy.evidence import Evidence
from edgert.accuracy.truth import F64
from edgert.errors import ConfigError, nearest

RESAMPLES = 1000
_INTERVAL = (2.5, 97.5)  # per cent
_NUMBERS = 4_000_000  # weights made at a time: 32 MB


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of a reference and another model.

    Attributes:
        metric: its name.
        reference, other: the two values, 0 to 1.
        drop: ``reference - other``; negative for a gain.
        low, high: 95 % interval of the drop, by paired bootstrap over pictures.
        images: how many pictures.
        max_drop: the budget, if there is one.
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
        """Whether the drop is within the budget; None without one."""
        return None if self.max_drop is None else self.drop <= self.max_drop

    @property
    def verdict(self) -> Literal["", "within", "probably within", "probably missed", "missed"]:
        """``within`` and ``missed`` where the whole interval is on one side of the budget; empty without one."""
        if self.max_drop is None:
            return ""
        if self.within:
            return "within" if self.high <= self.max_drop else "probably within"
        return "missed" if self.low > self.max_drop else "probably missed"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "within": self.within, "verdict": self.verdict}


def compare(
    reference: Accuracy,
    other: Accuracy,
    metric: str | None = None,
    *,
    max_drop: float | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compares two results of one exam.

    The interval is the percentile bootstrap (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13)
    over pictures, both models always with the same pictures drawn. Average precision is computed afresh for each draw
    from the evaluator's matches, exactly. Agreement and cosine compare with the reference itself, which by definition
    has 1.

    Args:
        metric: the other's usual one by default.
        max_drop: the budget, 0 to 1.
        resamples: how often pictures are drawn.

    Raises:
        ConfigError: the results are of different pictures, or have no such metric.
    """
    if reference.images != other.images:
        raise ConfigError(f"{reference.images} and {other.images} pictures cannot be compared picture by picture")
    name = chosen_metric(other.values, metric)
    first, second = reference.evidence.get(name), other.evidence[name]
    draws = _drops(first, second, other.images, resamples, seed)
    low, high = np.nanpercentile(draws, _INTERVAL) if np.isfinite(draws).any() else (np.nan, np.nan)
    before = reference.values[name] if first else 1.0
    after = other.values[name]
    return Comparison(name, before, after, before - after, float(low), float(high), other.images, max_drop)


def chosen_metric(values: Mapping[str, float], metric: str | None) -> str:
    """The metric asked for, or the usual one. Raises ConfigError when there is none of that name."""
    names = list(values)
    if not names:
        raise ConfigError("nothing to compare by", why="there are no labels and no reference")
    if metric is not None and metric not in names:
        raise ConfigError(
            f"no metric {metric!r} here{nearest(metric, names)}", fix=f"this data tells {', '.join(names)}"
        )
    return metric or names[0]


def _drops(reference: Evidence | None, other: Evidence, images: int, resamples: int, seed: int) -> F64:
    """(resamples,) drops of pictures drawn with replacement."""
    random, even = np.random.default_rng(seed), np.full(images, 1 / images)
    drops, step = np.empty(resamples), max(_NUMBERS // images, 1)
    for start in range(0, resamples, step):
        part = slice(start, min(start + step, resamples))
        weights = random.multinomial(images, even, size=part.stop - part.start).astype(np.float64)
        before = reference.values(weights) if reference else np.ones(len(weights))
        drops[part] = before - other.values(weights)
    return drops
