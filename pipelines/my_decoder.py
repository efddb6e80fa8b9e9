"""A decoder and a stage of one's own, for my-model.yaml. NumPy only; nothing here is special to edgert's models."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgert.runtime import Detections, Result


def decode(outputs: list[Any], geometry: Any, score: float = 0.25) -> Detections:
    """One image's raw outputs to a record.

    Args:
        outputs: the model's output tensors without the batch dimension; here one of (cells, 5 + classes).
        geometry: ``geometry.boxes(xyxy)`` turns network pixels into source pixels.
    """
    (raw,) = outputs
    width, height = geometry.network
    grids, strides = [], []
    for stride in (8, 16, 32):
        y, x = np.mgrid[: height // stride, : width // stride]
        grids.append(np.stack([x, y], axis=-1).reshape(-1, 2))
        strides.append(np.full((x.size, 1), stride, np.float32))
    grid, step = np.concatenate(grids), np.concatenate(strides)

    classes = raw[:, 5:].argmax(axis=1)
    scores = raw[:, 4] * raw[:, 5:].max(axis=1)
    best = np.flatnonzero(scores >= score)
    center, size = (raw[best, :2] + grid[best]) * step[best], np.exp(raw[best, 2:4]) * step[best]
    boxes = geometry.boxes(np.concatenate([center - size / 2, center + size / 2], axis=1))
    order = np.argsort(-scores[best])
    return Detections(boxes[order], scores[best][order], classes[best][order].astype(np.int32))


class Count:
    """A stage: called for every result, in a thread of its own. Here it passes on one result in ``every``."""

    def __init__(self, every: int) -> None:
        self.every, self.seen = every, 0

    def __call__(self, result: Result) -> Result | None:
        """Returns the result with a record added, or None to end the frame's way here."""
        self.seen += len(result.detections)
        if result.frame.index % self.every:
            return None
        return result.with_output("count", {"boxes_so_far": self.seen})
