"""Playing schedules: what is known beforehand comes out; contention's rounds."""

import numpy as np
import pytest

from edgert.errors import PlacementError
from edgert.placement.constraints import streams
from edgert.placement.contention import Contention, MemoryDemand, fixed_point, slowed_network
from edgert.placement.problem import Cost, Edge, Network, Transition, Unit
from edgert.placement.run_load import run_load
from edgert.placement.schedule import Replica, Stream, play
from edgert.placement.segment_engines import Step, steps
from edgert.placement.solver import solve
from tests.helpers.placement import BOARD, random_network

GPU_4, DLA_6 = Step("gpu", 4.0), Step("dla0", 6.0)


def test_one_stream_below_capacity_has_the_latency_of_a_run() -> None:
    played = play([Stream("a", (Replica((GPU_4, Step(None, 1.0), DLA_6)),), 50.0)], 10_000)
    (flow,) = played.streams
    assert flow.p50_ms == flow.p99_ms == pytest.approx(11.0)
    assert flow.fps == pytest.approx(50.0, rel=0.01)
    assert played.utilization == pytest.approx({"gpu": 0.2, "dla0": 0.3}, rel=0.01)


def test_segments_of_different_frames_run_at_once() -> None:
    (flow,) = play([Stream("a", (Replica((GPU_4, DLA_6)),), in_flight=4)], 10_000).streams
    assert flow.fps == pytest.approx(1000 / 6, rel=0.01)
    (alone,) = play([Stream("a", (Replica((GPU_4, DLA_6)),), in_flight=1)], 10_000).streams
    assert alone.fps == pytest.approx(100, rel=0.01)


def test_replicas_get_frames_by_weight_and_frames_leave_in_order() -> None:
    replicas = (Replica((GPU_4,), 0.6), Replica((DLA_6,), 0.4))
    played = play([Stream("a", replicas, in_flight=8)], 12_000)
    assert played.streams[0].fps == pytest.approx(1000 / 4 + 1000 / 6, rel=0.02)
    slow = play([Stream("a", (Replica((GPU_4,)), Replica((Step("dla0", 30.0),))), 50.0)], 10_000).streams[0]
    assert slow.p50_ms >= 10.0 and slow.p99_ms == pytest.approx(30.0)  # a quick one waits for the slow one before it


def test_a_frame_waits_for_what_runs_and_is_never_let_in_between() -> None:
    long, short = Stream("long", (Replica((Step("gpu", 30.0),)),), 10.0), Replica((Step("gpu", 1.0),))
    played = play([long, Stream("short", (short,), 10.0, start_ms=10.0)], 10_000)
    assert played.streams[1].p50_ms == pytest.approx(30 - 10 + 1)
    assert played.streams[0].p50_ms == pytest.approx(30.0)


def test_too_many_frames_are_dropped() -> None:
    (flow,) = play([Stream("a", (Replica((Step("gpu", 20.0),)),), 100.0, in_flight=2)], 10_000).streams
    assert flow.fps == pytest.approx(50, rel=0.01) and flow.p99_ms <= 40
    assert flow.dropped == pytest.approx(500, abs=5)


def test_contention_slows_what_overlaps() -> None:
    hungry = [Stream(name, (Replica((Step(name, 10.0, 10e-3 * 8e9),)),), in_flight=1) for name in ("gpu", "dla0")]
    free = play(hungry, 5_000)
    tight = play(hungry, 5_000, Contention(10e9, 1.0, 4e9))
    assert free.streams[0].fps == pytest.approx(100, rel=0.01)
    assert tight.streams[0].fps == pytest.approx(50, rel=0.01)  # 4 of the 8 GB/s asked for
    assert tight.utilization["gpu"] == pytest.approx(1.0, rel=0.01)


def test_work_already_done_when_contention_begins_is_kept() -> None:
    first = Stream("first", (Replica((Step("gpu", 10.0, 10e-3 * 8e9),)),), 1.0)
    second = Stream("second", (Replica((Step("dla0", 10.0, 10e-3 * 8e9),)),), 1.0, start_ms=5.0)
    played = play([first, second], 10_000, Contention(10e9, 1.0, 4e9))
    # 5 ms at full speed, the other 5 at half; the second then has had 5 of its 10 at half speed
    assert played.streams[0].p50_ms == pytest.approx(15.0)
    assert played.streams[1].p50_ms == pytest.approx(10.0 + 5.0)


def test_the_same_twice() -> None:
    nets = [random_network(seed, 15, among=BOARD, name=f"n{seed}", rate_hz=30.0) for seed in range(3)]
    placement = solve(nets, "throughput")
    assert play(streams(nets, placement), 2000) == play(streams(nets, placement), 2000)


def test_saturated_frames_come_near_to_what_the_mix_promises() -> None:
    nets = [random_network(seed, 15, among=BOARD, name=f"n{seed}") for seed in range(1)]
    placement = solve(nets, "throughput")
    (flow,) = play(streams(nets, placement, saturated=True), 5000).streams
    assert 0.8 * placement.value <= flow.fps <= placement.value * 1.01


@pytest.mark.parametrize("seed", range(20))
def test_steps_take_as_long_as_the_run(seed: int) -> None:
    net = random_network(seed, 12, among=BOARD, forbidden=0.3)
    placement = solve([net], "throughput")
    for engine in placement.networks[0].engines:
        made = steps(net, engine.assignment)
        assert sum(step.time_ms for step in made) == pytest.approx(run_load(net, engine.assignment).latency_ms)
        busy = run_load(net, engine.assignment).busy_ms
        for name in busy:
            assert sum(step.time_ms for step in made if step.accelerator == name) == pytest.approx(busy[name])


def test_a_stream_without_engines_is_refused() -> None:
    with pytest.raises(PlacementError, match="no engine"):
        play([Stream("a", ())], 100)


def test_slowdown_has_a_floor() -> None:
    model = Contention(total_bytes_s=78e9, slope=1.0, floor_bytes_s=20e9, floor_share=0.25)
    assert model.slowdown(30e9, 40e9) == 1.0
    assert model.slowdown(60e9, 40e9) == pytest.approx(60 / 38)
    assert model.slowdown(60e9, 100e9) == pytest.approx(60 / 35)


def one_unit(traffic: float) -> Network:
    cost = {"gpu": Cost(10.0, traffic_bytes=traffic), "dla0": Cost(20.0, traffic_bytes=traffic)}
    return Network("n", (Unit("u", (), cost),), ())


def test_times_stretch_by_the_share_of_time_that_others_run() -> None:
    net, model = one_unit(0.6e9), Contention(78e9, 1.0, 20e9, 0.25)
    slower = slowed_network(net, {"gpu": MemoryDemand(0.3, 60e9), "dla0": MemoryDemand(0.5, 100e9)}, model)
    assert slower.units[0].costs["gpu"].time_ms == pytest.approx(10 * (0.5 + 0.5 * 60 / 35))
    assert slower.units[0].costs["dla0"].time_ms == pytest.approx(20 * (0.7 + 0.3 * 30 / 27.5))  # its floor
    alone = slowed_network(net, {"gpu": MemoryDemand(1.0, 60e9)}, model)
    assert alone.units[0].costs["gpu"] == net.units[0].costs["gpu"]  # nobody disturbs itself


def test_rounds_end_when_demand_stays() -> None:
    seen: list[float] = []

    def solver(networks: object) -> int:
        seen.append(0.0)
        return len(seen)

    assert fixed_point([one_unit(1e6)], Contention(1e9), solver, lambda _: {"gpu": MemoryDemand(0.5, 1e9)}, float) == 2
    assert len(seen) == 2
    wild = fixed_point(
        [one_unit(1e6)], Contention(1e9), solver, lambda n: {"gpu": MemoryDemand(0.5, n * 1e9)}, lambda n: -float(n)
    )
    assert len(seen) == 2 + 5 and wild == 3  # the first of these five is worth most


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
    (flow,) = play(streams([net], placement, saturated=True), 5000).streams
    assert placement.value == pytest.approx(1e3 / 2.815, rel=0.002), "free starts would promise 1e3 / 2.4"
    assert flow.fps == pytest.approx(placement.value, rel=0.1)


def test_a_stream_without_a_frame_in_time_has_no_latency() -> None:
    (flow,) = play([Stream("a", (Replica((Step("gpu", 50.0),)),), 10.0)], 20.0).streams
    assert flow.fps == 0 and np.isnan(flow.p50_ms) and np.isnan(flow.p99_ms)


def test_quantiles_are_those_of_the_frames() -> None:
    """Two streams on one accelerator: of the short one's frames, one in four waits behind a long one."""
    long = Stream("long", (Replica((Step("gpu", 30.0),)),), 10.0)
    short = Stream("short", (Replica((Step("gpu", 1.0),)),), 40.0, start_ms=1.0)
    flow = play([long, short], 10_000).streams[1]
    waits = [30.0, 5.0 + 1.0, 1.0, 1.0]  # at 1, 26, 51 and 76 ms of every 100; the long one runs from 0 to 30
    assert flow.p50_ms == pytest.approx(np.percentile(np.repeat(waits, 90), 50), abs=0.01)
    assert flow.p99_ms == pytest.approx(30.0)
