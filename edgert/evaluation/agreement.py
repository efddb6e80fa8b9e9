"""Agreement: how far a model says the same as another, where no labels say what is true."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgert.errors import ConfigError
from edgert.evaluation.score import ImageScores, Note, cosine, mean_of, unit
from edgert.runtime import Classification, Detections, Embedding, Keypoints, Record, Segmentation

SAME_IOU = 0.5
"""Overlap from which two boxes are of one object, as in PASCAL VOC and COCO's AP50."""


@dataclass(frozen=True, slots=True)
class Found:
    """Boxes of one image: (N, 4) corners in pixels, (N,) classes, the best score first."""

    boxes: Any
    classes: Any


@dataclass(frozen=True, slots=True)
class Packed:
    """A mask, compressed, so that those of a whole dataset fit in memory."""

    data: bytes
    shape: tuple[int, ...]

    def mask(self) -> Any:
        """(h, w) uint8."""
        return np.frombuffer(zlib.decompress(self.data), np.uint8).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Agreement:
    """``agreement``, 0 to 1, mean over images; for vectors ``cosine``.

    Detections and keypoints: twice the boxes that both found (of one class, overlapping by :data:`SAME_IOU` or more,
    each counted once) over all boxes of both; 1 where neither found any. Classes: whether the best one is the same.
    Masks: the part of pixels of one class.
    """

    metrics: tuple[str, ...] = ("agreement", "cosine")

    def note(self, index: int, record: Record) -> Note:
        """See :class:`~edgert.evaluation.score.Scorer`. Raises ConfigError for a user's own record."""
        if isinstance(record, Detections):
            return Found(record.boxes, record.classes)
        if isinstance(record, Keypoints):
            return Found(record.boxes, np.zeros(len(record), np.int32))
        if isinstance(record, Classification):
            return int(record.classes[0])
        if isinstance(record, Segmentation):
            return Packed(zlib.compress(record.mask.tobytes(), 1), record.mask.shape)
        if isinstance(record, Embedding):
            return record.vector
        raise ConfigError(
            f"nothing is known about comparing two {type(record).__name__}",
            why="a task: python made them",
            fix="let it return one of edgert's records: Detections, Classification, Segmentation, Keypoints, Embedding",
        )

    def scores(self, notes: Sequence[Note], reference: Sequence[Note] | None) -> Mapping[str, ImageScores]:
        if reference is None or not notes:
            return {}
        if isinstance(notes[0], np.ndarray):
            return {"cosine": cosine(unit(np.asarray(notes, np.float64)), reference)}
        return {"agreement": mean_of([_same(*pair) for pair in zip(notes, reference, strict=True)])}


def _same(one: Note, other: Note) -> float:
    if isinstance(one, Packed):
        return float(np.mean(one.mask() == other.mask()))
    if not isinstance(one, Found):
        return float(one == other)
    total = len(one.boxes) + len(other.boxes)
    return 2 * _pairs(one, other) / total if total else 1.0


def _pairs(one: Found, other: Found) -> int:
    """Boxes of one that find a partner, the best first, each the most overlapping that is left."""
    overlap = overlaps(one.boxes, other.boxes)
    overlap[one.classes[:, None] != other.classes] = 0.0
    count = 0
    for row in range(len(overlap) if overlap.size else 0):
        best = int(overlap[row].argmax())
        if overlap[row, best] >= SAME_IOU:
            overlap[:, best] = 0.0
            count += 1
    return count


def overlaps(one: Any, other: Any) -> Any:
    """(N, M) float64 intersection over union of (N, 4) and (M, 4) corners."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    low, high = np.maximum(one[:, None, :2], other[:, :2]), np.minimum(one[:, None, 2:], other[:, 2:])
    shared = np.clip(high - low, 0.0, None).prod(axis=2)
    areas = [np.clip(some[:, 2:] - some[:, :2], 0.0, None).prod(axis=1) for some in (one, other)]
    union = areas[0][:, None] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
