"""Histograms: what they hold depends on the values and on nothing else."""

import copy
import json
import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from edgert.errors import CalibrationError
from edgert.quantization.calibration.value_histogram import BINS, MIN_EXPONENT, Histogram
from tests.unit.quantization.histograms import of

Array = npt.NDArray[Any]

EDGES = [0.0, -0.0, 2.0**-149, -(2.0**-126), 2.0**-33, 2.0**-32, 1.0, -1.0, 2.0, -6.0, 255.0, 2.0**127]
FLOATS = st.one_of(
    st.sampled_from(EDGES),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-8, 8, width=32),
    st.integers(-127, 127).map(lambda k: 2.0**k),
)
LISTS = st.lists(FLOATS, max_size=60)


def exactly(values: list[float]) -> tuple[int, list[int]]:
    """Exponent and counts by whole-number arithmetic."""
    exponent = MIN_EXPONENT
    while any(abs(Fraction(value)) >= Fraction(2) ** exponent for value in values):
        exponent += 1
    counts = [0] * BINS
    for value in values:
        counts[math.floor(abs(Fraction(value)) * Fraction(2) ** (11 - exponent))] += 1
    return exponent, counts


@settings(deadline=None)
@given(LISTS)
def test_counts_are_those_of_exact_arithmetic(values: list[float]) -> None:
    histogram = of(values)
    assert (histogram.exponent, histogram.counts.tolist()) == exactly(values)
    assert histogram.values == len(values)
    assert (histogram.low, histogram.high) == (min(values, default=0.0), max(values, default=0.0))
    assert histogram.amax == max(map(abs, values), default=0.0)


@settings(deadline=None)
@given(LISTS, st.data())
def test_order_batches_and_merging_do_not_matter(values: list[float], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(values))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=5)))
    parts = [shuffled[start:end] for start, end in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    whole, one_by_one = of(values), of(*([value] for value in shuffled))
    merged = Histogram.merged(data.draw(st.permutations([of(part) for part in parts])))
    assert whole == of(*parts) == one_by_one == merged
    assert whole.digest == one_by_one.digest == merged.digest
    assert whole.to_json() == merged.to_json()


@settings(deadline=None)
@given(LISTS)
def test_json_and_copies_keep_all(values: list[float]) -> None:
    histogram = of(values)
    again = Histogram.from_json(json.loads(json.dumps(histogram.to_json())))
    assert again == histogram == copy.deepcopy(histogram)
    assert (again.low, again.high, again.digest) == (histogram.low, histogram.high, histogram.digest)


@pytest.mark.parametrize("values", [[], [0.0], [-0.0, 0.0], [2.0**-149, -(2.0**-33)]])
def test_what_stays_below_the_least_range_counts_as_zero(values: list[float]) -> None:
    histogram = of(values)
    assert histogram.is_zero
    assert histogram.exponent == MIN_EXPONENT
    assert not of([2.0**-32]).is_zero
    assert math.copysign(1, of([-0.0]).low) == 1


def large(kind: str, values: int) -> Array:
    rng = np.random.default_rng(3)
    normal = rng.normal(0, 1, values).astype(np.float32)
    kinds = {"normal": normal, "relu": np.maximum(normal, 0), "zero": 0 * normal, "growing": normal * np.arange(values)}
    return kinds[kind].astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "relu", "zero", "growing"])
@pytest.mark.parametrize("values", [2**16 - 1, 2**16, 2**18, 2**19 + 7])
def test_large_arrays_are_counted_block_by_block(kind: str, values: int) -> None:
    array = large(kind, values)
    histogram = of(array)
    exponent = math.frexp(float(np.abs(array).max()))[1] if array.any() else MIN_EXPONENT
    bins = np.floor(np.abs(array).astype(np.float64) * 2.0 ** (11 - exponent)).astype(np.int64)
    assert histogram.exponent == exponent
    assert np.array_equal(histogram.counts, np.bincount(bins, minlength=BINS))
    assert histogram == Histogram.merged(of(part) for part in np.array_split(array, 13))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8])
def test_other_types_count_as_their_float32(dtype: type) -> None:
    array: Array = np.linspace(0, 200, 999).astype(dtype)
    histogram = Histogram()
    histogram.add(array)
    assert histogram == of(array.astype(np.float32))


def test_shape_and_strides_do_not_matter() -> None:
    array = large("normal", 24 * 24).reshape(2, 3, 4, 24)
    views = [array.T, array[::-1, :, ::-1], np.asfortranarray(array), array.astype(">f4")]
    assert {of(array).digest} == {of(view).digest for view in views}
    sparse = np.zeros((2, 3, 8, 24), np.float32)
    sparse[:, :, ::2] = array
    assert of(sparse[:, :, ::2]) == of(array)
    assert of(np.float32(3)) == of([3.0])
    assert of(np.empty((0, 3), np.float32)) == Histogram()


def test_the_array_is_only_read() -> None:
    array = large("normal", 1000)
    array.flags.writeable = False
    before = array.copy()
    of(array)
    assert np.array_equal(array, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 2**18 + 5])
def test_what_is_not_finite_is_refused_and_nothing_counted(bad: float, place: int) -> None:
    array = large("normal", 2**18 + 10)
    array[place] = bad
    histogram = of([1.0, -3.0])
    before = copy.deepcopy(histogram)
    with pytest.raises(CalibrationError) as caught:
        histogram.add(array)
    assert histogram == before
    assert ("1 NaN and 0 infinite" if np.isnan(bad) else "0 NaN and 1 infinite") in caught.value.why


def test_a_float64_beyond_float32_is_infinite() -> None:
    with pytest.raises(CalibrationError, match="not finite"):
        Histogram().add(np.array([1e300]))


def test_only_real_numbers_are_counted() -> None:
    for array in (np.array([1j]), np.array(["1"])):
        with pytest.raises(TypeError):
            Histogram().add(array)


def test_threads_count_side_by_side() -> None:
    arrays = [large(kind, 2**17 + 3) for kind in ("normal", "relu", "zero", "growing")] * 3
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(of, arrays)) == [of(array) for array in arrays]


def test_merging_leaves_the_other_alone() -> None:
    small, great = of([0.5]), of([100.0])
    before = copy.deepcopy(small)
    great.merge(small)
    small.merge(Histogram())
    assert small == before
    merged = Histogram.merged([small])
    merged.add(np.array([7.0]))
    assert small == before != merged


DAMAGE: list[tuple[str, Any, str]] = [
    ("low", 0.25, "checksum"),
    ("high", 1e39, "extremes"),
    ("exponent", 5, "extremes"),
    ("values", 7, "add up"),
    ("digest", "00", "checksum"),
    ("counts", "????", "Error"),
    ("counts", "AAAA", "error"),
    ("counts", Histogram().to_json()["counts"], "add up"),
    ("counts", of([0.5, 1.0]).to_json()["counts"], "extremes"),
    ("low", None, "TypeError"),
    ("values", "many", "ValueError"),
]


@pytest.mark.parametrize(("key", "value", "why"), DAMAGE)
def test_a_damaged_one_is_refused(key: str, value: object, why: str) -> None:
    content = of([0.5, 3.0]).to_json()
    with pytest.raises(CalibrationError, match="damaged") as caught:
        Histogram.from_json({**content, key: value})
    assert why in caught.value.why
    with pytest.raises(CalibrationError, match="damaged"):
        Histogram.from_json({name: part for name, part in content.items() if name != key})
