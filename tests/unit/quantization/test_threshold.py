"""Thresholds, each against a slow way of finding it."""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy

from edgert.errors import CalibrationError
from edgert.quantization.calibration.threshold import (
    METHODS,
    ZERO_AMAX,
    _density,
    _squared_errors,
    entropy,
    percentile,
    threshold,
)
from edgert.quantization.calibration.value_histogram import BINS, Histogram
from tests.helpers.each import each
from tests.unit.quantization.histograms import of

Array = npt.NDArray[Any]

RNG = np.random.default_rng(11)
SIZE = 20_000


def rare(scale: float) -> Array:
    """A normal distribution with one value far out."""
    values = RNG.normal(0, 1, SIZE)
    values[0] = scale
    return values


DATA = {
    "normal": RNG.normal(0, 1, SIZE),
    "laplace": RNG.laplace(0, 3, SIZE),
    "heavy": RNG.standard_t(2.5, SIZE),
    "relu": np.maximum(RNG.normal(0, 1, SIZE), 0),
    "relu6": np.clip(RNG.normal(1, 3, SIZE), 0, 6),
    "uniform": RNG.uniform(-1, 1, SIZE),
    "sigmoid": 1 / (1 + np.exp(-RNG.normal(-3, 2, SIZE))),
    "silu": (lambda x: x / (1 + np.exp(-x)))(RNG.normal(0, 2, SIZE)),
    "image": RNG.integers(0, 256, SIZE) / 255,
    "outlier": rare(30),
    "far outlier": rare(-4000),
    "sparse": np.where(RNG.random(SIZE) < 0.995, 0, RNG.laplace(0, 1, SIZE)),
    "on the grid": RNG.integers(-127, 128, SIZE) / 16,
    "tiny": RNG.normal(0, 1e-7, SIZE),
    "great": RNG.normal(0, 1e30, SIZE),
    "one value": np.full(SIZE, 5.0),
}


def counted(counts: Array) -> Histogram:
    """A histogram with these counts in its bins, each value in the middle of its bin."""
    return of(np.repeat((np.arange(len(counts)) + 0.5) / BINS, counts))


def random_counts(seed: int) -> Array:
    """Counts of many shapes: smooth, ragged, with gaps, spikes and tails."""
    rng = np.random.default_rng(seed)
    top = int(rng.integers(BINS // 2, BINS))
    decay = rng.choice([20, 100, 400, 3000])
    counts: Array = rng.poisson(rng.choice([3, 50, 2000]) * np.exp(-np.arange(top + 1) / decay))
    counts[rng.random(top + 1) < rng.choice([0, 0.2, 0.9])] = 0
    counts[rng.integers(0, top + 1, 3)] += rng.integers(0, 5000, 3)
    counts[0] += rng.choice([0, 100_000])
    counts[top] += 1
    return counts


def squared_error(values: Array, amax: float) -> float:
    """Of int8 on the values themselves."""
    values = np.asarray(values, np.float32).astype(np.float64)
    step = amax / 127
    return float(np.mean((np.clip(np.rint(values / step), -127, 127) * step - values) ** 2))


@each("method", METHODS)
@each("name", DATA)
def test_a_threshold_is_a_positive_float32_up_to_the_largest_magnitude(method: str, name: str) -> None:
    histogram = of(DATA[name])
    found = threshold(histogram, method)
    assert 0 < found <= histogram.amax
    assert found == float(np.float32(found)) == threshold(copy.deepcopy(histogram), method)


def test_minmax_is_the_largest_magnitude() -> None:
    for values in DATA.values():
        assert threshold(of(values), "minmax") == float(np.abs(values.astype(np.float32)).max())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, 2.0**-149, 2.0**-33])
def test_a_tensor_of_zeros_gets_a_floor(method: str, value: float) -> None:
    assert threshold(of(np.array([0.0, value, -value], np.float32)), method) == ZERO_AMAX


def test_an_empty_histogram_has_no_threshold() -> None:
    with pytest.raises(CalibrationError, match="without values"):
        threshold(Histogram(), "minmax")


def test_an_unknown_method_is_refused_with_the_nearest() -> None:
    with pytest.raises(CalibrationError, match="did you mean 'entropy'"):
        threshold(of(DATA["normal"]), "entrpoy")


@pytest.mark.parametrize("percent", [10, 50, 99, 99.9, 99.99])
@pytest.mark.parametrize("name", ["normal", "laplace", "uniform", "heavy", "far outlier"])
def test_a_percentile_is_that_of_the_values(percent: float, name: str) -> None:
    histogram, values = of(DATA[name]), np.sort(np.abs(DATA[name]))
    found = percentile(histogram, percent)
    rank = int(np.ceil(SIZE * percent / 100)) - 1  # the value this many are up to
    assert abs(found - values[rank]) <= histogram.width


def test_a_percentile_is_linear_within_its_bin() -> None:
    counts = np.zeros(BINS, np.int64)
    counts[0], counts[1024], counts[2047] = 4, 4, 1
    found = percentile(counted(counts), 100 * 5 / 9)
    assert found == pytest.approx(1024.25 / BINS, rel=1e-6)


def test_the_hundredth_percentile_is_the_largest_magnitude() -> None:
    for values in DATA.values():
        assert percentile(of(values), 100) == of(values).amax


def slow_divergence(bins: Array, last: int) -> float:
    """The divergence as the method is described: level by level, bin by bin."""
    reference = bins[:last].astype(np.float64)
    reference[-1] += bins[last:].sum()
    quantized = np.zeros(last)
    for level in range(128):
        own = [k for k in range(level * last // 128, last) if k * 128 // last == level]
        full = [k for k in own if bins[k] > 0]
        for k in full:
            quantized[k] = bins[full].sum() / len(full)
    return float(scipy.stats.entropy(reference, quantized))


def plain_divergence(bins: Array, last: int) -> float:
    """The same, all levels at once."""
    level, full = np.arange(last) * 128 // last, bins[:last] > 0
    mass, number = np.bincount(level, bins[:last], 128), np.bincount(level, full, 128)
    quantized = np.where(full, (mass / np.maximum(number, 1))[level], 0)
    reference = bins[:last].astype(np.float64)
    reference[-1] += bins[last:].sum()
    p, q = reference[reference > 0] / reference.sum(), quantized[reference > 0] / max(quantized.sum(), 1)
    return float((p * np.log(p / q)).sum()) if q.all() else np.inf


def plain_entropy(histogram: Histogram) -> float:
    """The whole search, candidate by candidate; of minima equal to 1e-9 the last."""
    bins = histogram.counts[: int(histogram.amax / histogram.width) + 1].copy()
    bins[0] = bins[1]
    found = np.array([plain_divergence(bins, last) for last in range(128, len(bins) + 1)])
    return float((128 + np.flatnonzero(found <= found.min() + 1e-9)[-1]) * histogram.width)


@pytest.mark.parametrize("seed", range(3))
def test_the_reference_divergence_is_the_one_described(seed: int) -> None:
    bins = random_counts(seed)
    for last in (128, 129, 200, len(bins)):
        assert plain_divergence(bins, last) == pytest.approx(slow_divergence(bins, last), rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_entropy_chooses_as_a_slow_search_does_on_random_counts(seed: int) -> None:
    histogram = counted(random_counts(seed))
    assert entropy(histogram) == plain_entropy(histogram)


@pytest.mark.parametrize("name", ["normal", "relu", "heavy", "relu6", "image", "far outlier", "one value"])
def test_entropy_chooses_as_a_slow_search_does_on_values(name: str) -> None:
    histogram = of(DATA[name])
    assert entropy(histogram) == plain_entropy(histogram)
    assert threshold(histogram, "entropy") == np.float32(min(plain_entropy(histogram), histogram.amax))


def test_entropy_does_not_see_a_spike_of_zeros() -> None:
    values = DATA["relu"]
    spiked = np.concatenate((values, np.zeros(10 * SIZE)))
    assert threshold(of(values), "entropy") == threshold(of(spiked), "entropy")


@pytest.mark.parametrize("seed", range(4))
def test_the_squared_error_is_exact_for_values_spread_within_bins(seed: int) -> None:
    counts = random_counts(seed)
    counts = np.minimum(counts, 40)
    counts[0] = counts[1]
    histogram, end = counted(counts), len(counts) / BINS
    histogram.add(np.array([end], np.float32))  # the last bin of the others is full to its edge
    inner = (np.arange(64) + 0.5) / 64
    spread = np.repeat((np.arange(len(counts))[:, None] + inner) / BINS, counts, axis=0).ravel()
    values = np.append(spread, np.full(64, end))
    for amax in (end, 0.5, 0.1, 0.02, 0.004):  # the last step is 1/16 of a bin
        found = float(_squared_errors(_density(histogram), np.array([amax]))[0]) / histogram.values
        assert found == pytest.approx(squared_error(values, amax), rel=0.002)


@pytest.mark.parametrize("name", DATA)
def test_mse_is_as_good_as_brute_force_on_the_values(name: str) -> None:
    histogram = of(DATA[name])
    found = squared_error(DATA[name], threshold(histogram, "mse"))
    tried = histogram.amax * np.concatenate((np.linspace(0.05, 1, 191), np.geomspace(0.0005, 0.05, 40)))
    best = min(squared_error(DATA[name], amax) for amax in tried)
    assert found <= 1.03 * best + 1e-4 * histogram.width**2
    assert found <= squared_error(DATA[name], histogram.amax) * (1 + 1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("power", [-20, 7, 90])
def test_thresholds_scale_with_the_values(method: str, power: int) -> None:
    values = DATA["laplace"].astype(np.float32)
    scaled = values * np.float32(2.0**power)
    assert threshold(of(scaled), method) == threshold(of(values), method) * 2.0**power
