"""Integer programs against every assignment that keeps the conditions."""

from __future__ import annotations

import numpy as np
import pytest

from edgert.errors import PlacementError
from edgert.placement.cutting import segments
from edgert.placement.exact import Condition, exact, keeps, plain
from edgert.placement.frontier import front, pareto
from edgert.placement.min_cut import cut
from edgert.placement.run_load import ENERGY, LATENCY, Price
from tests.helpers.placement import BOARD, GPU_DLA, Everything, random_network


def instance(seed: int, largest: int = 9) -> tuple[Everything, np.random.Generator]:
    """Two accelerators, or three with fewer units."""
    random = np.random.default_rng(seed)
    among = BOARD if seed % 3 == 0 else GPU_DLA
    units = int(random.integers(2, 6 if seed % 3 == 0 else largest))
    net = random_network(seed, units, among=among, alike=seed % 2 == 0, home=among[seed % 2], skips=0.6)
    return Everything(net, among), random


@pytest.mark.parametrize("seed", range(60))
def test_least_energy_within_a_latency(seed: int) -> None:
    every, random = instance(seed)
    most = every.latency_ms.min() * random.uniform(1, 1.5)
    found = exact(every.network, every.among, ENERGY, [Condition("latency", LATENCY, most)])
    assert found.cost == pytest.approx(every.energy_mj[every.latency_ms <= most].min(), rel=1e-6)
    assert found.gap <= 1e-5 and found.load.latency_ms <= most * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(60))
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
            exact(every.network, every.among, price, loadables={"dla0": most})
    else:
        found = exact(every.network, every.among, price, loadables={"dla0": most})
        assert found.cost == pytest.approx(best, rel=1e-5)
        assert found.load.segments.get("dla0", 0) <= most


@pytest.mark.parametrize("seed", range(40))
def test_least_latency_within_a_power(seed: int) -> None:
    """Where latency has a negative price, no tensor may move only to gain by it."""
    every, random = instance(seed)
    watts = random.uniform(3, 14)
    power = Condition("power", Price(latency=-watts, energy=1.0), 0.0)
    allowed = every.energy_mj <= watts * every.latency_ms
    if allowed.any():
        found = exact(every.network, every.among, LATENCY, [power])
        assert found.cost == pytest.approx(every.latency_ms[allowed].min(), rel=1e-5)
    else:
        with pytest.raises(PlacementError):
            exact(every.network, every.among, LATENCY, [power])


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
    found = exact(net, GPU_DLA, ENERGY, [Condition("latency", LATENCY, most)], loadables={"dla0": 2})
    assert found.cost == pytest.approx(best, rel=1e-5)


def test_memory_of_one_accelerator() -> None:
    net = random_network(5, 8, forbidden=0.0)
    every = Everything(net)
    weights = np.array([unit.weight_bytes for unit in net.units])
    kept = (every.labels * weights).sum(axis=1) <= 1500
    few = Condition("weights on dla0", Price(), 1500, weights={"dla0": 1.0})
    found = exact(net, GPU_DLA, ENERGY, [few])
    assert found.cost == pytest.approx(every.energy_mj[kept].min(), rel=1e-6)
    assert found.load.weight_bytes["dla0"] <= 1500


def test_what_cannot_be_says_what_could() -> None:
    net = random_network(5, 8)
    quickest = cut(net, *GPU_DLA, LATENCY).cost
    with pytest.raises(PlacementError, match="no placement of net keeps all its limits") as caught:
        exact(net, GPU_DLA, ENERGY, [Condition("latency", LATENCY, quickest / 2)])
    assert f"alone it can be {quickest:.4g}" in caught.value.why


def test_without_time_the_best_plain_placement_stands_in() -> None:
    net = random_network(5, 30)
    found = exact(net, GPU_DLA, ENERGY, time_limit_s=0.0)
    simple = plain(net, GPU_DLA, ENERGY)
    assert simple is not None and found.cost == simple[0] and found.gap > 0
    with pytest.raises(PlacementError, match="found in time"):
        exact(net, GPU_DLA, ENERGY, [Condition("latency", LATENCY, 1e-3)], time_limit_s=0.0)


def test_a_condition_on_some_units_counts_only_those() -> None:
    net = random_network(7, 6)
    home = ("gpu",) * 6
    time_ms = [unit.costs["gpu"].time_ms for unit in net.units]
    assert keeps(net, home, [Condition("two", LATENCY, time_ms[0] + time_ms[1], units=range(2))], {})
    assert not keeps(net, home, [Condition("two", LATENCY, time_ms[0], units=range(2))], {})
    assert not keeps(net, home, [], {"gpu": 0})


def test_pareto_keeps_what_nothing_beats() -> None:
    rows = [(3, 1), (1, 3), (2, 2), (2, 3), (1, 3), (4, 1)]
    assert pareto(rows, lambda row: row[0], lambda row: row[1]) == [(1, 3), (2, 2), (3, 1)]


@pytest.mark.parametrize("seed", range(30))
def test_the_front_has_every_corner_of_the_hull(seed: int) -> None:
    net = random_network(seed, 8)
    every, static_w = Everything(net), 4.0
    points = front(net, static_w=static_w)
    energy = every.energy_mj + static_w * every.latency_ms
    assert [point.latency_ms for point in points] == sorted(point.latency_ms for point in points)
    for weight in np.linspace(0.001, 0.999, 50):
        best = (weight * every.latency_ms + (1 - weight) * energy).min()
        found = min(weight * point.latency_ms + (1 - weight) * point.energy_mj for point in points)
        assert found == pytest.approx(best, rel=1e-5)
    assert points[0].latency_ms == pytest.approx(every.latency_ms.min(), rel=1e-4)
