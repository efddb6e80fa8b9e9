"""Several versions of one model side by side: how each does, and what it loses against the first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgert.accuracy.compare import Comparison, chosen_metric, compare
from edgert.accuracy.evaluate import Accuracy, Candidate, evaluate
from edgert.accuracy.exam import Exam
from edgert.errors import ConfigError

Told = Callable[[str, int, int], object]
"""Called with the name of a version, its pictures done and all pictures."""


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Results of one exam.

    Attributes:
        metric: what they are compared by.
        results: of every version, the reference first.
        comparisons: of every version but the reference with it, in the same order.
    """

    metric: str
    results: tuple[Accuracy, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def within(self) -> bool:
        """Whether none misses the budget."""
        return all(one.within is not False for one in self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        drops = [one.to_json() for one in self.comparisons]
        compared = [{"name": a.name, **drop} for a, drop in zip(self.results[1:], drops, strict=True)]
        return {"metric": self.metric, "results": [one.to_json() for one in self.results], "comparisons": compared}


def side_by_side(
    candidates: Mapping[str, Candidate],
    exam: Exam,
    metric: str | None = None,
    *,
    max_drop: float | None = None,
    threads: int | None = None,
    progress: Told | None = None,
    stop: threading.Event | None = None,
) -> Standing | None:
    """Puts versions of a model through one exam, one after the other.

    Args:
        candidates: name → version; the first is the reference, normally FP32.
        metric: the exam's usual one by default.
        max_drop: the budget, 0 to 1.
        stop: ends it early; versions that were done by then count.

    Returns:
        The standing; when it was stopped, of the versions that were done, and None where those tell nothing.

    Raises:
        ConfigError: no such metric here, or nothing to judge by: one version and no labels. Before anything is run.
        BuildError, ModelError: as :func:`~edgert.accuracy.evaluate`.
    """
    name = _metric(exam, metric, len(candidates))
    results: list[Accuracy] = []
    for version, candidate in candidates.items():
        told = None if progress is None else _of(progress, version)
        reference = results[0] if results else None
        result = evaluate(candidate, exam, name=version, reference=reference, threads=threads, progress=told, stop=stop)
        if result is None:
            break
        results.append(result)
    if len(results) < len(candidates) and not _tell(results, name):
        return None
    name = chosen_metric(results[-1].values, name)
    comparisons = tuple(compare(results[0], one, name, max_drop=max_drop) for one in results[1:])
    return Standing(name, tuple(results), comparisons)


def _of(progress: Told, version: str) -> Callable[[int, int], object]:
    return lambda done, total: progress(version, done, total)


def _tell(results: Sequence[Accuracy], metric: str | None) -> bool:
    """Whether the metric, or any where none is asked for, is known of the last of some results."""
    values = results[-1].values if results else {}
    return bool(values) if metric is None else metric in values


def _metric(exam: Exam, metric: str | None, versions: int) -> str | None:
    if metric is not None:
        chosen_metric(dict.fromkeys(exam.scorer.metrics, 0.0), metric)
    if versions < 2 and (exam.scorer.needs_reference or metric == "cosine"):
        raise ConfigError(
            "there is nothing to judge by",
            why=f"{exam.dataset.path} has no labels that edgert understands, and there is one model only"
            if exam.scorer.needs_reference
            else "cosine compares two models, and there is one only",
            fix="give labelled pictures, or a second model to compare with: --against other.onnx",
        )
    return metric
