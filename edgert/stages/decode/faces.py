"""Faces: boxes with five points each, in the layouts that their authors publish."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from edgert.runtime.records import Detections
from edgert.stages.crop import Geometry
from edgert.stages.decode import decoder
from edgert.stages.decode.decoder import F32, Array, Shapes, Size
from edgert.stages.decode.detection import Candidates, Index, corners
from edgert.stages.decode.guess import Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.rows import Found, Level, Numbers, RowHead, columns

NAMES = ("right eye", "left eye", "nose", "right mouth corner", "left mouth corner")
"""Names of the five points; right and left are the person's own, as in OpenCV's FaceDetectorYN."""
_POINTS = 2 * len(NAMES)


class FaceHead(RowHead, ABC):
    """Base of heads with one class, whose candidates' extras are points, x and y of each in network pixels."""

    reads: ClassVar[str]
    """Description of the outputs, for messages."""
    name: ClassVar[str]

    def class_count(self, shapes: Shapes, network: Size) -> int:
        if not self.accepts(shapes, network):
            raise wrong_shapes(f"detect: {self.name}", self.reads, shapes, network)
        return 1

    @abstractmethod
    def accepts(self, shapes: Shapes, network: Size) -> bool:
        """Return whether this head can read outputs of these shapes."""

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if signature.network is not None and cls().accepts(signature.shapes, signature.network):
            yield Fit(f"{len(signature.shapes)} outputs are {cls.reads}", 4, 1)

    def scores(self, parts: Sequence[F32]) -> F32:
        """Return (M,) scores of rows of a level."""
        return parts[0][:, 0]

    @abstractmethod
    def faces(self, number: int, found: Found, shapes: Shapes, network: Size) -> tuple[F32, ...]:
        """Return boxes (M, 4) and perhaps points (M, 2 * K) of rows of a level, in network pixels."""

    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        levels = []
        for number, (rows, parts) in enumerate(found):
            scores = self.scores(parts)
            kept = np.flatnonzero(scores >= score)
            faces = Found(rows[kept], tuple([part[kept] for part in parts]))
            levels.append((scores[kept], *self.faces(number, faces, shapes, network)))
        scores, boxes, *points = (np.concatenate(some) for some in zip(*levels, strict=True))
        return Candidates(boxes, scores, np.zeros(len(scores), np.int32), points[0] if points else None)

    def shaped(self, record: Detections, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        """Return the record with points, each with the score of its face."""
        if kept.extras is None:
            return record
        count = kept.extras.shape[1] // 2
        points = geometry.points(kept.extras.reshape(len(kept.extras), count, 2))
        scores = np.broadcast_to(kept.scores[:, None, None], (*points.shape[:2], 1))
        names = NAMES if count == len(NAMES) else ()
        return replace(record, points=np.concatenate([points, scores], axis=2), names=names)


def levels_of(shapes: Shapes) -> list[Mapping[int, list[int]]]:
    """Return columns → indices of outputs [N, columns], for every N, the largest first.

    Return an empty list unless all outputs are tables.
    """
    found: dict[int, dict[int, list[int]]] = {}
    for index, shape in enumerate(shapes):
        if len(shape) != 2:
            return []
        found.setdefault(shape[0], {}).setdefault(shape[1], []).append(index)
    return [found[rows] for rows in sorted(found, reverse=True)]


def _fit_levels(shapes: Shapes, network: Size, signatures: Sequence[Mapping[int, int]], most: int) -> bool:
    """Return whether the outputs form levels of strides 8, 16 …, each with the same outputs.

    A signature is columns → number of outputs; ``most`` limits the rows per cell.
    """
    levels = levels_of(shapes)
    counts = [{columns: len(some) for columns, some in level.items()} for level in levels]
    if len(levels) not in (3, 5) or counts[0] not in signatures or any(one != counts[0] for one in counts):
        return False
    rows = [shapes[next(iter(level.values()))[0]][0] for level in levels]
    per_cell = {divmod(count, decoder.cells(network, 8 << level)) for level, count in enumerate(rows)}
    ((each, rest),) = per_cell if len(per_cell) == 1 else ((0, 0),)
    return 1 <= each <= most and rest == 0


@dataclass(frozen=True, slots=True)
class Scrfd(FaceHead):
    """For each of three or five levels scores [N, 1], distances to the sides [N, 4], and perhaps points [N, 10].

    Guo et al., "Sample and Computation Redistribution for Efficient Face Detection", 2021. Distances and points are in
    strides from the corner of the cell, as in ``detection/scrfd/tools/scrfd.py`` of github.com/deepinsight/insightface.
    There are two rows per cell with three levels, else one.
    """

    name: ClassVar[str] = "scrfd"
    reads: ClassVar[str] = "scores [N, 1], boxes [N, 4] and perhaps points [N, 10] for every level"

    def accepts(self, shapes: Shapes, network: Size) -> bool:
        return _fit_levels(shapes, network, ({1: 1, 4: 1}, {1: 1, 4: 1, _POINTS: 1}), 2)

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        self.class_count(shapes, network)
        return tuple([_face_level(level, shapes, (score,)) for level in levels_of(shapes)])

    def faces(self, number: int, found: Found, shapes: Shapes, network: Size) -> tuple[F32, ...]:
        stride, (_, *tables) = np.float32(8 << number), found.parts
        cell = _cell_corners(network, number, found.rows, shapes)
        sides, *points = (table * stride for table in tables)
        boxes = np.concatenate([cell - sides[:, :2], cell + sides[:, 2:]], axis=1)
        return boxes, *(some + np.tile(cell, len(NAMES)) for some in points)


def _face_level(level: Mapping[int, list[int]], shapes: Shapes, floors: Sequence[float]) -> Level:
    """Return the level of outputs with 1, 4 and perhaps 10 columns; ``floors`` are for those with 1."""
    tables = [columns(index, shapes[index]) for width in sorted(level) for index in level[width]]
    return Level(shapes[tables[0].output][0], tuple(zip(tables, floors, strict=False)), tuple(tables))


def _cell_corners(network: Size, number: int, rows: Index, shapes: Shapes) -> F32:
    """Return (M, 2) x, y in network pixels of the cells of these rows of a level."""
    grid, count = decoder.grid_of(network, (8 << number,)), shapes[levels_of(shapes)[number][4][0]][0]
    cell = rows // (count // len(grid.x))
    places: F32 = np.stack([grid.x[cell], grid.y[cell]], axis=1) * np.float32(8 << number)
    return places


@lru_cache(maxsize=16)
def priors_of(network: Size, sizes: tuple[tuple[int, ...], ...], is_floored: bool) -> F32:
    """Return (N, 3) center x, y and side in network pixels of square priors, read-only.

    Each cell of strides 8, 16 … has one prior of every size of its level. Numbers of cells are rounded down if
    ``is_floored``, else up.
    """
    levels = []
    for number, sides in enumerate(sizes):
        stride = 8 << number
        columns, rows = (side // stride if is_floored else -(-side // stride) for side in network)
        y, x = np.indices((rows, columns), np.float32).reshape(2, -1)
        centers = (np.stack([x, y], axis=1) + np.float32(0.5)) * np.float32(stride)
        each = np.repeat(centers, len(sides), axis=0)
        levels.append(np.column_stack([each, np.tile(np.array(sides, np.float32), len(centers))]))
    priors: F32 = np.concatenate(levels)
    priors.flags.writeable = False
    return priors


def _from_priors(priors: F32, boxes: F32, points: F32) -> tuple[F32, F32]:
    """Return (M, 4) corners and (M, 10) points from the regression of an SSD, with its variances 0.1 and 0.2.

    Source: Liu et al., "SSD: Single Shot MultiBox Detector", 2016.
    """
    center, side = priors[:, :2], priors[:, 2:]
    tenth = side * np.float32(0.1)
    placed = corners(center + boxes[:, :2] * tenth, side * np.exp(boxes[:, 2:] * np.float32(0.2)))
    return placed, np.tile(center, points.shape[1] // 2) + points * tenth


Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RetinaFace(FaceHead):
    """Boxes [N, 4], classes [N, 2] after their softmax, and points [N, 10], all relative to priors.

    Deng et al., "RetinaFace: Single-stage Dense Face Localisation in the Wild", 2020; layout and priors of
    github.com/biubug6/Pytorch_Retinaface (MIT). Related models use other ``sizes``.

    Attributes:
        sizes: sides of the priors in network pixels, for strides 8, 16 ...
    """

    name: ClassVar[str] = "retinaface"
    reads: ClassVar[str] = "boxes [N, 4], classes [N, 2] and points [N, 10] for the priors of every cell"
    sizes: Sizes = ((16, 32), (64, 128), (256, 512))

    def accepts(self, shapes: Shapes, network: Size) -> bool:
        rows = len(priors_of(network, self.sizes, False))
        return sorted(shapes) == [(rows, 2), (rows, 4), (rows, _POINTS)]

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        self.class_count(shapes, network)
        classes, boxes, points = _by_width(shapes)
        face = classes._replace(first=1, width=1)
        return (Level(shapes[0][0], ((face, score),), (face, boxes, points)),)

    def faces(self, number: int, found: Found, shapes: Shapes, network: Size) -> tuple[F32, ...]:
        _, boxes, points = found.parts
        return _from_priors(priors_of(network, self.sizes, False)[found.rows], boxes, points)


def _by_width(shapes: Shapes) -> list[Numbers]:
    """Return all columns of each table, narrow ones first."""
    return [columns(index, shapes[index]) for index in sorted(range(len(shapes)), key=lambda one: shapes[one][1])]


@dataclass(frozen=True, slots=True)
class YuNet(FaceHead):
    """Outputs of YuNet in two layouts. A score is the geometric mean of two numbers.

    Source: Wu, Peng and Yu, "YuNet: A Tiny Millisecond-level Face Detector", 2023. Since 2022 there are twelve outputs:
    for each of three levels class and objectness [N, 1], boxes [N, 4] and points [N, 10]. They are decoded as in
    ``modules/objdetect/src/face_detect.cpp`` of OpenCV. The older layout has boxes and points [N, 14], classes [N, 2]
    and overlaps [N, 1], relative to priors (github.com/ShiqiYu/libfacedetection.train, ``src/models/tasks``).

    Attributes:
        sizes: sides of the older layout's priors in network pixels, for strides 8, 16 ...
    """

    name: ClassVar[str] = "yunet"
    reads: ClassVar[str] = "twice [N, 1], [N, 4] and [N, 10] for every level, or [N, 14], [N, 2] and [N, 1]"
    sizes: Sizes = ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256))

    def accepts(self, shapes: Shapes, network: Size) -> bool:
        rows = len(priors_of(network, self.sizes, True))
        is_older = sorted(shapes) == [(rows, 1), (rows, 2), (rows, 4 + _POINTS)]
        return is_older or _fit_levels(shapes, network, ({1: 2, 4: 1, _POINTS: 1},), 1)

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        """Return the levels; see :meth:`RowHead.levels`.

        The geometric mean of two numbers up to 1 reaches a score only if both reach the square of the score.
        """
        self.class_count(shapes, network)
        least = score * score * (1 - 1e-5) if score > 0 else -math.inf  # slightly less, because the mean is rounded
        if len(shapes) == 3:
            overlaps, classes, table = _by_width(shapes)
            face = classes._replace(first=1, width=1)
            return (Level(shapes[0][0], ((face, least), (overlaps, least)), (face, overlaps, table)),)
        return tuple([_face_level(level, shapes, (least, least)) for level in levels_of(shapes)])

    def scores(self, parts: Sequence[F32]) -> F32:
        found: F32 = np.sqrt(np.clip(parts[0][:, 0], 0, 1) * np.clip(parts[1][:, 0], 0, 1))
        return found

    def faces(self, number: int, found: Found, shapes: Shapes, network: Size) -> tuple[F32, ...]:
        _, _, boxes, *points = found.parts
        if not points:
            return _from_priors(priors_of(network, self.sizes, True)[found.rows], boxes[:, :4], boxes[:, 4:])
        stride, cell = np.float32(8 << number), _cell_corners(network, number, found.rows, shapes)
        placed = corners(cell + boxes[:, :2] * stride, np.exp(boxes[:, 2:]) * stride)
        return placed, points[0] * stride + np.tile(cell, len(NAMES))


@dataclass(frozen=True, slots=True)
class YoloV5Face(FaceHead):
    """One output [N, 16]: center x, y, width, height, objectness, five points x, y, class; all in network pixels.

    Qi et al., "YOLO5Face: Why Reinventing a Face Detector", 2021; github.com/deepcam-cn/yolov5-face, whose
    ``export.py`` decodes boxes in the graph. There are three rows per cell of strides 8, 16, 32 and perhaps 64.
    """

    name: ClassVar[str] = "yolov5-face"
    reads: ClassVar[str] = "one output [N, 5 + 10 + 1], three rows a cell"

    def accepts(self, shapes: Shapes, network: Size) -> bool:
        counts = [3 * decoder.all_cells(network, strides) for strides in ((8, 16, 32), (8, 16, 32, 64))]
        return len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][0] in counts and shapes[0][1] == 6 + _POINTS

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        """See :meth:`RowHead.levels`; objectness bounds the score."""
        self.class_count(shapes, network)
        table = columns(0, shapes[0])
        return (Level(shapes[0][0], ((table._replace(first=4, width=1), score),), (table,)),)

    def scores(self, parts: Sequence[F32]) -> F32:
        return parts[0][:, 4] * parts[0][:, -1]

    def faces(self, number: int, found: Found, shapes: Shapes, network: Size) -> tuple[F32, ...]:
        (table,) = found.parts
        return corners(table[:, :2], table[:, 2:4]), table[:, 5:-1]
