"""Faces: boxes with five points each, in the layouts that their authors publish."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from edgert.runtime.records import Detections
from edgert.stages.crop import Geometry
from edgert.stages.decode import decoder
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32
from edgert.stages.decode.detection import Candidates, Head, Index, corners
from edgert.stages.decode.guess import Fit, Look, wrong_shapes

NAMES = ("right eye", "left eye", "nose", "right mouth corner", "left mouth corner")
"""Of the five points, the person's own right and left, as OpenCV's FaceDetectorYN calls them."""
_POINTS = 2 * len(NAMES)


class FaceHead(Head, ABC):
    """A head of one class whose candidates' extras are points, x and y of each in network pixels."""

    reads: ClassVar[str]
    """The outputs, in words."""
    name: ClassVar[str]

    def class_count(self, shapes: Shapes, network: Size) -> int:
        """Raises ModelError for other outputs."""
        if not self.fitting(shapes, network):
            raise wrong_shapes(f"detect: {self.name}", self.reads, shapes, network)
        return 1

    @abstractmethod
    def fitting(self, shapes: Shapes, network: Size) -> bool:
        """Whether outputs of these shapes are its own."""

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """Outputs in which every number has its place."""
        if look.network is not None and cls().fitting(look.shapes, look.network):
            yield Fit(f"{len(look.shapes)} outputs are {cls.reads}", 4, 1)

    def shaped(self, record: Detections, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        """With points, each with its face's score."""
        if kept.extras is None:
            return record
        count = kept.extras.shape[1] // 2
        points = geometry.points(kept.extras.reshape(len(kept.extras), count, 2))
        scores = np.broadcast_to(kept.scores[:, None, None], (*points.shape[:2], 1))
        names = NAMES if count == len(NAMES) else ()
        return replace(record, points=np.concatenate([points, scores], axis=2), names=names)


def levels_of(shapes: Shapes) -> list[Mapping[int, list[int]]]:
    """Of outputs [N, columns] the indices by columns, for every N, the largest first; none unless all are tables."""
    found: dict[int, dict[int, list[int]]] = {}
    for index, shape in enumerate(shapes):
        if len(shape) != 2:
            return []
        found.setdefault(shape[0], {}).setdefault(shape[1], []).append(index)
    return [found[rows] for rows in sorted(found, reverse=True)]


def _fit_levels(shapes: Shapes, network: Size, signatures: Sequence[Mapping[int, int]], most: int) -> bool:
    """Whether there is a level of strides 8, 16 ... for every number of rows, each of the same outputs, columns →
    how many, and each with one and the same number of rows a cell, at most ``most``."""
    levels = levels_of(shapes)
    counts = [{columns: len(some) for columns, some in level.items()} for level in levels]
    if len(levels) not in (3, 5) or counts[0] not in signatures or any(one != counts[0] for one in counts):
        return False
    rows = [shapes[next(iter(level.values()))[0]][0] for level in levels]
    per_cell = {divmod(count, decoder.cells(network, 8 << level)) for level, count in enumerate(rows)}
    ((each, rest),) = per_cell if len(per_cell) == 1 else ((0, 0),)
    return 1 <= each <= most and rest == 0


def _joined(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of all levels."""
    extras = [one.extras for one in parts if one.extras is not None]
    return Candidates(
        np.concatenate([one.boxes for one in parts]),
        np.concatenate([one.scores for one in parts]),
        np.concatenate([one.classes for one in parts]),
        np.concatenate(extras) if extras else None,
    )


def _faces(boxes: F32, scores: F32, points: F32 | None = None) -> Candidates:
    return Candidates(boxes, scores, np.zeros(len(scores), np.int32), points)


@dataclass(frozen=True, slots=True)
class Scrfd(FaceHead):
    """For each of three or five levels scores [N, 1], distances to the sides [N, 4], and perhaps points [N, 10].

    Guo et al., "Sample and Computation Redistribution for Efficient Face Detection", 2021. Distances and points count
    in strides from the corner of the cell, as in ``detection/scrfd/tools/scrfd.py`` of
    github.com/deepinsight/insightface; two rows a cell where there are three levels, else one.
    """

    name: ClassVar[str] = "scrfd"
    reads: ClassVar[str] = "scores [N, 1], boxes [N, 4] and perhaps points [N, 10] for every level"

    def fitting(self, shapes: Shapes, network: Size) -> bool:
        return _fit_levels(shapes, network, ({1: 1, 4: 1}, {1: 1, 4: 1, _POINTS: 1}), 2)

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Only rows that score enough are touched."""
        shapes = decoder.shapes_of(outputs)
        self.class_count(shapes, network)
        found = []
        for number, level in enumerate(levels_of(shapes)):
            stride, columns = np.float32(8 << number), {width: some[0] for width, some in level.items()}
            scores = as_f32(outputs[columns[1]])[:, 0]
            rows = np.flatnonzero(scores >= score)
            center = _cell_corners(network, 8 << number, rows, len(scores))
            sides = as_f32(outputs[columns[4]][rows]) * stride
            boxes = np.concatenate([center - sides[:, :2], center + sides[:, 2:]], axis=1)
            points = None
            if _POINTS in columns:
                points = as_f32(outputs[columns[_POINTS]][rows]) * stride + np.tile(center, len(NAMES))
            found.append(_faces(boxes, scores[rows], points))
        return _joined(found)


def _cell_corners(network: Size, stride: int, rows: Index, count: int) -> F32:
    """(M, 2) x, y in network pixels of the cells that rows of ``count`` are of."""
    grid = decoder.grid_of(network, (stride,))
    cell = rows // (count // len(grid.x))
    places: F32 = np.stack([grid.x[cell], grid.y[cell]], axis=1) * np.float32(stride)
    return places


@lru_cache(maxsize=16)
def priors_of(network: Size, sizes: tuple[tuple[int, ...], ...], is_floored: bool) -> F32:
    """(N, 3) center x, y and side in network pixels of square priors, for each cell of strides 8, 16 ... one of every
    size of its level; read-only. Sizes of a network that strides do not divide are rounded down or up."""
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
    """(M, 4) corners and (M, 10) points of what an SSD regressed, with its variances 0.1 and 0.2 (Liu et al., "SSD:
    Single Shot MultiBox Detector", 2016)."""
    center, side = priors[:, :2], priors[:, 2:]
    tenth = side * np.float32(0.1)
    placed = corners(center + boxes[:, :2] * tenth, side * np.exp(boxes[:, 2:] * np.float32(0.2)))
    return placed, np.tile(center, points.shape[1] // 2) + points * tenth


Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class RetinaFace(FaceHead):
    """Boxes [N, 4], classes [N, 2] past their softmax, and points [N, 10], all relative to priors.

    Deng et al., "RetinaFace: Single-stage Dense Face Localisation in the Wild", 2020; layout and priors of
    github.com/biubug6/Pytorch_Retinaface (MIT), whose kin use other ``sizes``.

    Attributes:
        sizes: sides of the priors in network pixels, for strides 8, 16 ...
    """

    name: ClassVar[str] = "retinaface"
    reads: ClassVar[str] = "boxes [N, 4], classes [N, 2] and points [N, 10] for the priors of every cell"
    sizes: Sizes = ((16, 32), (64, 128), (256, 512))

    def fitting(self, shapes: Shapes, network: Size) -> bool:
        rows = len(priors_of(network, self.sizes, False))
        return sorted(shapes) == [(rows, 2), (rows, 4), (rows, _POINTS)]

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Only rows that score enough are touched."""
        self.class_count(decoder.shapes_of(outputs), network)
        classes, boxes, points = sorted(outputs, key=lambda output: output.shape[1])
        scores = as_f32(classes[:, 1])
        rows = np.flatnonzero(scores >= score)
        priors = priors_of(network, self.sizes, False)[rows]
        placed, marks = _from_priors(priors, as_f32(boxes[rows]), as_f32(points[rows]))
        return _faces(placed, scores[rows], marks)


@dataclass(frozen=True, slots=True)
class YuNet(FaceHead):
    """The two layouts of YuNet, whose score is the geometric mean of two numbers (Wu, Peng and Yu, "YuNet: A Tiny
    Millisecond-level Face Detector", 2023).

    Since 2022 twelve outputs, for each of three levels class and objectness [N, 1], boxes [N, 4] and points [N, 10],
    decoded as in ``modules/objdetect/src/face_detect.cpp`` of OpenCV; before, boxes and points [N, 14], classes [N, 2]
    and overlaps [N, 1], relative to priors (github.com/ShiqiYu/libfacedetection.train, ``src/models/tasks``).

    Attributes:
        sizes: sides of the older layout's priors in network pixels, for strides 8, 16 ...
    """

    name: ClassVar[str] = "yunet"
    reads: ClassVar[str] = "twice [N, 1], [N, 4] and [N, 10] for every level, or [N, 14], [N, 2] and [N, 1]"
    sizes: Sizes = ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256))

    def fitting(self, shapes: Shapes, network: Size) -> bool:
        rows = len(priors_of(network, self.sizes, True))
        is_older = sorted(shapes) == [(rows, 1), (rows, 2), (rows, 4 + _POINTS)]
        return is_older or _fit_levels(shapes, network, ({1: 2, 4: 1, _POINTS: 1},), 1)

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Only rows that score enough are touched."""
        shapes = decoder.shapes_of(outputs)
        self.class_count(shapes, network)
        if len(outputs) == 3:
            overlaps, classes, table = sorted(outputs, key=lambda output: output.shape[1])
            rows, scores = _geometric(as_f32(classes[:, 1]), as_f32(overlaps[:, 0]), score)
            found, priors = as_f32(table[rows]), priors_of(network, self.sizes, True)[rows]
            placed, marks = _from_priors(priors, found[:, :4], found[:, 4:])
            return _faces(placed, scores, marks)
        parts = []
        for number, level in enumerate(levels_of(shapes)):
            one, other = (as_f32(outputs[index][:, 0]) for index in level[1])
            rows, scores = _geometric(one, other, score)
            cell = _cell_corners(network, 8 << number, rows, len(one))
            stride, boxes = np.float32(8 << number), as_f32(outputs[level[4][0]][rows])
            points = as_f32(outputs[level[_POINTS][0]][rows]) * stride + np.tile(cell, len(NAMES))
            placed = corners(cell + boxes[:, :2] * stride, np.exp(boxes[:, 2:]) * stride)
            parts.append(_faces(placed, scores, points))
        return _joined(parts)


def _geometric(one: F32, other: F32, floor: float) -> tuple[Index, F32]:
    """The rows whose geometric mean of two scores, each cut to 0–1, reaches ``floor``, and that mean."""
    mean = np.sqrt(np.clip(one, 0, 1) * np.clip(other, 0, 1))
    rows = np.flatnonzero(mean >= floor)
    return rows, mean[rows]


@dataclass(frozen=True, slots=True)
class YoloV5Face(FaceHead):
    """One output [N, 16]: center x, y, width, height, objectness, five points x, y, class; all in network pixels.

    Qi et al., "YOLO5Face: Why Reinventing a Face Detector", 2021; github.com/deepcam-cn/yolov5-face, whose
    ``export.py`` decodes boxes in the graph. Three rows a cell of strides 8, 16, 32, or of 64 as well.
    """

    name: ClassVar[str] = "yolov5-face"
    reads: ClassVar[str] = "one output [N, 5 + 10 + 1], three rows a cell"

    def fitting(self, shapes: Shapes, network: Size) -> bool:
        counts = [3 * decoder.all_cells(network, strides) for strides in ((8, 16, 32), (8, 16, 32, 64))]
        return len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][0] in counts and shapes[0][1] == 6 + _POINTS

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Objectness bounds the score."""
        self.class_count(decoder.shapes_of(outputs), network)
        found = as_f32(outputs[0][outputs[0][:, 4] >= score])
        scores = found[:, 4] * found[:, -1]
        keep = scores >= score
        found = found[keep]
        return _faces(corners(found[:, :2], found[:, 2:4]), scores[keep], found[:, 5:-1])
