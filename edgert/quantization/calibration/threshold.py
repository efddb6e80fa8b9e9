"""Thresholds at which a tensor is clipped for rounding to 8 bits, by four methods that use only its histogram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.errors import CalibrationError, nearest
from edgert.quantization.calibration.value_histogram import Histogram

Floats = npt.NDArray[np.float64]

METHODS = ("minmax", "percentile", "entropy", "mse")

LEVELS = 127
"""Steps on each side of zero: scale = threshold / 127, values are clipped to ±127 steps. -128 is not used, so that the
sign of a value never changes its error."""

ZERO_AMAX = 1.0
"""Threshold of a tensor of zeros. A tiny one would make the int32 bias of the next layer overflow, which is stored in
steps of the tensor's scale."""

PERCENTILE = 99.99


def threshold(histogram: Histogram, method: str) -> float:
    """Return the magnitude at which to clip a tensor: positive, an exact float32, at most the largest magnitude.

    ``minmax`` clips nothing. For the others see :func:`percentile`, :func:`entropy` and :func:`mse`. A tensor of zeros
    gets ``ZERO_AMAX``. Raises CalibrationError: the histogram is empty, or there is no such method.
    """
    check_method(method)
    if not histogram.values:
        raise CalibrationError("cannot choose a threshold without values", why="the histogram is empty")
    if histogram.is_zero:
        return ZERO_AMAX
    if method == "minmax":
        chosen = histogram.amax
    elif method == "percentile":
        chosen = percentile(histogram)
    else:
        chosen = entropy(histogram) if method == "entropy" else mse(histogram)
    return float(np.float32(min(chosen, histogram.amax)))


def check_method(method: str) -> None:
    """Raise CalibrationError unless the method is known."""
    if method not in METHODS:
        raise CalibrationError(
            f"unknown method {method!r}{nearest(str(method), METHODS)}", fix=f"use one of {', '.join(METHODS)}"
        )


def _edges(histogram: Histogram) -> Floats:
    """Return the edges of the bins up to the largest magnitude, where the last bin ends."""
    top = int(histogram.amax / histogram.width)
    edges: Floats = np.arange(top + 2, dtype=np.float64) * histogram.width
    edges[-1] = histogram.amax
    return edges


def percentile(histogram: Histogram, percent: float = PERCENTILE) -> float:
    """Return the magnitude up to which this share of values is, linear within a bin; 100 % is the largest."""
    edges = _edges(histogram)
    below = np.cumsum(histogram.counts[: len(edges) - 1])
    rank = histogram.values * percent / 100
    found = int(np.searchsorted(below, rank))
    before = float(below[found - 1]) if found else 0.0
    share = (rank - before) / float(histogram.counts[found])
    return float(edges[found] + share * (edges[found + 1] - edges[found]))


_TARGET_BINS = 128
_TIE_NATS = 1e-9


def entropy(histogram: Histogram) -> float:
    """Return the threshold of least Kullback-Leibler divergence, as TensorRT's calibrator chooses it.

    For every i from 128 bins to all of them, P is bins 0..i with everything above added to its last bin. Q is bins 0..i
    without that, merged into 128 levels (bin k into level ``128 k // i``). Each level's mass is then spread evenly over
    those of its bins that are not empty. Both are normalized, and the i of the smallest sum of ``P log(P / Q)`` wins.
    The threshold is the upper edge of its last bin. Where P has mass and Q has none the divergence is infinite, which
    happens where the last bin itself is empty. Of equal minima (to 1e-9, below which the order of summation decides)
    the last wins. The count of bin 0 is replaced by that of bin 1, which removes a spike of zeros.

    There are 128 levels because int8 has as many for magnitudes. A tensor without negative values gets no more, as
    TensorRT stores it in int8 too. The bins end with the one that holds the largest magnitude: on a range that is a
    power of two they are 1,024 to 2,048.

    Source: S. Migacz, "8-bit Inference with TensorRT", GTC 2017; NVIDIA pytorch_quantization (calib/histogram.py,
    _compute_amax_entropy). The threshold may exceed the largest magnitude by less than a bin.
    """
    top = int(histogram.amax / histogram.width) + 1
    bins = histogram.counts[:top].astype(np.float64)
    bins[0] = bins[1]
    last = np.arange(_TARGET_BINS, top + 1)
    divergence = _divergences(bins, last)
    chosen = last[np.flatnonzero(divergence <= divergence.min() + _TIE_NATS)[-1]]
    return float(chosen * histogram.width)


def _divergences(bins: Floats, last: npt.NDArray[np.int64]) -> Floats:
    """Return KL(P || Q) in nats for clipping after each of these numbers of bins.

    Sums over bins become differences of running sums. P log P of a run of bins is one, and P log Q of a level is its
    mass times the log of its mass per bin.
    """
    rows = np.stack([bins, bins > 0, _xlogx(bins)])
    mass, full, plogp = np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))
    edges = -(-np.arange(_TARGET_BINS + 1) * last[:, None] // _TARGET_BINS)  # first bin of each level
    level_mass, level_full = np.diff(mass[edges], axis=1), np.diff(full[edges], axis=1)
    height = _log(level_mass / np.maximum(level_full, 1))  # log Q before it is normalized
    inside, total, end = mass[last], mass[-1], bins[last - 1]
    outside = total - inside
    entropy_p = plogp[last - 1] + _xlogx(end + outside)
    cross = (level_mass * height).sum(axis=1) + outside * height[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (entropy_p - cross) / total - np.log(total) + np.log(inside)
    return np.where((inside > 0) & ((end > 0) | (outside == 0)), found, np.inf)


def _log(values: Floats) -> Floats:
    """Return the natural logarithm, and 0 for 0."""
    return np.log(np.where(values > 0, values, 1.0))


def _xlogx(values: Floats) -> Floats:
    return values * _log(values)


_COARSE = 2.0 ** (-np.arange(73) / 8)
"""First candidates relative to the largest magnitude, down to 1/512, below which a threshold has too few bins."""

_FINER = ((1 / 8, 15), (1 / 64, 9))
"""Distance from the best candidate so far, in octaves, and number of candidates, of each finer search."""

_CHUNK = 8
"""Number of thresholds tried at a time, an octave of the coarse ones."""


def mse(histogram: Histogram) -> float:
    """Return the threshold of the smallest mean squared error of clipping and rounding to steps of threshold / 127.

    Candidates go from the largest magnitude down by eighths of an octave, then finer around the best; of equal ones the
    largest wins. The error of each is exact for values that are spread evenly within their bin
    (:func:`_squared_errors`). That holds for every step, even one below the width of a bin.
    """
    density = _density(histogram)
    best = _best(density, histogram.amax * _COARSE)
    for span, number in _FINER:
        best = _best(density, best * 2.0 ** np.linspace(span, -span, number))
    return best


def _best(density: _Density, thresholds: Floats) -> float:
    """Return the first threshold of least error, after all are limited to the largest magnitude and made float32."""
    tried = np.minimum(thresholds, density.amax).astype(np.float32).astype(np.float64)
    return float(tried[int(np.argmin(_squared_errors(density, tried)))])


@dataclass(frozen=True)
class _Density:
    """Values spread over magnitudes.

    Attributes:
        edges: (bins + 1,) edges of the bins.
        weights: (bins,) values per unit of magnitude.
        beyond: (3, bins + 1) sums of 1, x and x**2 over the values above each edge.
        amax: largest magnitude.
        point: number of values that have exactly this magnitude and are in no bin.
    """

    edges: Floats
    weights: Floats
    beyond: Floats
    amax: float
    point: float


def _density(histogram: Histogram) -> _Density:
    edges = _edges(histogram)
    counts = histogram.counts[: len(edges) - 1].astype(np.float64)
    counts[0] = min(counts[0], counts[1])
    widths, point = np.diff(edges), 0.0
    if not widths[-1]:  # the last bin holds its lower edge only, where an activation saturates
        point, counts[-1], widths[-1] = float(counts[-1]), 0.0, 1.0
    weights = counts / widths
    squares = edges * edges
    moments = weights * np.diff([edges, squares / 2, squares * edges / 3], axis=1)
    beyond = np.zeros((3, len(edges)))
    beyond[:, :-1] = np.cumsum(moments[:, ::-1], axis=1)[:, ::-1]
    return _Density(edges, weights, beyond, histogram.amax, point)


def _squared_errors(density: _Density, thresholds: Floats) -> Floats:
    """Return (n,) sums of squared errors of rounding a tensor to int8 with each of (n,) thresholds.

    Let step s = threshold / 127, ``u = |x| / s`` and ``k = min(round(u), 127)``. The squared error integrated from 0 to
    x is ``s**3 (k / 12 + (u - k)**3 / 3)``. That is k whole cells of 1/12 each and the rest of one, which beyond 127 is
    the clipped part. Counts are taken as spread evenly over their bin, the last up to the largest magnitude. Bin 0
    counts at most as many values as bin 1: the surplus is zeros, which cost nothing.
    """
    steps = thresholds / LEVELS
    return np.concatenate([_sums(density, steps[at : at + _CHUNK]) for at in range(0, len(steps), _CHUNK)])


def _sums(density: _Density, steps: Floats) -> Floats:
    """Return (n,) sums of squared errors: moments for bins that every step clips, edge by edge for those below."""
    limit = (LEVELS + 0.5) * steps.max()
    cut = min(int(np.searchsorted(density.edges, limit)), len(density.weights))
    integral = _integral(density.edges[: cut + 1] / steps[:, None])
    inside = (np.diff(integral, axis=1) * density.weights[:cut]).sum(axis=1) * steps**3
    ends = LEVELS * steps
    number, first, second = density.beyond[:, cut]
    clipped = second - 2 * ends * first + ends**2 * number
    peak = (density.amax - np.minimum(np.rint(density.amax / steps), LEVELS) * steps) ** 2
    total: Floats = inside + clipped + density.point * peak
    return total


def _integral(u: Floats) -> Floats:
    """Return the squared rounding error integrated from 0 to u, in steps; overwrites u."""
    k = np.rint(u)
    np.minimum(k, LEVELS, out=k)
    u -= k
    u *= u * u / 3
    k /= 12
    u += k
    return u
