"""Non-maximum suppression: of the boxes that overlap, the best one stays.

Not ``cv2.dnn.NMSBoxesBatched``: it keeps classes apart by shifting their boxes by the greatest coordinate, which mixes
them up where boxes reach below zero, as they do at the edge of a picture. It is quicker for a few dozen boxes, slower
for many; tests/bench/bench_decode.py has both.
"""

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
_STRONGER: Bool = np.triu(np.ones((_BLOCK, _BLOCK), np.bool_), 1)  # [i, j]: i comes before j


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
    block = order[:_BLOCK]
    kept = block[_survivors(_overlap(boxes, classes, block, block, iou))]
    for start in range(_BLOCK, len(order), _BLOCK):
        if len(kept) >= limit:
            break
        block = order[start : start + _BLOCK]
        block = block[~_overlap(boxes, classes, kept, block, iou).any(axis=0)]
        kept = np.concatenate([kept, block[_survivors(_overlap(boxes, classes, block, block, iou))]])
    return kept[:limit]


def strongest(scores: F32, limit: int) -> Index:
    """The rows of the ``limit`` highest scores, falling; of equal ones the earlier first."""
    if len(scores) <= limit:
        return np.argsort(-scores, kind="stable")
    floor = np.partition(scores, len(scores) - limit)[len(scores) - limit]
    rows = np.flatnonzero(scores >= floor)
    return rows[np.argsort(-scores[rows], kind="stable")][:limit]


def _survivors(over: Bool) -> Bool:
    """Rows of a block left by greedy suppression; ``over[i, j]`` says that they overlap, rows are by falling score."""
    over = over & _STRONGER[: len(over), : len(over)]
    alive: Bool = ~np.asarray(over.any(axis=0))
    if alive.all():
        return alive
    while True:
        again: Bool = ~np.asarray(over[alive].any(axis=0))
        if np.array_equal(again, alive):
            return alive
        alive = again


def _overlap(boxes: F32, classes: I32, first: Index, second: Index, iou: float) -> Bool:
    """(F, S) whether two boxes of one class overlap by more than ``iou``.

    shared / (a + b - shared) > iou, without the division: shared * (1 + iou) > iou * a + iou * b.
    """
    x1, y1, x2, y2 = np.ascontiguousarray(boxes[first].T)[:, :, None]
    u1, v1, u2, v2 = np.ascontiguousarray(boxes[second].T)
    shared, height = np.minimum(x2, u2), np.minimum(y2, v2)
    spare = np.maximum(x1, u1)
    shared -= spare
    height -= np.maximum(y1, v1, out=spare)
    np.maximum(shared, 0, out=shared)
    shared *= np.maximum(height, 0, out=height)
    shared *= np.float32(1 + iou)
    weighted = np.float32(iou)
    np.add((x2 - x1) * (y2 - y1) * weighted, (u2 - u1) * (v2 - v1) * weighted, out=spare)
    over: Bool = shared > spare
    over &= classes[first][:, None] == classes[second]
    return over
