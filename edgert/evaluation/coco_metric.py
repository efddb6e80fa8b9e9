"""Average precision for resampled images, from matches that COCO's evaluator made once.

Which detection is right is settled within an image, so drawing images again changes only how often each match
counts. Weighing detections by how often their image was drawn gives exactly the average precision that the evaluator
would give for the drawn images: an image's second copy moves no point of the interpolated curve, whose maxima lie
at right detections, where all copies have been counted.
"""

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgert.dataset.labels import F64, I64, Bool, GroundTruthBoxes
from edgert.runtime import Detections

RECALLS: F64 = np.linspace(0.0, 1.0, 101)
"""Where precision is read off: pycocotools' ``Params.recThrs``."""
_NUMBERS = 4_000_000
"""Weights worked on at a time: 32 MB, so that five thousand images and a thousand draws fit anywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassMatches:
    """The detections of one class on all images, the highest score first; D of them, T overlap thresholds.

    Attributes:
        images: (D,) int64 which image each is on.
        right: (T, D) whether it is a true object's.
        counts: (T, D) whether it counts; not where it matches a crowd.
        wanted: (n,) float64 true objects of each image.
    """

    images: I64
    right: Bool
    counts: Bool
    wanted: F64


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Mean average precision over classes and overlap thresholds; like :class:`~edgert.evaluation.score.Ratio`.

    Attributes:
        value: as the evaluator itself gives it.
    """

    value: float
    classes: tuple[ClassMatches, ...]

    def values(self, weights: F64) -> F64:
        """Classes without a true object on the images that have weight do not count, as in COCO's evaluation."""
        longest = max([1, *(len(one.images) for one in self.classes)])
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
    some = weights[:, one.images[:end]]
    so_far = np.cumsum(some, axis=1)
    total = np.zeros(len(weights))
    for right, counts in zip(rights[:, :end], one.counts[:, :end], strict=True):
        at, ignored = np.flatnonzero(right), np.flatnonzero(~counts)
        counted = so_far[:, at]
        if len(ignored):  # the weight of the few that do not count, before each of the right ones
            before = np.pad(np.cumsum(some[:, ignored], axis=1), ((0, 0), (1, 0)))
            counted = counted - before[:, np.searchsorted(ignored, at)]
        total += _interpolated(np.cumsum(some[:, at], axis=1), counted, wanted)
    return total / len(rights)


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


# The one door to pycocotools: COCO's own evaluation, which published detection results are made with.
#
# Lin et al., "Microsoft COCO: Common Objects in Context", 2014; github.com/cocodataset/cocoapi.

MOST_BOXES = 100
"""Detections per image that count, as in COCO's main metric."""
METRICS = ("map50", "map")


def precision(ground_truth: GroundTruthBoxes, found: Sequence[Detections]) -> Mapping[str, Matches]:
    """Average precision of detections: ``map50`` at an overlap of 0.5, ``map`` the mean over 0.50 to 0.95.

    Args:
        ground_truth: with at least one box that is not a crowd.
        found: one record per image.
    """
    run = _run(ground_truth, found)
    table = run.eval["precision"]  # thresholds, recalls, classes, areas, limits; -1 where a class has no object
    classes = tuple(_class_matches(run, n, len(found)) for n in range(len(ground_truth.classes)))
    loose = tuple(replace(one, right=one.right[:1], counts=one.counts[:1]) for one in classes)
    return {"map50": Matches(_mean(table[:1]), loose), "map": Matches(_mean(table), classes)}


def _run(ground_truth: GroundTruthBoxes, found: Sequence[Detections]) -> Any:
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        true = [
            _rows(one.corners, one.classes, area=one.areas, iscrowd=one.crowds.astype(np.int64))
            for one in ground_truth.images
        ]
        seen = [_rows(one.boxes.astype(np.float64), one.classes, score=one.scores) for one in found]
        wanted, got = (_index(rows, ground_truth.classes) for rows in (true, seen))
        run = COCOeval(wanted, got, "bbox")
        run.params.imgIds, run.params.catIds = list(range(len(found))), list(ground_truth.classes)
        run.params.areaRng, run.params.areaRngLbl = [run.params.areaRng[0]], ["all"]
        run.params.maxDets = [MOST_BOXES]
        run.evaluate()
        run.accumulate()
    return run


def _index(rows: Sequence[Sequence[dict[str, Any]]], classes: Sequence[int]) -> Any:
    from pycocotools.coco import COCO

    flat = [{**row, "image_id": image} for image, some in enumerate(rows) for row in some]
    index: Any = COCO()
    index.dataset = {
        "images": [{"id": image} for image in range(len(rows))],
        "categories": [{"id": number} for number in classes],
        "annotations": [{**row, "id": number} for number, row in enumerate(flat, 1)],  # 0 would mean "no match"
    }
    index.createIndex()
    return index


def _rows(corners: F64, classes: Any, **columns: Any) -> list[dict[str, Any]]:
    """Boxes of one image as annotations; an ``area`` that is not given is that of the box."""
    sizes = corners[:, 2:] - corners[:, :2]
    boxes = np.column_stack([corners[:, :2], sizes])
    every = {"bbox": boxes, "category_id": classes, "area": sizes.prod(axis=1), **columns}
    return [dict(zip(every, row, strict=True)) for row in zip(*(one.tolist() for one in every.values()), strict=True)]


def _mean(table: Any) -> float:
    known = table[table > -1]
    return float(known.mean()) if known.size else float("nan")


def _class_matches(run: Any, place: int, count: int) -> ClassMatches:
    """The evaluator's matches of the ``place``-th class, sorted as its ``accumulate`` sorts them."""
    some = [(image, run.evalImgs[place * count + image]) for image in range(count)]
    seen = [(image, one) for image, one in some if one is not None]
    wanted = np.zeros(count)
    for image, one in seen:
        wanted[image] = np.count_nonzero(np.asarray(one["gtIgnore"]) == 0)
    thresholds = len(run.params.iouThrs)
    scores = np.concatenate([np.empty(0), *(one["dtScores"] for _, one in seen)])
    order = np.argsort(-scores, kind="mergesort")
    images = np.repeat([image for image, _ in seen], [len(one["dtScores"]) for _, one in seen]).astype(np.int64)
    empty = np.empty((thresholds, 0))
    right = np.concatenate([empty, *(one["dtMatches"] for _, one in seen)], axis=1) > 0
    ignored = np.concatenate([empty, *(one["dtIgnore"] for _, one in seen)], axis=1) > 0
    return ClassMatches(images[order], right[:, order], ~ignored[:, order], wanted)
