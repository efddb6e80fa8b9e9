"""Heads of which few rows matter: the numbers that bound a row's score, and the boxes of the rows that can reach it.

One description serves both the host, which searches the outputs with NumPy, and GPU kernels, which copy only the rows
that matter to the host.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, logit, shapes_of
from edgert.stages.decode.detection import Bool, Candidates, Head, Index

FINAL = "an end-to-end export has final boxes"


class Numbers(NamedTuple):
    """Numbers of every row of a level: the k-th of row r is element ``first + r * step + k * apart`` of an output.

    Attributes:
        output: index of the output.
        width: numbers per row.
        step, apart, first: distances of rows and of numbers, and index of the first one, in elements of the output.
    """

    output: int
    width: int
    step: int = 1
    apart: int = 1
    first: int = 0

    def of(self, outputs: Sequence[Array], rows: int) -> Array:
        """Return the numbers as (rows, width), a view."""
        flat = outputs[self.output].reshape(-1)
        size = flat.itemsize
        strides = (self.step * size, self.apart * size)
        found: Array = np.ndarray((rows, self.width), flat.dtype, flat, self.first * size, strides)
        return found


def columns(output: int, shape: tuple[int, ...], first: int = 0, end: int | None = None) -> Numbers:
    """Return the columns from ``first`` to ``end`` (exclusive) of a table [rows, columns] or [rows, 1, columns]."""
    return Numbers(output, (shape[-1] if end is None else end) - first, step=shape[-1], first=first)


@dataclass(frozen=True, slots=True)
class Level:
    """Rows with one layout, such as those of one feature map.

    Attributes:
        rows: number of rows.
        floors: (numbers, floor) pairs; a row matters if at least one number of each pair reaches its floor.
        wanted: numbers that are read of rows that matter.
        above: one number per row that is added to its floors; None adds nothing.
    """

    rows: int
    floors: tuple[tuple[Numbers, float], ...]
    wanted: tuple[Numbers, ...]
    above: Numbers | None = None


class Found(NamedTuple):
    """Rows of a level that matter. Parts are (M, width) contiguous float32, one for each of the level's ``wanted``."""

    rows: Index
    parts: tuple[F32, ...]


def scan(outputs: Sequence[Array], level: Level) -> Found:
    """Return the rows of one image that can reach the score, searched on the host."""
    matter = np.ones(level.rows, np.bool_)
    base = None if level.above is None else as_f32(level.above.of(outputs, level.rows))
    for numbers, floor in level.floors:
        values = as_f32(numbers.of(outputs, level.rows))
        matter &= _reached(values if base is None else values - base, floor)
    rows = np.flatnonzero(matter)
    return Found(rows, tuple([as_f32(numbers.of(outputs, level.rows)[rows]) for numbers in level.wanted]))


def _reached(numbers: F32, floor: float) -> Bool:
    """Return (rows,) whether at least one of a row's numbers reaches ``floor``."""
    over = numbers >= floor
    if numbers.shape[1] == 1:
        return np.asarray(over[:, 0])
    if not over.flags.c_contiguous:
        return np.asarray(over.any(axis=1))  # along memory
    # One search of all numbers finds the few that matter; a search per short row would take several times as long.
    found: Bool = np.zeros(len(over), np.bool_)
    found[np.flatnonzero(over) // numbers.shape[1]] = True
    return found


@lru_cache(maxsize=32)
def _levels(head: "RowHead", shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
    """Return a head's levels, cached, because they are the same for every frame of a stream."""
    return head.levels(shapes, network, score)


class RowHead(Head, ABC):
    """Base of heads whose boxes each come from one row of the outputs; a frozen dataclass, so that it is hashable."""

    @abstractmethod
    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        """Return the levels, whose floors must not miss a row that reaches ``score``.

        Raises ModelError like :meth:`class_count`.
        """

    @abstractmethod
    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        """Return the boxes of the found rows of each level that reach ``score``."""

    def seen(self, found: Sequence[Found], shapes: Shapes) -> Sequence[Array]:
        """Return the outputs that ``shaped`` reads, reduced to the found rows; empty if it reads none."""
        return ()

    def why_all_rows(self, shapes: Shapes, network: Size) -> str:
        """Return why outputs of these shapes must be read completely; empty if found rows are enough."""
        return ""

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes, reading only rows that can reach ``score``. Raises ModelError like :meth:`class_count`."""
        shapes = shapes_of(outputs)
        found = [scan(outputs, level) for level in _levels(self, shapes, network, score)]
        return self.placed(found, shapes, network, score)


class ActivatedHead(RowHead, ABC):
    """Base of heads whose first numbers bound the score. They pass a sigmoid in the graph, or behind it.

    Attributes:
        activation: ``none`` if the graph has the sigmoid. ``auto``, if the graph does not show it, tests whether all
            these numbers lie in 0-1.
    """

    activation: Literal["auto", "sigmoid", "none"] = "none"

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """See :meth:`RowHead.read`; ``auto`` reads the numbers of all rows first."""
        if self.activation != "auto":
            return super().read(outputs, network, score)
        levels = self.levels(shapes_of(outputs), network, score)
        numbers = [level.floors[0][0].of(outputs, level.rows) for level in levels]
        low, high = min(map(np.min, numbers)), max(map(np.max, numbers))
        known: RowHead = replace(cast("Any", self), activation="none" if 0 <= low <= high <= 1 else "sigmoid")
        return known.read(outputs, network, score)

    def why_all_rows(self, shapes: Shapes, network: Size) -> str:
        why = "activation: auto reads every row; options: {activation: sigmoid} or none does not"
        return why if self.activation == "auto" else ""

    def floor_of(self, score: float) -> float:
        """Return the lowest number that reaches the score."""
        return logit(score) if self.activation == "sigmoid" else score
