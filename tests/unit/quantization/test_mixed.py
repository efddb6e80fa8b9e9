import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edgert.errors import CalibrationError
from edgert.quantization.recovery import MixedPrecision, scan, search
from tests.helpers.virtual_clock import VirtualClock

Measure = Callable[[frozenset[str]], float]


class Measured:
    """A function of the kept units that records what was asked of it, and takes 10 s on the clock each time."""

    def __init__(self, function: Measure, stop_at: int | None = None) -> None:
        self.asked: list[frozenset[str]] = []
        self.clock = VirtualClock()
        self._function, self._stop_at = function, stop_at

    def __call__(self, kept: frozenset[str]) -> float:
        if len(self.asked) == self._stop_at:
            raise KeyboardInterrupt
        self.asked.append(kept)
        self.clock.wait(threading.Event(), 10)
        return self._function(kept)


def units(count: int) -> list[str]:
    return [f"u{position}" for position in range(count)]


def additive(losses: dict[str, float]) -> Measure:
    return lambda kept: 1 - sum(loss for name, loss in losses.items() if name not in kept)


def interacting(seed: int, count: int) -> Measure:
    """Losses of units, of pairs (gone when either is kept) and of others (gone when both are): single gains mislead."""
    rng = np.random.default_rng(seed)
    single = rng.exponential(1.0, count) * (rng.random(count) < 0.6)
    either, both = (np.triu(rng.exponential(1.0, (count, count)) * (rng.random((count, count)) < 0.2), 1) for _ in "ab")

    def measure(kept: frozenset[str]) -> float:
        held = np.array([f"u{position}" in kept for position in range(count)], np.float64)
        return float(-single @ (1 - held) - (1 - held) @ either @ (1 - held) - both.sum() + held @ both @ held)

    return measure


def fewest(names: list[str], measure: Measure, floor: float) -> int:
    """Brute force."""
    for size in range(len(names) + 1):
        if any(measure(frozenset(kept)) >= floor for kept in itertools.combinations(names, size)):
            return size
    return len(names) + 1


def found(names: list[str], measure: Measure, floor: float) -> MixedPrecision:
    """Scan, then search: as they are used together."""
    return search(tuple(scan(names, lambda kept: -measure(kept))), measure, floor)


def test_nothing_is_kept_when_nothing_needs_to_be() -> None:
    accuracy = Measured(lambda kept: 0.9)
    result = search(units(5), accuracy, 0.9)
    assert (result.kept, result.value, result.met, result.is_complete) == ((), 0.9, True, True)
    assert accuracy.asked == [frozenset()]


def test_the_two_that_matter_are_found_among_many() -> None:
    losses = {**dict.fromkeys(units(100), 0.0), "u3": 0.2, "u90": 0.1}
    accuracy = Measured(additive(losses))
    names = tuple(scan(list(losses), lambda kept: -additive(losses)(kept)))
    result = search(names, accuracy, 0.95)
    assert result.kept == ("u3", "u90")
    assert len(accuracy.asked) <= 6
    assert result.reason == "1 reaches 0.95 with 2 of 100 units kept"


def test_the_result_was_measured_and_so_is_what_is_reported_of_it() -> None:
    accuracy = Measured(additive(dict.fromkeys(units(9), 0.01)))
    result = search(units(9), accuracy, 0.955)
    assert len(result.kept) == 5
    assert frozenset(result.kept) in accuracy.asked
    assert set(map(frozenset, result.tried)) == set(accuracy.asked)
    assert len(result.tried) == len(accuracy.asked)  # nothing twice


def test_a_floor_out_of_reach_gives_the_best_there_is_and_reports_it() -> None:
    result = search(units(6), lambda kept: 0.5 + 0.01 * len(kept), 0.9)
    assert not result.met
    assert result.is_complete
    assert result.kept == tuple(units(6))
    assert "below 0.9, and keeping all does not reach it" in result.reason


def test_of_equally_bad_ones_the_smaller_is_returned() -> None:
    result = search(units(6), lambda kept: 0.5, 0.9)
    assert (result.kept, result.met) == ((), False)


def test_nothing_to_keep() -> None:
    assert not search([], lambda kept: 0.5, 0.9).met
    assert search([], lambda kept: 0.5, 0.1).met


def test_a_measure_that_goes_down_again_does_not_mislead() -> None:
    """All kept misses the floor and the first two alone reach it."""
    result = search(units(8), lambda kept: 0.9 if kept >= {"u0", "u1"} and len(kept) < 6 else 0.8, 0.85)
    assert result.kept == ("u0", "u1")
    assert result.met


def test_time_over_while_giving_back_leaves_a_set_that_meets_the_floor() -> None:
    accuracy = Measured(additive({**dict.fromkeys(units(8), 0.0), "u0": 0.3, "u6": 0.3}))
    whole = search(units(8), accuracy.__call__, 0.9)
    assert whole.kept == ("u0", "u6")
    for seconds in range(0, 10 * len(whole.tried), 10):
        accuracy = Measured(additive({**dict.fromkeys(units(8), 0.0), "u0": 0.3, "u6": 0.3}))
        result = search(units(8), accuracy, 0.9, budget_s=seconds, clock=accuracy.clock)
        assert len(accuracy.asked) == max(1, seconds // 10)
        assert not result.is_complete
        assert "time ran out" in result.reason
        assert frozenset(result.kept) in accuracy.asked
        assert result.met == any(value >= 0.9 for value in result.tried.values())


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    measure = interacting(3, 12)
    whole = search(units(12), Measured(measure), -2.0)
    for stop_at in range(0, len(whole.tried), 3):
        state = tmp_path / f"{stop_at}.json"
        first = Measured(measure, stop_at)
        with pytest.raises(KeyboardInterrupt):
            search(units(12), first, -2.0, state=state, key="k")
        second = Measured(measure)
        assert search(units(12), second, -2.0, state=state, key="k") == whole
        assert len(first.asked) + len(second.asked) == len(whole.tried)


def test_another_floor_uses_what_is_known(tmp_path: Path) -> None:
    measure = additive(dict.fromkeys(units(16), 0.01))
    search(units(16), measure, 0.99, state=tmp_path / "s", key="k")
    again = Measured(measure)
    search(units(16), again, 0.92, state=tmp_path / "s", key="k")
    assert frozenset() not in again.asked
    assert len(again.asked) < len(search(units(16), measure, 0.92).tried)


def test_numbers_that_are_none() -> None:
    with pytest.raises(CalibrationError, match="floor"):
        search(units(2), lambda kept: 1.0, float("nan"))
    with pytest.raises(CalibrationError, match="with 'u0' in higher precision is nan"):
        search(units(2), lambda kept: float("nan") if kept else 0.0, 1.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=7), st.integers(0, 100))
def test_with_additive_losses_the_fewest_are_kept(losses: list[int], allowed: int) -> None:
    table = {f"u{position}": float(loss) for position, loss in enumerate(losses)}
    result = found(list(table), additive(table), 1.0 - allowed)
    assert result.met
    assert len(result.kept) == fewest(list(table), additive(table), 1.0 - allowed)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.randoms(use_true_random=False))
def test_whatever_the_measure_no_unit_of_the_result_can_be_missed(count: int, random: Random) -> None:
    values: dict[frozenset[str], float] = {}

    def measure(kept: frozenset[str]) -> float:
        return values.setdefault(kept, random.random())

    result = search(units(count), measure, 0.6)
    assert values[frozenset(result.kept)] == result.value
    assert result.met == (result.value >= 0.6)
    if result.met:
        assert all(measure(frozenset(result.kept) - {unit}) < 0.6 for unit in result.kept)
    else:
        assert result.value == max(result.tried.values())


def test_with_interactions_it_stays_near_the_fewest() -> None:
    excess, most = [], []
    for seed in range(40):
        measure = interacting(seed, 10)
        floor = 0.3 * measure(frozenset())
        result = found(units(10), measure, floor)
        assert result.met
        excess.append(len(result.kept) - fewest(units(10), measure, floor))
        most.append(len(result.tried))
    assert np.mean(excess) <= 0.8
    assert max(excess) <= 3
    assert max(most) <= 30


def test_units_that_cannot_be_spared_are_not_tried() -> None:
    tried: list[frozenset[str]] = []
    asked: list[frozenset[str]] = []

    def measure(kept: frozenset[str]) -> float:
        tried.append(kept)
        return float({"a", "d"} <= kept)

    def spares(whole: frozenset[str], rest: frozenset[str]) -> bool:
        assert whole == frozenset("abcd")
        asked.append(rest)
        return "c" in rest

    assert search(list("abcd"), measure, 1.0).kept == ("a", "d")
    tried.clear()
    found = search(list("abcd"), measure, 1.0, may_drop=spares)
    assert found.kept == ("a", "c", "d") and found.met
    assert frozenset("abd") in asked and frozenset("abd") not in tried
