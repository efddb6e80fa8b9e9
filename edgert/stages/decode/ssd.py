"""SSD with its priors applied in the graph: scores and boxes side by side (ultraface, exported MobileNet-SSDs)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from edgert.stages.decode.base import Array, as_f32
from edgert.stages.decode.detection import Candidates, every_class
from edgert.stages.decode.look import MOST_QUERIES, Fit, Look
from edgert.stages.decode.mismatch import wrong_shapes
from edgert.stages.decode.shape import Shapes, Size, boxes_and_scores, shapes_of


@dataclass(frozen=True, slots=True)
class Ssd:
    """Scores [N, C], past their softmax or sigmoid, and boxes [N, 4], in either order.

    A prior is reported once for every class that scores enough, as in Liu et al., "SSD: Single Shot MultiBox
    Detector", 2016, §2.

    Attributes:
        background: ``first`` when column 0 of the scores means nothing and labels start at column 1.
        boxes: relative to the network's width and height, or in network pixels.
        order: of the four numbers of a box; TensorFlow writes yxyx.
    """

    overlapping: ClassVar[bool] = True
    uncertain: ClassVar[tuple[str, ...]] = ("background", "boxes", "order")
    background: Literal["first", "none"] = "first"
    boxes: Literal["relative", "pixels"] = "relative"
    order: Literal["xyxy", "yxyx"] = "xyxy"

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Scores beside as many boxes, one per prior."""
        roles = boxes_and_scores(look.shapes)
        if roles is not None:
            boxes, classes = look.shapes[roles[1]]
            reason = f"scores [{boxes or 'N'}, {classes}] beside boxes [{boxes or 'N'}, 4], a box per prior"
            yield Fit(reason, 1 if 0 < boxes <= MOST_QUERIES else 3, classes - 1)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        """Raises ModelError unless there are scores and boxes for the same rows."""
        return shapes[self._roles(shapes, network)[1]][1] - self._skipped

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Only boxes of rows that score enough are touched."""
        box_index, score_index = self._roles(shapes_of(outputs), network)
        rows, scores, classes = every_class(as_f32(outputs[score_index])[:, self._skipped :], score)
        boxes = as_f32(outputs[box_index])[rows]
        if self.order == "yxyx":
            boxes = boxes[:, [1, 0, 3, 2]]
        if self.boxes == "relative":
            boxes = boxes * np.array(network * 2, np.float32)
        return Candidates(boxes, scores, classes)

    @property
    def _skipped(self) -> int:
        return 1 if self.background == "first" else 0

    def _roles(self, shapes: Shapes, network: Size) -> tuple[int, int]:
        roles = boxes_and_scores(shapes)
        if roles is None or shapes[roles[1]][1] <= self._skipped:
            reads = "two outputs, scores [N, classes] and boxes [N, 4]"
            raise wrong_shapes("detect: ssd", reads, shapes, network)
        return roles
