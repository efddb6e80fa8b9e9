"""The one door to pycocotools: COCO's own evaluation, which published detection results are made with.

Lin et al., "Microsoft COCO: Common Objects in Context", 2014; github.com/cocodataset/cocoapi.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edgert.accuracy.matches import ClassMatches, Matches
from edgert.accuracy.truth import Boxes, BoxTruth
from edgert.runtime import Detections

MOST_BOXES = 100
"""Detections per picture that count, as in COCO's main metric."""
METRICS = ("map50", "map")


def precision(truth: BoxTruth, found: Sequence[Detections]) -> Mapping[str, Matches]:
    """Average precision of detections: ``map50`` at an overlap of 0.5, ``map`` the mean over 0.50 to 0.95.

    Args:
        truth: with at least one box that is not a crowd.
        found: one record per picture.
    """
    run = _run(truth, found)
    table = run.eval["precision"]  # thresholds, recalls, classes, areas, limits; -1 where a class has no object
    classes = tuple(_class_matches(run, n, len(found)) for n in range(len(truth.classes)))
    loose = tuple(replace(one, right=one.right[:1], counts=one.counts[:1]) for one in classes)
    return {"map50": Matches(_mean(table[:1]), loose), "map": Matches(_mean(table), classes)}


def _run(truth: BoxTruth, found: Sequence[Detections]) -> Any:
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
        wanted = _index([_true_rows(boxes) for boxes in truth.pictures], truth.classes)
        got = _index([_found_rows(record) for record in found], truth.classes)
        run = COCOeval(wanted, got, "bbox")
        run.params.imgIds, run.params.catIds = list(range(len(found))), list(truth.classes)
        run.params.areaRng, run.params.areaRngLbl = [run.params.areaRng[0]], ["all"]
        run.params.maxDets = [MOST_BOXES]
        run.evaluate()
        run.accumulate()
    return run


def _index(rows: Sequence[Sequence[dict[str, Any]]], classes: Sequence[int]) -> Any:
    from pycocotools.coco import COCO

    flat = [{**row, "image_id": picture} for picture, some in enumerate(rows) for row in some]
    index: Any = COCO()
    index.dataset = {
        "images": [{"id": picture} for picture in range(len(rows))],
        "categories": [{"id": number} for number in classes],
        "annotations": [{**row, "id": number} for number, row in enumerate(flat, 1)],  # 0 would mean "no match"
    }
    index.createIndex()
    return index


def _true_rows(boxes: Boxes) -> list[dict[str, Any]]:
    sizes = boxes.corners[:, 2:] - boxes.corners[:, :2]
    rows = np.column_stack([boxes.corners[:, :2], sizes]).tolist()
    parts = zip(rows, boxes.classes.tolist(), boxes.areas.tolist(), boxes.crowds.tolist(), strict=True)
    return [{"bbox": row, "category_id": c, "area": area, "iscrowd": int(crowd)} for row, c, area, crowd in parts]


def _found_rows(found: Detections) -> list[dict[str, Any]]:
    corners = found.boxes.astype(np.float64)
    sizes = corners[:, 2:] - corners[:, :2]
    rows = np.column_stack([corners[:, :2], sizes]).tolist()
    parts = zip(rows, found.classes.tolist(), sizes.prod(axis=1).tolist(), found.scores.tolist(), strict=True)
    return [{"bbox": row, "category_id": c, "area": area, "score": score} for row, c, area, score in parts]


def _mean(table: Any) -> float:
    known = table[table > -1]
    return float(known.mean()) if known.size else float("nan")


def _class_matches(run: Any, place: int, count: int) -> ClassMatches:
    """The evaluator's matches of the ``place``-th class, sorted as its ``accumulate`` sorts them."""
    some = [(picture, run.evalImgs[place * count + picture]) for picture in range(count)]
    seen = [(picture, one) for picture, one in some if one is not None]
    wanted = np.zeros(count)
    for picture, one in seen:
        wanted[picture] = np.count_nonzero(np.asarray(one["gtIgnore"]) == 0)
    thresholds = len(run.params.iouThrs)
    scores = np.concatenate([np.empty(0), *(one["dtScores"] for _, one in seen)])
    order = np.argsort(-scores, kind="mergesort")
    pictures = np.repeat([picture for picture, _ in seen], [len(one["dtScores"]) for _, one in seen]).astype(np.int64)
    empty = np.empty((thresholds, 0))
    right = np.concatenate([empty, *(one["dtMatches"] for _, one in seen)], axis=1) > 0
    ignored = np.concatenate([empty, *(one["dtIgnore"] for _, one in seen)], axis=1) > 0
    return ClassMatches(pictures[order], right[:, order], ~ignored[:, order], wanted)
