"""Steps of engines, and times that contention for the memory stretches."""

from collections.abc import Sequence
from typing import Any

import pytest

from edgert.placement import solver
from edgert.placement.contention import Contention, MemoryDemand, slowed_network
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.placement.run_load import run_load
from edgert.placement.segment_engines import Step, steps
from edgert.placement.solver import solve
from tests.helpers.each import each
from tests.helpers.placement import BOARD, random_network


@each("seed", range(20))
def test_steps_take_as_long_as_the_run(seed: int) -> None:
    net = random_network(seed, 12, among=BOARD, forbidden=0.3)
    placement = solve([net], "throughput")
    for engine in placement.networks[0].engines:
        made = steps(net, engine.assignment)
        assert sum(step.time_ms for step in made) == pytest.approx(run_load(net, engine.assignment).latency_ms)
        busy = run_load(net, engine.assignment).busy_ms
        for name in busy:
            assert sum(step.time_ms for step in made if step.accelerator == name) == pytest.approx(busy[name])


def test_slowdown_has_a_floor() -> None:
    model = Contention(total_bytes_s=78e9, floor_bytes_s=35e9)
    assert model.slowdown(30e9, 40e9) == 1.0
    assert model.slowdown(60e9, 40e9) == pytest.approx(60 / 38)
    assert model.slowdown(60e9, 100e9) == pytest.approx(60 / 35)


def one_unit(traffic: float) -> Network:
    cost = {"gpu": Cost(10.0, traffic_bytes=traffic), "dla0": Cost(20.0, traffic_bytes=traffic)}
    return Network("n", (Unit("u", (), cost),), ())


def test_times_stretch_by_the_share_of_time_that_others_run() -> None:
    net, model = one_unit(0.6e9), Contention(78e9, 27.5e9)
    slower = slowed_network(net, {"gpu": MemoryDemand(0.3, 60e9), "dla0": MemoryDemand(0.5, 100e9)}, model)
    assert slower.units[0].costs["gpu"].time_ms == pytest.approx(10 * (0.5 + 0.5 * 60 / 27.5))
    assert slower.units[0].costs["dla0"].time_ms == pytest.approx(20 * (0.7 + 0.3 * 30 / 27.5))  # its floor
    alone = slowed_network(net, {"gpu": MemoryDemand(1.0, 60e9)}, model)
    assert alone.units[0].costs["gpu"] == net.units[0].costs["gpu"]  # nobody disturbs itself


def test_rounds_end_when_traffic_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    find = solver._minimize_cost

    def seen(networks: Sequence[Network], *others: Any) -> Any:
        given.append(networks[0].units[0].costs["gpu"].time_ms)
        return find(networks, *others)

    monkeypatch.setattr(solver, "_minimize_cost", seen)
    found = solve([one_unit(1e6)], "latency", contention=Contention(1e9))
    assert given == [10.0, 10.0] and found.value == 10.0  # alone on the board it is not slower


def test_who_hands_over_and_who_takes_it_are_busy_beside_their_segments() -> None:
    """1 ms of who gives away, 2 of the GPU, 3 of who takes it, 4 of nobody; the GPU moves the bytes."""
    cost = {name: Cost(10.0) for name in BOARD}
    over = {("dla0", "dla1"): Transition(10.0, 2.0, traffic_bytes=5.0, from_ms=1.0, to_ms=3.0)}
    units = tuple(Unit(name, (name,), cost) for name in "ab")
    net = Network("n", units, (Edge("t", 0, (1,), transitions=over),))
    made = steps(net, ("dla0", "dla1"))
    assert made == (Step("dla0", 11.0), Step("gpu", 2.0, 5.0), Step(None, 4.0), Step("dla1", 13.0))
    assert run_load(net, ("dla0", "dla1")).busy_ms == {"dla0": 11.0, "gpu": 2.0, "dla1": 13.0}


def test_what_comes_from_home_and_goes_there_is_homes_work() -> None:
    both = {("cpu0", "cpu1"): Transition(3.0, from_ms=1.0, to_ms=2.0, traffic_bytes=7.0)}
    both["cpu1", "cpu0"] = both["cpu0", "cpu1"]
    edges = (Edge("x", None, (0,), transitions=both), Edge("y", 0, (), is_output=True, transitions=both))
    net = Network("n", (Unit("a", ("a",), {"cpu1": Cost(10.0)}),), edges, home="cpu0")
    assert steps(net, ("cpu1",)) == (Step("cpu0", 1.0, 7.0), Step("cpu1", 13.0, 7.0), Step("cpu0", 2.0))


def test_a_dla_that_starts_often_has_less_time_for_frames() -> None:
    """Every second unit cannot run on the DLA; each time it is entered it starts anew."""
    into, back = Transition(1.0, 0.1, from_ms=0.0, to_ms=0.9), Transition(0.1, 0.1)
    over = {("gpu", "dla0"): into, ("dla0", "gpu"): back}
    units = tuple(
        Unit(f"u{n}", (f"u{n}",), {"gpu": Cost(1.0)} | ({} if n % 2 else {"dla0": Cost(1.0)})) for n in range(4)
    )
    edges = tuple(Edge(f"t{n}", n, (n + 1,) if n < 3 else (), n == 3, over) for n in range(4))
    net = Network("n", units, (Edge("x", None, (0,), transitions=over), *edges))
    placement = solve([net], "throughput")
    assert placement.value == pytest.approx(1e3 / 2.815, rel=0.002), "free starts would promise 1e3 / 2.4"
