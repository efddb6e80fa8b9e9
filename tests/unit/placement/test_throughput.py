"""Throughput of several networks against a linear program over every placement there is; engines; solve()."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from edgert.errors import PlacementError
from edgert.placement.constraints import Limits, Objective, Placement
from edgert.placement.contention import Contention
from edgert.placement.engine_selection import EngineSelector
from edgert.placement.problem import Cost, Edge, Network, Unit
from edgert.placement.run_load import accelerators, preferred_assignment, run_use
from edgert.placement.solver import solve
from edgert.placement.throughput import Column, Resources, best_mix, interchangeable_classes
from tests.helpers.each import each
from tests.helpers.placement import BOARD, GPU_DLA, Everything, random_network

optimize = pytest.importorskip("scipy.optimize", reason="scipy, the solvers' engine, is not installed")


def best_by_enumeration(nets: Sequence[Network], among: Sequence[str], limits: Limits) -> float:
    """The multiplier that a linear program finds with every placement as a column."""
    tables, own = [], []
    for index, net in enumerate(nets):
        every = Everything(net, among)
        rows = [every.busy_ms / 1e3]
        if limits.traffic_bytes_s:
            rows.append(every.traffic_bytes[:, None] / limits.traffic_bytes_s)
        tables.append(np.concatenate(rows, axis=1))
        own += [index] * len(every.latency_ms)
    used = np.concatenate(tables)
    meets = np.zeros((len(nets), len(used) + 1))
    meets[own, np.arange(len(used))] = 1.0
    meets[:, -1] = [-net.rate_hz for net in nets]
    gain = np.append(np.zeros(len(used)), -1.0)
    within = np.concatenate((used.T, np.zeros((used.shape[1], 1))), axis=1)
    return -float(optimize.linprog(gain, within, np.ones(len(within)), meets, np.zeros(len(nets))).fun)


def pair_of(seed: int, largest: int = 5, among: Sequence[str] = BOARD, alike: bool = True) -> list[Network]:
    random = np.random.default_rng(seed)
    return [
        random_network(
            10 * seed + index,
            int(random.integers(2, largest + 1)),
            among=among,
            alike=alike,
            name=f"n{index}",
            rate_hz=float(random.uniform(10, 60)),
        )
        for index in range(2)
    ]


@each("seed", range(40))
def test_no_mix_of_all_placements_is_better(seed: int) -> None:
    among = BOARD if seed % 3 else GPU_DLA
    nets = pair_of(seed, 5 if seed % 3 else 7, among)
    limits = Limits(traffic_bytes_s=None if seed % 3 else 5e9)
    resources = Resources.of(nets, limits)
    found = best_mix(nets, resources, gap=1e-9)
    best = best_by_enumeration(nets, among, limits)
    assert found.multiplier == pytest.approx(best, rel=1e-6)
    assert found.bound >= best * (1 - 1e-9) and found.gap <= 1e-6
    multiplier, engines = EngineSelector(nets, resources, limits).select(found)
    busy = {name: sum(runs * load.busy_ms.get(name, 0) for own in engines for _, load, runs in own) for name in among}
    assert multiplier == pytest.approx(best, rel=1e-6)
    assert max(busy.values()) <= 1000 * (1 + 1e-5)
    for index, net in enumerate(nets):
        runs = sum(runs_hz for _, _, runs_hz in engines[index])
        assert runs == pytest.approx(best * net.rate_hz, rel=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_three_accelerators_that_differ(seed: int) -> None:
    nets = pair_of(seed, 4, alike=False)
    found = best_mix(nets, Resources.of(nets, Limits()), gap=1e-9)
    assert found.multiplier == pytest.approx(best_by_enumeration(nets, BOARD, Limits()), rel=1e-6)


def test_accelerators_are_of_one_class_only_if_nothing_tells_them_apart() -> None:
    same, other = random_network(1, 6, among=BOARD), random_network(1, 6, among=BOARD, alike=False)
    assert interchangeable_classes([same], BOARD) == (("gpu",), ("dla0", "dla1"))
    assert interchangeable_classes([same, other], BOARD) == (("gpu",), ("dla0",), ("dla1",))
    at_home = random_network(1, 6, among=BOARD, home="dla0")
    assert interchangeable_classes([at_home], BOARD) == (("gpu",), ("dla0",), ("dla1",))


def plain_rates(nets: Sequence[Network]) -> list[float]:
    """Multipliers with every network on one accelerator as far as that can run it, and the DLAs in turn."""
    choices = [[name] * len(nets) for name in BOARD]
    choices.append([BOARD[1 + index % 2] for index in range(len(nets))])
    found = []
    for names in choices:
        busy: dict[str, float] = dict.fromkeys(BOARD, 0.0)
        for net, name in zip(nets, names, strict=True):
            assignment = preferred_assignment(net, (name, "gpu"))
            assert assignment is not None
            for own, busy_ms in run_use(net, assignment).busy_ms.items():
                busy[own] += net.rate_hz * busy_ms / 1e3
        found.append(1 / max(busy.values()))
    return found


@each("seed", range(20))
def test_never_worse_than_whole_networks(seed: int) -> None:
    nets = [*pair_of(seed, 12), *pair_of(seed + 100, 12)]
    placement = solve(nets, "throughput")
    assert placement.value >= max(plain_rates(nets)) * (1 - 1e-6)
    assert placement.gap <= 1e-3
    for objective in ("latency", "energy"):
        limits = Limits(static_w=3.0)
        free = [random_network(seed + index, 12, among=BOARD, name=f"n{index}") for index in range(2)]
        chosen = solve(free, objective, limits)
        for name in BOARD:
            total = 0.0
            for net in free:
                one = run_use(net, preferred_assignment(net, (name, "gpu")) or ())
                total += one.latency_ms if objective == "latency" else one.energy_mj + 3.0 * one.latency_ms
            assert chosen.value <= total * (1 + 1e-6)


def test_few_loadables_are_kept() -> None:
    nets = [random_network(seed, 30, among=BOARD, forbidden=0.05, name=f"n{seed}", rate_hz=20.0) for seed in range(3)]
    free = solve(nets, "throughput")
    limits = Limits(loadables={"dla0": 2, "dla1": 2})
    tight = solve(nets, "throughput", limits)
    assert max(plain_rates(nets)[:1]) * (1 - 1e-6) <= tight.value <= free.value * (1 + 1e-6)
    for name in ("dla0", "dla1"):
        assert sum(one.loadables.get(name, 0) for one in tight.networks) <= 2
    assert tight.gap > 0


def test_whole_on_one_accelerator_split_and_replicated() -> None:
    lone = random_network(1, 8, among=BOARD, forbidden=0.0)
    assert len(solve([lone], "throughput").networks[0].engines) > 1
    (whole,) = solve([random_network(1, 8, among=("gpu",))], "latency").networks[0].engines
    (split,) = solve([random_network(4, 12, among=GPU_DLA, forbidden=0.3)], "energy").networks[0].engines
    assert set(whole.assignment) == {"gpu"} and set(split.assignment) == set(GPU_DLA)


def test_contention_is_settled_and_never_chosen_worse_than_ignored() -> None:
    nets = [random_network(seed, 20, among=BOARD, name=f"n{seed}", rate_hz=20.0) for seed in range(2)]
    hard = Contention(total_bytes_s=2e9, floor_bytes_s=2e8)
    calm, busy = solve(nets, "throughput"), solve(nets, "throughput", contention=hard)
    assert busy.value < calm.value
    assert isinstance(busy, Placement) and accelerators(nets) == BOARD
    with pytest.raises(PlacementError, match="no network"):
        solve([], "latency")


@pytest.mark.parametrize("objective", ["throughput", "latency", "energy"])
def test_shares_that_are_given_are_kept(objective: Objective) -> None:
    nets = [replace(net, rate_hz=1.0) for net in pair_of(3)]
    nets[0] = replace(nets[0], shares={"gpu": 0.75, "dla": 0.25})
    found = solve(nets, objective, contention=Contention(50e9))
    first, second = found.networks
    assert [engine.weight for engine in first.engines] == pytest.approx([0.75, 0.25])
    assert set(first.engines[0].assignment) == {"gpu"}
    able = [["dla0" if "dla0" in unit.costs else "gpu"] for unit in nets[0].units]
    assert [[name] for name in first.engines[1].assignment] == able
    assert first.fps == pytest.approx(1.0) and second.fps >= 1.0 - 1e-6
    if objective == "throughput":
        assert found.value == pytest.approx(1 / max(found.utilization.values()), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3000, 3100))
def test_no_mix_of_14_units_is_better(seed: int) -> None:
    """One network of 14 units, or two of 7 on three accelerators."""
    if seed % 2:
        among: Sequence[str] = GPU_DLA
        nets = [random_network(seed, 14, skips=0.6, rate_hz=30.0)]
    else:
        among = BOARD
        nets = [random_network(10 * seed + n, 7, among=among, name=f"n{n}", rate_hz=20.0 + n) for n in range(2)]
    limits = Limits(traffic_bytes_s=None if seed % 3 else 5e9)
    found = best_mix(nets, Resources.of(nets, limits), gap=1e-9)
    best = best_by_enumeration(nets, among, limits)
    assert found.multiplier == pytest.approx(best, rel=1e-6)
    assert best <= found.bound * (1 + 1e-9)


def striped(units: int) -> Network:
    """Units that only the DLA and only the GPU can run, in turn: no placement has fewer segments."""
    nodes = [Unit(f"u{at}", (f"u{at}",), {GPU_DLA[at % 2]: Cost(1.0)}) for at in range(units)]
    edges = [Edge(f"t{at}", at, (at + 1,)) for at in range(units - 1)]
    return Network("striped", tuple(nodes), tuple(edges), rate_hz=10.0)


def test_a_network_that_always_needs_more_segments_than_there_are_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"keep all limits\n +why: +loadables left: \{'dla0': 3\}"):
        solve([striped(8)], "throughput", Limits(loadables={"dla0": 3}))
    assert solve([striped(8)], "throughput", Limits(loadables={"dla0": 4})).value > 0


def test_beside_one_that_fits_it_is_refused_too() -> None:
    nets = [striped(8), random_network(3, 4, among=GPU_DLA, name="other", rate_hz=10.0)]
    with pytest.raises(PlacementError, match="keep all limits"):
        solve(nets, "throughput", Limits(loadables={"dla0": 3}))


def test_on_one_accelerator_the_rate_is_that_of_its_time() -> None:
    net = random_network(3, 6, among=("gpu",), rate_hz=20.0)
    found = best_mix([net], Resources.of([net], Limits()), gap=1e-9)
    time_s = run_use(net, ("gpu",) * 6).busy_ms["gpu"] / 1e3
    assert found.multiplier == pytest.approx(1 / (20.0 * time_s)) and found.gap <= 1e-9


def test_whole_networks_on_each_accelerator_are_among_the_placements() -> None:
    nets = pair_of(4, 12)
    found = best_mix(nets, Resources.of(nets, Limits()))
    considered = {(column.network, column.assignment) for column in found.columns}
    for index, net in enumerate(nets):
        assert {(index, preferred_assignment(net, (name, "gpu"))) for name in ("gpu", "dla0")} <= considered
    busy = sum(rate * resources for rate, resources in zip(found.runs_hz, _shares(found.columns, nets), strict=True))
    assert np.max(busy) <= 1 + 1e-6  # no accelerator has more to do than there is time


def _shares(columns: Sequence[Column], nets: Sequence[Network]) -> list[np.ndarray]:
    """The share of each resource's second that a run of each column takes."""
    resources = Resources.of(nets, Limits())
    return [resources.used(column.use) for column in columns]


def test_the_price_of_a_run_is_what_it_takes_of_each_resource() -> None:
    nets = pair_of(5, 6)
    resources = Resources.of(nets, Limits(traffic_bytes_s=1e9))
    run = run_use(nets[0], preferred_assignment(nets[0], ("dla0", "gpu")) or ())
    worth = [2.0, 3.0, 5.0]
    assert len(resources.amounts) == 3
    assert run.cost(resources.price(worth)) == pytest.approx(float(resources.used(run) @ worth))
