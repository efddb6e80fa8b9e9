"""Quantiles of times: made, drawn from again, and their mean."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from edgert.spread import AT, draw, mean_of, spread_of


def lognormal(count: int) -> list[float]:
    return [float(one) for one in np.random.default_rng(1).lognormal(2.0, 0.2, count)]


def test_what_is_drawn_scatters_as_what_was_measured() -> None:
    times = lognormal(2000)
    spread, chance = spread_of([times]), Random(3)
    drawn = np.array([draw(spread, chance) for _ in range(20000)]) * np.median(times)
    for percent in (1, 10, 50, 90, 99):
        assert np.percentile(drawn, percent) == pytest.approx(np.percentile(times, percent), rel=0.03)
    assert mean_of(spread) * np.median(times) == pytest.approx(np.mean(times), rel=0.01)


def test_each_round_counts_against_its_own_median() -> None:
    times = lognormal(500)
    slower = [1.45 * one for one in times]
    assert spread_of([times, slower]) == pytest.approx(spread_of([times]), rel=0.02)


def test_one_time_does_not_scatter() -> None:
    assert spread_of([[7.0]]) == (1.0,) * len(AT)
    assert draw((), Random(0)) == mean_of(()) == 1.0


def test_the_same_seed_draws_the_same() -> None:
    spread = spread_of([lognormal(100)])
    first, second = Random(5), Random(5)
    assert [draw(spread, first) for _ in range(9)] == [draw(spread, second) for _ in range(9)]
