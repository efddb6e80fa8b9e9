"""Average precision of detections, plain and without a framework."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Array = npt.NDArray[np.generic]
Found = tuple[Array, Array, Array]
"""Of one image: boxes (N, 4) x1 y1 x2 y2, scores (N,), classes (N,)."""
Wanted = tuple[Array, Array]
"""Of one image: boxes (M, 4) x1 y1 x2 y2, classes (M,)."""


def average_precision(predictions: Sequence[Found], truths: Sequence[Wanted], iou: float = 0.5) -> float:
    """Mean over the classes that occur in ``truths`` of the area under the precision-recall curve, 0 to 1.

    Every point of the curve counts (PASCAL VOC from 2010 on: precision made non-increasing from the right, then
    integrated over recall). A prediction is right when the true box of its class it overlaps most, by at least ``iou``,
    was not taken by a prediction with a higher score; otherwise it is wrong.
    """
    if len(predictions) != len(truths):
        raise ValueError(f"{len(predictions)} images predicted, {len(truths)} true")
    classes = np.unique(np.concatenate([np.asarray(kinds, np.int64) for _, kinds in truths]))
    if not len(classes):
        raise ValueError("no true box in any image: average precision means nothing")
    return float(np.mean([_of_class(int(kind), predictions, truths, iou) for kind in classes]))


def overlap(a: Array, b: Array) -> F64:
    """(N, M) intersection over union of boxes (N, 4) and (M, 4)."""
    first, second = np.asarray(a, np.float64)[:, None], np.asarray(b, np.float64)[None]
    low, high = np.maximum(first[..., :2], second[..., :2]), np.minimum(first[..., 2:], second[..., 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=-1)
    both = np.prod(first[..., 2:] - first[..., :2], axis=-1) + np.prod(second[..., 2:] - second[..., :2], axis=-1)
    return np.asarray(shared / np.maximum(both - shared, 1e-12), np.float64)


def _of_class(kind: int, predictions: Sequence[Found], truths: Sequence[Wanted], iou: float) -> float:
    scores, targets, count = [], [], 0
    for (boxes, confidences, kinds), (true_boxes, true_kinds) in zip(predictions, truths, strict=True):
        mine, wanted = np.asarray(kinds) == kind, np.asarray(true_kinds) == kind
        scores.append(np.asarray(confidences, np.float64)[mine])
        targets.append(_match(np.asarray(boxes)[mine], np.asarray(true_boxes)[wanted], iou, count))
        count += int(np.count_nonzero(wanted))
    return _area(np.concatenate(scores), np.concatenate(targets), count)


def _match(boxes: Array, wanted: Array, iou: float, first: int) -> npt.NDArray[np.int64]:
    """For each box the number of the true box it points at (counted from ``first``), or -1."""
    if not len(boxes) or not len(wanted):
        return np.full(len(boxes), -1, np.int64)
    table = overlap(boxes, wanted)
    return np.asarray(np.where(table.max(axis=1) >= iou, table.argmax(axis=1) + first, -1), np.int64)


def _area(scores: F64, targets: npt.NDArray[np.int64], count: int) -> float:
    order = np.argsort(-scores, kind="stable")
    targets = targets[order]
    right = np.zeros(len(targets), bool)
    taken, firsts = np.unique(targets, return_index=True)
    right[firsts[taken >= 0]] = True  # the best-scored prediction of each true box
    hits = np.cumsum(right)
    recall, precision = hits / count, hits / np.arange(1, len(hits) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * envelope))
