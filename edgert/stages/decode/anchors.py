"""Detectors whose boxes are relative to the cells of their maps: raw heads of YOLOv5 and v7, DetectNet_v2."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from edgert.stages.decode.decoder import F32, Shapes, Size, sigmoid
from edgert.stages.decode.detection import Candidates, Index, by_class, corners, suppress
from edgert.stages.decode.guess import Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.rows import ActivatedHead, Found, Level, Numbers, RowHead
from edgert.stages.decode.yolo import product_scores

# YOLOv5 and v7, exported before their boxes are decoded (``--train``, no ``--grid``, or cut at the convolutions for an
# accelerator).
#
# Formulas and anchors: ``models/yolo.py`` (Detect) and ``models/*.yaml`` of github.com/ultralytics/yolov5,
# ``cfg/deploy/yolov7.yaml`` of github.com/WongKinYiu/yolov7; ``exp``: Redmon and Farhadi, "YOLOv3: An Incremental
# Improvement", 2018, section 2.1.

_ANCHORS: Mapping[str, tuple[tuple[float, ...], ...]] = {
    "yolov5": ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119), (116, 90, 156, 198, 373, 326)),
    "yolov7": ((12, 16, 19, 36, 40, 28), (36, 75, 76, 55, 72, 146), (142, 110, 192, 243, 459, 401)),
    "yolov5-p6": (
        (19, 27, 44, 40, 38, 94), (96, 68, 86, 152, 180, 137), (140, 301, 303, 264, 238, 542),
        (436, 615, 739, 380, 925, 792),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class YoloRaw(ActivatedHead):
    """A map for each of several strides, [A, h, w, 5 + C], [A * (5 + C), h, w] or [h, w, A * (5 + C)], in any order.

    With s the sigmoid: center = (2 * s(xy) - 0.5 + cell) * stride, size = (2 * s(wh))^2 * anchor. The score is
    s(objectness) * s(class).

    Attributes:
        anchors: model family whose anchors are used.
        sizes: custom anchors instead: for each map, the largest first, width and height of each anchor in network
            pixels.
        activation: ``none`` if the graph has the sigmoid; see :class:`ActivatedHead`, which tests the objectness.
        formula: ``exp`` for YOLOv3 and v4 of Darknet: center = (s(xy) + cell) * stride, size = exp(wh) * anchor.
    """

    uncertain: ClassVar[tuple[str, ...]] = ("anchors",)
    anchors: Literal["yolov5", "yolov7", "yolov5-p6"] = "yolov5"
    sizes: tuple[tuple[float, ...], ...] = ()
    activation: Literal["auto", "sigmoid", "none"] = "auto"
    formula: Literal["square", "exp"] = "square"

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        levels = _find_levels(signature.shapes, 3)
        if signature.network and levels and 8 in [signature.stride(*size) for size in levels.sizes]:
            classes = levels.numbers - 5
            yield Fit(f"{len(levels.sizes)} maps with 3 × (5 + {classes}) numbers for every cell", 3, classes)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        return self._levels(shapes, network).numbers - 5

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        """See :meth:`RowHead.levels`: one per anchor, the largest map's first. Objectness bounds the score."""
        layout, anchors = self._levels(shapes, network), len(self._table[0]) // 2
        found = []
        for index in layout.order:
            rows = math.prod(layout.sizes[index])
            for anchor in range(anchors):
                every = layout.numbers_of(index, anchor, rows, anchors)
                one = every._replace(width=1, first=every.first + 4 * every.apart)
                found.append(Level(rows, ((one, self.floor_of(score)),), (every,)))
        return tuple(found)

    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        layout, table = self._levels(shapes, network), self._table
        sizes = [(layout.sizes[index], pair) for index, row in zip(layout.order, table, strict=True)
                 for pair in zip(row[::2], row[1::2], strict=True)]  # fmt: skip
        parts = []
        for (cell, (raw,)), ((height, width), anchor) in zip(found, sizes, strict=True):
            places = np.stack([cell % width, cell // width], axis=1).astype(np.float32)
            pitch = np.array([network[0] / width, network[1] / height], np.float32)
            parts.append(self._boxes(raw, places, pitch, np.array(anchor, np.float32)))
        rows = np.concatenate(parts)
        scores, classes, keep = product_scores(rows, score)
        return Candidates(corners(rows[keep, :2], rows[keep, 2:4]), scores, classes)

    def _boxes(self, raw: F32, places: F32, pitch: F32, anchor: F32) -> F32:
        """Return (M, 5 + C) rows after the sigmoid, with center and size in network pixels."""
        rows = raw if self.activation == "none" else sigmoid(raw)
        if self.formula == "square":
            centers, sizes = rows[:, :2] * 2 - np.float32(0.5), (rows[:, 2:4] * 2) ** 2
        else:
            centers, sizes = rows[:, :2], np.exp(raw[:, 2:4])
        return np.concatenate([(centers + places) * pitch, sizes * anchor, rows[:, 4:]], axis=1)

    def _levels(self, shapes: Shapes, network: Size) -> "_Levels":
        table = self._table
        levels = _find_levels(shapes, len(table[0]) // 2)
        if levels is None or len(levels.sizes) != len(table):
            reads = f"{len(table)} maps [{len(table[0]) // 2}, h, w, 5 + classes], one for every row of anchors"
            raise wrong_shapes("detect: yolo-raw", reads, shapes, network)
        return levels

    @property
    def _table(self) -> tuple[tuple[float, ...], ...]:
        return self.sizes or _ANCHORS[self.anchors]


class _Levels(NamedTuple):
    """Layout of the maps.

    Attributes:
        layout: ``apart`` for [A, h, w, numbers], ``first`` for [A * numbers, h, w], ``last`` for [h, w, A * numbers].
        sizes: (height, width) of each map.
        numbers: numbers per anchor.
    """

    layout: str
    sizes: tuple[Size, ...]
    numbers: int

    @property
    def order(self) -> Sequence[int]:
        """Indices of the maps, the largest first."""
        return sorted(range(len(self.sizes)), key=lambda index: -math.prod(self.sizes[index]))

    def numbers_of(self, index: int, anchor: int, cells: int, anchors: int) -> Numbers:
        count = self.numbers
        if self.layout == "first":
            return Numbers(index, count, 1, cells, anchor * count * cells)
        if self.layout == "apart":
            return Numbers(index, count, count, 1, anchor * count * cells)
        return Numbers(index, count, anchors * count, 1, anchor * count)


def _find_levels(shapes: Shapes, anchors: int) -> _Levels | None:
    """Return the first layout in which all maps have the same depth and no two have the same size; None without one."""
    for layout, rank, (down, across, deep) in _LAYOUTS:
        if any(len(shape) != rank or (rank == 4 and shape[0] != anchors) for shape in shapes):
            continue
        sizes = tuple((shape[down], shape[across]) for shape in shapes)
        depths = {shape[deep] if rank == 4 else shape[deep] / anchors for shape in shapes}
        if len(depths) == 1 < len(shapes) == len(set(sizes)) and (numbers := depths.pop()) in range(6, 10000):
            return _Levels(layout, sizes, int(numbers))
    return None


_LAYOUTS = ("apart", 4, (1, 2, 3)), ("first", 3, (1, 2, 0)), ("last", 3, (0, 1, 2))


# DetectNet_v2 of NVIDIA TAO: PeopleNet, TrafficCamNet, DashCamNet.
#
# Layout and formulas: TAO's documentation of DetectNet_v2 and nvidia-tao-deploy, ``cv/detectnet_v2/postprocessor.py``
# (abs_bbox_converter) and ``utils.py`` (get_keep_indices), clustering by NMS; DeepStream's ``cluster-mode: 2``.


@dataclass(frozen=True, slots=True)
class DetectNet(RowHead):
    """Coverage [C, h, w], after its sigmoid, and sides [4 * C, h, w], in either order.

    A cell has for each class x1 = x - norm * left, y1 = y - norm * top, x2 = x + norm * right, y2 = y + norm * bottom.
    Here x = column * stride + offset, and y accordingly; the score is the coverage. As in DetectNet, a side of a box
    includes both its end pixels when overlap is measured.

    Attributes:
        norm: network pixels per unit of a side.
        offset: offset of a cell's position, network pixels.
    """

    norm: float = 35.0
    offset: float = 0.5

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        which = _coverage(signature.shapes)
        if which is not None:
            classes, height, width = signature.shapes[which]
            stride = signature.stride(height, width) or 0
            named = "cov" in signature.names or "bbox" in signature.names
            reason = f"coverage of {classes} classes and their sides, a cell every {stride:g} pixels"
            yield Fit(reason, 2 + (stride == 16) + named, classes)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        which = _coverage(shapes)
        if which is None:
            reads = "two outputs, coverage [classes, h, w] and sides [4 * classes, h, w]"
            raise wrong_shapes("detect: detectnet", reads, shapes, network)
        return shapes[which][0]

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        count, which = self.class_count(shapes, network), _coverage(shapes) or 0
        _, height, width = shapes[which]
        coverage = Numbers(which, count, apart=height * width)
        sides = Numbers(1 - which, 4 * count, apart=height * width)
        return (Level(height * width, ((coverage, score),), (coverage, sides)),)

    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        """See :meth:`RowHead.placed`; a cell counts once for every class that covers it enough."""
        ((cell, (coverage, every)),) = found
        rows, scores, classes = by_class(coverage, score)
        sides = every.reshape(len(every), coverage.shape[1], 4)[rows, classes] * np.float32(self.norm)
        _, height, width = shapes[0]
        pitch = np.array([network[0] / width, network[1] / height], np.float32)
        places = np.stack([cell % width, cell // width], axis=1)[rows]
        middle = places * pitch + np.float32(self.offset)
        boxes = np.concatenate([middle - sides[:, :2], middle + sides[:, 2:]], axis=1)
        return Candidates(boxes, scores, classes)

    def suppressed(self, found: Candidates, iou: float, limit: int) -> Index:
        boxes = found.boxes + np.array([0, 0, 1, 1], np.float32)
        return suppress(boxes, found.scores, found.classes, iou, limit)


def _coverage(shapes: Shapes) -> int | None:
    """Return the index of the coverage among two maps; None for other outputs."""
    if len(shapes) != 2 or any(len(shape) != 3 for shape in shapes) or shapes[0][1:] != shapes[1][1:]:
        return None
    counts = shapes[0][0], shapes[1][0]
    which = [one for one in (0, 1) if counts[1 - one] == 4 * counts[one] > 0]
    return which[0] if which else None
