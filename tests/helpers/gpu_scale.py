"""How ``preprocess.cu`` scales one plane, said once more in NumPy, number for number: OpenCV's own arithmetic.

Sources: OpenCV, modules/imgproc/src/resize.cpp: ``resizeGeneric_`` with 11-bit weights for linear and cubic,
``resizeAreaFast_`` and ``computeResizeAreaTab`` for area, which is linear where either axis grows.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.runtime.frame import U8

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
_WEIGHT_ONE = 2048
_NEGLIGIBLE = 1e-3  # of a pixel, as OpenCV's area has it
_STEEPNESS = np.float32(-0.75)  # of OpenCV's cubic


@dataclass(frozen=True, slots=True)
class Taps:
    """For every output pixel of an axis: two source pixels and the weight of the second, in 1/2048."""

    first: I64
    second: I64
    weight: I64


@dataclass(frozen=True, slots=True)
class Spread:
    """For every output pixel of an axis: source pixels and their weights, (taps, pixels); unused ones weigh nothing."""

    index: I64
    weight: F32


def scaled(plane: U8, width: int, height: int, how: str = "linear", *, paired: bool = False) -> I64:
    """(h, w) uint8 → (height, width) gray levels; ``paired``: interleaved, where OpenCV rounds some halves to even."""
    if how == "area":
        return _area(plane, width, height, paired)
    if how == "cubic":
        return _cubic(plane, width, height)
    x, y = (taps(*ends, how == "nearest") for ends in ((plane.shape[1], width, True), (plane.shape[0], height, False)))
    return _between(plane, x, y)


def taps(source: int, wanted: int, across: bool, nearest: bool) -> Taps:
    """Pixel centers meet pixel centers. Positions are rounded to float32 and weights to 1/2048, as OpenCV does."""
    at = np.arange(wanted, dtype=np.int64)
    if nearest:
        index = np.minimum(np.floor(at * (1.0 / (wanted / source))).astype(np.int64), source - 1)
        return Taps(index, index, np.zeros_like(index))
    number = (2 * at + 1) * source - wanted
    whole, rest = np.divmod(number, 2 * wanted)
    exact = whole.astype(np.float32) + rest.astype(np.float32) / np.float32(2 * wanted)
    below = np.floor(exact)
    return _two(below.astype(np.int64), exact - below, source, across)


def _two(first: I64, far: F32, source: int, across: bool) -> Taps:
    weight = np.rint(far * np.float32(_WEIGHT_ONE)).astype(np.int64)
    if across:
        weight[(first < 0) | (first >= source - 1)] = 0
    return Taps(np.clip(first, 0, source - 1), np.clip(first + 1, 0, source - 1), weight)


def _between(plane: U8, x: Taps, y: Taps) -> I64:
    wide: I64 = plane.astype(np.int64)
    wide = wide[:, x.first] * (_WEIGHT_ONE - x.weight) + wide[:, x.second] * x.weight
    weight = y.weight[:, None]
    upper, lower = wide[y.first] >> 4, wide[y.second] >> 4
    levels: I64 = np.asarray(((upper * (_WEIGHT_ONE - weight) >> 16) + (lower * weight >> 16) + 2) >> 2)
    return levels


def _area(plane: U8, width: int, height: int, paired: bool) -> I64:
    """The average of what an output pixel covers; linear, between edges and not centers, where an axis grows."""
    down, across = (1.0 / (out / source) for source, out in zip(plane.shape, (height, width), strict=True))
    if down < 1 or across < 1:
        x, y = _edge_taps(plane.shape[1], width, True), _edge_taps(plane.shape[0], height, False)
        return _between(plane, x, y)
    if all(abs(scale - round(scale)) < np.finfo(np.float64).eps for scale in (down, across)):
        return _boxes(plane, round(across), round(down), paired)
    x_spread, y_spread = _covered(plane.shape[1], width), _covered(plane.shape[0], height)
    wide = _weighed(plane.astype(np.float32), x_spread, 1)
    return np.clip(np.rint(_weighed(wide, y_spread, 0)), 0, 255).astype(np.int64)


def _edge_taps(source: int, wanted: int, across: bool) -> Taps:
    at, inverse = np.arange(wanted), wanted / source
    first = np.floor(at * (1.0 / inverse)).astype(np.int64)
    far = ((at + 1) - (first + 1) * inverse).astype(np.float32)
    return _two(first, np.where(far <= 0, np.float32(0), far - np.floor(far)), source, across)


def _boxes(plane: U8, across: int, down: int, paired: bool) -> I64:
    height, width = plane.shape[0] // down, plane.shape[1] // across
    part = plane[: height * down, : width * across].astype(np.int64)
    sums: I64 = part.reshape(height, down, width, across).sum((1, 3))
    if across == down == 2 and not paired:
        return (sums + 2) >> 2
    means: I64 = np.rint(sums.astype(np.float32) * (np.float32(1) / np.float32(across * down))).astype(np.int64)
    return means


def _covered(source: int, wanted: int) -> Spread:
    """Pixels that lie in a cell whole, and the parts of the first and the last; float32 of what float64 says."""
    scale = 1.0 / (wanted / source)
    start = np.arange(wanted) * scale
    cell = np.minimum(scale, source - start)
    last = np.minimum(np.floor(start + scale), source - 1)
    first = np.minimum(np.ceil(start), last)
    head = np.where(first - start > _NEGLIGIBLE, (first - start) / cell, 0)
    rest = start + scale - last
    tail = np.where(rest > _NEGLIGIBLE, np.minimum(np.minimum(rest, 1.0), cell) / cell, 0)
    number = np.arange(int((last - first).max()) + 2)[:, None] - 1
    weight = np.where(number < last - first, 1 / cell, np.where(number == last - first, tail, 0))
    weight[0] = np.where(head > 0, head, 0)
    return Spread(np.clip(first + number, 0, source - 1).astype(np.int64), weight.astype(np.float32))


def _weighed(values: F32, spread: Spread, axis: int) -> F32:
    """Sums in float32, in the order of the pixels; adding nothing changes nothing."""
    shape = (-1, 1) if axis == 0 else (1, -1)
    parts = (np.take(values, i, axis) * w.reshape(shape) for i, w in zip(spread.index, spread.weight, strict=True))
    total: F32 = next(parts)
    for part in parts:
        total = total + part
    return total


def _cubic(plane: U8, width: int, height: int) -> I64:
    """Four pixels each way by 11-bit weights: whole numbers across, float32 down."""
    x, y = _cubic_taps(plane.shape[1], width), _cubic_taps(plane.shape[0], height)
    pixels = plane.astype(np.int64)
    across = [pixels[:, index] * weight.astype(np.int64) for index, weight in zip(x.index, x.weight, strict=True)]
    wide = np.sum(across, axis=0).astype(np.float32)
    down = Spread(y.index[::-1], y.weight[::-1] / np.float32(_WEIGHT_ONE**2))
    return np.clip(np.rint(_weighed(wide, down, 0)), 0, 255).astype(np.int64)


def _cubic_taps(source: int, wanted: int) -> Spread:
    """Weights are whole numbers of 1/2048; beyond the edges, pixels repeat."""
    one, a = np.float32(1), _STEEPNESS
    exact = ((np.arange(wanted) + 0.5) * (1.0 / (wanted / source)) - 0.5).astype(np.float32)
    below = np.floor(exact)
    x = exact - below
    left, back = x + one, one - x
    first = ((a * left - 5 * a) * left + 8 * a) * left - 4 * a
    second = ((a + 2) * x - (a + 3)) * x * x + one
    third = ((a + 2) * back - (a + 3)) * back * back + one
    weight = np.stack([first, second, third, one - first - second - third]).astype(np.float32)
    index = below.astype(np.int64) + np.arange(-1, 3)[:, None]
    return Spread(np.clip(index, 0, source - 1), np.rint(weight * np.float32(_WEIGHT_ONE)))
