"""Oriented boxes: detectors whose boxes are rotated."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgert.runtime.records import Detections
from edgert.stages.crop import Geometry
from edgert.stages.decode import detection
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.detection import I32, Bool, Candidates, Head, Index, best_column, final_rows, suppress_at_once
from edgert.stages.decode.guess import Fit, OutputSignature, wrong_shapes

# Layout: https://docs.ultralytics.com/tasks/obb and /modes/export, [20, 21504] for DOTA at 1024: x, y, w, h in network
# pixels, class scores after their sigmoid, the angle in radians, clockwise because y points down. End to end (YOLO26,
# or ``nms=True``) it is [300, 7]: x, y, w, h, score, class, angle.

_LEAST_SIDE = 0.01
"""Shortest side in network pixels; a thinner box has no area to overlap."""


@dataclass(frozen=True, slots=True)
class YoloV8Obb(Head):
    """One output [4 + C + 1, S]: center x, y, width, height, class scores, angle; or final boxes, [N, 7].

    Boxes of the record are hulls. Overlap is that of the boxes' Gaussians, as in these models' own suppression. See
    Llerena et al., "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for Object Detection", 2021,
    equations 9 to 13. As there, a removed box still suppresses worse ones.
    """

    boxes: detection.Unit = "pixels"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        """Yield a fit if a name says so, or without names, because a yolov8 with one more class has the same shape."""
        rows, columns = signature.table or (0, 0)
        is_named = "obb" in signature.names
        if (is_named or not signature.names) and rows > 5 and (not columns or columns > rows):
            yield Fit(f"[4 + {rows - 5} + 1, {columns or 'N'}] can be oriented boxes", 1 + is_named, rows - 5)
        count = signature.cells() or 0
        if columns == 7 and rows > 7 and rows not in (count, 3 * count):  # as many rows as cells are not final
            yield Fit(f"[{rows}, 7] can be final boxes with their score, class and angle", 1 + is_named)

    def class_count(self, shapes: Shapes, network: Size) -> int | None:
        if _is_final(shapes):
            return None
        if len(shapes) != 1 or len(shapes[0]) != 2 or not 6 <= shapes[0][0] <= shapes[0][1]:
            reads = "one output [4 + classes + 1, boxes] or [boxes, 7]"
            raise wrong_shapes("detect: yolov8-obb", reads, shapes, network)
        return shapes[0][0] - 5

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes; extras are center x, y, width, height and angle."""
        if self.class_count(shapes_of(outputs), network) is None:
            table = as_f32(outputs[0])
            table = table[final_rows(table[:, 4], table[:, 5], score)]
            turned = self._in_pixels(table[:, [0, 1, 2, 3, 6]], network)
            return Candidates(hulls(turned), table[:, 4], table[:, 5].astype(np.int32), turned, overlap=False)
        columns, scores, classes = best_column(as_f32(outputs[0][4:-1]), score)
        turned = self._in_pixels(as_f32(outputs[0][[0, 1, 2, 3, -1]][:, columns]).T, network)
        return Candidates(hulls(turned), scores, classes, turned)

    def _in_pixels(self, turned: F32, network: Size) -> F32:
        places = detection.in_pixels(turned[:, :4], network, self.boxes)
        return turned if self.boxes == "pixels" else np.concatenate([places, turned[:, 4:]], axis=1)

    def suppressed(self, found: Candidates, iou: float, limit: int) -> Index:
        assert found.extras is not None
        return suppress_at_once(gaussians(found.extras), found.scores, found.classes, iou, limit, gaussian_overlap)

    def shaped(self, record: Detections, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        assert kept.extras is not None
        return replace(record, corners=geometry.points(turned_corners(kept.extras)))


def _is_final(shapes: Shapes) -> bool:
    return len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] == 7 < shapes[0][0]


def turned_corners(turned: F32) -> F32:
    """Convert (N, 5) center x, y, width, height, angle to (N, 4, 2) corners, in order around the box."""
    center, half, angle = turned[:, None, :2], turned[:, 2:4] * np.float32(0.5), turned[:, 4]
    cos, sin = np.cos(angle), np.sin(angle)
    along = np.stack([half[:, 0] * cos, half[:, 0] * sin], axis=1)[:, None]
    across = np.stack([half[:, 1] * -sin, half[:, 1] * cos], axis=1)[:, None]
    return np.concatenate(
        [center + along + across, center + along - across, center - along - across, center - along + across], axis=1
    )


def hulls(turned: F32) -> F32:
    """Convert (N, 5) center x, y, width, height, angle to (N, 4) x1, y1, x2, y2 around the box."""
    around = turned_corners(turned)
    around[~(turned[:, 2:4] > 0).all(axis=1)] = np.nan  # so that a box of negative size is left out
    return np.concatenate([around.min(axis=1), around.max(axis=1)], axis=1)


def gaussians(turned: F32) -> F32:
    """Convert (N, 5) center x, y, width, height, angle to (N, 6) Gaussians.

    These are x, y, the covariances xx, yy, xy, and a fourth of the logarithm of their determinant.
    """
    sides = np.maximum(turned[:, 2:4], np.float32(_LEAST_SIDE))
    along, across = (sides * sides / np.float32(12)).T
    cos, sin = np.cos(turned[:, 4]), np.sin(turned[:, 4])
    xx, yy = along * cos * cos + across * sin * sin, along * sin * sin + across * cos * cos
    rest = xx, yy, (along - across) * cos * sin, np.float32(0.25) * np.log(along * across)
    return np.concatenate([turned[:, :2], np.stack(rest, axis=1)], axis=1)


def bound_of(iou: float) -> float:
    """Return the Bhattacharyya distance d below which two Gaussians overlap by more: 1 - sqrt(1 - exp(-d)) > iou."""
    return -math.log1p(-((1 - iou) ** 2)) if iou > 0 else math.inf


@np.errstate(invalid="ignore", divide="ignore")
def gaussian_overlap(ours: F32, classes: I32, first: Index, second: Index, iou: float) -> Bool:
    """Return (F, S) whether two of (N, 6) :func:`gaussians` of one class overlap by more than ``iou``."""
    x, y, xx, yy, xy, part = np.ascontiguousarray(ours[first].T)[:, :, None]
    x2, y2, xx2, yy2, xy2, part2 = np.ascontiguousarray(ours[second].T)
    across, down, sum_xx, sum_yy, sum_xy = x - x2, y - y2, xx + xx2, yy + yy2, xy + xy2
    determinant = sum_xx * sum_yy - sum_xy * sum_xy
    near = sum_xx * (down * down) + sum_yy * (across * across) - 2 * sum_xy * (across * down)
    distance = near / (4 * determinant) + np.float32(0.5) * np.log(determinant / 4) - part - part2
    over: Bool = distance < np.float32(bound_of(iou))
    over &= classes[first][:, None] == classes[second]
    return over
