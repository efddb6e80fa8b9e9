"""Detection decoders: non-maximum suppression, scores and labels around a head that differs by family."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from edgert.runtime.records import Detections
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, check_labels, shapes_of
from edgert.stages.decode.guess import Fit, OutputSignature

# Non-maximum suppression.
#
# ``cv2.dnn.NMSBoxesBatched`` is not used: it separates classes by shifting boxes by the greatest coordinate. That mixes
# classes where boxes have negative coordinates, as at the edge of an image. It is faster for a few dozen boxes, slower
# for many.

I32 = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]
Bool = npt.NDArray[np.bool_]

Overlap = Callable[[F32, I32, Index, Index, float], Bool]
"""Function of boxes, classes, F rows, S rows and a fraction, to (F, S): whether two of one class overlap by more."""

CANDIDATES = 3000
"""Maximum number of boxes per frame, best first; weaker ones would only matter beyond any limit of objects."""
_BLOCK = 256
_STRONGER: Bool = np.triu(np.ones((_BLOCK, _BLOCK), np.bool_), 1)  # [i, j]: i comes before j


def suppress(boxes: F32, scores: F32, classes: I32, iou: float, limit: int, overlap: Overlap | None = None) -> Index:
    """Return the rows that survive greedy suppression within their class, best score first.

    A box is removed if its intersection over union with a surviving better box of its class is above ``iou``. Of equal
    scores the earlier row is better.

    The greedy answer is found for blocks of boxes at once. Rows overlapped by kept boxes are removed first. Among the
    rest, "not overlapped by a survivor" is repeated until nothing changes: as many rounds as the longest chain of
    suppressions. That is Cluster-NMS of Zheng et al., "Enhancing Geometric Factors in Model Learning and Inference",
    2021, shown there equal to greedy NMS. Blocks stop at ``limit``, as better boxes always come first.

    Args:
        boxes: (N, 4) float32 x1, y1, x2, y2, in any unit.
        scores: (N,) float32.
        classes: (N,) int32.
        iou: highest intersection over union at which both stay.
        limit: maximum number of rows to return.
        overlap: overlap test for other shapes than upright boxes; ``boxes`` are then (N, numbers) of these shapes.

    Returns:
        (K,) rows, K <= limit; at most the :data:`CANDIDATES` best rows are considered.
    """
    over = overlap or _overlap
    order = strongest(scores, CANDIDATES)
    block = order[:_BLOCK]
    kept = block[_survivors(over(boxes, classes, block, block, iou))]
    for start in range(_BLOCK, len(order), _BLOCK):
        if len(kept) >= limit:
            break
        block = order[start : start + _BLOCK]
        block = block[~over(boxes, classes, kept, block, iou).any(axis=0)]
        kept = np.concatenate([kept, block[_survivors(over(boxes, classes, block, block, iou))]])
    return kept[:limit]


def suppress_at_once(boxes: F32, scores: F32, classes: I32, iou: float, limit: int, overlap: Overlap) -> Index:
    """Return the surviving rows like :func:`suppress`, but let boxes that are removed themselves suppress others, too.

    This is Fast NMS of Bolya et al., "YOLACT: Real-time Instance Segmentation", 2019, section 4.
    """
    order = strongest(scores, CANDIDATES)
    kept = order[:0]
    for start in range(0, len(order), _BLOCK):
        if len(kept) >= limit:
            break
        block = order[start : start + _BLOCK]
        over = overlap(boxes, classes, order[: start + len(block)], block, iou)
        over[start:] &= _STRONGER[: len(block), : len(block)]
        kept = np.concatenate([kept, block[~over.any(axis=0)]])
    return kept[:limit]


def strongest(scores: F32, limit: int) -> Index:
    """Return the rows of the ``limit`` highest scores, best first; equal ones in row order, NaN last."""
    falling = -scores
    if len(scores) <= limit:
        return np.argsort(falling, kind="stable")
    floor = np.partition(falling, limit - 1)[limit - 1]
    rows = np.flatnonzero(~(falling > floor))
    return rows[np.argsort(falling[rows], kind="stable")][:limit]


def _survivors(over: Bool) -> Bool:
    """Return which rows of a block survive; ``over[i, j]`` says whether they overlap, rows are best score first."""
    over = over & _STRONGER[: len(over), : len(over)]
    alive: Bool = ~np.asarray(over.any(axis=0))
    if alive.all():
        return alive
    while True:
        again: Bool = ~np.asarray(over[alive].any(axis=0))
        if np.array_equal(again, alive):
            return alive
        alive = again


@np.errstate(invalid="ignore")  # boxes that are not finite, which a check of the record removes
def _overlap(boxes: F32, classes: I32, first: Index, second: Index, iou: float) -> Bool:
    """Return (F, S) whether two boxes of one class overlap by more than ``iou``.

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


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """M boxes that reach the score, in any order.

    Attributes:
        boxes: (M, 4) float32 x1, y1, x2, y2 in network pixels.
        scores: (M,) float32.
        classes: (M,) int32.
        extras: (M, E) float32 further numbers of each box, depending on the head.
        overlap: whether one object may have several boxes, so that suppression is needed.
    """

    boxes: F32
    scores: F32
    classes: I32
    extras: F32 | None = None
    overlap: bool = True

    def select(self, rows: Index) -> "Candidates":
        extras = None if self.extras is None else self.extras[rows]
        return Candidates(self.boxes[rows], self.scores[rows], self.classes[rows], extras, self.overlap)


Unit = Literal["pixels", "relative"]
"""Unit of a head's boxes: network pixels, or fractions of the network's width and height, as in TFLite exports."""


def in_pixels(numbers: F32, network: Size, unit: Unit) -> F32:
    """Return (N, 2 * K) numbers, alternately along the network's width and height, in network pixels."""
    if unit == "pixels":
        return numbers
    scaled: F32 = numbers * np.tile(np.array(network, np.float32), numbers.shape[1] // 2)
    return scaled


class Head(Protocol):
    """Base of each family of detectors. Its dataclass fields are the task's ``options``.

    A head whose objects overlap in another way than their boxes also has ``suppressed(found, iou, limit)``. It returns
    the surviving rows of the candidates, best score first. ``shaped(record, kept, outputs, geometry)`` returns the
    record with its ``corners``, ``masks``, or ``points`` and their ``names``.
    """

    has_masks: ClassVar[bool] = False
    """Whether objects have masks."""
    uncertain: ClassVar[tuple[str, ...]] = ()
    """Fields with few values (``Literal``) that shapes do not decide; `edgert check` tries all of them."""

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        """Yield the reasons why this head could read such outputs; nothing if it cannot."""

    def class_count(self, shapes: Shapes, network: Size) -> int | None:
        """Return the number of classes; None if shapes do not show it.

        Raises ModelError: the outputs do not have the shapes this head reads.
        """

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes that reach ``score``. Raises ModelError like :meth:`class_count`."""


AddShapes = Callable[[Detections, Candidates, Sequence[Array], Geometry], Detections]


@dataclass(frozen=True, slots=True)
class Detector:
    """Decoder of boxes: the head's candidates, suppressed, limited, in source pixels.

    Attributes:
        head: reader of the model's outputs.
        score: lowest score of a box.
        iou: overlap above which the weaker of two boxes of a class is removed; unused for heads without overlaps.
        limit: maximum number of boxes per image.
        labels: names of the classes.
        agnostic: whether boxes suppress those of other classes, too, even for heads without overlaps.
    """

    head: Head
    score: float = 0.25
    iou: float = 0.45
    limit: int = 300
    labels: tuple[str, ...] = ()
    agnostic: bool = False

    def check(self, shapes: Shapes, network: Size) -> None:
        """Check that this decoder can read outputs of these shapes, and that every class has a label.

        Raises ModelError: it cannot read them. Raises ConfigError: there are fewer labels than classes, or more.
        """
        check_labels(self.head.class_count(shapes, network) or 0, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        """Return the record, in new memory. Raises ModelError and ConfigError like :meth:`check`."""
        found = self.head.read(outputs, geometry.network, self.score)
        return self.record(found, shapes_of(outputs), geometry, outputs)

    def record(
        self, found: Candidates, shapes: Shapes, geometry: Geometry, outputs: Sequence[Array] = ()
    ) -> Detections:
        """Return the record of the surviving candidates from outputs of these shapes.

        A head with masks also needs the outputs. Raises ConfigError like :meth:`check`.
        """
        count = self.head.class_count(shapes, geometry.network)
        kept = found.select(self._suppressed(found))
        seen = int(np.max(kept.classes, initial=-1)) + 1
        check_labels(seen if count is None else count, self.labels, is_exact=count is not None)
        record = Detections(geometry.boxes(kept.boxes), kept.scores, kept.classes, self.labels)
        add_shapes: AddShapes | None = getattr(self.head, "shaped", None)
        return record if add_shapes is None else add_shapes(record, kept, outputs, geometry)

    def _suppressed(self, found: Candidates) -> Index:
        """Return the surviving rows of the candidates, best score first."""
        if self.agnostic:
            found = replace(found, classes=np.zeros_like(found.classes))
        elif not found.overlap:
            return strongest(found.scores, self.limit)
        own: Callable[[Candidates, float, int], Index] | None = getattr(self.head, "suppressed", None)
        if own is not None:
            return own(found, self.iou, self.limit)
        return suppress(found.boxes, found.scores, found.classes, self.iou, self.limit)


_TOO_LARGE = np.float32(2**31)  # for int32: what becomes of it depends on the processor


def final_rows(scores: Array, classes: Array, score: float, first: int = 0) -> Index:
    """Return the rows of final boxes that reach ``score`` with a class from ``first`` up; NaN and padding have none."""
    return np.flatnonzero((as_f32(scores) >= score) & (classes >= first) & (classes < _TOO_LARGE))


def best_class(scores: F32, floor: float) -> tuple[Index, F32, I32]:
    """Return the rows whose best class reaches ``floor``, with that score and class.

    One comparison of all numbers finds the few that matter; a maximum per short row would take several times as long.
    They are (M,) rows in ascending order, (M,) float32 and (M,) int32, of (N, C) scores.
    """
    rows = np.flatnonzero(scores >= floor) // scores.shape[1]
    first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    rows = rows[first]
    classes = scores[rows].argmax(axis=1)
    found = scores[rows, classes]
    if not (keep := found >= floor).all():  # argmax prefers NaN
        rows, found, classes = rows[keep], found[keep], classes[keep]
    return rows, found, classes.astype(np.int32)


def best_column(scores: F32, floor: float) -> tuple[Index, F32, I32]:
    """Return columns like :func:`best_class` for (C, S) scores, whose boxes are columns."""
    best = scores.max(axis=0)
    columns = np.flatnonzero(best >= floor)
    return columns, best[columns], scores[:, columns].argmax(axis=0).astype(np.int32)


def every_class(scores: F32, floor: float) -> tuple[Index, F32, I32]:
    """Return rows like :func:`best_class`, but each row once for every class that reaches ``floor``."""
    rows, classes = np.divmod(np.flatnonzero(scores >= floor), scores.shape[1])
    return rows, scores[rows, classes], classes.astype(np.int32)


def by_class(scores: F32, floor: float) -> tuple[Index, F32, I32]:
    """Return rows like :func:`every_class`, but in the order of classes."""
    turned = scores.T
    classes, rows = np.divmod(np.flatnonzero(turned >= floor), max(len(scores), 1))
    return rows, scores[rows, classes], classes.astype(np.int32)


def corners(centers: F32, sizes: F32) -> F32:
    """Convert (M, 2) centers x, y and (M, 2) widths, heights to (M, 4) float32 x1, y1, x2, y2."""
    half = sizes * np.float32(0.5)
    return np.concatenate([centers - half, centers + half], axis=1)
