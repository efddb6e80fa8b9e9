"""Integer programs against every assignment that keeps the conditions; accelerators that are never worth having."""

from dataclasses import replace

import numpy as np
import pytest

from edgert.errors import PlacementError
from edgert.placement.exact import Condition, cheapest_plain_placement, exact_placement, keeps_limits
from edgert.placement.min_cut import cut
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.placement.run_load import ENERGY, LATENCY, Price, run_load, segments
from edgert.placement.solver import solve, undominated
from tests.helpers.each import each
from tests.helpers.placement import BOARD, GPU_DLA, Everything, random_network


def instance(seed: int, largest: int = 9) -> tuple[Everything, np.random.Generator]:
    """Two accelerators, or three with fewer units."""
    random = np.random.default_rng(seed)
    among = BOARD if seed % 3 == 0 else GPU_DLA
    units = int(random.integers(2, 6 if seed % 3 == 0 else largest))
    net = random_network(seed, units, among=among, alike=seed % 2 == 0, home=among[seed % 2], skips=0.6)
    return Everything(net, among), random


@each("seed", range(60))
def test_least_energy_within_a_latency(seed: int) -> None:
    every, random = instance(seed)
    most = every.latency_ms.min() * random.uniform(1, 1.5)
    found = exact_placement(every.network, every.among, ENERGY, [Condition("latency", LATENCY, most)])
    assert found.cost == pytest.approx(every.energy_mj[every.latency_ms <= most].min(), rel=1e-6)
    assert found.gap <= 1e-5 and found.use.latency_ms <= most * (1 + 1e-6)


@each("seed", range(60))
def test_least_latency_with_few_loadables(seed: int) -> None:
    every, random = instance(seed)
    price, most = Price(busy={"gpu": 1.0, "dla0": 0.3, "dla1": 0.3}), int(random.integers(0, 3))
    cost, best = every.cost(price), None
    for index in np.argsort(cost, kind="stable"):
        names = [one.accelerator for one in segments(every.network, every.assignment(int(index)))]
        if names.count("dla0") <= most:
            best = cost[index]
            break
    if best is None:
        with pytest.raises(PlacementError, match="keeps all its limits"):
            exact_placement(every.network, every.among, price, loadables={"dla0": most})
    else:
        found = exact_placement(every.network, every.among, price, loadables={"dla0": most})
        assert found.cost == pytest.approx(best, rel=1e-5)
        assert run_load(every.network, found.assignment).segments.get("dla0", 0) <= most


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2100))
def test_14_units_with_a_latency_and_few_loadables(seed: int) -> None:
    net = random_network(seed, 14, skips=0.6)
    every = Everything(net)
    most = every.latency_ms.min() * 1.3
    kept = np.flatnonzero(every.latency_ms <= most)
    best = next(
        every.energy_mj[index]
        for index in kept[np.argsort(every.energy_mj[kept], kind="stable")]
        if [one.accelerator for one in segments(net, every.assignment(int(index)))].count("dla0") <= 2
    )
    found = exact_placement(net, GPU_DLA, ENERGY, [Condition("latency", LATENCY, most)], loadables={"dla0": 2})
    assert found.cost == pytest.approx(best, rel=1e-5)


def test_what_cannot_be_says_what_could() -> None:
    net = random_network(5, 8)
    quickest = cut(net, *GPU_DLA, LATENCY).cost
    with pytest.raises(PlacementError, match="no placement of net keeps all its limits") as caught:
        exact_placement(net, GPU_DLA, ENERGY, [Condition("latency", LATENCY, quickest / 2)])
    assert f"alone it can be {quickest:.4g}" in caught.value.why


def test_without_time_the_best_plain_placement_stands_in() -> None:
    net = random_network(5, 30)
    found = exact_placement(net, GPU_DLA, ENERGY, time_limit_s=0.0)
    simple = cheapest_plain_placement(net, GPU_DLA, ENERGY, (), {})
    assert simple is not None and found.cost == simple[0] and found.gap > 0
    with pytest.raises(PlacementError, match="found in time"):
        exact_placement(net, GPU_DLA, ENERGY, [Condition("latency", LATENCY, 1e-3)], time_limit_s=0.0)


def test_conditions_and_counts_of_segments_are_kept() -> None:
    net = random_network(7, 6)
    home = ("gpu",) * 6
    time_ms = run_load(net, home).latency_ms
    assert keeps_limits(net, home, [Condition("latency", LATENCY, time_ms)], {})
    assert not keeps_limits(net, home, [Condition("latency", LATENCY, 0.99 * time_ms)], {})
    assert not keeps_limits(net, home, [], {"gpu": 0})


def test_where_no_plain_placement_keeps_a_condition_a_mixed_one_is_found() -> None:
    """On neither accelerator alone a network is within the energy; split at the right tensors it is."""
    mixed = 0
    for seed in range(12):
        net = random_network(seed, 8)
        every = Everything(net, GPU_DLA)
        limit = [Condition("energy", ENERGY, float(every.energy_mj.min()) * 1.0001)]
        if cheapest_plain_placement(net, GPU_DLA, LATENCY, limit, {}) is None:
            found = exact_placement(net, GPU_DLA, LATENCY, limit)
            kept = every.energy_mj <= limit[0].most
            assert found.cost == pytest.approx(every.latency_ms[kept].min(), rel=1e-6)
            mixed += len(set(found.assignment)) == 2
    assert mixed


def test_a_bound_is_never_above_the_cost() -> None:
    for seed in range(10):
        every, _ = instance(seed)
        found = exact_placement(every.network, every.among, LATENCY)
        assert found.cost == pytest.approx(every.latency_ms.min(), rel=1e-6)
        assert found.bound <= found.cost and found.gap <= 1e-5


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
