"""Rearrangements that have a meaning: channels chosen, blocks of pixels laid into channels, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.graph.fit.movement import Move

_LIST = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Output pixel (y, x) of channel k is input pixel (y rows + row[k], x columns + column[k]) of channel channel[k].

    Attributes:
        rows, columns: size of a block; 1 and 1 where only channels are chosen.
        channel, row, column: one number per output channel.
    """

    rows: int
    columns: int
    channel: _LIST
    row: _LIST
    column: _LIST


@dataclass(frozen=True, slots=True, eq=False)
class Scattered:
    """Input channel k is laid into channel ``channel[k]``, at (row[k], column[k]) of each block; blocks tile it."""

    rows: int
    columns: int
    channel: _LIST
    row: _LIST
    column: _LIST


def gathered(move: Move) -> Gathered | None:
    """The move as a choice of channels and pixels; None where it is none."""
    _, channels, height, width = move.shape
    _, _, tall, wide = move.origin.shape
    if not tall or not wide or height % tall or width % wide or len(move.origin) != move.shape[0]:
        return None
    rows, columns = height // tall, width // wide
    first = move.origin[0, :, 0, 0]
    channel, row, column = first // (height * width), first // width % height, first % width
    if np.any(channel >= channels) or np.any(row >= rows) or np.any(column >= columns):
        return None
    down = (row[:, None] + np.arange(tall) * rows)[:, :, None]
    across = (column[:, None] + np.arange(wide) * columns)[:, None, :]
    expected = channel[:, None, None] * (height * width) + down * width + across
    return Gathered(rows, columns, channel, row, column) if _matches(move, expected) else None


def scattered(move: Move) -> Scattered | None:
    """The move as blocks of pixels made of channels; None where it is none, or the blocks are one pixel."""
    _, channels, height, width = move.shape
    _, planes, tall, wide = move.origin.shape
    if tall % height or wide % width or len(move.origin) != move.shape[0]:
        return None
    rows, columns = tall // height, wide // width
    if rows * columns == 1 or rows * columns * planes != channels:
        return None
    source = (move.origin[0] // (height * width)).reshape(planes, height, rows, width, columns)[:, 0, :, 0, :]
    if not np.array_equal(np.sort(source, axis=None), np.arange(channels)):
        return None
    pixels = np.arange(height * width).reshape(height, width)
    expected = source[:, None, :, None, :] * (height * width) + pixels[None, :, None, :, None]
    if not _matches(move, expected.reshape(planes, tall, wide)):
        return None
    place = np.argsort(source, axis=None)
    return Scattered(rows, columns, place // (rows * columns), place // columns % rows, place % columns)


def _matches(move: Move, expected: _LIST) -> bool:
    """Whether every picture of the batch is rearranged in that way, and none takes pixels of another."""
    _, channels, height, width = move.shape
    starts = np.arange(move.shape[0])[:, None, None, None] * (channels * height * width)
    return bool(np.array_equal(move.origin, starts + expected))
