"""YOLOv5 and its kin (v6, v7, decoded YOLOX): boxes decoded in the graph, objectness beside the classes.

Layout: https://docs.ultralytics.com/yolov5 (ONNX export), [25200, 85] for COCO at 640: x, y, w, h in network pixels,
objectness, class scores, all past their sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgert.stages.decode.base import Array, as_f32
from edgert.stages.decode.detection import F32, I32, Candidates, corners
from edgert.stages.decode.look import STRIDES, Fit, Look
from edgert.stages.decode.mismatch import wrong_shapes
from edgert.stages.decode.nms import Bool
from edgert.stages.decode.shape import Shapes, Size, shapes_of


@dataclass(frozen=True, slots=True)
class YoloV5:
    """One output [N, 5 + C]: centre x, y, width, height in network pixels; score = objectness * class."""

    overlapping: ClassVar[bool] = True
    uncertain: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Three rows for every cell, or one whose boxes are decoded."""
        rows, columns = look.table or (0, 0)
        count, reason = look.cells(), f"[{rows or 'N'}, 5 + {columns - 5}] has"
        if columns < 6:
            return
        if rows == count:
            every = f"{reason} one row for every cell of strides 8, 16, 32, if boxes are decoded in the graph"
            yield Fit(every, 1, columns - 5)
        elif (rows > columns or not rows) and rows != look.cells((*STRIDES, 64)):
            exact = count is not None and rows == 3 * count
            found = f"{reason} {'three rows for every cell' if exact else 'a row per box'}"
            yield Fit(found, 3 if exact else 1, columns - 5)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        """Raises ModelError unless the one output has a row of at least six numbers for every box."""
        if len(shapes) != 1 or len(shapes[0]) != 2 or not 6 <= shapes[0][1] <= shapes[0][0]:
            raise wrong_shapes("detect: yolov5", "one output [boxes, 5 + classes]", shapes, network)
        return shapes[0][1] - 5

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Objectness bounds the score, so only rows that pass it are looked at further."""
        self.class_count(shapes_of(outputs), network)
        raw = as_f32(outputs[0])
        found = raw[raw[:, 4] >= score]
        scores, classes, keep = product_scores(found, score)
        found = found[keep]
        return Candidates(corners(found[:, :2], found[:, 2:4]), scores, classes)


def product_scores(rows: F32, floor: float) -> tuple[F32, I32, Bool]:
    """The best class of every row [.., objectness, classes...] by objectness * class.

    Args:
        rows: (M, 5 + C) float32.

    Returns:
        (K,) scores and (K,) classes of the rows that reach ``floor``, and (M,) which rows these are.
    """
    classes = rows[:, 5:].argmax(axis=1)
    scores = rows[np.arange(len(rows)), classes + 5] * rows[:, 4]
    keep = scores >= floor
    return scores[keep], classes[keep].astype(np.int32), keep
