"""The last results of a thread, and how long it had worked for each."""

from __future__ import annotations

import pytest

from edgert.runtime.history import KEPT, History
from edgert.spread import EVEN


def test_before_anything_happened() -> None:
    history = History()
    assert history.span_ns is None and history.scatter(0, 10) == EVEN


def test_the_oldest_go() -> None:
    history = History()
    for number in range(KEPT + 100):
        history.add(number * 1_000_000, 5_000_000 if number < KEPT else 10_000_000)
    assert history.span_ns == (100 * 1_000_000, (KEPT + 99) * 1_000_000)
    told = history.scatter(*history.span_ns)
    assert len(set(told.spells[:-3])) == 1 and told.spells[-1] == pytest.approx(2 * told.spells[0], rel=0.001)


def test_only_what_lies_between_two_moments_counts() -> None:
    history = History()
    for number in range(20):
        history.add(number * 50_000_000, 1_000_000 if number < 10 else 9_000_000)
    told = history.scatter(0, 9 * 50_000_000)
    assert told.spells == (1.0,) * 10 and set(told.spread) == {1.0}
