"""Protocol of decoders, helpers for output shapes without the batch dimension, and a check of labels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgert.errors import ConfigError
from edgert.runtime.records import Record
from edgert.stages.crop import Geometry

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
Shapes = Sequence[tuple[int, ...]]
Size = tuple[int, int]
"""Width and height in pixels."""


class Decoder(Protocol):
    """Function that turns a network's outputs into a record."""

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Record:
        """Decode one image.

        Args:
            outputs: network's outputs in its own order, without the batch dimension. They are views of bound memory: a
                record must not keep them.
            geometry: map from network pixels to source pixels.

        Raises ModelError: the outputs do not have the shapes this decoder reads.
        """


class CheckedDecoder(Decoder, Protocol):
    """Decoder that can check before the first image whether it fits a model."""

    def check(self, shapes: Shapes, network: Size) -> None:
        """Check shapes, without the batch dimension, before the first image. ``network`` is (width, height).

        Raises:
            ModelError: this decoder cannot read the outputs.
            ConfigError: there are fewer labels than classes, or more.
        """


def image_outputs(outputs: Sequence[Array], batched: Sequence[bool], row: int) -> list[Array]:
    """Return one image's part of every output; outputs without a batch dimension are unchanged."""
    return [array[row] if has_batch else array for array, has_batch in zip(outputs, batched, strict=True)]


def softmax(logits: F32) -> F32:
    power: F32 = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    power /= power.sum(axis=-1, keepdims=True)
    return power


def sigmoid(values: F32) -> F32:
    """Return 1 / (1 + exp(-values)), which is 0 where the exponential overflows."""
    with np.errstate(over="ignore"):
        found: F32 = np.reciprocal(np.exp(-values) + 1)
    return found


def logit(score: float) -> float:
    """Return the logit of a score, the inverse of the sigmoid; infinite at 0 and 1."""
    return math.log(score / (1 - score)) if 0 < score < 1 else math.copysign(math.inf, score - 0.5)


def as_f32(array: Array) -> F32:
    """Return the array itself if it is float32, else a float32 copy (fp16 heads)."""
    return array.astype(np.float32, copy=False)


def shapes_of(outputs: Sequence[Array]) -> Shapes:
    # Made from a list, as everywhere on the hot path: a tuple made from a generator shrinks at its end, and CPython
    # keeps up to 2000 of each length in its free lists (tupleobject.c).
    return tuple([output.shape for output in outputs])


def cells(network: Size, stride: int) -> int:
    """Return the number of cells of a feature map of this stride; networks round sizes up."""
    width, height = network
    return -(-width // stride) * -(-height // stride)


def all_cells(network: Size, strides: Sequence[int]) -> int:
    """Return the number of cells of all feature maps of a pyramid."""
    return sum(cells(network, stride) for stride in strides)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Cells of a feature pyramid, row by row, level by level; read-only (S,) float32 arrays.

    Attributes:
        x, y: column and row of the cell in its level.
        stride: network pixels per cell of its level.
    """

    x: F32
    y: F32
    stride: F32


@lru_cache(maxsize=32)
def grid_of(network: Size, strides: tuple[int, ...]) -> Grid:
    levels = []
    for stride in strides:
        columns, rows = -(-network[0] // stride), -(-network[1] // stride)
        y, x = np.indices((rows, columns), np.float32).reshape(2, -1)
        levels.append((x, y, np.full(rows * columns, stride, np.float32)))
    grid = Grid(*(np.concatenate(parts) for parts in zip(*levels, strict=True)))
    for array in (grid.x, grid.y, grid.stride):
        array.flags.writeable = False
    return grid


@dataclass(frozen=True, slots=True)
class Roles:
    """Indices of the outputs with final boxes, scores and classes.

    ``rows`` are scores and classes in the order of the outputs; ``count`` is the number of valid rows.
    """

    boxes: int
    rows: tuple[int, int]
    count: int | None


def is_rows_of_six(shapes: Shapes) -> bool:
    """Return whether there is one output [N, 6]."""
    return len(shapes) == 1 and len(shapes[0]) == 2 and shapes[0][1] == 6


def roles_of(shapes: Shapes) -> Roles | None:
    """Return the roles of boxes [N, 4], two of [N] or [N, 1], and perhaps a count, in any order; None for others."""
    boxes = [index for index, shape in enumerate(shapes) if len(shape) == 2 and shape[1] == 4]
    if len(shapes) not in (3, 4) or len(boxes) != 1:
        return None
    count = shapes[boxes[0]][0]
    rows = [index for index, shape in enumerate(shapes) if shape in ((count,), (count, 1))]
    single = [index for index, shape in enumerate(shapes) if index not in rows and shape in ((), (1,))]
    if len(rows) != 2 or len(rows) + len(single) + 1 != len(shapes):
        return None
    return Roles(boxes[0], (rows[0], rows[1]), single[0] if single else None)


def boxes_and_scores(shapes: Shapes) -> tuple[int, int] | None:
    """Return the indices of boxes [N, 4] and scores [N, C], in either order; None for other outputs.

    Of two outputs [N, 4], the second is the boxes.
    """
    if len(shapes) != 2 or any(len(shape) != 2 for shape in shapes) or shapes[0][0] != shapes[1][0]:
        return None
    if shapes[1][1] == 4:
        return 1, 0
    return (0, 1) if shapes[0][1] == 4 else None


def check_labels(class_count: int, labels: tuple[str, ...], where: str = "", *, is_exact: bool = True) -> None:
    """Raise ConfigError unless there are as many labels as classes, because others would name objects wrongly.

    0 classes, for an unknown number, accept any labels. Unless ``is_exact``, there may be more classes.
    """
    if not labels or not class_count or len(labels) == class_count or (len(labels) > class_count and not is_exact):
        return
    few = "add the missing lines to the labels file, or leave labels out to see class numbers"
    many = "remove the lines that are not classes of this model, such as a background, or use its training's list"
    raise ConfigError(
        f"{len(labels)} labels for {class_count} classes",
        why="the file must have one name per line for every class of the model, in the order of training",
        where=where,
        fix=few if len(labels) < class_count else many,
        code="E105",
    )
