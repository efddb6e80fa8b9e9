"""YOLOv8, YOLO11, YOLO12: boxes decoded in the graph, no objectness, boxes as columns.

Layout: https://docs.ultralytics.com/models/yolov8 and /modes/export, [84, 8400] for COCO at 640: x, y, w, h in network
pixels, then class scores past their sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgert.stages.decode.base import Array, as_f32
from edgert.stages.decode.decoded import Decoded
from edgert.stages.decode.detection import F32, Candidates, best_class, corners
from edgert.stages.decode.look import Fit, Look
from edgert.stages.decode.mismatch import wrong_shapes
from edgert.stages.decode.shape import Shapes, Size, all_cells, is_rows_of_six, shapes_of


@dataclass(frozen=True, slots=True)
class YoloV8:
    """One output [4 + C, S] or turned [S, 4 + C]: centre x, y, width, height in network pixels, class scores.

    S counts the cells of strides 8, 16, 32; another number is taken for the longer side. An export with NMS in the
    graph, [N, 6], is read as ``yolov10``.
    """

    overlapping: ClassVar[bool] = True
    uncertain: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """A column for every box."""
        rows, columns = look.table or (0, 0)
        if columns >= 6 and rows == look.cells():
            yield Fit(f"[{rows}, 4 + {columns - 4}] is its output turned round", 1, columns - 4)
        if rows >= 5 and (not columns or columns > rows):
            exact = columns == look.cells()
            found = "one column for every cell" if exact else "a column per box"
            yield Fit(f"[4 + {rows - 4}, {columns or 'N'}] has {found}", 3 if exact else 2, rows - 4)

    def class_count(self, shapes: Shapes, network: Size) -> int | None:
        """Raises ModelError unless one side of the one output can be 4 + C."""
        if _is_end_to_end(shapes, network):
            return None
        if len(shapes) != 1 or len(shapes[0]) != 2 or min(shapes[0]) < 5:
            rows = all_cells(network, (8, 16, 32))
            raise wrong_shapes("detect: yolov8", f"one output [4 + classes, {rows}]", shapes, network)
        return shapes[0][0 if _is_columns(shapes[0], network) else 1] - 4

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Boxes of an end-to-end export do not overlap, and suppression leaves them as they are."""
        shapes = shapes_of(outputs)
        if self.class_count(shapes, network) is None:
            return Decoded().read(outputs, network, score)
        raw = as_f32(outputs[0])
        return _read_columns(raw, score) if _is_columns(shapes[0], network) else _read_rows(raw, score)


def _read_columns(raw: F32, score: float) -> Candidates:
    """The maximum runs along memory; which class it was is asked of the few columns that pass."""
    best = raw[4:].max(axis=0)
    columns = np.flatnonzero(best >= score)
    found = raw[:, columns].T
    classes = found[:, 4:].argmax(axis=1).astype(np.int32)
    return Candidates(corners(found[:, :2], found[:, 2:4]), best[columns], classes)


def _read_rows(raw: F32, score: float) -> Candidates:
    rows, scores, classes = best_class(raw[:, 4:], score)
    return Candidates(corners(raw[rows, :2], raw[rows, 2:4]), scores, classes)


def _is_columns(shape: tuple[int, ...], network: Size) -> bool:
    boxes = all_cells(network, (8, 16, 32))
    return shape[1] == boxes or (shape[0] != boxes and shape[0] < shape[1])


def _is_end_to_end(shapes: Shapes, network: Size) -> bool:
    """[N, 6] with N not the cells of the network: two classes, turned, would be that."""
    return is_rows_of_six(shapes) and shapes[0][0] != all_cells(network, (8, 16, 32)) and shapes[0][0] > 6
