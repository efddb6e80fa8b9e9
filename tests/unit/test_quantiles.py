"""Quantiles of times: made, and checked."""

import numpy as np
import pytest

from edgert.quantiles import AT, check_quantiles, quantiles_of


def test_quantiles_are_ratios_to_the_median() -> None:
    times = np.random.default_rng(1).lognormal(2.0, 0.2, 500)
    found = quantiles_of([float(one) for one in times])
    check_quantiles(found)
    assert len(found) == len(AT) and found[AT.index(0.5)] == pytest.approx(1.0)
    assert found[AT.index(0.99)] * np.median(times) == pytest.approx(np.percentile(times, 99))
    assert (found[0], found[-1]) == pytest.approx((times.min() / np.median(times), times.max() / np.median(times)))


def test_one_time_is_its_own_median() -> None:
    assert quantiles_of([7.0]) == (1.0,) * len(AT)


@pytest.mark.parametrize("wrong", [(1.0,), (2.0, *(1.0,) * 24), (float("nan"),) * 25, (0.0, *(1.0,) * 24)])
def test_what_cannot_be_quantiles_is_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="quantiles"):
        check_quantiles(wrong)
    check_quantiles(())
