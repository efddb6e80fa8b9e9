"""Average precision for resampled images, from one run of COCO's evaluator.

Matches are decided within an image, so that resampling changes only how often each match counts. Detections weighted by
the number of draws of their image give exactly the evaluator's average precision for the drawn images. This holds
because maxima of the interpolated curve lie at right detections, where all copies of the image have been counted.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor
from typing import Any, Literal

import cv2
import numpy as np

from edgert.dataset.labels import F64, I64, Bool, Boxes, GroundTruthBoxes
from edgert.runtime import Detections, Segmentation

RECALLS: F64 = np.linspace(0.0, 1.0, 101)
"""Recalls at which precision is sampled, as in pycocotools' ``Params.recThrs``."""
_NUMBERS = 4_000_000
"""Maximum number of weights in memory, 32 MB."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassMatches:
    """D detections of one class on all images, the highest score first, at T overlap thresholds.

    Attributes:
        images: (D,) int64 index of each detection's image.
        right: (T, D) whether it matches a true object.
        counts: (T, D) whether it counts, which it does not if it matches a crowd.
        wanted: (n,) float64 number of true objects in each image.
    """

    images: I64
    right: Bool
    counts: Bool
    wanted: F64


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Mean average precision over classes and overlap thresholds, for any resampling of images."""

    value: float
    classes: tuple[ClassMatches, ...]

    def values(self, weights: F64) -> F64:
        """Return the value for each of (R, n) rows of weights, (R,) float64.

        Classes without a true object in the weighted images do not count, as in COCO's evaluation.
        """
        longest = max([1, *(len(one.images) for one in self.classes)])
        step = max(_NUMBERS // longest, 1)
        parts = [self._values(weights[start : start + step]) for start in range(0, len(weights), step)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _values(self, weights: F64) -> F64:
        total, seen = np.zeros(len(weights)), np.zeros(len(weights))
        for one in self.classes:
            wanted = weights @ one.wanted
            has = wanted > 0
            total += np.where(has, _average_precision(weights, wanted, one), 0.0)
            seen += has
        return np.divide(total, seen, out=np.full_like(total, np.nan), where=seen > 0)


def _average_precision(weights: F64, wanted: F64, one: ClassMatches) -> F64:
    """Return the (R,) interpolated average precision of one class, as the mean over overlap thresholds."""
    rights = one.right & one.counts
    end = int(np.max(np.flatnonzero(rights.any(axis=0)), initial=-1)) + 1  # later wrong detections change nothing
    some = weights[:, one.images[:end]]
    so_far = np.cumsum(some, axis=1)
    total = np.zeros(len(weights))
    for right, counts in zip(rights[:, :end], one.counts[:, :end], strict=True):
        at, ignored = np.flatnonzero(right), np.flatnonzero(~counts)
        counted = so_far[:, at]
        if len(ignored):  # subtract the weight of ignored detections before each right one
            before = np.pad(np.cumsum(some[:, ignored], axis=1), ((0, 0), (1, 0)))
            counted = counted - before[:, np.searchsorted(ignored, at)]
        total += _interpolated_precision(np.cumsum(some[:, at], axis=1), counted, wanted)
    return total / len(rights)


def _interpolated_precision(hits: F64, counted: F64, wanted: F64) -> F64:
    """Return the (R,) average precision, from the (R, K) right and all detections up to each right one.

    At each of :data:`RECALLS` the best precision at that recall or higher counts, and 0 beyond the last.
    """
    precision = np.divide(hits, counted, out=np.zeros_like(hits), where=counted > 0)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = np.divide(hits, wanted[:, None], out=np.zeros_like(hits), where=wanted[:, None] > 0)
    reached = np.searchsorted(RECALLS, recall, side="right")
    average: F64 = (np.diff(reached, axis=1, prepend=0) * best).sum(axis=1) / len(RECALLS)
    return average


# Only this module uses pycocotools, COCO's own evaluation, on which published detection results are based.
#
# Lin et al., "Microsoft COCO: Common Objects in Context", 2014; github.com/cocodataset/cocoapi. Oriented boxes follow
# the same rules, with the overlap of their exact areas.

MOST_BOXES = 100
MOST_BODIES = 20
"""Maximum number of detections per image, for boxes and masks and for keypoints, as in COCO's main metrics."""
Kind = Literal["boxes", "masks", "turned", "points"]
_TYPES: Mapping[Kind, str] = {"boxes": "bbox", "masks": "segm", "turned": "bbox", "points": "keypoints"}
_BODY = 17  # number of points with COCO's published tolerances; others have 1/K, as in Ultralytics' metric


def precision(
    ground_truth: GroundTruthBoxes, found: Sequence[Detections], kind: Kind = "boxes", outlines: Sequence[Any] = ()
) -> Mapping[str, Matches]:
    """Return ``map50``, the average precision at an overlap of 0.5, and ``map``, the mean over 0.50 to 0.95.

    At least one true box must not be a crowd. For masks, ``outlines`` has :func:`run_lengths` for every image.
    """
    run = _run_evaluator(ground_truth, found, kind, outlines)
    table = run.eval["precision"]  # thresholds, recalls, classes, areas, limits; -1 where a class has no object
    classes = tuple(_class_matches(run, n, len(found)) for n in range(len(ground_truth.classes)))
    loose = tuple(replace(one, right=one.right[:1], counts=one.counts[:1]) for one in classes)
    return {"map50": Matches(_known_mean(table[:1]), loose), "map": Matches(_known_mean(table), classes)}


def _run_evaluator(
    ground_truth: GroundTruthBoxes, found: Sequence[Detections], kind: Kind, outlines: Sequence[Any]
) -> Any:
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):  # the evaluator prints its progress
        true = [
            _rows(
                one.corners, one.classes, area=one.areas, iscrowd=one.crowds.astype(np.int64), **_true_shapes(one, kind)
            )
            for one in ground_truth.images
        ]
        seen = [
            _rows(one.boxes.astype(np.float64), one.classes, score=one.scores, **shapes)
            for one, shapes in zip(found, _found_shapes(found, kind, outlines), strict=True)
        ]
        sizes = [one.size or _size(some) for one, some in zip(ground_truth.images, outlines or found, strict=True)]
        wanted, got = (_index(rows, ground_truth.classes, sizes) for rows in (true, seen))
        run = COCOeval(wanted, got, _TYPES[kind])
        run.params.imgIds, run.params.catIds = list(range(len(found))), list(ground_truth.classes)
        run.params.areaRng, run.params.areaRngLbl = [run.params.areaRng[0]], ["all"]
        run.params.maxDets = [MOST_BODIES if kind == "points" else MOST_BOXES]
        if kind == "turned":
            run.computeIoU = partial(_turned_overlaps, run)
        if kind == "points" and (count := _point_count(ground_truth)) != _BODY:
            run.params.kpt_oks_sigmas = np.full(count, 1 / count)
        run.evaluate()
        run.accumulate()
    return run


def _size(outlines: Any) -> tuple[int, int]:
    sized = [tuple(one["size"]) for one in outlines] if isinstance(outlines, list) else []
    return sized[0] if sized else (1, 1)


def _point_count(ground_truth: GroundTruthBoxes) -> int:
    counts = (len(one.points[0]) for one in ground_truth.images if one.points is not None and len(one.points))
    return next(counts)


def _true_shapes(one: Boxes, kind: Kind) -> dict[str, Any]:
    if kind == "masks":
        outlines = one.outlines or ((),) * len(one.corners)
        boxed = [outline or [_ring(corners)] for outline, corners in zip(outlines, one.corners, strict=True)]
        return {"segmentation": [_clip_polygons(outline, one.size) for outline in boxed]}
    if kind == "turned":
        return {"turned": one.corners[:, [0, 1, 2, 1, 2, 3, 0, 3]] if one.turned is None else one.turned}
    if kind == "points":
        points = list(np.zeros((len(one.corners), 0, 3)) if one.points is None else one.points)
        labeled = [int(np.count_nonzero(some[:, 2] > 0)) for some in points]
        return {"keypoints": [some.reshape(-1).tolist() for some in points], "num_keypoints": labeled}
    return {}


def _ring(corners: F64) -> F64:
    ring: F64 = corners[[0, 1, 2, 1, 2, 3, 0, 3]]
    return ring


def _clip_polygons(outline: Any, size: tuple[int, int] | None) -> Any:
    """Return polygons clipped near the image, because pycocotools walks along them pixel by pixel."""
    if isinstance(outline, dict):
        return outline
    most = 2.0 * max(size or (1, 1))
    return [np.clip(np.asarray(ring, np.float64), -most, most).tolist() for ring in outline]


def _found_shapes(found: Sequence[Detections], kind: Kind, outlines: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for place, one in enumerate(found):
        if kind == "masks":
            yield {"segmentation": list(outlines[place])}
        elif kind == "turned":
            yield {"turned": np.zeros((len(one), 8)) if one.corners is None else one.corners.astype(np.float64)}
        elif kind == "points":
            points = np.zeros((len(one), 0, 3)) if one.points is None else one.points.astype(np.float64)
            yield {"keypoints": [some.reshape(-1).tolist() for some in points]}
        else:
            yield {}


def _turned_overlaps(run: Any, image: int, category: int) -> Any:
    """Return the (D, G) IoU of one image's oriented boxes, the best scores first, instead of COCOeval.computeIoU."""
    true, seen = run._gts[image, category], run._dts[image, category]
    if not true or not seen:
        return []
    order = np.argsort([-one["score"] for one in seen], kind="mergesort")[: run.params.maxDets[-1]]
    return np.array([[turned_overlap(seen[row]["turned"], one["turned"]) for one in true] for row in order])


def turned_overlap(one: Any, other: Any) -> float:
    """Return the intersection over union of two convex quadrilaterals, each eight numbers or (4, 2)."""
    first, second = (np.asarray(some, np.float32).reshape(4, 2) for some in (one, other))
    if np.any(first.max(axis=0) <= second.min(axis=0)) or np.any(second.max(axis=0) <= first.min(axis=0)):
        return 0.0
    corner = np.minimum(first.min(axis=0), second.min(axis=0))  # moves both near 0, where float32 is exact enough
    first, second = (cv2.convexHull(some - corner) for some in (first, second))
    shared, _ = cv2.intersectConvexConvex(first, second)
    union = cv2.contourArea(first) + cv2.contourArea(second) - shared
    return float(shared / union) if union > 0 else 0.0


def run_lengths(mask: Segmentation, size: tuple[int, int]) -> dict[str, Any]:
    """Return an object's mask in the size (height, width) of its image, in pycocotools' format."""
    from pycocotools.mask import encode

    height, width = size
    x1, y1, x2, y2 = mask.region
    left, top = max(floor(x1), 0), max(floor(y1), 0)
    right, bottom = min(ceil(x2), width), min(ceil(y2), height)
    whole = np.zeros((height, width), np.uint8, order="F")
    if right > left and bottom > top:
        across, down = (x2 - x1) / mask.mask.shape[1], (y2 - y1) / mask.mask.shape[0]
        place = np.array([[across, 0, across / 2 - 0.5 + x1 - left], [0, down, down / 2 - 0.5 + y1 - top]])
        part = cv2.warpAffine(
            mask.mask * np.uint8(255), place, (right - left, bottom - top), borderMode=cv2.BORDER_REPLICATE
        )
        whole[top:bottom, left:right] = part > 127
    found: dict[str, Any] = encode(whole)
    return found


def _index(rows: Sequence[Sequence[dict[str, Any]]], classes: Sequence[int], sizes: Sequence[tuple[int, int]]) -> Any:
    from pycocotools.coco import COCO

    flat = [{**row, "image_id": image} for image, some in enumerate(rows) for row in some]
    index: Any = COCO()
    index.dataset = {
        "images": [{"id": image, "height": height, "width": width} for image, (height, width) in enumerate(sizes)],
        "categories": [{"id": number} for number in classes],
        "annotations": [{**row, "id": number} for number, row in enumerate(flat, 1)],  # 0 would mean "no match"
    }
    index.createIndex()
    return index


def _rows(corners: F64, classes: Any, **columns: Any) -> list[dict[str, Any]]:
    """Return the boxes of one image as annotations; without an ``area`` column it is that of the box."""
    sizes = corners[:, 2:] - corners[:, :2]
    boxes = np.column_stack([corners[:, :2], sizes])
    every = {"bbox": boxes, "category_id": classes, "area": sizes.prod(axis=1), **columns}
    return [dict(zip(every, row, strict=True)) for row in zip(*map(_to_list, every.values()), strict=True)]


def _to_list(column: Any) -> Any:
    return column.tolist() if isinstance(column, np.ndarray) else column


def _known_mean(table: Any) -> float:
    known = table[table > -1]
    return float(known.mean()) if known.size else float("nan")


def _class_matches(run: Any, place: int, count: int) -> ClassMatches:
    """Return the evaluator's matches of the class at index ``place``, sorted as by its ``accumulate``."""
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
