"""NanoDet (github.com/RangiLyu/nanodet), heads that distribute sides as it does, and FastestDet.

NanoDet writes a distribution over the distances to each side, and classes without objectness.

The distribution is that of Li et al., "Generalized Focal Loss", 2020. Formulas: ``nanodet/model/head/gfl_head.py``
(get_single_level_center_point, Integral, distance2bbox) and, for NanoDet Plus, ``nanodet_plus_head.py``
(get_single_level_center_priors) of that repository.
PicoDet: ``deploy/third_engine/demo_onnxruntime/infer_demo.py`` of github.com/PaddlePaddle/PaddleDetection. YOLOv8:
``ultralytics/nn/modules/head.py`` (Detect, DFL) of github.com/ultralytics/ultralytics.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from edgert.stages.decode.decoder import F32, Array, Shapes, Size, all_cells, cells, grid_of, sigmoid
from edgert.stages.decode.detection import I32, Candidates, Index, best_class, corners, every_class
from edgert.stages.decode.guess import STRIDES, Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.rows import ActivatedHead, Found, Level, Numbers, RowHead, columns

# FastestDet (github.com/dog-qiuqiu/FastestDet): one feature map, objectness and classes combined by powers.
#
# Formulas: ``deploy/`` and ``utils/tool.py`` (handle_preds) of that repository.

_OBJECT_POWER, _CLASS_POWER = 0.6, 0.4
_STRIDE = 16


@dataclass(frozen=True, slots=True)
class FastestDet(RowHead):
    """One output [5 + C, h, w]: objectness after its sigmoid, raw x, y, w, h, and classes after their softmax.

    Score = objectness^0.6 * class^0.4. Center = (column + tanh x) / w, (row + tanh y) / h. Size = sigmoid(w, h). All
    are relative to the network's width and height.
    """

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        for channels, height, width, order in signature.maps:
            stride = signature.stride(height, width)
            if order == "nchw" and channels > 5 and stride == _STRIDE:
                yield Fit(f"5 + {channels - 5} channels, stride {stride:g}", 3, channels - 5)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        if len(shapes) != 1 or len(shapes[0]) != 3 or shapes[0][0] < 6:
            raise wrong_shapes("detect: fastestdet", "one output [5 + classes, h, w]", shapes, network)
        return shapes[0][0] - 5

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        """See :meth:`RowHead.levels`; a class score is at most 1, so objectness bounds the score."""
        self.class_count(shapes, network)
        channels, height, width = shapes[0]
        every = Numbers(0, channels, apart=height * width)
        least = max(score, 0.0) ** (1 / _OBJECT_POWER) * (1 - 1e-5)  # slightly less, because the power is rounded
        return (Level(height * width, ((every._replace(width=1), least),), (every,)),)

    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        ((cell, (raw,)),) = found
        _, height, width = shapes[0]
        strength = raw[:, :1] ** np.float32(_OBJECT_POWER)
        kept, scores, classes = best_class(strength * raw[:, 5:] ** np.float32(_CLASS_POWER), score)
        raw, cell = raw[kept], cell[kept]
        size: F32 = np.array(network, np.float32)
        pitch: F32 = np.array([network[0] / width, network[1] / height], np.float32)
        position = np.stack([cell % width, cell // width], axis=1).astype(np.float32)
        center = (position + np.tanh(raw[:, 1:3])) * pitch
        return Candidates(corners(center, size / (1 + np.exp(-raw[:, 3:5]))), scores, classes)


_USUAL_SIDES = (32, 64, 68)
"""4 * (reg_max + 1) of published models: reg_max 7, 15, 16."""
_MAP_BINS = 16
"""Bins of each side in the feature maps of YOLOv8."""
_FEATURES = 64
"""Usual step of the channels of features, which can be mistaken for sides and classes."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of the outputs.

    Attributes:
        scores, sides: numbers of the classes and of the sides, level by level.
        rows: number of cells of each level.
        bins: number of bins of each side's distribution.
        strides: strides of the levels.
        center: a cell's center is at (index + center[0]) * stride - center[1].
        is_map: whether the outputs are feature maps.
    """

    scores: tuple[Numbers, ...]
    sides: tuple[Numbers, ...]
    rows: tuple[int, ...]
    bins: int
    strides: tuple[int, ...]
    center: tuple[float, float]
    is_map: bool


@dataclass(frozen=True, slots=True)
class NanoDet(ActivatedHead):
    """Scores [S, C], after their sigmoid, and sides [S, 4 * bins] of each level; NanoDet Plus has all in one output.

    That output is [S, C + 4 * bins]. A side's distance = softmax over its bins * (0, 1, 2, ...) * stride, measured from
    the cell's center. A cell counts once for every class that reaches the score. Outputs may have any order, and are
    matched by their shapes. PicoDet has four levels of scores and sides.

    Attributes:
        strides: strides of the levels; by default 8, 16, 32, and also 64 for NanoDet Plus and PicoDet.
        reg_max: number of bins - 1; by default from the channels of the sides, and 7 for NanoDet Plus.
    """

    name: ClassVar[str] = "nanodet"
    reads: ClassVar[str] = (
        "[S, classes] and [S, 4 * bins] for the S cells of each stride, or one [S, classes + 4 * bins]"
    )
    rank: ClassVar[int] = 2
    strides: tuple[int, ...] = ()
    reg_max: int | None = None

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        layout = signature.network and _match(tuple(signature.shapes), signature.network, cls.rank, (), None)
        classes = layout.scores[0].width if layout else 0
        if layout and len(layout.scores) > 1:
            weight = 1 if layout.is_map and classes % _FEATURES == 0 else 3
            reason = f"scores and distributions of sides for each of {len(layout.scores)} strides"
            yield Fit(reason, weight, classes)
        elif layout and classes > 4:
            reason = f"[{layout.rows[0]}, {classes} + 4 * 8] has one row for every cell of strides 8, 16, 32, 64"
            yield Fit(reason, 3, classes)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        return self._layout(shapes, network).scores[0].width

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        layout = self._layout(shapes, network)
        parts = zip(layout.rows, layout.scores, layout.sides, strict=True)
        return tuple(
            [Level(rows, ((numbers, self.floor_of(score)),), (numbers, sides)) for rows, numbers, sides in parts]
        )

    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        layout = self._layout(shapes, network)
        parts, start = [], 0
        for (at, (numbers, sides)), count in zip(found, layout.rows, strict=True):
            rows, scores, classes = self._score_cells(numbers, score)
            parts.append((at[rows] + start, scores, classes, sides[rows]))
            start += count
        rows, scores, classes, sides = (np.concatenate(some) for some in zip(*parts, strict=True))
        return Candidates(_boxes(sides, rows, layout, network), scores, classes)

    def _score_cells(self, numbers: F32, score: float) -> tuple[Index, F32, I32]:
        """Return cells, scores and classes that reach the score."""
        return every_class(numbers, score)

    def _layout(self, shapes: Shapes, network: Size) -> _Layout:
        found = _match(tuple(shapes), network, self.rank, self.strides, self.reg_max)
        if found is None:
            raise wrong_shapes(f"detect: {self.name}", self.reads, shapes, network)
        return found


@dataclass(frozen=True, slots=True)
class YoloV8Raw(NanoDet):
    """A map of YOLOv8, YOLO11 or YOLO12 for each level, exported before its boxes are decoded, as for accelerators.

    It is [4 * bins + C, h, w] or [h, w, 4 * bins + C], sides first; or there are two maps, of sides and of classes. A
    cell counts for its best class. The distances are those of :class:`NanoDet`.

    Attributes:
        activation: ``none`` if the graph has the sigmoid; see :class:`ActivatedHead`, which tests all scores.
    """

    name: ClassVar[str] = "yolov8-raw"
    reads: ClassVar[str] = "a map [64 + classes, h, w] of each stride, or two, [64, h, w] and [classes, h, w]"
    rank: ClassVar[int] = 3
    activation: Literal["auto", "sigmoid", "none"] = "auto"

    def _score_cells(self, numbers: F32, score: float) -> tuple[Index, F32, I32]:
        rows, scores, classes = best_class(numbers, self.floor_of(score))
        return rows, sigmoid(scores) if self.activation == "sigmoid" else scores, classes


def _boxes(sides: F32, rows: Array, layout: _Layout, network: Size) -> F32:
    """Return the boxes of rows, for NanoDet and PicoDet clipped before suppression, as there."""
    grid = grid_of(network, layout.strides)
    stride = grid.stride[rows, None]
    part, pixels = layout.center
    middle = (np.stack([grid.x[rows], grid.y[rows]], axis=1) + np.float32(part)) * stride - np.float32(pixels)
    power = sides.reshape(-1, 4, layout.bins)
    power = np.exp(power - power.max(axis=2, keepdims=True))
    mean = (power @ np.arange(layout.bins, dtype=np.float32)) / power.sum(axis=2) * stride
    boxes: F32 = np.concatenate([middle - mean[:, :2], middle + mean[:, 2:]], axis=1)
    return boxes if layout.is_map else np.clip(boxes, 0, np.array(network * 2, np.float32), out=boxes)


@lru_cache(maxsize=32)
def _match(
    shapes: tuple[tuple[int, ...], ...], network: Size, rank: int, strides: tuple[int, ...], reg_max: int | None
) -> _Layout | None:
    """Return the layout of outputs of this rank: one table, or one or two outputs per level; None for others."""
    if any(len(shape) != rank for shape in shapes):
        return None
    if len(shapes) == 1:
        strides, bins = strides or (*STRIDES, 64), 8 if reg_max is None else reg_max + 1
        if rank != 2 or shapes[0][0] != all_cells(network, strides) or shapes[0][1] <= 4 * bins:
            return None
        split = shapes[0][1] - 4 * bins
        scores, sides = columns(0, shapes[0], 0, split), columns(0, shapes[0], split)
        return _Layout((scores,), (sides,), shapes[0][:1], bins, strides, (0, 0), False)
    is_map = rank == 3
    for each, are_last in ((2, False), (2, True), (1, False), (1, True)) if is_map else ((2, False),):
        levels = strides or (*STRIDES, 64)[: len(shapes) // each]
        tables = [_level_numbers(shapes, network, stride, are_last) for stride in levels]
        is_complete = len(shapes) == each * len(levels) and len(levels) >= (len(strides) or len(STRIDES))
        if not is_complete or any(len(one) != each for one in tables):
            continue
        wide = _sides_width(tuple(one.width for one in tables[0]), reg_max)
        pairs = [_scores_and_sides(one, wide or 0) for one in tables]
        if wide and len({(scores.width, sides.width) for scores, sides in pairs}) == 1 and pairs[0][1].width == wide:
            # PicoDet's centers and YOLOv8's are the middle of a cell, NanoDet's half a pixel before it.
            center = (0.5, 0.0 if is_map or len(levels) > len(STRIDES) else 0.5)
            every = [tuple(pair[part] for pair in pairs) for part in (0, 1)]
            rows = tuple(cells(network, stride) for stride in levels)
            return _Layout(every[0], every[1], rows, wide // 4, levels, center, is_map)
    return None


def _level_numbers(shapes: Shapes, network: Size, stride: int, are_last: bool) -> list[Numbers]:
    """Return the numbers of every table or map with one row for each cell of a level, [h, w, C] if ``are_last``."""
    down, across = -(-network[1] // stride), -(-network[0] // stride)
    found = []
    for index, shape in enumerate(shapes):
        if shape[0] == down * across and len(shape) == 2:
            found.append(columns(index, shape))
        elif len(shape) == 3 and are_last and shape[:2] == (down, across):
            found.append(Numbers(index, shape[2], step=shape[2]))
        elif len(shape) == 3 and not are_last and shape[1:] == (down, across):
            found.append(Numbers(index, shape[0], apart=down * across))
    return found


def _scores_and_sides(tables: Sequence[Numbers], wide: int) -> tuple[Numbers, Numbers]:
    """Return the numbers of the classes and of the sides, which come first in one map."""
    if len(tables) == 1:
        (one,) = tables
        return one._replace(width=one.width - wide, first=wide * one.apart), one._replace(width=wide)
    first, second = sorted(tables, key=lambda one: one.width == wide)
    return first, second


def _sides_width(widths: tuple[int, ...], reg_max: int | None) -> int | None:
    """Return the number of channels of the sides: in one map, or of two; the second, as in exports, if both may be."""
    if len(widths) == 1:
        wide = 4 * (_MAP_BINS if reg_max is None else reg_max + 1)
        return wide if wide < widths[0] else None
    if reg_max is not None:
        return 4 * (reg_max + 1) if 4 * (reg_max + 1) in widths else None
    possible = [width for width in widths if width % 4 == 0 and width >= 8]
    usual = [width for width in possible if width in _USUAL_SIDES]
    if len(usual) == 1:
        return usual[0]
    return possible[-1] if possible else None
