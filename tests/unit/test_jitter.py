"""Quantiles of times: made, drawn from again, and their mean."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from edgert.jitter import AT, SLOT_MS, STEADY, Jitter, draw, jitter_of, mean_of, quantiles_of


def lognormal(count: int) -> list[float]:
    return [float(one) for one in np.random.default_rng(1).lognormal(2.0, 0.2, count)]


def test_what_is_drawn_scatters_as_what_was_measured() -> None:
    times = lognormal(2000)
    spread, chance = quantiles_of([times]), Random(3)
    drawn = np.array([draw(spread, chance) for _ in range(20000)]) * np.median(times)
    for percent in (1, 10, 50, 90, 99):
        assert np.percentile(drawn, percent) == pytest.approx(np.percentile(times, percent), rel=0.03)
    assert mean_of(spread) * np.median(times) == pytest.approx(np.mean(times), rel=0.01)


def test_each_round_counts_against_its_own_median() -> None:
    times = lognormal(500)
    slower = [1.45 * one for one in times]
    assert quantiles_of([times, slower]) == pytest.approx(quantiles_of([times]), rel=0.02)


def test_one_time_does_not_scatter() -> None:
    assert quantiles_of([[7.0]]) == (1.0,) * len(AT)
    assert draw((), Random(0)) == mean_of(()) == 1.0


def test_the_same_seed_draws_the_same() -> None:
    spread = quantiles_of([lognormal(100)])
    first, second = Random(5), Random(5)
    assert [draw(spread, first) for _ in range(9)] == [draw(spread, second) for _ in range(9)]


def test_a_slow_spell_is_kept_apart_from_single_times() -> None:
    at_ms = np.arange(0.0, 400 * SLOT_MS, SLOT_MS / 10)
    usual = np.where((at_ms >= 100 * SLOT_MS) & (at_ms < 160 * SLOT_MS), 14.0, 8.0)
    times_ms = usual * np.random.default_rng(2).lognormal(0.0, 0.05, len(at_ms))
    found = jitter_of(at_ms, times_ms, 400)
    slow_phases = np.array(found.slow_phases) * np.mean(times_ms) / np.median(times_ms)
    assert slow_phases[100:160] == pytest.approx(1.75, rel=0.1) and np.delete(
        slow_phases, range(100, 160)
    ) == pytest.approx(1.0, rel=0.1)
    assert 1.05 < found.quantiles[AT.index(0.99)] < 1.2
    assert mean_of(found.quantiles) * np.mean(found.slow_phases) == pytest.approx(found.mean, rel=0.02)


def test_one_time_that_stands_out_is_no_spell() -> None:
    times_ms = np.full(200, 4.0)
    times_ms[50::50] = 20.0
    found = jitter_of(np.arange(200) * 33.0, times_ms, 132)
    assert set(found.slow_phases) == {float(f"{4.0 / np.mean(times_ms):.4g}")} and found.quantiles[-1] == 5.0


def test_where_nothing_was_done_it_is_as_before() -> None:
    found = jitter_of(np.repeat([2.5, 3.5], 9) * SLOT_MS, np.repeat([4.0, 12.0], 9), 6)
    assert found.slow_phases == (0.5, 0.5, 0.5, 1.5, 1.5, 1.5)
    nothing = np.array([])
    assert jitter_of(nothing, nothing, 3) == STEADY and not STEADY and STEADY.mean == 1.0
    assert Jitter(slow_phases=(1.0,)) and jitter_of(np.array([1.0, 2.0]), np.array([0.0, 0.0]), 1) == STEADY
