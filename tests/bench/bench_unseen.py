"""Pipelines that nobody measured, foretold from others: frames a second, latency and processor time.

Once, other pipelines and networks are measured on this machine: what a stage takes for a frame, for each of its
megapixels and each object, what networks take kernel by kernel, beside another one and on two threads, how they do
behind a camera that lets them rest, how times scatter, how late threads wake up, what passing a result on takes, how
far apart cameras begin, and how long idle cores leave threads waiting. Rates are fitted to that, without the networks
of the pipeline that is asked for. Other pipelines (unseen_pipelines.py) are then simulated from these numbers alone,
and run, in turn; medians of the runs are compared. Each is foretold a second time, "profiled": with what its networks
took by themselves and behind that camera, which is more than profiles of `edgert bench` have: these know no rests and
no second thread. Nothing of the pipeline is known then, either. The processor's time stands in for its watts, as most
machines have no meter.

Virtual machines share a processor's clock and caches with others, so one network of none of the pipelines is timed in
between while the machine is measured, and right before and after anything runs (pace.py). All times are held against
its time then, and what is foretold is for a machine that is as much slower as that network was, reading by reading. A
run counts only if others took less than a tenth of a core meanwhile.
Pipelines of which fewer than three runs count are run more often, at most fifteen times, and skipped then. What is
measured of the machine while others are busy is measured again, as often; where they always are, it skips everything.

python tests/bench/bench_unseen.py [--json FILE]      # an hour
EDGERT_BENCH_ROUNDS=1 EDGERT_BENCH_BUSY=1 python tests/bench/bench_unseen.py      # quickly, however busy the machine is
EDGERT_BENCH_PIPELINES=watch,film python tests/bench/bench_unseen.py
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np
from pace import PERIOD_S, Pace
from quiet import QUIET_CORES, BusyError, Watch, counts_all, quietly, wait
from report import main, needs
from zoo import rounds

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench_cpu_stages import BOX_SIDE, SIZES
from unseen import Case, columns, film, run, scene, static
from unseen_machine import Known, Machine, measured
from unseen_networks import BRIEF_S
from unseen_pipelines import CASES, FILMS, SECONDS
from unseen_stages import BRISK_FPS, RESTS_S, beside

from edgert.benchmark import core_profile
from edgert.benchmark.measure import Figure
from edgert.board import HOST
from edgert.board.host import core_accelerators
from edgert.config import InferStage, PipelineFile, SourceStage, StageConfig, load_pipeline
from edgert.config.flow import inputs_of
from edgert.config.stages import DrawStage, SinkStage, TrackStage
from edgert.graph import read
from edgert.jitter import Quantiles
from edgert.placement.cost.work import units
from edgert.placement.profile import MeasuredTransition, Profile, ProfiledUnit, Whole
from edgert.placement.segment_engines import Step
from edgert.runtime import Summary
from edgert.simulator import Platform, Simulated, simulate
from edgert.simulator.board_platform import HostSlots, Woken
from edgert.simulator.hardware import ANY_CORE
from edgert.simulator.pipeline_design import InferenceSlot, Scene, design_of
from edgert.simulator.recorded import StageTime, StageTimes

NEAR, FAR = 0.15, 0.25
"""Bars: of frames a second and the median; of p99 and of the processor's time."""
ROUNDS, FEWEST, MOST = 5, 3, 15
FETCH_FRAMES = 1000
PREPARED = (*(f"{width}x{height}" for width, height in SIZES), "1280x720", "800x600", "960x540", "640x360", "1024x576")


# What is foretold.


def foretold(case: Case, file: PipelineFile, machine: Machine, seed: int, *, is_profiled: bool = False) -> Simulated:
    """The pipeline, played from what was measured of others.

    Args:
        is_profiled: its networks, run alone, were among what was measured.
    """
    without = frozenset[str]() if is_profiled else frozenset(network for network, _ in case.models.values())
    networks = {name: machine.network(network, without) for name, (network, _) in case.models.items()}
    profiles = {name: profile_of(case.models[name][0], known) for name, known in networks.items()}
    sources = {name: one for name, one in file.config.stages.items() if isinstance(one, SourceStage)}
    live = any(one.realtime for one in sources.values())
    gaps_ms = Random(seed).choices(machine.gaps_ms, k=len(sources))
    starts_ms = dict(zip(sources, accumulate([0.0, *gaps_ms[1:]]), strict=True))
    own, threads = {}, {}

    def slots(name: str, stage: InferStage, live: bool) -> Sequence[InferenceSlot]:
        known = networks[stage.infer]
        woken = Woken(known.camera.woken, known.camera.woken_busy)
        return HostSlots(file, profiles, max(2 * known.two - 1, 0.0), woken, machine.spin_ms)(name, stage, live)

    for name, stage in file.config.stages.items():
        core, own_ms = ANY_CORE, stage_ms(case, stage, file, machine, without)
        scatters = () if isinstance(stage, SourceStage) else machine.jitters.get(kind_of(stage), ())
        if isinstance(stage, InferStage):
            known, slot, crops = networks[stage.infer], slots(name, stage, live)[0], case.objects if stage.crop else 1
            rest = rest_ms(sources, own_ms + crops * slot.engine_ms)
            core, scatters = slot.core(0), jitter_of(known, slot, rest)
            own_ms += machine.rested_ms(known.camera, rest)
            own_ms /= crops  # a simulation has it for each crop
        own[name] = (Step(core, own_ms, slowdown=machine.company),)
        is_first = live and bool({*inputs_of(stage)} & {*sources})
        where = "brisk" if is_brisk(sources) else "first" if is_first else "next"
        threads[name] = StageTime(
            jitter=machine.jitter_by(scatters),
            wakeup_latency_ms=() if isinstance(stage, SourceStage) else machine.late.get(where, ()),
            hand_over_ms=machine.hand_over_ms,
            first_result_ms=starts_ms.get(name, 0.0) if live else 0.0,
        )
    played = Scene({}, float(case.objects), times=StageTimes(threads), own=own)
    platform = Platform(tuple(core_accelerators()), machine.fetch_quantiles_ms)
    return simulate(design_of(file, slots, played), platform, 3 * SECONDS, seed=seed)


def jitter_of(known: Known, slot: InferenceSlot, rest: float) -> Quantiles:
    """How the times of a network's stage scatter while the machine's pace is one."""
    if rest < 1e3 * BRIEF_S[-1]:
        return known.jitter
    return known.camera.jitter if all(step.threads == 1 for step in slot.parts[0]) else known.camera.woken_jitter


def profile_of(network: str, known: Known) -> Profile:
    """Of a network of which so much is known, in the form that `edgert bench --units` writes."""
    model, cores = static(network), tuple(core_accelerators())
    graph, kernels, whole_ms = read(model), columns(network).kernels(known.kernels_ms), known.whole_ms
    works = units(graph)
    units_ms = core_profile.unit_times(works, graph, kernels, whole_ms)
    whole = Whole(whole_ms, whole_ms * known.company, sum(one.time_ms for one in kernels), known.jitter)
    pairs = zip(works, units_ms, strict=True)
    return Profile(
        network, model.digest, HOST, "", core_profile.machine_identity(), 1, dict.fromkeys(cores, whole),
        tuple(ProfiledUnit(one.name, one.nodes, dict.fromkeys(cores, ms)) for one, ms in pairs),
        MeasuredTransition(0.05, 0.0, 0.0),
    )  # fmt: skip


def rest_ms(sources: Mapping[str, SourceStage], frame_ms: float) -> float:
    """How long a stage that takes this for a frame waits for the next; not at all where files are read."""
    total_fps = frames_s(sources)
    return 0.0 if total_fps is None else max(1e3 / total_fps - frame_ms, 0.0)


def frames_s(sources: Mapping[str, SourceStage]) -> float | None:
    """How many frames come a second; None where they come as fast as they are taken."""
    rates = [one.fps for one in sources.values() if one.realtime and one.fps]
    return sum(rates) if len(rates) == len(sources) else None


def is_brisk(sources: Mapping[str, SourceStage]) -> bool:
    """Whether frames follow one another so fast that what stages use stays in the caches."""
    return (frames_s(sources) or math.inf) >= BRISK_FPS


def stage_ms(
    case: Case, stage: StageConfig, file: PipelineFile, machine: Machine, without: frozenset[str] = frozenset()
) -> float:
    """Of a frame, beside its network where it has one; networks may be left out of what is known."""
    sources = {name: one for name, one in file.config.stages.items() if isinstance(one, SourceStage)}
    width, height = max(map(size_of, sources.values()))
    megapixels = width * height / 1e6
    if isinstance(stage, InferStage):
        crops, seen = (case.objects, BOX_SIDE**2 * megapixels) if stage.crop else (1, megapixels)
        return machine.beside_ms(beside(case.models[stage.infer][0], seen, crops), without)
    known = {**machine.stages, **machine.brisk} if is_brisk(sources) else machine.stages
    found = known.get(kind_of(stage), (0.0, 0.0, 0.0))
    return sum(rate * amount for rate, amount in zip(found, (1.0, megapixels, case.objects), strict=True))


def size_of(source: SourceStage) -> tuple[int, int]:
    """Of its frames; other films than that of the pipelines are named after theirs."""
    if source.size:
        return source.size
    width, height = FILMS.get(source.source, source.source.removesuffix(".mp4")).split("x")
    return int(width), int(height)


def kind_of(stage: StageConfig) -> str:
    """Under which a stage was measured; ``sink: null`` was not."""
    if isinstance(stage, SourceStage):
        return "decode" if stage.source.endswith(".mp4") else "still"
    if isinstance(stage, DrawStage):
        return "trails" if {"trails", "stats"} & set(stage.draw) else "draw"
    if isinstance(stage, SinkStage):
        return stage.sink
    return "track" if isinstance(stage, TrackStage) else "boxes"


# How long idle cores leave threads waiting: as long as it takes that films through other networks keep as many busy.

FETCH_MS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
FETCHED = ("fastestdet", "deeplab_v3_mnv2_05")
"""Networks of no pipeline here."""
ALL_CORES = 0.95
"""Of the cores, so many are busy where nothing but the cores keeps a film."""


def fetched_ms(folder: Path, machine: Machine) -> float:
    """On average; the median over films of other networks, each run once after the other in rounds."""
    found, files = list[float](), {}
    for network in FETCHED:
        for width, height in SIZES:
            stages = (
                f"  film: {{source: {width}x{height}.mp4, decode: cpu, loop: true, limit: {FETCH_FRAMES}}}\n"
                "  name: {infer: name, from: film}\n  events: {sink: jsonl, from: name, path: film.jsonl}\n"
            )
            files[network, width, height] = Case("fetch", {"name": (network, "backend: ort")}, stages)
    for _ in range(rounds(2)):
        for case in files.values():
            cores = quietly(partial(run, folder, case))[1]
            file = load_pipeline(folder / "p.yaml")
            expected = [foretold(case, file, replace(machine, fetch_ms=ms), 0).busy[ANY_CORE] for ms in FETCH_MS]
            if expected[0] > ALL_CORES * len(core_accelerators()):  # others rest anyway, and say nothing
                falling = np.minimum.accumulate(expected)
                found.append(float(np.interp(-cores, -falling, FETCH_MS)))
    return statistics.median(found or [0.0])


# All of it.


def measure() -> Iterator[Figure]:
    """All pipelines."""
    needs("models")
    chosen = os.environ.get("EDGERT_BENCH_PIPELINES", "")
    cases = [case for case in CASES if not chosen or case.name in chosen.split(",")]
    with scene(PREPARED) as folder:
        for name, size in FILMS.items():
            film(folder, name, size)
        try:
            machine = measured(folder, rounds(3))
            machine = replace(machine, fetch_ms=fetched_ms(folder, machine))
        except BusyError:
            print("  skipped: others were busy while this machine was measured; EDGERT_BENCH_BUSY=1 goes on")
            return
        describe(machine)
        real: dict[str, list[tuple[Summary, float]]] = {case.name: [] for case in cases}
        forecasts: dict[str, list[tuple[Simulated, Simulated]]] = {case.name: [] for case in cases}
        for number in range(MOST):
            few = [case for case in cases if len(real[case.name]) < FEWEST]
            for case in cases if number < rounds(ROUNDS) else few if not counts_all() else ():
                wait()
                with Pace() as pace:
                    watch = Watch()
                    found = run(folder, case)
                    others = watch.others()
                if counts_all() or others <= QUIET_CORES:
                    file, now = load_pipeline(folder / "p.yaml"), machine.paced(pace.readings_ms, PERIOD_S)
                    real[case.name].append(found)
                    forecasts[case.name].append(
                        (foretold(case, file, now, number), foretold(case, file, now, number, is_profiled=True))
                    )
                else:
                    print(f"  not counted: {case.name}, others took {others:.2f} cores")
    for case in cases:
        if len(real[case.name]) < (1 if counts_all() else FEWEST):
            print(f"  skipped: {case.name}, the machine was too busy; {len(real[case.name])} runs counted")
        else:
            yield from figures(case.name, real[case.name], [one for one, _ in forecasts[case.name]])
            yield from figures(f"{case.name}, profiled", real[case.name], [one for _, one in forecasts[case.name]])


def describe(machine: Machine) -> None:
    """Prints what was measured."""
    cameras = machine.cameras.values()
    woken, busy = (statistics.median(getattr(one, name) for one in cameras) for name in ("woken", "woken_busy"))
    print(
        f"  two networks at once {machine.company:.2f} x as slow; two threads take {machine.two:.2f} of one's time and "
        f"spin {machine.spin_ms:.0f} ms, {woken:.2f} behind a camera and {busy:.2f} of its processor time; p99 of a "
        f"run {machine.run_jitter[-3]:.2f} x"
    )
    rests = zip(RESTS_S, *(one.rested_ms for one in cameras), strict=True)
    more = ", ".join(f"{statistics.median(ms):.2f} ms after {1e3 * rest_s:.0f}" for rest_s, *ms in rests)
    brief = ", ".join(f"{part:.2f}" for part in machine.brief)
    print(f"  a run takes more after a rest: {more}; after brief ones {brief} of it")
    print(
        f"  passing a result on takes {machine.hand_over_ms:.3f} ms; an idle core leaves threads waiting for "
        f"{machine.fetch_ms:.2f} ms; cameras begin {', '.join(f'{ms:.1f}' for ms in sorted(machine.gaps_ms))} ms apart"
    )
    named = {**machine.stages, **{f"{kind}, briskly": numbers for kind, numbers in machine.brisk.items()}}
    for kind, numbers in named.items():
        print(f"  {kind}: " + ", ".join(f"{one:.3f}" for one in numbers) + " ms a frame, megapixel, object")


def figures(name: str, real: Sequence[tuple[Summary, float]], forecasts: Sequence[Simulated]) -> Iterator[Figure]:
    """How far medians are apart."""
    found: Mapping[str, tuple[list[float], list[float], float]] = {
        "frames/s": ([one.fps for one, _ in real], [one.fps for one in forecasts], NEAR),
        "p50": ([one.latency_ms.p50 for one, _ in real], [one.latency_ms.p50 for one in forecasts], NEAR),
        "p99": ([one.latency_ms.p99 for one, _ in real], [one.latency_ms.p99 for one in forecasts], FAR),
        "busy cores": ([cores for _, cores in real], [one.busy[ANY_CORE] for one in forecasts], FAR),
    }
    for what, (seen, said, bar) in found.items():
        middle, foretells = statistics.median(seen), statistics.median(said)
        detail = {"foretold": foretells, "real": middle, "least": min(seen), "most": max(seen), "apart": apart(seen)}
        yield Figure(f"{name}: {what}", abs(foretells / middle - 1), "of it", bar, n=len(seen), detail=detail)


def apart(seen: Sequence[float]) -> float:
    """How far a run is from the median of the others, the median of that: nobody foretells one more exactly."""
    others = (statistics.median([*seen[:at], *seen[at + 1 :]]) for at in range(len(seen)) if len(seen) > 1)
    return statistics.median([abs(one / other - 1) for one, other in zip(seen, others, strict=False)] or [0.0])


if __name__ == "__main__":
    main(__doc__.splitlines()[0] if __doc__ else "", measure)
