"""YOLOX (Ge et al., "YOLOX: Exceeding YOLO Series in 2021"), exported without ``--decode_in_inference``.

Layout and formulas: ``yolox/models/yolo_head.py`` (decode_outputs) of github.com/Megvii-BaseDetection/YOLOX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgert.stages.decode.base import Array, as_f32
from edgert.stages.decode.detection import Candidates, corners
from edgert.stages.decode.look import Fit, Look
from edgert.stages.decode.mismatch import wrong_shapes
from edgert.stages.decode.shape import Shapes, Size, all_cells, grid_of, shapes_of
from edgert.stages.decode.yolov5 import product_scores


@dataclass(frozen=True, slots=True)
class YoloX:
    """One output [S, 5 + C]: x, y, w, h relative to its cell, objectness and class scores already sigmoid.

    Centre = (xy + cell) * stride, size = exp(wh) * stride, score = objectness * class; S counts the cells of all
    levels. An export that decoded its boxes itself reads as ``yolov5``.
    """

    overlapping: ClassVar[bool] = True
    uncertain: ClassVar[tuple[str, ...]] = ()
    strides: tuple[int, ...] = (8, 16, 32)

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """A row for every cell."""
        rows, columns = look.table or (0, 0)
        if columns >= 6 and rows == look.cells():
            yield Fit(f"[{rows}, 5 + {columns - 5}] has one row for every cell of strides 8, 16, 32", 3, columns - 5)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        """Raises ModelError unless the one output has a row for every cell."""
        rows = all_cells(network, self.strides)
        if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][0] != rows or shapes[0][1] < 6:
            raise wrong_shapes("detect: yolox", f"one output [{rows}, 5 + classes]", shapes, network)
        return shapes[0][1] - 5

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Objectness bounds the score, so only rows that pass it are looked at further."""
        self.class_count(shapes_of(outputs), network)
        grid = grid_of(network, self.strides)
        raw = as_f32(outputs[0])
        rows = np.flatnonzero(raw[:, 4] >= score)
        found = raw[rows]
        scores, classes, keep = product_scores(found, score)
        found, rows = found[keep], rows[keep]
        stride = grid.stride[rows, None]
        cell = np.stack([grid.x[rows], grid.y[rows]], axis=1)
        return Candidates(corners((found[:, :2] + cell) * stride, np.exp(found[:, 2:4]) * stride), scores, classes)
