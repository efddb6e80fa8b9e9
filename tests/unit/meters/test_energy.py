from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from edgert.meters import measured, modeled, unavailable
from edgert.meters.energy import SENSOR_AVERAGE_S, Energy

S = 1_000_000_000


def test_joules_are_the_area_under_the_samples() -> None:
    energy = Energy()
    for second, watts in enumerate((10.0, 20.0, 20.0)):
        energy.add(second * S, measured(watts, "W", "x"))
    assert (energy.joules, energy.average_w, energy.recent_w(1.0)) == (35.0, 17.5, 20.0)
    assert energy.recent_w(1.5) == pytest.approx((20.0 + 7.5) / 1.5)


def test_time_without_a_sensor_is_missing_and_not_zero_watts() -> None:
    energy = Energy()
    for second, watts in enumerate((10.0, None, 10.0, 10.0)):
        energy.add(second * S, unavailable("W", "x", "gone") if watts is None else measured(watts, "W", "x"))
    assert (energy.joules, energy.covered_s, energy.missing_s, energy.average_w) == (10.0, 1.0, 2.0, 10.0)


def test_modeled_time_is_told_apart() -> None:
    energy = Energy()
    energy.add(0, measured(10.0, "W", "x"))
    energy.add(S, modeled(10.0, "W", "y"))
    assert (energy.modeled_s, energy.joules) == (1.0, 10.0)


def test_a_long_pause_is_not_guessed_and_time_that_stands_still_is_ignored() -> None:
    energy = Energy()
    for at in (0, 0, 60 * S):
        energy.add(at, measured(10.0, "W", "x"))
    assert (energy.joules, energy.missing_s, energy.recent_w(1.0), energy.average_w) == (0.0, 60.0, None, None)


@given(st.floats(0.3, 4.0), st.floats(0.0, math.tau))
def test_half_second_samples_of_an_averaging_sensor_give_the_energy_of_a_swinging_load(hz: float, phase: float) -> None:
    """A load between 5 and 15 W; the sensor says its mean over the last 0.43 s."""

    def spent_j(at_s: float) -> float:
        return 10.0 * at_s - 5.0 / (math.tau * hz) * math.cos(math.tau * hz * at_s + phase)

    energy = Energy()
    for look in range(121):
        at_s = look / 2
        watts = (spent_j(at_s) - spent_j(at_s - SENSOR_AVERAGE_S)) / SENSOR_AVERAGE_S
        energy.add(round(at_s * S), measured(watts, "W", "x"))
    assert energy.joules == pytest.approx(spent_j(60.0) - spent_j(0.0), rel=0.16)
    assert energy.covered_s == 60.0
