"""Tests of points, boxes and paths against polygons and lines, for all objects and edges at once with NumPy.

Coordinates are pixels with y down. Edges are half-open: a point on the border of two adjacent zones is in exactly one.
A path through the common end of two lines crosses exactly one of them.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Points = Sequence[tuple[float, float]] | F64


class Polygons:
    """Z polygons, of at least three points each, which need not be convex."""

    def __init__(self, polygons: Sequence[Points]) -> None:
        rings = [np.array(points, np.float64).reshape(-1, 2) for points in polygons]
        self._starts = np.cumsum([0, *map(len, rings)])[:-1]
        first = np.concatenate([np.zeros((0, 2)), *rings])
        second = np.concatenate([np.zeros((0, 2)), *(np.roll(ring, -1, axis=0) for ring in rings)])
        (self._x1, self._y1), (self._x2, self._y2) = first.T.copy(), second.T.copy()
        rise = self._y2 - self._y1
        self._run_per_rise = np.divide(self._x2 - self._x1, rise, out=np.zeros_like(rise), where=rise != 0)
        # Two zones with a common edge, in opposite directions, must compute the same x on it.
        self._low_x, self._low_y = np.where(rise < 0, (self._x2, self._y2), (self._x1, self._y1))

    def __len__(self) -> int:
        return len(self._starts)

    def contain(self, points: F64) -> npt.NDArray[np.bool_]:
        """Return (Z, N) whether each polygon contains each of (N, 2) points.

        A point is inside where a ray to the right crosses an odd number of edges.
        """
        if not len(self):
            return np.zeros((0, len(points)), bool)
        x, y = points[:, 0, None], points[:, 1, None]
        crosses = (self._y1 <= y) != (self._y2 <= y)
        crosses &= x < self._low_x + self._run_per_rise * (y - self._low_y)
        inside: npt.NDArray[np.bool_] = np.logical_xor.reduceat(crosses, self._starts, axis=1).T
        return inside

    def overlaps(self, boxes: F64) -> F64:
        """Return (Z, N) the fraction of each of (N, 4) boxes x1, y1, x2, y2 that lies in each polygon.

        By Green's theorem, the area of a polygon within a box is an integral over y, along the polygon's edges. The
        integrand is the distance of x from the box's left side, limited to the box's width.
        """
        if not len(self):
            return np.zeros((0, len(boxes)))
        left, top, right, bottom = (boxes[:, column, None] for column in range(4))
        width = right - left
        y1, y2 = np.clip(self._y1, top, bottom), np.clip(self._y2, top, bottom)
        run = self._run_per_rise
        x1, x2 = self._x1 + run * (y1 - self._y1) - left, self._x1 + run * (y2 - self._y1) - left
        # The integral of min(max(x, 0), width) over y, where x changes linearly from x1 to x2.
        slanted = np.abs(x2 - x1) > 1e-9
        mean = np.divide(_under(x2, width) - _under(x1, width), x2 - x1, out=np.clip(x1, 0, width), where=slanted)
        areas = np.abs(np.add.reduceat(mean * (y2 - y1), self._starts, axis=1)).T
        sizes = width[:, 0] * (bottom - top)[:, 0]
        parts: F64 = np.divide(areas, sizes, out=np.zeros_like(areas), where=sizes > 0)
        return parts


def _under(x: F64, width: F64) -> F64:
    """Return the integral of min(max(x, 0), width) from 0 to x."""
    inside = np.clip(x, 0, width)
    return inside * inside / 2 + width * np.maximum(x - width, 0)


class Lines:
    """L directed lines, of at least two points each."""

    def __init__(self, lines: Sequence[Points]) -> None:
        paths = [np.array(points, np.float64).reshape(-1, 2) for points in lines]
        self._starts = np.cumsum([0, *(len(path) - 1 for path in paths)])[:-1]
        self._first = np.concatenate([np.zeros((0, 2)), *(path[:-1] for path in paths)])
        self._second = np.concatenate([np.zeros((0, 2)), *(path[1:] for path in paths)])

    def __len__(self) -> int:
        return len(self._starts)

    def crossed(self, before: F64, now: F64) -> npt.NDArray[np.int8]:
        """Return how paths cross the lines, however long they are.

        Args:
            before: (N, 2) starts of the paths; NaN for none.
            now: (N, 2) ends of the paths.

        Returns:
            (L, N) int8: 1 for a path to the right side, as seen along the line, and -1 for one to the left side. 0 for
            a path that does not cross the line, or crosses it and comes back.
        """
        if not len(self):
            return np.zeros((0, len(now)), np.int8)
        along = (self._second - self._first)[:, None]
        was_right = _side(along, before - self._first[:, None]) >= 0
        is_right = _side(along, now - self._first[:, None]) >= 0
        path = (now - before)[None]
        starts_right = _side(path, self._first[:, None] - before) >= 0
        ends_right = _side(path, self._second[:, None] - before) >= 0
        meets = (was_right != is_right) & (starts_right != ends_right)
        meets &= np.isfinite(path).all(axis=2)
        signs = (is_right.astype(np.int8) - was_right.astype(np.int8)) * meets
        return np.sign(np.add.reduceat(signs, self._starts, axis=0)).astype(np.int8)


INSET_PX = 1e-6
"""Distance by which points on the frame's border are moved inwards: more than rounding errors, less than a pixel."""


def within_frame(points: F64, size: tuple[int, int]) -> F64:
    """Return (N, 2) points, with those on the frame's border or beyond moved just inside. NaN stays.

    Edges are half-open, so a point on the frame's border would not be in a zone that ends there.
    """
    return np.clip(points, INSET_PX, np.array(size, np.float64) - INSET_PX)


def off_border(line: Points, size: tuple[int, int]) -> F64:
    """Return a line whose segments along the frame's border are moved inwards.

    They move further than :func:`within_frame` moves points, so that an object that reaches the border crosses them.
    """
    moved, low, high = np.array(line, np.float64), 2 * INSET_PX, np.array(size) - 2 * INSET_PX
    pairs = np.stack([moved[:-1], moved[1:]])
    for limit, is_beyond in ((low, pairs <= 0), (high, pairs >= size)):
        along = is_beyond.all(axis=0)  # (points - 1, 2) whether a segment lies on that border
        ends = np.concatenate([along, [[False, False]]]) | np.concatenate([[[False, False]], along])
        moved = np.where(ends, limit, moved)
    return moved


def in_pixels(points: Points, size: tuple[int, int]) -> F64:
    """Return (N, 2) points in pixels of an image; they are parts of its size where no number is above 1."""
    table = np.array(points, np.float64)
    return table if (table > 1).any() else table * size


def _side(along: F64, point: F64) -> F64:
    """Return a number above zero to the right of a direction, with y down."""
    return along[..., 0] * point[..., 1] - along[..., 1] * point[..., 0]


def crossing_edges(points: Points) -> tuple[int, int] | None:
    """Return the numbers of two edges of a polygon that cross or touch without being neighbors; None without any.

    An edge has the number of its first point, from 1.
    """
    ring, count = np.array(points, np.float64), len(points)
    for one, other in combinations(range(count), 2):
        if other - one in (1, count - 1):
            continue
        a, b, c, d = ring[one], ring[(one + 1) % count], ring[other], ring[(other + 1) % count]
        if _meet(a, b, c, d):
            return one + 1, other + 1
    return None


def _meet(a: F64, b: F64, c: F64, d: F64) -> bool:
    """Return whether the segments from a to b and from c to d cross or touch."""
    sides = [float(_side(b - a, p - a)) for p in (c, d)] + [float(_side(d - c, p - c)) for p in (a, b)]
    if sides[0] * sides[1] < 0 and sides[2] * sides[3] < 0:
        return True
    ends = zip(sides, (c, d, a, b), ((a, b), (a, b), (c, d), (c, d)), strict=True)
    return any(side == 0 and _within(point, *edge) for side, point, edge in ends)


def _within(point: F64, a: F64, b: F64) -> bool:
    return bool((np.minimum(a, b) <= point).all() and (point <= np.maximum(a, b)).all())


def area(points: Points) -> float:
    x, y = np.array(points, np.float64).T
    return abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2
