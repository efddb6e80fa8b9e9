"""DETR and its kin (RT-DETR, D-FINE, RF-DETR): a fixed number of queries, each at most one object, no suppression.

Layouts: Carion et al., "End-to-End Object Detection with Transformers", 2020 (softmax over classes and "no object",
which is last); Zhao et al., "DETRs Beat YOLOs on Real-time Object Detection", 2023, and github.com/lyuwenyu/RT-DETR,
``rtdetr_postprocessor.py`` (sigmoid, best of queries x classes); https://docs.ultralytics.com/models/rtdetr (one
output, scores past their sigmoid).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from edgert.stages.decode.decoded import Decoded
from edgert.stages.decode.decoder import (
    Array,
    Shapes,
    Size,
    as_f32,
    boxes_and_scores,
    is_rows_of_six,
    roles_of,
    shapes_of,
)
from edgert.stages.decode.detection import F32, I32, Candidates, Index, corners, every_class
from edgert.stages.decode.guess import MOST_QUERIES, Fit, Look, wrong_shapes

Activation = Literal["auto", "sigmoid", "softmax", "none"]


@dataclass(frozen=True, slots=True)
class Detr:
    """Logits [Q, C] and boxes [Q, 4] in either order, one output [Q, 4 + C], or decoded boxes, scores and classes.

    Boxes are center x, y, width, height relative to the network's; decoded ones x1, y1, x2, y2 in network pixels.

    Attributes:
        activation: what makes scores of the class numbers. ``softmax`` takes the last column for "no object".
            ``auto``: none when all lie in 0-1, otherwise softmax with one column more than labels, otherwise sigmoid.
        label_count: how many labels the task has; set by whoever makes the decoder.
    """

    overlapping: ClassVar[bool] = False
    uncertain: ClassVar[tuple[str, ...]] = ("activation",)
    activation: Activation = "auto"
    label_count: int = 0

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Scores beside as many boxes, one per query; or both in one table."""
        rows, columns = look.table or (0, 0)
        count = look.cells()
        if columns >= 5 and 10 <= rows <= MOST_QUERIES and rows != count and not is_rows_of_six(look.shapes):
            weight = 2 if count is not None and rows < count else 1
            yield Fit(f"[{rows}, 4 + {columns - 4}] can be queries", weight, columns - 4)
        roles = boxes_and_scores(look.shapes)
        if roles is not None:
            boxes, classes = look.shapes[roles[1]]
            reason = f"scores [{boxes or 'N'}, {classes}] beside boxes [{boxes or 'N'}, 4], a box per query"
            yield Fit(reason, 3 if 0 < boxes <= MOST_QUERIES else 1, classes)

    def class_count(self, shapes: Shapes, network: Size) -> int | None:
        """None for decoded outputs. Raises ModelError unless there are boxes and class numbers of the same queries."""
        if roles_of(shapes) is not None:
            return None
        columns = _columns(shapes)
        if columns is None:
            reads = "logits [queries, classes] and boxes [queries, 4], one [queries, 4 + classes], or decoded boxes"
            raise wrong_shapes("detect: detr", reads, shapes, network)
        return columns - self._has_no_object(columns)

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """A query counts once for every class that scores enough, as RT-DETR's own choice does."""
        if self.class_count(shapes_of(outputs), network) is None:
            return Decoded().read(outputs, network, score)
        boxes, numbers = _parts(outputs)
        rows, scores, classes = self._scored(numbers, score)
        found = boxes[rows] * np.array(network * 2, np.float32)
        return Candidates(corners(found[:, :2], found[:, 2:]), scores, classes)

    def _has_no_object(self, columns: int) -> bool:
        return self.activation == "softmax" or (self.activation == "auto" and columns == self.label_count + 1 > 1)

    def _scored(self, numbers: F32, floor: float) -> tuple[Index, F32, I32]:
        final = self.activation == "none" or (self.activation == "auto" and _is_unit(numbers))
        if self._has_no_object(numbers.shape[1]):
            return every_class((numbers if final else _softmax(numbers))[:, :-1], floor)
        if final:
            return every_class(numbers, floor)
        rows, logits, classes = every_class(numbers, _logit(floor))
        return rows, _sigmoid(logits), classes


def _columns(shapes: Shapes) -> int | None:
    """How many class numbers a query has; None when the outputs are neither of the two layouts."""
    if len(shapes) == 1:
        return shapes[0][1] - 4 if len(shapes[0]) == 2 and shapes[0][1] > 4 else None
    roles = boxes_and_scores(shapes)
    return None if roles is None else shapes[roles[1]][1]


def _parts(outputs: Sequence[Array]) -> tuple[F32, F32]:
    if len(outputs) == 1:
        table = as_f32(outputs[0])
        return table[:, :4], table[:, 4:]
    box_index, number_index = boxes_and_scores(shapes_of(outputs)) or (1, 0)
    return as_f32(outputs[box_index]), as_f32(outputs[number_index])


def _sigmoid(logits: F32) -> F32:
    power: F32 = np.exp(-logits)
    power += 1
    return np.reciprocal(power, out=power)


def _softmax(logits: F32) -> F32:
    power: F32 = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    power /= power.sum(axis=1, keepdims=True)
    return power


def _is_unit(numbers: F32) -> bool:
    """Whether these can be scores already: logits of queries that saw nothing are far below zero."""
    return bool(numbers.size) and float(np.min(numbers)) >= 0 and float(np.max(numbers)) <= 1


def _logit(score: float) -> float:
    """The inverse of the sigmoid; comparing logits saves the exponential of every number."""
    if score in (0.0, 1.0):
        return math.inf if score else -math.inf
    return math.log(score / (1 - score))
