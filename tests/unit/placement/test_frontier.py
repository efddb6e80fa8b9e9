"""Accelerators that are never worth having."""

from __future__ import annotations

from dataclasses import replace

from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.placement.solver import solve, undominated

NAMES = ("gpu", "dla0", "dla1")


def network(second: float, *, transition: float = 0.1, missing: bool = False, rate_hz: float = 1.0) -> Network:
    """Three units in a row; ``second``: the times of dla1 against those of dla0."""
    units = []
    for number in range(3):
        costs = {"gpu": Cost(1.0, 9.0), "dla0": Cost(2.0, 3.0), "dla1": Cost(2.0 * second, 3.0 * second)}
        if missing and number == 1:
            del costs["dla0"]
        units.append(Unit(f"u{number}", (f"u{number}",), costs))
    there, back = Transition(0.1, 0.05), Transition(transition, 0.05)
    transitions = {("gpu", "dla0"): there, ("dla0", "gpu"): there, ("gpu", "dla1"): back, ("dla1", "gpu"): back}
    edges = [Edge("x", None, (0,), transitions=transitions), Edge("a", 0, (1,), transitions=transitions)]
    edges += [Edge("b", 1, (2,), transitions=transitions), Edge("y", 2, (), is_output=True, transitions=transitions)]
    return Network("net", tuple(units), tuple(edges), rate_hz=rate_hz)


def test_a_slower_twin_and_an_equal_one_are_left_out() -> None:
    assert undominated(network(1.5), NAMES) == ("gpu", "dla0")
    assert undominated(network(1.0), NAMES) == ("gpu", "dla0")
    assert undominated(network(1.0), ("gpu", "dla1", "dla0")) == ("gpu", "dla1")


def test_a_quicker_later_one_replaces_the_first() -> None:
    assert undominated(network(0.5), NAMES) == ("gpu", "dla1")


def test_better_in_one_thing_and_worse_in_another_both_stay() -> None:
    assert undominated(network(0.5, transition=0.2), NAMES) == NAMES
    assert undominated(network(1.5, missing=True), NAMES) == NAMES


def test_home_always_stays() -> None:
    assert "gpu" in undominated(replace(network(1.0), home="gpu"), NAMES)


def test_what_does_not_fit_one_core_in_time_still_uses_the_beaten_one() -> None:
    slow = solve([network(1.2, rate_hz=100)], "energy")
    assert set(slow.networks[0].engines[0].assignment) == {"dla0"}
    busy = solve([network(1.2, rate_hz=190)], "energy")  # 190 × 6 ms are more than a second
    assert {"dla0", "dla1"} <= set(busy.networks[0].engines[0].assignment)
    assert max(busy.utilization.values()) <= 1 + 1e-9
