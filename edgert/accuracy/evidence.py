"""What a metric is made of, picture by picture: enough to have its value for any resampling of the pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgert.accuracy.truth import F64, I64, Bool


class Evidence(Protocol):
    """One metric of one model on n pictures."""

    @property
    def value(self) -> float:
        """The metric with every picture counted once."""
        ...

    def values(self, weights: F64) -> F64:
        """The metric's value, 0 to 1, for every way to weigh the pictures.

        Args:
            weights: (R, n) float64, not negative; how often each picture counts.

        Returns:
            (R,) float64; NaN where nothing that counts has weight.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Mean:
    """A mean over pictures.

    Attributes:
        scores: (n,) float64, 0 to 1.
        counts: (n,) whether the picture counts.
    """

    scores: F64
    counts: Bool

    @property
    def value(self) -> float:
        """See :class:`Evidence`."""
        return float(self.values(np.ones((1, len(self.scores))))[0])

    def values(self, weights: F64) -> F64:
        """See :class:`Evidence`."""
        total = weights @ self.counts.astype(np.float64)
        return _ratio(weights @ np.where(self.counts, self.scores, 0.0), total)


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """Mean intersection over union of the classes that are true or found anywhere.

    Attributes:
        shared, found, true: (n, C) int64 pixels of each class that are found and true, found, true.
    """

    shared: I64
    found: I64
    true: I64

    @property
    def value(self) -> float:
        """See :class:`Evidence`."""
        return float(self.values(np.ones((1, len(self.shared))))[0])

    def values(self, weights: F64) -> F64:
        """See :class:`Evidence`."""
        shared = weights @ self.shared
        union = weights @ (self.found + self.true - self.shared)
        seen = union > 0
        overlap = np.divide(shared, union, out=np.zeros_like(union), where=seen)
        return _ratio(overlap.sum(axis=1), seen.sum(axis=1).astype(np.float64))


def mean_of(scores: F64 | list[float]) -> Mean:
    """A mean in which every picture counts."""
    array = np.asarray(scores, np.float64)
    return Mean(array, np.ones(len(array), np.bool_))


def _ratio(part: F64, whole: F64) -> F64:
    return np.divide(part, whole, out=np.full_like(part, np.nan), where=whole > 0)
