"""When more images would not move the ranges."""

import pytest

from edgert.quantization.calibration import range_calibrator
from edgert.quantization.calibration.range_calibrator import Settling
from edgert.quantization.calibration.value_histogram import Histogram
from tests.unit.quantization.histograms import of


def test_half_a_percent_is_the_limit() -> None:
    settling = Settling([("a",)], "minmax")
    assert settling.has_settled({"a": of(1.0)}, {"a": of(1.0)})
    assert settling.has_settled({"a": of(1.0)}, {"a": of(1.004)})
    assert not settling.has_settled({"a": of(1.0)}, {"a": of(1.006)})
    assert not settling.has_settled({"a": of(1.0)}, {"a": of(0.99)})


def test_every_range_must_have_settled() -> None:
    settling = Settling([("a",), ("b",)], "minmax")
    before = {"a": of(1.0), "b": of(1.0)}
    assert not settling.has_settled(before, {"a": of(1.0), "b": of(2.0)})
    assert not settling.has_settled(before, {"a": of(2.0), "b": of(1.0)})
    assert settling.has_settled(before, before)


def test_a_range_of_several_tensors_is_theirs_together() -> None:
    settling = Settling([("a", "b", "a")], "minmax")
    assert settling.has_settled({"a": of(1.0), "b": of(5.0)}, {"a": of(2.0), "b": of(5.0)})


def test_a_tensor_of_zeros_has_settled() -> None:
    assert Settling([("a",)], "mse").has_settled({"a": of(0.0)}, {"a": of(0.0)})


def test_thresholds_are_computed_once_and_no_more_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def counting(histogram: Histogram, method: str) -> float:
        asked.append(histogram.amax)
        return histogram.amax

    monkeypatch.setattr(range_calibrator, "threshold", counting)
    settling = Settling([("a",), ("b",), ("c",)], "mse")
    first = {"a": of(1), "b": of(2), "c": of(3)}
    second = {"a": of(1), "b": of(20), "c": of(3)}
    third = {"a": of(1), "b": of(20), "c": of(3)}
    assert not settling.has_settled(first, second)
    assert asked == [1, 1, 20, 2]
    asked.clear()
    assert settling.has_settled(second, third)
    assert asked == [20, 1, 3, 3]  # b moved last and goes first; what is known of `second` is not computed again
