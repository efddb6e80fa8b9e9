"""The last results of a thread, and how long it had worked for each."""

from __future__ import annotations

import pytest

from edgert.jitter import STEADY
from edgert.runtime.metrics import RESULTS, Lateness, Timing


def test_before_anything_happened() -> None:
    timing = Timing()
    assert timing.span_ns is None and timing.jitter(0, 10) == STEADY


def test_the_oldest_go() -> None:
    timing = Timing()
    for number in range(RESULTS + 100):
        timing.worked(5_000_000 if number < RESULTS else 10_000_000)
        timing.passed_on(number * 1_000_000)
    assert timing.span_ns == (100 * 1_000_000, (RESULTS + 99) * 1_000_000)
    found = timing.jitter(*timing.span_ns)
    assert len(set(found.slow_phases[:-3])) == 1 and found.slow_phases[-1] == pytest.approx(
        2 * found.slow_phases[0], rel=0.001
    )


def test_only_what_lies_between_two_moments_counts() -> None:
    timing = Timing()
    for number in range(20):
        timing.worked(1_000_000 if number < 10 else 9_000_000)
        timing.passed_on(number * 50_000_000)
    found = timing.jitter(0, 9 * 50_000_000)
    assert found.slow_phases == (1.0,) * 10 and set(found.quantiles) == {1.0}


def test_a_frame_is_late_after_the_most_punctual() -> None:
    lateness = Lateness()
    found = [
        lateness.of(came_ns, media_ns) for came_ns, media_ns in ((500, 0), (1450, 1000), (2480, 2000), (3450, 3000))
    ]
    assert found == [0, 0, 30, 0]


def test_clocks_that_drift_apart_are_not_late() -> None:
    lateness = Lateness()
    hour = [lateness.of(round(second * 1.00005e9), second * 10**9) for second in range(3600)]
    assert max(hour) == 0


def test_work_on_what_is_held_back_counts_when_it_goes_on() -> None:
    timing = Timing()
    for duration_ms in (1, 1, 8):
        timing.worked(duration_ms * 1_000_000)
    timing.passed_on(7)
    assert timing.span_ns == (7, 7)
    for now_ns, duration_ns in ((8, 10_000_000), (9, 30_000_000)):
        timing.worked(duration_ns, results=0)
        timing.passed_on(now_ns)
    assert timing.jitter(7, 9).quantiles[-1] == pytest.approx(3.0, rel=0.001)  # of 10 / 3, 10 and 30 ms
