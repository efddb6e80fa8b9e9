"""Pipelines played: rates, queues, drops, order, batches and budgets, against what can be worked out by hand."""

from dataclasses import replace
from random import Random

import pytest

from edgert.budget.rules import Budget, Rules, Setting
from edgert.placement.contention import Contention
from edgert.placement.cost.power import Power
from edgert.placement.segment_engines import Step
from edgert.simulator import Cooling, Design, Edge, Governing, Node, Platform, Simulated, Source, Task, simulate
from edgert.simulator.sources import poisson

NEWEST, WAIT = (1, "oldest"), (2, "never")


def gpu(time_ms: float, traffic: float = 0.0) -> tuple[Step, ...]:
    """A step of a GPU that draws 20 W, and 100 pJ for each byte."""
    return (Step("gpu", time_ms, traffic, energy_mj=20.0 * time_ms + traffic * 100e-9),)


def line(run_ms: float, source: Source, task: Task | None = None) -> Design:
    """Camera, model, sink."""
    return Design(
        (source,),
        (
            Node("find", (Edge(source.name, *NEWEST),), task or Task(run=gpu(run_ms))),
            Node("end", (Edge("find", *WAIT),)),
        ),
    )


def test_a_camera_that_the_model_keeps_up_with() -> None:
    played = simulate(line(10.0, Source("camera", 30.0)), Platform(), 10.0)
    assert played.frames_in == 300 and played.dropped == 0
    assert played.fps == pytest.approx(30.0, rel=0.01)
    assert played.latency_ms.p50 == pytest.approx(10.0, abs=0.1) == pytest.approx(played.latency_ms.p99, abs=0.1)
    assert played.busy["gpu"] == pytest.approx(0.3, abs=0.01)


def test_a_camera_too_fast_loses_the_oldest_and_latency_stays_bounded() -> None:
    played = simulate(line(20.0, Source("camera", 100.0)), Platform(), 10.0)
    assert played.fps == pytest.approx(50.0, rel=0.02)
    assert played.dropped == pytest.approx(500, abs=5)
    assert played.latency_ms.p99 <= 20.0 + 20.0 + 0.2  # at most one run before its own


def test_a_file_goes_as_fast_as_the_slowest_stage_and_loses_nothing() -> None:
    nodes = (
        Node("find", (Edge("clip", 4, "never"),), Task(run=gpu(5.0))),
        Node("paint", (Edge("find", *WAIT),), Task((Step("cpu", 8.0),))),
        Node("end", (Edge("paint", *WAIT),)),
    )
    played = simulate(
        Design((Source("clip", is_ahead=True, is_live=False, limit=100),), nodes), Platform(("cpu0",)), 60.0
    )
    assert (played.frames_in, played.frames_out, played.dropped) == (100, 100, 0)
    assert played.seconds == pytest.approx(0.82, abs=0.12)  # ends with the file, not with the minute


def test_two_halves_of_a_frame_are_joined_and_lost_ones_given_up() -> None:
    nodes = (
        Node("fast", (Edge("camera", *NEWEST),), Task(run=(Step("gpu", 5.0),))),
        Node("slow", (Edge("camera", *NEWEST),), Task(run=(Step("dla0", 30.0),))),
        Node("both", (Edge("fast", *WAIT), Edge("slow", *WAIT))),
    )
    played = simulate(Design((Source("camera", 50.0),), nodes), Platform(), 10.0)
    assert played.fps == pytest.approx(1e3 / 30, rel=0.03)  # what the slow half lost is never whole
    assert played.stages["both"].dropped == pytest.approx(played.stages["slow"].dropped, abs=3)


def test_frames_dealt_to_two_engines_come_out_in_order() -> None:
    nodes = (
        Node("find:dispatch", (Edge("clip", 4, "never"),), weights=(2.0, 1.0)),
        Node("find:0", (Edge("find:dispatch", *WAIT),), Task(run=gpu(10.0))),
        Node("find:1", (Edge("find:dispatch", *WAIT),), Task(run=(Step("dla0", 20.0),))),
        Node("find", (Edge("find:0", *WAIT), Edge("find:1", *WAIT)), reorders="find:dispatch", joins=False),
        Node("end", (Edge("find", *WAIT),)),
    )
    played = simulate(Design((Source("clip", is_ahead=True, is_live=False),), nodes), Platform(), 10.0)
    assert played.fps == pytest.approx(150.0, rel=0.02)
    stages = played.stages
    assert stages["find:0"].results_in == pytest.approx(2 * stages["find:1"].results_in, abs=3)


def test_crops_are_run_in_batches_of_as_many_as_fit() -> None:
    task = Task(run=gpu(2.0), crops=8, rows=4)
    played = simulate(line(0.0, Source("camera", 20.0, most=6), task), Platform(), 5.0)
    assert played.latency_ms.p50 == pytest.approx(12.0, abs=0.1)  # four and two
    many = simulate(line(0.0, Source("camera", 20.0, objects=3.0), task), Platform(), 30.0, seed=1)
    assert many.busy["gpu"] == pytest.approx(20 * 3 * 2 / 1e3, rel=0.1)


def test_tiles_are_run_on_every_frame_whatever_is_on_it() -> None:
    task = Task(run=gpu(2.0), tiles=5, rows=4)
    played = simulate(line(0.0, Source("camera", 20.0), task), Platform(), 5.0)
    assert played.latency_ms.p50 == pytest.approx(10.0, abs=0.1)  # four and one


def test_frames_of_two_cameras_run_together_when_both_have_come_and_never_wait() -> None:
    def design(second_hz: float) -> Design:
        task = Task((Step("cpu", 0.5),), gpu(3.0), rows=2, batch=2)
        nodes = (
            Node("find", (Edge("a", *NEWEST), Edge("b", *NEWEST)), task, joins=False),
            Node("end", (Edge("find", *WAIT),)),
        )
        return Design((Source("a", 25.0), Source("b", second_hz)), nodes)

    together = simulate(design(25.0), Platform(), 4.0)
    assert together.frames_out == 200 and together.latency_ms.p99 == pytest.approx(7.0, abs=0.2)
    alone = simulate(design(0.1), Platform(), 4.0)
    assert alone.latency_ms.p50 == pytest.approx(3.5, abs=0.2)


def test_detections_spread_into_results_of_their_own() -> None:
    nodes = (Node("cut", (Edge("camera", *NEWEST),), spread=4), Node("read", (Edge("cut", *WAIT),), Task(run=gpu(1.0))))
    played = simulate(Design((Source("camera", 10.0, most=3),), nodes), Platform(), 5.0)
    assert played.stages["read"].results_in == 3 * played.frames_in


def test_accelerators_slow_one_another_down_through_memory() -> None:
    nodes = (
        Node("a", (Edge("camera", *NEWEST),), Task(run=(Step("gpu", 10.0, 1e8),))),
        Node("b", (Edge("camera", *NEWEST),), Task(run=(Step("dla0", 10.0, 1e8),))),
    )
    design = Design((Source("camera", 20.0),), nodes)
    assert simulate(design, Platform(), 2.0).latency_ms.p50 == pytest.approx(10.0, abs=0.1)
    tight = Platform(contention=Contention(12e9, floor_bytes_s=5e9))
    assert simulate(design, tight, 2.0).latency_ms.p50 == pytest.approx(20.0, abs=0.1)


def test_cores_are_shared_by_threads_that_are_ready() -> None:
    def nodes(first: str, second: str, slowdown: float = 1.0) -> tuple[Node, ...]:
        steps = (Step(first, 10.0, slowdown=slowdown),), (Step(second, 10.0, slowdown=slowdown),)
        return tuple(Node(f"n{i}", (Edge("camera", *NEWEST),), Task(one)) for i, one in enumerate(steps))

    def p50(made: tuple[Node, ...]) -> float:
        return simulate(Design((Source("camera", 20.0),), made), Platform(("cpu0", "cpu1")), 2.0).latency_ms.p50

    assert p50(nodes("cpu", "cpu")) == pytest.approx(10.0, abs=0.1)
    assert p50(nodes("cpu0", "cpu0")) == pytest.approx(20.0, abs=0.1)
    assert p50(nodes("cpu0", "cpu1", slowdown=1.5)) == pytest.approx(15.0, abs=0.1)


@pytest.mark.parametrize(
    ("slowdown", "busy", "expected_ms"), [(2.0, 1, 10.0), (2.0, 3, 10.0), (2.0, 4, 20.0), (5.0, 4, 50.0)]
)
def test_cores_slow_one_another_down_as_a_plan_takes_it(slowdown: float, busy: int, expected_ms: float) -> None:
    """Nothing is lost as long as the memory has what all ask for together."""
    names = tuple(f"cpu{number}" for number in range(4))
    steps = [(Step(name, 10.0, slowdown=slowdown),) for name in names[:busy]]
    nodes = tuple(Node(f"n{i}", (Edge("camera", *NEWEST),), Task(one)) for i, one in enumerate(steps))
    played = simulate(Design((Source("camera", 10.0),), nodes), Platform(names), 2.0)
    assert played.latency_ms.p50 == pytest.approx(expected_ms, abs=0.1)


def test_a_trace_says_when_frames_come_and_what_is_on_them() -> None:
    source = Source("camera", times_ms=(0.0, 10.0, 100.0), objects=(0, 2, 1))
    played = simulate(line(0.0, source, Task(run=gpu(1.0), crops=8)), Platform(), 0.3)
    assert played.frames_in == 6  # three, then over again
    assert played.busy["gpu"] == pytest.approx(6 / 300, rel=0.01)


POWER = Power(static_w=5.0, gpu_w=20.0, dla_w=0.0, dram_pj_per_byte=100.0)


def test_power_is_idle_plus_work_and_heat_follows_slowly() -> None:
    platform = Platform(power=POWER, cooling=Cooling(2.0, tau_s=10.0, ambient_c=30.0))
    played = simulate(line(0.0, Source("camera", 50.0), Task(run=gpu(10.0, 1e7))), platform, 60.0)
    expected_w = 5.0 + 20.0 * 0.5 + 50 * 1e7 * 100e-12
    assert played.power_w == pytest.approx(expected_w, rel=0.01)
    assert played.energy_j_per_frame == pytest.approx(expected_w / 50, rel=0.02)
    first, last = played.moments[0].temperature_c, played.moments[-1].temperature_c
    assert first is not None and first == pytest.approx(40.0 + 2.0, abs=1.0)
    assert last == pytest.approx(30.0 + 2.0 * expected_w, abs=0.5)


def test_busy_cores_draw_too() -> None:
    platform = Platform(("cpu0", "cpu1"), power=replace(POWER, cpu_w=2.0), cooling=Cooling(1.0))
    task = Task((Step("cpu", 10.0), Step("cpu", 5.0, threads=2)))
    played = simulate(line(0.0, Source("camera", 20.0), task), platform, 20.0)
    assert played.power_w == pytest.approx(5.0 + 2.0 * 20 * (10 + 2 * 5) / 1e3, rel=0.02)


def test_heat_lowers_clocks_until_the_trip_point_is_kept_and_frames_are_lost() -> None:
    hot = Platform(power=POWER, cooling=Cooling(4.0, tau_s=60.0, ambient_c=30.0))  # 95 C at 16.25 of 25 W
    design = line(0.0, Source("camera", 100.0), Task(run=gpu(12.0)))
    played = simulate(design, hot, 240.0)
    cool = simulate(design, Platform(power=POWER, cooling=Cooling(1.0)), 240.0)
    assert played.temperature_c is not None and 95.0 <= played.temperature_c <= 100.0
    assert played.throttled_s > 30.0 and cool.throttled_s == 0.0
    assert played.moments[-1].temperature_c == pytest.approx(95.0, abs=3.0)
    assert played.fps < 0.95 * cool.fps and played.latency_ms.p99 > cool.latency_ms.p99
    assert played.energy_j_per_frame is not None


def governed(cap_w: float | None, latency_ms: float | None = None) -> Simulated:
    shares = (1.0, 0.8, 0.6, 0.4)
    settings = tuple(Setting(f"{s:.0%}", 5.0 + 8.0 * s, 40.0 * s, 20.0, idle_w=5.0) for s in shares)
    rules = Rules(Budget(cap_w, latency_ms, when_exceeded="degrade"), settings)
    platform = Platform(power=POWER, cooling=Cooling(1.0))
    governing = Governing(rules, tuple({"camera": share} for share in shares))
    return simulate(line(10.0, Source("camera", 40.0)), platform, 60.0, governing=governing)


def test_a_governor_keeps_power_by_holding_frames_back() -> None:
    played = governed(10.8)
    assert played.governed is not None and played.governed.setting == "60%"
    late = [one.power_w for one in played.moments[10:]]
    assert all(watts is not None and watts <= 10.8 for watts in late)
    assert played.fps == pytest.approx(24.0, rel=0.05)
    free = governed(20.0)
    assert free.governed is not None and free.governed.setting == "100%" and free.fps == pytest.approx(40.0, rel=0.01)


def test_a_governor_that_stops_ends_the_simulation() -> None:
    rules = Rules(Budget(6.0, when_exceeded="stop"), (Setting("all", 5.5, 40.0, idle_w=5.0),))
    platform = Platform(power=POWER, cooling=Cooling(1.0))
    played = simulate(
        line(10.0, Source("camera", 40.0)), platform, 60.0, governing=Governing(rules, ({"camera": 1.0},))
    )
    assert played.seconds < 10 and played.governed is not None
    assert played.governed.events[-1].kind == "stop"


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    design = line(20.0, Source("camera", 45.0, jitter=0.3, objects=2.0))
    platform = Platform()
    assert simulate(design, platform, 5.0, seed=3) == simulate(design, platform, 5.0, seed=3)
    assert simulate(design, platform, 5.0, seed=3) != simulate(design, platform, 5.0, seed=4)


def test_moments_add_up() -> None:
    played = simulate(line(20.0, Source("camera", 100.0)), Platform(power=POWER, cooling=Cooling(1.0)), 7.0)
    assert [round(one.at_s) for one in played.moments] == [1, 2, 3, 4, 5, 6, 7]
    assert sum(one.dropped for one in played.moments) == played.dropped
    assert sum(one.fps for one in played.moments) == pytest.approx(played.frames_out, abs=1)


@pytest.mark.parametrize("mean", [0.0, 3.0, 2000.0])
def test_random_numbers_of_objects_have_their_mean(mean: float) -> None:
    """exp(-mean) is 0 from 746 on."""
    rng = Random(1)
    counts = [poisson(rng, mean) for _ in range(200)]
    assert sum(counts) / len(counts) == pytest.approx(mean, rel=0.1)
