import math

import numpy as np
import pytest

from edgert.report.numbers import decibels, difference, fixed, milliseconds, score, share, significant, times
from edgert.report.quantization_page import clipped_share, own_sqnr_db
from edgert.report.quantization_record import TensorRow


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"), (3.14159, "3.14"), (0.025301, "0.0253"), (412.4, "412"), (1999.6, "2000"), (99950.0, "10⁵"),
        (-2.5, "−2.5"), (1.2e-7, "1.2×10⁻⁷"), (1e9, "10⁹"), (math.inf, "∞"), (9.999, "10"), (1.0, "1"),
    ],
)  # fmt: skip
def test_three_digits_that_matter(value: float, expected: str) -> None:
    assert significant(value) == expected


def test_units_do_not_wrap_away() -> None:
    written = [
        score(0.7012, "percent"),
        difference(0.0042, "percent"),
        milliseconds(12.345),
        decibels(31.26),
        share(0.00013),
    ]
    assert written == [f"{number}\N{NO-BREAK SPACE}{unit}" for number, unit in (
        ("70.12", "%"), ("0.42", "points"), ("12.3", "ms"), ("31.3", "dB"), ("0.013", "%"))]  # fmt: skip


def test_no_negative_zero_and_no_false_precision() -> None:
    assert fixed(-0.001, 2) == "0.00"
    assert [times(1.83), times(12.4), times(9.96)] == ["1.8×", "12×", "10×"]
    assert [decibels(None), decibels(math.inf), decibels(math.nan)] == ["–", "exact", "–"]
    assert [share(0.0), share(1.0), share(1e-7)] == ["none", "all", "under 0.001\N{NO-BREAK SPACE}%"]


@pytest.mark.parametrize("threshold", [6.0, 4.2, 1.0])
def test_noise_of_one_tensor_follows_from_its_histogram(threshold: float) -> None:
    values = np.random.default_rng(3).exponential(0.7, 200_000).clip(0, 6.0)
    values[:50_000] = 0.0  # as after a ReLU
    counts, _ = np.histogram(values, 2048, (0.0, 8.0))
    row = TensorRow("x", counts, 3, 6.0, {"mse": threshold}, "mse")
    step = threshold / 127
    rounded = np.minimum(np.rint(values / step), 127) * step
    true_db = 10 * math.log10(float((values**2).sum() / ((values - rounded) ** 2).sum()))
    assert own_sqnr_db(row) == pytest.approx(true_db, abs=0.3)
    assert clipped_share(row) == pytest.approx(float((values > threshold).mean()), abs=1e-3)


def test_a_tensor_that_is_always_zero_loses_nothing() -> None:
    counts = np.zeros(2048, np.int64)
    counts[0] = 500
    assert own_sqnr_db(TensorRow("x", counts, -10, 0.0, {"mse": 1e-9}, "mse")) == math.inf
