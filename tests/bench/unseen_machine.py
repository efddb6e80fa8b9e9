"""What bench_unseen.py knows of a machine before any pipeline is foretold, and what follows from it for a network."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from pace import mean_ms
from quiet import quietly
from scipy.optimize import nnls
from unseen import REFERENCE, columns, static
from unseen_networks import BRIEF_S, MEASURED, Bench, brief_parts
from unseen_stages import BEHIND, BEHIND_SIZE, BESIDE, RESTS_S, Others, Row, beside, megapixels_of, others

from edgert.graph import read
from edgert.jitter import AT, SLOT_MS, Jitter, Quantiles, mean_of
from edgert.placement.cost.work import Numbers
from scripts.fitting import host


@dataclass(frozen=True)
class Camera:
    """What is different of a network behind a camera.

    Attributes:
        rested_ms: what a run takes more after each of :data:`unseen_stages.RESTS_S` than right after another.
        woken: on two threads, of which the second sleeps from one run to the next, the time on one, without a rest's.
        woken_busy: the same of the processor's time.
        jitter: of the stage on one thread.
        woken_jitter: on two.
    """

    rested_ms: tuple[float, ...]
    woken: float
    woken_busy: float
    jitter: Quantiles
    woken_jitter: Quantiles


@dataclass(frozen=True)
class Known:
    """What is known of a network: measured, or foretold from others.

    Attributes:
        whole_ms: of a run that follows another at once, on one thread.
        kernels_ms: of each kernel of such a run.
        company: how many times as long it takes with all cores busy.
        two: on two threads, the time on one.
        jitter: of its runs.
        camera: how it does behind one.
    """

    whole_ms: float
    kernels_ms: Numbers
    company: float
    two: float
    jitter: Quantiles
    camera: Camera


@dataclass(frozen=True)
class Machine:
    """What was measured, without any pipeline that is asked for.

    Attributes:
        networks: with the times of their kernels.
        cameras: how networks do behind a camera.
        company: how many times as long a network takes with all cores busy.
        brief: after each of :data:`unseen_networks.BRIEF_S`, what part a run takes more of what it takes more after a
            long rest.
        two: of a run on two threads, the time on one.
        spin_ms: beside files, for how long the second of two threads keeps its core busy after a run.
        stages: kind → milliseconds a frame, a megapixel and an object.
        brisk: the same where frames follow one another at :data:`unseen_stages.BRISK_FPS` and more, of some kinds.
        beside: network → :func:`unseen_stages.beside` → what a stage takes beside the network.
        run_jitter: of a network's runs.
        jitters: kind → of a stage.
        late: of threads; see :class:`unseen_stages.Others`.
        hand_over_ms: what passing a result on takes a thread, for each that listens.
        fetch_ms: on average, how long an idle core leaves a thread waiting for another core.
        gaps_ms: as they were seen, between the first frames of one camera and the next.
        reference_ms: of one run of the reference, to which all the others belong.
        pace: how many times as long everything takes now.
        slow_phases: how far it is from that, slot after slot of :data:`edgert.jitter.SLOT_MS`.
        profiled: what each network that was measured takes itself.
    """

    networks: Mapping[str, host.Timed]
    cameras: Mapping[str, Camera]
    company: float
    brief: tuple[float, ...]
    two: float
    spin_ms: float
    stages: Mapping[str, Sequence[float]]
    brisk: Mapping[str, Sequence[float]]
    beside: Mapping[str, Mapping[Row, float]]
    run_jitter: Quantiles
    jitters: Mapping[str, Quantiles]
    late: Mapping[str, Quantiles]
    hand_over_ms: float
    reference_ms: float
    fetch_ms: float = 0.0
    gaps_ms: tuple[float, ...] = (0.0,)
    pace: float = 1.0
    slow_phases: tuple[float, ...] = ()
    profiled: Mapping[str, Known] = field(default_factory=dict)
    _rates: dict[frozenset[str], dict[str, float]] = field(default_factory=dict)

    def network(self, name: str, without: frozenset[str]) -> Known:
        """A network at the present pace, foretold from others; one that is not left out, as it was measured itself."""
        if name not in without:
            one = self.profiled[name]
            rested_ms = tuple(self.pace * ms for ms in one.camera.rested_ms)
            return replace(
                one,
                whole_ms=self.pace * one.whole_ms,
                kernels_ms=self.pace * one.kernels_ms,
                camera=replace(one.camera, rested_ms=rested_ms),
            )
        kernels_ms = self.kernels_ms(columns(name), without)
        camera = self._camera(name, without)
        return Known(float(kernels_ms.sum()), kernels_ms, self.company, self.two, self.run_jitter, camera)

    def _camera(self, name: str, without: frozenset[str]) -> Camera:
        """As others do: a rest takes something for each run and for each node more."""
        known = {other: one for other, one in self.cameras.items() if other not in without}
        rows, nodes = np.array([[1.0, _nodes(other)] for other in known]), np.array([1.0, _nodes(name)])
        rested_ms = (
            self.pace * float(nodes @ nnls(rows, np.array([one.rested_ms[at] for one in known.values()]))[0])
            for at in range(len(RESTS_S))
        )
        return Camera(
            tuple(rested_ms),
            statistics.median(one.woken for one in known.values()),
            statistics.median(one.woken_busy for one in known.values()),
            middle([one.jitter for one in known.values()]),
            middle([one.woken_jitter for one in known.values()]),
        )

    def rested_ms(self, camera: Camera, rest_ms: float) -> float:
        """What a run takes more after so long a rest: between those that were measured, by its logarithm."""
        rests = [math.log(1e3 * one) for one in (*BRIEF_S, *RESTS_S)]
        more_ms = (*(part * camera.rested_ms[0] for part in self.brief), *camera.rested_ms)
        return float(np.interp(math.log(rest_ms), rests, more_ms)) if rest_ms > 0 else 0.0

    def paced(self, readings_ms: Sequence[float], period_s: float) -> Machine:
        """The same while the reference network takes that long: others share its cores' clock and caches.

        Everything takes longer by the mean of what was read so often, and by how far each reading is from it while it
        is the last one.
        """
        usual_ms = mean_ms(readings_ms)
        pace, slots = usual_ms / self.reference_ms, round(1e3 * period_s / SLOT_MS)
        return replace(
            self,
            stages={kind: [pace * one for one in numbers] for kind, numbers in self.stages.items()},
            brisk={kind: [pace * one for one in numbers] for kind, numbers in self.brisk.items()},
            hand_over_ms=pace * self.hand_over_ms,
            pace=pace,
            slow_phases=tuple(one_ms / usual_ms for one_ms in readings_ms for _ in range(slots)),
        )

    def jitter_by(self, quantiles: Quantiles) -> Jitter:
        """How times scatter that scattered so while the machine's pace was one."""
        mean = mean_of(quantiles)
        return Jitter(quantiles, tuple(one / mean for one in self.slow_phases))

    @property
    def fetch_quantiles_ms(self) -> Quantiles:
        """At each of :data:`edgert.jitter.AT`: ticks of a core come at any moment, and not each looks."""
        longest = 1 - 1e-3
        return tuple(-self.fetch_ms * math.log(1 - min(max(at, 1e-3), longest)) for at in AT) if self.fetch_ms else ()

    def kernels_ms(self, columns: host.Columns, without: frozenset[str]) -> Numbers:
        """Of every kernel of a network, by rates that are fitted to others."""
        if without not in self._rates:
            self._rates[without] = host.fit([one for name, one in self.networks.items() if name not in without])
        return self.pace * host.predict_ms(columns, self._rates[without])

    def beside_ms(self, row: Row, without: frozenset[str]) -> float:
        """What a stage takes beside its network, by what it took beside others."""
        known = {name: rows for name, rows in self.beside.items() if name not in without}
        return self.pace * _beside_ms(known, row)


def _nodes(name: str) -> float:
    return float(len(read(static(name)).nodes))


def _beside_ms(known: Mapping[str, Mapping[Row, float]], row: Row) -> float:
    rows = {key: ms for own in known.values() for key, ms in own.items()}
    return float(np.dot(fitted(rows), row))


def measured(folder: Path, count: int) -> Machine:
    """In so many rounds. Minutes."""
    benches = {name: Bench(name) for name in MEASURED}
    reference, made = Bench(REFERENCE), list(benches.values())
    for _ in range(count):
        for bench in made:
            quietly(partial(bench.turn, reference), bench.mark())
    reference_ms = mean_ms([one for bench in made for one in bench.readings_ms])
    networks = {name: bench.found(reference_ms) for name, bench in benches.items()}
    runs_ms = {name: one.whole_ms for name, one in networks.items()}
    found = [others(folder, reference_ms, runs_ms) for _ in range(count)]
    beside_of = {name: _usual([one.beside[name] for one in found]) for name in BESIDE}
    cameras = {name: _camera(name, found, runs_ms[name], beside_of) for name in BEHIND}
    return Machine(
        networks=networks,
        cameras=cameras,
        company=statistics.median(one.company for one in made),
        brief=brief_parts(made),
        two=statistics.median(one.on_two for one in made),
        spin_ms=statistics.median(one.spun_ms() for one in made),
        stages={kind: fitted(_usual([one.stages[kind] for one in found])) for kind in found[0].stages},
        brisk={kind: fitted(_usual([one.brisk[kind] for one in found])) for kind in found[0].brisk},
        beside=beside_of,
        run_jitter=middle([one.jitter for one in made]),
        jitters={kind: middle([one for round_ in found for one in round_.jitters[kind]]) for kind in found[0].jitters},
        late={where: middle([one for round_ in found for one in round_.late[where]]) for where in found[0].late},
        hand_over_ms=statistics.median(ms for round_ in found for ms in round_.hand_over_ms),
        reference_ms=reference_ms,
        gaps_ms=tuple(gap_ms for round_ in found for gap_ms in round_.gaps_ms),
        profiled={name: _known(benches[name], networks[name], cameras[name]) for name in BEHIND},
    )


def _known(bench: Bench, found: host.Timed, camera: Camera) -> Known:
    return Known(found.whole_ms, found.kernels_ms, bench.company, bench.on_two, bench.jitter, camera)


def _camera(name: str, rounds: Sequence[Others], run_ms: float, beside_of: Mapping[str, Mapping[Row, float]]) -> Camera:
    """Of a network: what its stage takes, less what it takes beside the network and in a run that does not rest."""
    beside_ms = _beside_ms(beside_of, beside(name, megapixels_of(BEHIND_SIZE)))
    every = [one.behind[name] for one in rounds]

    def usual_ms(rest_s: float) -> float:
        return statistics.median(one[1, rest_s].stage_ms for one in every)

    pairs = [(one[1, rest_s], one[2, rest_s]) for one in every for rest_s in RESTS_S]
    return Camera(
        tuple(max(usual_ms(rest_s) - beside_ms - run_ms, 0.0) for rest_s in RESTS_S),
        statistics.median(max(1 + (two.stage_ms - one.stage_ms) / run_ms, 0.5) for one, two in pairs),
        statistics.median(max(1 + (two.cpu_ms - one.cpu_ms) / run_ms, 1.0) for one, two in pairs),
        middle([one.jitter for one, _ in pairs]),
        middle([two.jitter for _, two in pairs]),
    )


def fitted(taken: Mapping[Row, float]) -> list[float]:
    """Numbers, none below zero, with the least relative errors."""
    times = np.array(list(taken.values()))
    solved, _ = nnls(np.array(list(taken)) / times[:, None], np.ones(len(times)))
    return [float(one) for one in solved]


def _usual(rounds: Sequence[Mapping[Row, float]]) -> dict[Row, float]:
    return {row: max(statistics.median(one[row] for one in rounds), 1e-3) for row in rounds[0]}


def middle(found: Sequence[Quantiles]) -> Quantiles:
    """The median of each quantile, over those that have any."""
    some = [one for one in found if one]
    return tuple(np.median(np.array(some), axis=0).tolist()) if some else ()
