"""Boxes: what every detection decoder does around the part that differs from family to family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from edgert.runtime.record import Detections
from edgert.stages.decode.base import Array
from edgert.stages.decode.look import Fit, Look
from edgert.stages.decode.mismatch import check_labels
from edgert.stages.decode.nms import Index, strongest, suppress
from edgert.stages.decode.shape import Shapes, Size, shapes_of
from edgert.stages.geometry import Geometry

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """M boxes that scored enough, in no order.

    Attributes:
        boxes: (M, 4) float32 x1, y1, x2, y2 in network pixels.
        scores: (M,) float32.
        classes: (M,) int32.
    """

    boxes: F32
    scores: F32
    classes: I32


class Head(Protocol):
    """One family of detectors. Its dataclass fields are the task's ``options``."""

    overlapping: ClassVar[bool]
    """Whether one object still has many boxes, so that suppression is needed."""
    uncertain: ClassVar[tuple[str, ...]]
    """Fields of few values (``Literal``) that shapes do not decide; `edgert check` tries all of them."""

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Why outputs that look like this could be its own; nothing when they cannot."""
        ...

    def class_count(self, shapes: Shapes, network: Size) -> int | None:
        """How many classes the outputs tell apart; None when shapes do not say.

        Raises:
            ModelError: the outputs do not have the shapes this head reads.
        """
        ...

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """The boxes that score at least ``score``. Raises ModelError like :meth:`class_count`."""
        ...


@dataclass(frozen=True, slots=True)
class Detector:
    """A decoder of boxes: the head's candidates, suppressed, limited, in source pixels.

    Attributes:
        score: lowest score that counts.
        iou: overlap above which the weaker of two boxes of a class goes; unused by heads that leave no overlaps.
        limit: most boxes per picture.
    """

    head: Head
    score: float = 0.25
    iou: float = 0.45
    limit: int = 300
    labels: tuple[str, ...] = ()

    def check(self, shapes: Shapes, network: Size) -> None:
        """Whether outputs of these shapes can be read and every class has a label; needs no picture.

        Raises:
            ModelError: the shapes are not this decoder's.
            ConfigError: fewer labels than classes.
        """
        check_labels(self.head.class_count(shapes, network) or 0, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        """The record is new memory throughout. Raises ModelError and ConfigError like :meth:`check`."""
        count = self.head.class_count(shapes_of(outputs), geometry.network)
        found = self.head.read(outputs, geometry.network, self.score)
        rows = self._chosen(found)
        classes = found.classes[rows]
        check_labels(int(np.max(classes, initial=-1)) + 1 if count is None else count, self.labels)
        return Detections(geometry.boxes(found.boxes[rows]), found.scores[rows], classes, self.labels)

    def _chosen(self, found: Candidates) -> Index:
        if self.head.overlapping:
            return suppress(found.boxes, found.scores, found.classes, self.iou, self.limit)
        return strongest(found.scores, self.limit)


def best_class(scores: F32, floor: float) -> tuple[Index, F32, I32]:
    """Rows whose best class reaches ``floor``, with that score and class.

    One comparison finds the few numbers that matter; a maximum over every short row would cost several times as much.

    Args:
        scores: (N, C) float32.

    Returns:
        (M,) rows rising, (M,) float32 scores, (M,) int32 classes.
    """
    rows = np.flatnonzero(scores >= floor) // scores.shape[1]
    first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    rows = rows[first]
    classes = scores[rows].argmax(axis=1)
    return rows, scores[rows, classes], classes.astype(np.int32)


def every_class(scores: F32, floor: float) -> tuple[Index, F32, I32]:
    """Like :func:`best_class`, but a row comes back once for every class that reaches ``floor``."""
    rows, classes = np.divmod(np.flatnonzero(scores >= floor), scores.shape[1])
    return rows, scores[rows, classes], classes.astype(np.int32)


def corners(centres: F32, sizes: F32) -> F32:
    """(M, 2) centres x, y and (M, 2) widths, heights → (M, 4) float32 x1, y1, x2, y2."""
    half = sizes * np.float32(0.5)
    return np.concatenate([centres - half, centres + half], axis=1)
