"""Loads, segments and cuts, against every assignment there is."""

import numpy as np
import pytest

from edgert.errors import PlacementError
from edgert.placement.exact import exact_placement
from edgert.placement.min_cut import Cutter, cut
from edgert.placement.problem import GPU, Cost, Edge, Network, Transition, Unit
from edgert.placement.run_load import (
    ENERGY,
    LATENCY,
    Load,
    Price,
    accelerators,
    neighbors,
    preferred_assignment,
    run_load,
    segments,
    transitions_of,
)
from tests.helpers.each import each
from tests.helpers.placement import BOARD, GPU_DLA, Everything, random_network

PRICED = Price(energy=0.02, traffic=1e-7, busy={"gpu": 0.7, "dla0": 0.4, "dla1": 0.3})
PRICES = (LATENCY, ENERGY, Price(latency=1, energy=0.1), PRICED)


def fork(*, home: str = "gpu") -> Network:
    """One unit read by two, whose outputs leave."""
    cost = {"gpu": Cost(1.0, 10.0, 100.0), "dla0": Cost(2.0, 2.0, 100.0)}
    over = {("gpu", "dla0"): Transition(0.5, 0.25, 1.0, 7.0), ("dla0", "gpu"): Transition(0.25, 0.125, 1.0, 7.0)}
    units = tuple(Unit(name, (name,), cost, weight_bytes=3) for name in "abc")
    edges = (
        Edge("in", None, (0,), transitions=over),
        Edge("mid", 0, (1, 2), transitions=over),
        Edge("left", 1, (), True, over),
        Edge("right", 2, (), True, over),
    )
    return Network("fork", units, edges, home)


def test_a_tensor_is_handed_over_once_to_each_accelerator() -> None:
    load = run_load(fork(), ("gpu", "dla0", "dla0"))
    assert load.latency_ms == 1 + 2 + 2 + 0.5 + 2 * 0.25
    assert load.busy_ms == {"gpu": 1 + 0.25 + 2 * 0.125, "dla0": 4.0}
    assert load.energy_mj == 10 + 2 + 2 + 3 * 1.0
    assert load.traffic_bytes == 300 + 3 * 7
    assert load.segments == {"gpu": 1, "dla0": 2}


def test_an_output_that_is_also_read_at_home_is_handed_over_once() -> None:
    over = {("dla0", "gpu"): Transition(1.0)}
    cost = {"gpu": Cost(1.0), "dla0": Cost(1.0)}
    net = Network("n", (Unit("a", (), cost), Unit("b", (), cost)), (Edge("t", 0, (1,), True, over),))
    assert run_load(net, ("dla0", "gpu")).latency_ms == 3.0


def test_an_accelerator_that_cannot_run_a_unit_is_named() -> None:
    net = random_network(3, 6, forbidden=1.0)
    with pytest.raises(PlacementError, match="unit 'u0' cannot run on dla0"):
        run_load(net, ("dla0",) * 6)
    with pytest.raises(PlacementError, match="2 accelerators for 6 units"):
        run_load(net, ("gpu", "gpu"))
    with pytest.raises(PlacementError, match="cannot run on dla0 and dla1") as caught:
        cut(net, "dla0", "dla1", LATENCY)
    assert "'u0'" in caught.value.why and "and 1 more" in caught.value.why


@each("seed", range(40))
def test_loads_equal_those_added_up_otherwise(seed: int) -> None:
    net = random_network(seed, 5, among=BOARD, alike=False, home=BOARD[seed % 3])
    every = Everything(net, BOARD)
    for index in range(0, len(every.labels), 7):
        load = run_load(net, every.assignment(index))
        assert load.latency_ms == pytest.approx(every.latency_ms[index])
        assert load.energy_mj == pytest.approx(every.energy_mj[index])
        assert [load.busy_ms.get(name, 0) for name in BOARD] == pytest.approx(every.busy_ms[index].tolist())


@each("seed", range(60))
def test_segments_are_connected_pieces_that_can_run_in_their_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    net = random_network(seed, 14, among=BOARD, forbidden=0.0, skips=0.7)
    assignment = tuple(random.choice(BOARD[: 2 + seed % 2], 14).tolist())
    before, after = neighbors(net)
    found = segments(net, assignment)
    assert sorted(unit for segment in found for unit in segment.units) == list(range(14))
    done: set[int] = set()
    for segment in found:
        assert {assignment[unit] for unit in segment.units} == {segment.accelerator}
        inside = set(segment.units)
        assert all(set(before[unit]) <= done | inside for unit in segment.units)
        reached, waiting = {segment.units[0]}, [segment.units[0]]
        while waiting:
            unit = waiting.pop()
            fresh = {*before[unit], *after[unit]} & inside - reached
            reached |= fresh
            waiting += fresh
        assert reached == inside
        done |= inside


def test_a_piece_that_a_path_leaves_and_enters_again_is_two() -> None:
    cost = {"gpu": Cost(1.0), "dla0": Cost(1.0)}
    units = tuple(Unit(name, (), cost) for name in "abc")
    net = Network("skip", units, (Edge("x", 0, (1, 2)), Edge("y", 1, (2,))))
    assert run_load(net, ("dla0", "gpu", "dla0")).segments == {"dla0": 2, "gpu": 1}
    assert run_load(net, ("dla0", "dla0", "dla0")).segments == {"dla0": 1}


@each("seed", range(200))
def test_cuts_are_the_best_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    net = random_network(seed, int(random.integers(1, 11)), home=GPU_DLA[seed % 2])
    every = Everything(net)
    for price in PRICES:
        found = cut(net, *GPU_DLA, price)
        assert found.cost == pytest.approx(every.cost(price).min(), rel=1e-7)
        load = run_load(net, found.assignment)
        assert load.cost(price) == pytest.approx(found.cost, rel=1e-9)
        assert found.use.latency_ms == pytest.approx(load.latency_ms)  # also where the price is not for time
        assert found.gap <= 1e-5


@each("seed", range(20))
def test_tensors_that_enter_the_second_cost_more_where_asked(seed: int) -> None:
    net = random_network(seed, 7, forbidden=0.4)
    every = Everything(net)
    added = [sum(end == "dla0" for _, _, end, _ in transitions_of(net, every.assignment(index)))
             for index in range(len(every.labels))]  # fmt: skip
    for entry in (0.01, 1.0, 100.0):
        found = Cutter(net, *GPU_DLA).solve(ENERGY, entry=entry)
        assert found.cost == pytest.approx((every.energy_mj + entry * np.array(added)).min(), rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_cuts_are_the_best_of_all_with_14_units(seed: int) -> None:
    net = random_network(seed, 14, home=GPU_DLA[seed % 2], skips=0.6)
    every = Everything(net)
    for price in PRICES:
        assert cut(net, *GPU_DLA, price).cost == pytest.approx(every.cost(price).min(), rel=1e-7)


@each("seed", range(30))
def test_a_home_that_is_neither_of_the_two_is_paid_too(seed: int) -> None:
    net = random_network(seed, 6, among=BOARD, home="dla1")
    every = Everything(net, BOARD)
    on_two = (every.labels < 2).all(axis=1)
    for price in PRICES:
        found = cut(net, *GPU_DLA, price)
        assert found.cost == pytest.approx(every.cost(price)[on_two].min(), rel=1e-7)
        assert found.use.cost(price) == pytest.approx(found.cost, rel=1e-9)


@each("seed", range(40))
def test_cut_and_program_agree(seed: int) -> None:
    net = random_network(seed, 60, forbidden=0.1, skips=0.0)
    for price in (LATENCY, PRICED):
        best = cut(net, *GPU_DLA, price).cost
        assert exact_placement(net, GPU_DLA, price).cost == pytest.approx(best, rel=1e-6)
    found = exact_placement(net, GPU_DLA, ENERGY, loadables={"dla0": 2})
    assert found.gap <= 1e-5 and found.cost >= cut(net, *GPU_DLA, ENERGY).cost * (1 - 1e-6)
    assert run_load(net, found.assignment).segments.get("dla0", 0) <= 2


def test_accelerators_come_home_first() -> None:
    assert accelerators([random_network(0, 4, among=BOARD, home="dla0", forbidden=0)]) == ("dla0", "gpu", "dla1")
    assert preferred_assignment(random_network(0, 4, forbidden=1.0), ("dla0",)) is None
    assert isinstance(run_load(fork(), ("gpu",) * 3), Load) and GPU == "gpu"


@each("seed", range(20))
def test_a_home_that_is_neither_of_the_two_pays_its_shares(seed: int) -> None:
    """Networks of different homes; a price on the time of each."""
    cores = ("cpu0", "cpu1", "cpu2")
    nets = [random_network(seed + 40 * n, 6, among=cores, home=cores[n], forbidden=0.0) for n in range(3)]
    price = Price(latency=0.1, busy={"cpu0": 0.9, "cpu1": 0.5, "cpu2": 0.7, "gpu": 0.3})
    for net in nets:
        found = cut(net, "cpu1", "cpu2", price)
        run = run_load(net, found.assignment)
        taken, added = ([busy.get(name, 0.0) for name in (*cores, GPU)] for busy in (found.use.busy_ms, run.busy_ms))
        assert taken == pytest.approx(added)
        every = Everything(net, cores)
        costs = every.cost(price) + price.busy["gpu"] * every.reformat_ms
        within = (every.labels > 0).all(axis=1)
        assert found.cost == pytest.approx(costs[within].min(), abs=2 * (found.cost - found.bound) + 1e-12)
