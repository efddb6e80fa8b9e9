"""YOLOv8's kin whose objects have a shape: boxes that are turned, and masks."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgert.runtime.frame import U8
from edgert.runtime.records import Segmentation
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.detection import I32, Bool, Candidates, Head, Index, corners, suppress
from edgert.stages.decode.guess import Fit, Look, wrong_shapes

# Oriented boxes. Layout: https://docs.ultralytics.com/tasks/obb and /modes/export, [20, 21504] for DOTA at 1024: x, y,
# w, h in network pixels, class scores past their sigmoid, then the angle in radians, clockwise as y points down.

_LEAST_SIDE = 0.01
"""Network pixels; a thinner box has no area whose overlap could be asked for."""


@dataclass(frozen=True, slots=True)
class YoloV8Obb(Head):
    """One output [4 + C + 1, S]: center x, y, width, height, class scores, angle. Boxes of the record are hulls.

    Overlap is that of the Gaussians that the boxes stand for, as these models' own suppression has it: Llerena et al.,
    "Gaussian Bounding Boxes and Probabilistic Intersection-over-Union for Object Detection", 2021, equations 9 to 13.
    """

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Where a name says so, or there are none: by its shape it is a yolov8 of one class more."""
        rows, columns = look.table or (0, 0)
        is_named = "obb" in look.names
        if (is_named or not look.names) and rows > 5 and (not columns or columns > rows):
            yield Fit(f"[4 + {rows - 5} + 1, {columns or 'N'}] can be oriented boxes", 1 + is_named, rows - 5)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        """Raises ModelError unless the one output has a column of at least six numbers for every box."""
        if len(shapes) != 1 or len(shapes[0]) != 2 or not 6 <= shapes[0][0] <= shapes[0][1]:
            raise wrong_shapes("detect: yolov8-obb", "one output [4 + classes + 1, boxes]", shapes, network)
        return shapes[0][0] - 5

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Extras are center x, y, width, height and angle."""
        self.class_count(shapes_of(outputs), network)
        columns, scores, classes = best_column(as_f32(outputs[0][4:-1]), score)
        turned = as_f32(outputs[0][[0, 1, 2, 3, -1]][:, columns]).T
        return Candidates(hulls(turned), scores, classes, turned)

    def suppressed(self, found: Candidates, iou: float, limit: int) -> Index:
        """Rows that survive, best first."""
        assert found.extras is not None
        return suppress(gaussians(found.extras), found.scores, found.classes, iou, limit, gaussian_overlap)

    def shaped(self, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Mapping[str, Any]:
        """The corners."""
        assert kept.extras is not None
        return {"corners": geometry.points(turned_corners(kept.extras))}


def best_column(scores: F32, floor: float) -> tuple[Index, F32, I32]:
    """Like :func:`best_class` of (C, S) scores, whose boxes are columns."""
    best = scores.max(axis=0)
    columns = np.flatnonzero(best >= floor)
    return columns, best[columns], scores[:, columns].argmax(axis=0).astype(np.int32)


def turned_corners(turned: F32) -> F32:
    """(N, 5) center x, y, width, height, angle → (N, 4, 2) corners, in order around the box."""
    center, half, angle = turned[:, None, :2], turned[:, 2:4] * np.float32(0.5), turned[:, 4]
    cos, sin = np.cos(angle), np.sin(angle)
    along = np.stack([half[:, 0] * cos, half[:, 0] * sin], axis=1)[:, None]
    across = np.stack([half[:, 1] * -sin, half[:, 1] * cos], axis=1)[:, None]
    return np.concatenate(
        [center + along + across, center + along - across, center - along - across, center - along + across], axis=1
    )


def hulls(turned: F32) -> F32:
    """(N, 5) center x, y, width, height, angle → (N, 4) x1, y1, x2, y2 around the box."""
    around = turned_corners(turned)
    return np.concatenate([around.min(axis=1), around.max(axis=1)], axis=1)


def gaussians(turned: F32) -> F32:
    """(N, 5) center x, y, width, height, angle → (N, 6) x, y, the covariances xx, yy, xy, and a fourth of the logarithm
    of their determinant."""
    sides = np.maximum(turned[:, 2:4], np.float32(_LEAST_SIDE))
    along, across = (sides * sides / np.float32(12)).T
    cos, sin = np.cos(turned[:, 4]), np.sin(turned[:, 4])
    xx, yy = along * cos * cos + across * sin * sin, along * sin * sin + across * cos * cos
    rest = xx, yy, (along - across) * cos * sin, np.float32(0.25) * np.log(along * across)
    return np.concatenate([turned[:, :2], np.stack(rest, axis=1)], axis=1)


def bound_of(iou: float) -> float:
    """The Bhattacharyya distance d below which two Gaussians overlap more: 1 - sqrt(1 - exp(-d)) > iou."""
    return -math.log1p(-((1 - iou) ** 2)) if iou > 0 else math.inf


def gaussian_overlap(ours: F32, classes: I32, first: Index, second: Index, iou: float) -> Bool:
    """(F, S) whether two of (N, 6) :func:`gaussians` of one class overlap by more than ``iou``."""
    x, y, xx, yy, xy, part = np.ascontiguousarray(ours[first].T)[:, :, None]
    x2, y2, xx2, yy2, xy2, part2 = np.ascontiguousarray(ours[second].T)
    across, down, sum_xx, sum_yy, sum_xy = x - x2, y - y2, xx + xx2, yy + yy2, xy + xy2
    with np.errstate(invalid="ignore", divide="ignore"):
        determinant = sum_xx * sum_yy - sum_xy * sum_xy
        near = sum_xx * (down * down) + sum_yy * (across * across) - 2 * sum_xy * (across * down)
        distance = near / (4 * determinant) + np.float32(0.5) * np.log(determinant / 4) - part - part2
    over: Bool = distance < np.float32(bound_of(iou))
    over &= classes[first][:, None] == classes[second]
    return over


# Instance masks. Layout: https://docs.ultralytics.com/tasks/segment and /modes/export, [116, 8400] and [32, 160, 160]
# for COCO at 640: x, y, w, h in network pixels, class scores past their sigmoid, and for each box how much of every
# prototype its mask holds (Bolya et al., "YOLACT: Real-time Instance Segmentation", 2019, section 3).


@dataclass(frozen=True, slots=True)
class YoloV8Seg(Head):
    """Two outputs, [4 + C + M, S] and prototypes [M, h, w], in either order.

    An object's mask is where the sum of its prototypes is above 0, which is 0.5 past the sigmoid, cut to its box. It
    has the prototypes' resolution.
    """

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """A column for every box beside maps."""
        found = find_tables(look.shapes)
        if found is not None and look.shapes[found[0]][0] - look.shapes[found[1]][0] > 4:
            (rows, columns), (masks, *_) = look.shapes[found[0]], look.shapes[found[1]]
            yield Fit(f"[4 + {rows - 4 - masks} + {masks}, {columns or 'N'}] beside {masks} prototypes of masks", 3,
                      rows - 4 - masks)  # fmt: skip

    def class_count(self, shapes: Shapes, network: Size) -> int:
        """Raises ModelError unless one output has a column for every box, and the other maps."""
        found = find_tables(shapes)
        classes = 0 if found is None else shapes[found[0]][0] - 4 - shapes[found[1]][0]
        if classes < 1:
            reads = "two outputs, [4 + classes + masks, boxes] and [masks, h, w]"
            raise wrong_shapes("detect: yolov8-seg", reads, shapes, network)
        return classes

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Extras are how much a box has of every prototype."""
        shapes = shapes_of(outputs)
        classes = self.class_count(shapes, network)
        table = outputs[table_and_maps(shapes)[0]]
        columns, scores, kinds = best_column(as_f32(table[4 : 4 + classes]), score)
        found = as_f32(table[:, columns]).T
        return Candidates(corners(found[:, :2], found[:, 2:4]), scores, kinds, found[:, 4 + classes :])

    def shaped(self, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Mapping[str, Any]:
        """The masks."""
        assert kept.extras is not None
        maps, shares = as_f32(outputs[table_and_maps(shapes_of(outputs))[1]]), kept.extras

        def cut(row: int, span: I32) -> U8:
            x1, y1, x2, y2 = span
            part = maps[:, y1:y2, x1:x2]
            inside: U8 = (shares[row] @ part.reshape(len(part), -1) > 0).reshape(part.shape[1:]).view(np.uint8)
            return inside

        return {"masks": instance_masks(cut, kept.boxes, (maps.shape[2], maps.shape[1]), geometry)}


def table_and_maps(shapes: Shapes) -> tuple[int, int]:
    """Which output has boxes, and which prototypes."""
    found = find_tables(shapes)
    assert found is not None, "class_count has looked"
    return found


def find_tables(shapes: Shapes) -> tuple[int, int] | None:
    """Like :func:`table_and_maps`; None where they are no such two."""
    ranks = [len(shape) for shape in shapes]
    return (0, 1) if ranks == [2, 3] else (1, 0) if ranks == [3, 2] else None


def instance_masks(
    cut: Callable[[int, I32], U8], boxes: F32, size: Size, geometry: Geometry
) -> tuple[Segmentation, ...]:
    """A mask of every box, 1 where its object is.

    Args:
        cut: gives the part of one object's mask, (y2 - y1, x2 - x1) uint8 of 0 and 1, for its row and x1, y1, x2, y2.
        boxes: (N, 4) in network pixels.
        size: (width, height) of the prototypes.
    """
    scale = np.array([geometry.scale_x, geometry.scale_y] * 2)
    offset = np.array([geometry.offset_x, geometry.offset_y] * 2)
    cell = scale * np.array(geometry.network * 2) / (size * 2)  # source pixels
    shown = geometry.boxes(boxes).astype(np.float64)
    hidden = ~(shown[:, 2:] > shown[:, :2]).all(axis=1)  # in the padding, or of no size: a cell of it is left
    shown[hidden] = boxes[hidden] * scale + offset
    spans = np.ceil((shown - offset) / cell - 0.5)  # cells whose middle lies in the box
    spans[~np.isfinite(spans)] = 0
    spans[:, :2] = np.clip(spans[:, :2], 0, np.array(size) - 1)
    spans[:, 2:] = np.clip(spans[:, 2:], spans[:, :2] + 1, size)
    regions = spans * cell + offset
    rows = zip(spans.astype(np.int32), regions.tolist(), strict=True)
    return tuple(Segmentation(cut(row, span), tuple(region)) for row, (span, region) in enumerate(rows))
