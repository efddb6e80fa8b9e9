"""Non-maximum suppression: of the boxes that overlap, the best one stays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]
Bool = npt.NDArray[np.bool_]

CANDIDATES = 3000
"""Boxes looked at per frame, best first; weaker ones could only matter to a frame with more objects than any limit."""
_BLOCK = 256


def suppress(boxes: F32, scores: F32, classes: I32, iou: float, limit: int) -> Index:
    """Rows that survive greedy suppression within their class, by falling score.

    A box goes when its intersection over union with a better box of its class that stays is above ``iou``; at exactly
    ``iou`` both stay. Of equal scores the earlier row is the better.

    The greedy answer is found for blocks of boxes at once: rows overlapped by boxes already kept go first, and among
    the rest "not overlapped by a survivor" is repeated until it stands still, which it does after as many rounds as
    the longest chain of suppressions (Zheng et al., "Enhancing Geometric Factors in Model Learning and Inference for
    Object Detection and Instance Segmentation", 2021: Cluster-NMS, there shown equal to greedy NMS). Blocks stop at
    ``limit``, as better boxes always come first.

    Args:
        boxes: (N, 4) float32 x1, y1, x2, y2, in any one unit.
        scores: (N,) float32.
        classes: (N,) int32.

    Returns:
        (K,) rows, K <= limit; at most the :data:`CANDIDATES` best rows are considered.
    """
    order = strongest(scores, CANDIDATES)
    kept = order[:0]
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        if len(kept):
            block = block[~_overlap(boxes, classes, kept, block, iou).any(axis=0)]
        kept = np.concatenate([kept, block[_survivors(_overlap(boxes, classes, block, block, iou))]])
        if len(kept) >= limit:
            break
    return kept[:limit]


def strongest(scores: F32, limit: int) -> Index:
    """The rows of the ``limit`` highest scores, falling; of equal ones the earlier first."""
    if len(scores) <= limit:
        return np.argsort(-scores, kind="stable")
    floor = np.partition(scores, len(scores) - limit)[len(scores) - limit]
    rows = np.flatnonzero(scores >= floor)
    return rows[np.argsort(-scores[rows], kind="stable")][:limit]


def _survivors(over: Bool) -> Bool:
    """Rows left by greedy suppression; ``over[i, j]`` says that i would suppress j, rows are by falling score."""
    over = np.triu(over, 1)
    alive = ~over.any(axis=0)
    if alive.all():
        return alive
    while True:
        again = ~over[alive].any(axis=0)
        if np.array_equal(again, alive):
            return alive
        alive = again


def _overlap(boxes: F32, classes: I32, first: Index, second: Index, iou: float) -> Bool:
    """(F, S) whether two boxes of one class overlap by more than ``iou``; the division is multiplied out."""
    x1, y1, x2, y2 = boxes[first].T[:, :, None]
    u1, v1, u2, v2 = boxes[second].T[:, None, :]
    width = np.minimum(x2, u2) - np.maximum(x1, u1)
    height = np.minimum(y2, v2) - np.maximum(y1, v1)
    shared = np.maximum(width, 0, out=width) * np.maximum(height, 0, out=height)
    union = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - shared
    over: Bool = shared > iou * union
    over &= classes[first][:, None] == classes[second]
    return over
