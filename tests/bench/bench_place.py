"""How long placement takes: cuts, integer programs, throughput of many networks, schedules played.

    python tests/bench/bench_place.py [--json FILE]

Networks are made by chance: log-normal units, a DLA 1.2 to 2.8 times slower than the GPU, hand-overs of 20 to 90 µs,
skips; the same in every run. Times are CPU time of one thread, which other work on the machine disturbs less than wall
time, from the records to the answer, as a median. Exits 1 where a cut at 1,000 units takes more than 20 ms, or 16
networks of 200 units more than 0.5 s or end with a proven gap above 0.1 %.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import report

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgert.benchmark.measure import Figure
from edgert.placement.constraints import Limits, streams
from edgert.placement.engine_selection import EngineSelector
from edgert.placement.exact import Condition, exact
from edgert.placement.min_cut import cut
from edgert.placement.run_load import ENERGY, LATENCY
from edgert.placement.schedule import play
from edgert.placement.solver import solve
from edgert.placement.throughput import Resources, blend
from tests.helpers.placement import BOARD, GPU_DLA, random_network

CUT_BAR_MS, MIX_BAR_MS, GAP_BAR, PLAY_BAR_MS = 20.0, 500.0, 0.1, 1000.0


def cpu_ms(work: Callable[[], object], rounds: int) -> list[float]:
    """CPU milliseconds, round by round, after one that warms up."""
    taken = []
    for _ in range(rounds + 1):
        gc.collect()
        start_ns = time.process_time_ns()
        work()
        taken.append((time.process_time_ns() - start_ns) / 1e6)
    return taken[1:]


def figure(name: str, work: Callable[[], object], bar: float | None = None, rounds: int = 11) -> Figure:
    """The median, with the best beside it."""
    taken = cpu_ms(work, rounds)
    return Figure(name, statistics.median(taken), "ms", bar, n=rounds, detail={"best": min(taken)})


def one_network() -> Iterator[Figure]:
    """Solvers that place one."""
    large = random_network(1, 1000, skips=0.25, linked=True)
    yield figure("latency cut, 1,000 units", lambda: cut(large, *GPU_DLA, LATENCY), CUT_BAR_MS)
    for units in (100, 400):
        net = random_network(1, units, skips=0.25, linked=True)
        quick = Condition("latency", LATENCY, 1.25 * cut(net, *GPU_DLA, LATENCY).cost)

        def program(net: object = net, quick: Condition = quick) -> object:
            return exact(net, GPU_DLA, ENERGY, [quick], loadables={"dla0": 16})  # type: ignore[arg-type]

        gap = exact(net, GPU_DLA, ENERGY, [quick], loadables={"dla0": 16}).gap
        taken = cpu_ms(program, 1)
        name = f"least energy in 1.25 of the latency, 16 loadables, {units} units"
        yield Figure(name, taken[0], "ms", detail={"gap %": 100 * gap})


def many_networks() -> Iterator[Figure]:
    """Throughput."""
    nets = [random_network(seed, 200, among=BOARD, skips=0.25, linked=True, name=f"n{seed}") for seed in range(16)]
    limits = Limits()

    def mix() -> object:
        resources = Resources.of(nets, limits)
        return EngineSelector(nets, resources, limits).select(blend(nets, resources))

    placement = solve(nets, "throughput")
    alone = blend(nets, Resources.of(nets, limits))
    yield figure(
        "mix, 16 networks of 200 units",
        lambda: blend(nets, Resources.of(nets, limits)),
        MIX_BAR_MS,
        rounds=5,
    )
    yield figure("mix dealt to engines, with segments", mix, rounds=5)
    yield Figure("proven gap of the mix", 100 * alone.gap, "%", GAP_BAR)
    yield Figure("proven gap of the engines", 100 * placement.gap, "%", GAP_BAR)


def playing() -> Iterator[Figure]:
    """A minute of four networks at 60 frames per second."""
    nets = [
        random_network(seed, 20, among=BOARD, skips=0.25, linked=True, name=f"n{seed}", rate_hz=60.0)
        for seed in range(4)
    ]
    lines = streams(nets, solve(nets, "throughput", Limits(loadables={"dla0": 16, "dla1": 16})))
    yield figure("a minute of 4 networks at 60 Hz played", lambda: play(lines, 60_000), PLAY_BAR_MS, rounds=3)


def measure() -> Iterator[Figure]:
    """Every figure."""
    yield from one_network()
    yield from many_networks()
    yield from playing()


if __name__ == "__main__":
    report.main("Placing networks and playing schedules", measure)
