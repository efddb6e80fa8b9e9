"""NanoDet (github.com/RangiLyu/nanodet) and FastestDet.

NanoDet writes a distribution over the distances to each side, and classes without objectness.

The distribution is that of Li et al., "Generalized Focal Loss", 2020. Formulas: ``nanodet/model/head/gfl_head.py``
(get_single_level_center_point, Integral, distance2bbox) and, for NanoDet Plus, ``nanodet_plus_head.py``
(get_single_level_center_priors) of that repository.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from edgert.stages.decode.decoder import F32, Array, Shapes, Size, all_cells, cells, grid_of
from edgert.stages.decode.detection import Candidates, best_class, corners, every_class
from edgert.stages.decode.guess import STRIDES, Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.rows import Found, Level, Numbers, RowHead, columns

# FastestDet (github.com/dog-qiuqiu/FastestDet): one feature map, objectness and classes combined by powers.
#
# Formulas: ``deploy/`` and ``utils/tool.py`` (handle_preds) of that repository.

_OBJECT_POWER, _CLASS_POWER = 0.6, 0.4


@dataclass(frozen=True, slots=True)
class FastestDet(RowHead):
    """One output [5 + C, h, w]: objectness after its sigmoid, raw x, y, w, h, and classes after their softmax.

    Score = objectness^0.6 * class^0.4. Center = (column + tanh x) / w, (row + tanh y) / h. Size = sigmoid(w, h). All
    are relative to the network's width and height.
    """

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        """Yield a fit for one small map."""
        for channels, height, width, order in signature.maps:
            stride = signature.stride(height, width)
            if order == "nchw" and channels > 5 and stride is not None and stride > 8:
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


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of the outputs.

    Attributes:
        scores, sides: indices of the outputs, level by level; empty for the one output of NanoDet Plus.
        classes: number of classes.
        bins: number of bins of each side's distribution.
        strides: strides of the levels.
    """

    scores: tuple[int, ...]
    sides: tuple[int, ...]
    classes: int
    bins: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NanoDet(RowHead):
    """Scores [S, C], after their sigmoid, and sides [S, 4 * bins] of each level; NanoDet Plus has all in one output.

    That output is [S, C + 4 * bins]. A side's distance = softmax over its bins * (0, 1, 2, ...) * stride, measured from
    the cell's center. A cell counts once for every class that reaches the score. Outputs may have any order, and are
    matched by their shapes.

    Attributes:
        strides: strides of the levels; by default 8, 16, 32, and also 64 for NanoDet Plus.
        reg_max: number of bins - 1; by default from the channels of the sides, and 7 for NanoDet Plus.
    """

    strides: tuple[int, ...] = ()
    reg_max: int | None = None

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        """Yield a fit for a row per cell, in one table, or in one per level and part."""
        rows, columns = signature.table or (0, 0)
        if columns > 36 and rows == signature.cells((*STRIDES, 64)):
            reason = f"[{rows}, {columns - 32} + 4 * 8] has one row for every cell of strides 8, 16, 32, 64"
            yield Fit(reason, 3, columns - 32)
        levels, left = divmod(len(signature.shapes), 2)
        if signature.network and levels >= 2 and not left and all(len(shape) == 2 for shape in signature.shapes):
            wanted = sorted(2 * [cells(signature.network, stride) for stride in (*STRIDES, 64)[:levels]])
            if sorted(shape[0] for shape in signature.shapes) == wanted:
                yield Fit(f"scores and sides for each of {levels} strides", 3)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        return self._layout(shapes, network).classes

    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        layout = self._layout(shapes, network)
        tables = [
            (
                columns(one, shapes[one], 0, layout.classes),
                columns(other, shapes[other], layout.classes * (one == other)),
            )
            for one, other in zip(layout.scores or (0,), layout.sides or (0,), strict=True)
        ]
        return tuple([Level(shapes[pair[0].output][0], ((pair[0], score),), pair) for pair in tables])

    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        layout = self._layout(shapes, network)
        starts = np.cumsum([0, *(cells(network, stride) for stride in layout.strides)])
        parts = []
        for (at, (numbers, sides)), start in zip(found, starts, strict=False):
            rows, scores, classes = every_class(numbers, score)
            parts.append((at[rows] + start, scores, classes, sides[rows]))
        rows, scores, classes, sides = (np.concatenate(some) for some in zip(*parts, strict=True))
        return Candidates(_boxes(sides, rows, layout, network, 0.5 if layout.sides else 0.0), scores, classes)

    def _layout(self, shapes: Shapes, network: Size) -> _Layout:
        found = _match(tuple(shapes), network, self.strides, self.reg_max)
        if found is None:
            sizes = ", ".join(str(cells(network, stride)) for stride in self.strides or (8, 16, 32))
            reads = f"outputs [S, classes] and [S, 4 * bins] for S in {sizes}, or one [S, classes + 4 * bins]"
            raise wrong_shapes("detect: nanodet", reads, shapes, network)
        return found


def _boxes(sides: F32, rows: Array, layout: _Layout, network: Size, center: float) -> F32:
    """Return the boxes of rows.

    With ``center`` = 0.5, a cell's center is at (index + 0.5) * stride - 0.5, the middle of its pixels.
    """
    grid = grid_of(network, layout.strides)
    stride = grid.stride[rows, None]
    middle = np.stack([grid.x[rows], grid.y[rows]], axis=1) * stride + np.float32(center) * (stride - 1)
    power = sides.reshape(-1, 4, layout.bins)
    power = np.exp(power - power.max(axis=2, keepdims=True))
    mean = (power @ np.arange(layout.bins, dtype=np.float32)) / power.sum(axis=2) * stride
    boxes: F32 = np.concatenate([middle - mean[:, :2], middle + mean[:, 2:]], axis=1)
    return np.clip(boxes, 0, np.array(network * 2, np.float32), out=boxes)  # before suppression, as in NanoDet


@lru_cache(maxsize=32)
def _match(
    shapes: tuple[tuple[int, ...], ...], network: Size, strides: tuple[int, ...], reg_max: int | None
) -> _Layout | None:
    if any(len(shape) != 2 for shape in shapes):
        return None
    if len(shapes) == 1:
        strides, bins = strides or (8, 16, 32, 64), 8 if reg_max is None else reg_max + 1
        classes = shapes[0][1] - 4 * bins
        fits = shapes[0][0] == all_cells(network, strides) and classes >= 1
        return _Layout((), (), classes, bins, strides) if fits else None
    strides = strides or (8, 16, 32)
    pairs = [[i for i, shape in enumerate(shapes) if shape[0] == cells(network, stride)] for stride in strides]
    if len(shapes) != 2 * len(strides) or any(len(pair) != 2 for pair in pairs):
        return None
    widths = {tuple(shapes[index][1] for index in pair) for pair in pairs}
    kinds = {tuple(sorted(width)) for width in widths}
    if len(kinds) != 1:
        return None
    wide = _sides_width(tuple(shapes[index][1] for index in pairs[0]), reg_max)
    if wide is None:
        return None
    ordered = [sorted(pair, key=lambda index: shapes[index][1] == wide) for pair in pairs]
    scores, sides = zip(*ordered, strict=True)
    return _Layout(scores, sides, shapes[scores[0]][1], wide // 4, strides)


def _sides_width(widths: tuple[int, ...], reg_max: int | None) -> int | None:
    """Return which of two channel counts is that of the sides; the second, as in exports, if both may be."""
    if reg_max is not None:
        return 4 * (reg_max + 1) if 4 * (reg_max + 1) in widths else None
    possible = [width for width in widths if width % 4 == 0 and width >= 8]
    usual = [width for width in possible if width in _USUAL_SIDES]
    if len(usual) == 1:
        return usual[0]
    return possible[-1] if possible else None
