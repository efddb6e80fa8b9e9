"""Which runs tell how times jitter on a machine left alone."""

from __future__ import annotations

import pytest

from edgert.benchmark.measure import Run, jitter
from edgert.jitter import AT


def runs(*wall_ms: float, taken: float = 0.0) -> list[Run]:
    return [Run(time_ms * (1 - taken), time_ms) for time_ms in wall_ms]


def test_jitter_is_of_the_rounds_in_which_others_left_the_core_alone() -> None:
    calm = [runs(9.0, 10.0, 11.0, 9.0, 10.0, 11.0), runs(18.0, 20.0, 22.0, 18.0, 20.0, 22.0)]  # slower is no jitter
    preempted, slowed = runs(10.0, 10.0, 90.0, taken=0.3), runs(10.0, 10.0, 10.0, 14.5, 14.5, 14.5)
    found = jitter([*calm, preempted, slowed])
    assert found[0] == pytest.approx(0.9) and found[AT.index(0.5)] == 1.0 and found[-1] == pytest.approx(1.1)


def test_where_no_round_was_left_alone_the_best_counts() -> None:
    found = jitter([runs(10.0, 90.0, 10.0, 10.0, taken=0.5), runs(10.0, 12.0, 10.0, 10.0, taken=0.2)])
    assert found[-1] == pytest.approx(1.2)
