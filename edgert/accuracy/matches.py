"""Average precision for resampled pictures, from matches that COCO's evaluator made once.

Which detection is right is settled within a picture, so drawing pictures again changes only how often each match
counts. Weighing detections by how often their picture was drawn gives exactly the average precision that the evaluator
would give for the drawn pictures: a picture's second copy moves no point of the interpolated curve, whose maxima lie
at right detections, where all copies have been counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgert.accuracy.truth import F64, I64, Bool

RECALLS: F64 = np.linspace(0.0, 1.0, 101)
"""Where precision is read off: pycocotools' ``Params.recThrs``."""
_NUMBERS = 4_000_000
"""Weights worked on at a time: 32 MB, so that five thousand pictures and a thousand draws fit anywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassMatches:
    """The detections of one class on all pictures, the highest score first; D of them, T overlap thresholds.

    Attributes:
        pictures: (D,) int64 which picture each is on.
        right: (T, D) whether it is a true object's.
        counts: (T, D) whether it counts; not where it matches a crowd.
        wanted: (n,) float64 true objects of each picture.
    """

    pictures: I64
    right: Bool
    counts: Bool
    wanted: F64


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Mean average precision over classes and overlap thresholds; see :class:`~edgert.accuracy.evidence.Evidence`.

    Attributes:
        value: as the evaluator itself gives it.
    """

    value: float
    classes: tuple[ClassMatches, ...]

    def values(self, weights: F64) -> F64:
        """Classes without a true object on the pictures that have weight do not count, as in COCO's evaluation."""
        longest = max([1, *(len(one.pictures) for one in self.classes)])
        step = max(_NUMBERS // longest, 1)
        parts = [self._some(weights[start : start + step]) for start in range(0, len(weights), step)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _some(self, weights: F64) -> F64:
        total, seen = np.zeros(len(weights)), np.zeros(len(weights))
        for one in self.classes:
            wanted = weights @ one.wanted
            has = wanted > 0
            total += np.where(has, _average(weights, wanted, one), 0.0)
            seen += has
        return np.divide(total, seen, out=np.full_like(total, np.nan), where=seen > 0)


def _average(weights: F64, wanted: F64, one: ClassMatches) -> F64:
    """(R,) mean over overlap thresholds of one class's interpolated average precision."""
    rights = one.right & one.counts
    end = int(np.max(np.flatnonzero(rights.any(axis=0)), initial=-1)) + 1  # wrong ones behind it change nothing
    some = weights[:, one.pictures[:end]]
    so_far = np.cumsum(some, axis=1)
    total = np.zeros(len(weights))
    for right, counts in zip(rights[:, :end], one.counts[:, :end], strict=True):
        at = np.flatnonzero(right)
        counted = so_far[:, at] - _before(some, np.flatnonzero(~counts), at)
        total += _interpolated(np.cumsum(some[:, at], axis=1), counted, wanted)
    return total / len(rights)


def _before(some: F64, ignored: I64, at: I64) -> F64 | float:
    """(R, K) the weight of the few detections that do not count before each of the right ones."""
    if not len(ignored):
        return 0.0
    so_far = np.cumsum(some[:, ignored], axis=1)
    so_far = np.concatenate([np.zeros((len(some), 1)), so_far], axis=1)
    return so_far[:, np.searchsorted(ignored, at)]


def _interpolated(hits: F64, counted: F64, wanted: F64) -> F64:
    """(R,) average precision, from the right and all detections counted up to each right one: both (R, K).

    At each of :data:`RECALLS` the best precision at that recall or a higher one counts; zero beyond the last.
    """
    precision = np.divide(hits, counted, out=np.zeros_like(hits), where=counted > 0)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = np.divide(hits, wanted[:, None], out=np.zeros_like(hits), where=wanted[:, None] > 0)
    reached = np.searchsorted(RECALLS, recall, side="right")
    average: F64 = (np.diff(reached, axis=1, prepend=0) * best).sum(axis=1) / len(RECALLS)
    return average
