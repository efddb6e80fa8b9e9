"""YOLOv8-pose and its kin: a box, a score and points, as columns.

Layout: https://docs.ultralytics.com/tasks/pose and /modes/export, [56, 8400] for COCO's 17 points at 640: x, y, w, h,
score, then x, y, visibility of each point, in network pixels and past their sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgert.runtime.record import Keypoints
from edgert.stages.decode.base import Array, as_f32
from edgert.stages.decode.detection import F32, corners
from edgert.stages.decode.look import BODIES, Fit, Look
from edgert.stages.decode.mismatch import check_labels, wrong_shapes
from edgert.stages.decode.nms import strongest, suppress
from edgert.stages.decode.shape import Shapes, Size, all_cells, shapes_of
from edgert.stages.geometry import Geometry


@dataclass(frozen=True, slots=True)
class YoloPose:
    """One output [5 + 3 * K, S] of one class; or, NMS in the graph, [N, 6 + 3 * K] with corners, score, class, points.

    Attributes:
        labels: names of the K points.
    """

    score: float = 0.25
    iou: float = 0.45
    limit: int = 100
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Columns of a box, a score and points."""
        rows, columns = look.table or (0, 0)
        if rows > 5 and (rows - 5) % 3 == 0 and (not columns or columns > rows):
            points = (rows - 5) // 3
            yield Fit(f"{rows} rows are a box, a score and {points} points", 4 if points in BODIES else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        """Raises ModelError unless the one output has whole points, ConfigError for too few names."""
        check_labels(_point_count(shapes, network), self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        """Bodies by falling score."""
        shapes = shapes_of(outputs)
        self.check(shapes, geometry.network)
        raw = as_f32(outputs[0])
        if _is_final(shapes[0], geometry.network):
            found = raw[raw[:, 4] >= self.score]
            found = found[strongest(found[:, 4], self.limit)]
            return self._record(found[:, :4], found[:, 4], found[:, 6:], geometry)
        found = raw[:, raw[4] >= self.score].T
        boxes, scores = corners(found[:, :2], found[:, 2:4]), found[:, 4]
        rows = suppress(boxes, scores, np.zeros(len(scores), np.int32), self.iou, self.limit)
        return self._record(boxes[rows], scores[rows], found[rows, 5:], geometry)

    def _record(self, boxes: F32, scores: F32, points: F32, geometry: Geometry) -> Keypoints:
        mapped = geometry.points(points.reshape(len(points), points.shape[1] // 3, 3))
        return Keypoints(mapped, geometry.boxes(boxes), scores.copy(), self.labels)


def _is_final(shape: tuple[int, ...], network: Size) -> bool:
    """[N, 6 + 3 * K]: a row count that is not 5 + 3 * K beside the cells of the network."""
    return shape[1] != all_cells(network, (8, 16, 32)) and shape[1] % 3 == 0 and shape[1] > 6


def _point_count(shapes: Shapes, network: Size) -> int:
    if len(shapes) == 1 and len(shapes[0]) == 2:
        rows, columns = shapes[0]
        if _is_final(shapes[0], network):
            return (columns - 6) // 3
        if rows > 5 and (rows - 5) % 3 == 0:
            return (rows - 5) // 3
    cells = all_cells(network, (8, 16, 32))
    raise wrong_shapes("keypoints: yolo-pose", f"one output [5 + 3 * points, {cells}]", shapes, network)
