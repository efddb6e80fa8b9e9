"""Heads of which few rows matter: which numbers say so, and what is made of those rows.

One description serves the host, which looks through the outputs with NumPy, and kernels, which bring the rows that
matter to the host and nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.detection import Bool, Candidates, Head, Index

FINAL = "an end-to-end export leaves nothing to decode"


class Numbers(NamedTuple):
    """Numbers of every row of a level: the k-th of row r is element ``first + r * step + k * apart`` of an output.

    Attributes:
        output: its index.
        width: how many each row has.
        step, apart, first: in numbers of the output, whose memory is contiguous.
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
    """Return some columns of a table [rows, columns]."""
    return Numbers(output, (shape[1] if end is None else end) - first, step=shape[1], first=first)


@dataclass(frozen=True, slots=True)
class Level:
    """Rows of one kind.

    Attributes:
        rows: how many there are.
        floors: a row matters where of each of these numbers one reaches its floor.
        wanted: what is read of rows that matter.
        above: one number of each row from which its floors count; None: from 0.
    """

    rows: int
    floors: tuple[tuple[Numbers, float], ...]
    wanted: tuple[Numbers, ...]
    above: Numbers | None = None


class Found(NamedTuple):
    """Rows of a level that matter.

    Attributes:
        rows: (M,) rising.
        parts: for each of the level's ``wanted`` (M, width) float32, contiguous.
    """

    rows: Index
    parts: tuple[F32, ...]


def scan(outputs: Sequence[Array], level: Level) -> Found:
    """Return the rows of one image that can score enough, found on the host."""
    matter = np.ones(level.rows, np.bool_)
    base = None if level.above is None else as_f32(level.above.of(outputs, level.rows))
    for numbers, floor in level.floors:
        asked = as_f32(numbers.of(outputs, level.rows))
        matter &= _reached(asked if base is None else asked - base, floor)
    rows = np.flatnonzero(matter)
    return Found(rows, tuple([as_f32(numbers.of(outputs, level.rows)[rows]) for numbers in level.wanted]))


def _reached(numbers: F32, floor: float) -> Bool:
    """Return (rows,) whether one of a row's numbers reaches ``floor``."""
    over = numbers >= floor
    if numbers.shape[1] == 1:
        return np.asarray(over[:, 0])
    if not over.flags.c_contiguous:
        return np.asarray(over.any(axis=1))  # along memory
    # The few numbers that matter are found by one look at all; one at each short row would take several times as long.
    found: Bool = np.zeros(len(over), np.bool_)
    found[np.flatnonzero(over) // numbers.shape[1]] = True
    return found


@lru_cache(maxsize=32)
def _levels(head: "RowHead", shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
    """Return a head's levels, cached: they are the same for every frame of a stream."""
    return head.levels(shapes, network, score)


class RowHead(Head, ABC):
    """A head that makes boxes of single rows of its outputs; a frozen dataclass, which can be hashed."""

    @abstractmethod
    def levels(self, shapes: Shapes, network: Size, score: float) -> tuple[Level, ...]:
        """Return which rows could score enough; some may not. Raises ModelError like :meth:`class_count`."""

    @abstractmethod
    def placed(self, found: Sequence[Found], shapes: Shapes, network: Size, score: float) -> Candidates:
        """Return the boxes of the rows found in each level that score at least ``score``."""

    def seen(self, found: Sequence[Found], shapes: Shapes) -> Sequence[Array]:
        """Return the outputs that :meth:`Shaped.shaped` reads, of the found rows only; empty where it reads none."""
        return ()

    def why_all_rows(self, shapes: Shapes, network: Size) -> str:
        """Return why outputs of these shapes are read completely; empty where rows are enough."""
        return ""

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes, reading only rows that could score enough. Raises ModelError like :meth:`class_count`."""
        shapes = shapes_of(outputs)
        found = [scan(outputs, level) for level in _levels(self, shapes, network, score)]
        return self.placed(found, shapes, network, score)
