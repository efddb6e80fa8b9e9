"""Processor cores in simulated time: threads that are ready share them evenly, as a fair scheduler lets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from edgert.jitter import Quantiles, draw, mean_of
from edgert.place.event import Progress, Then, Timeline, Used
from edgert.place.step import Step

ANY_CORE = "cpu"
"""The accelerator of a step that any core may run."""


@dataclass(frozen=True, slots=True)
class CoreStep(Step):
    """A step of a core.

    Attributes:
        crowded: how many times longer it takes while all other cores are busy.
        threads: cores that it runs on at once, each doing its part.
        jitter: how its time jitters about ``time_ms``, its median.
        rows: parts of it that jitter each by itself, as what disturbs a run comes more often the longer it takes.
    """

    crowded: float = 1.0
    threads: int = 1
    jitter: Quantiles = ()
    rows: int = 1

    @property
    def mean_ms(self) -> float:
        """Alone, on average."""
        return self.time_ms * mean_of(self.jitter)

    def times(self, factor: float) -> CoreStep:
        """So many of it, one after the other."""
        return replace(Step.times(self, factor), rows=max(1, round(self.rows * factor)))

    def drawn_ms(self, chance: Random) -> float:
        """How long it takes this time, alone."""
        if not self.jitter:
            return self.time_ms
        return self.time_ms / self.rows * sum(draw(self.jitter, chance) for _ in range(self.rows))


@dataclass(slots=True, eq=False)
class _Job:
    step: Step
    progress: Progress


class Cores:
    """Cores of one machine.

    A step names its core, or :data:`ANY_CORE`. Those that may run anywhere go where least runs, and move at once when
    that changes; what the memory cache makes of that is not simulated.

    Args:
        names: of the cores, as steps name them.
        chance: of times that jitter.
    """

    def __init__(self, timeline: Timeline, names: Sequence[str], chance: Random) -> None:
        self._timeline, self._names, self._chance = timeline, tuple(names), chance
        self._jobs: list[_Job] = []
        self._used = Used()

    def __contains__(self, name: str | None) -> bool:
        return name == ANY_CORE or name in self._names

    def run(self, step: Step, then: Then) -> None:
        """Begins at once, as fast as the others leave room; ``then`` follows when the step is done."""
        time_ms = step.drawn_ms(self._chance) if isinstance(step, CoreStep) else step.time_ms
        job = _Job(step, Progress(self._timeline, time_ms, lambda: self._finish(job, then)))
        self._jobs.append(job)
        self._pace()

    def used(self) -> Used:
        """What all cores together did up to now."""
        for job in self._jobs:
            self._catch_up(job)
        return self._used

    def _finish(self, job: _Job, then: Then) -> None:
        self._catch_up(job)
        self._jobs.remove(job)
        self._pace()
        then()

    def _catch_up(self, job: _Job) -> None:
        passed_ms = job.progress.catch_up()
        worked_ms = passed_ms * job.progress.speed
        self._used.worked_ms += worked_ms
        self._used.busy_ms += min(worked_ms, passed_ms) * _threads(job.step)

    def _pace(self) -> None:
        """New speeds, and so new ends, for all that runs."""
        places, loads = self._placed()
        busy = sum(load > 0 for load in loads)
        for job, cores in zip(self._jobs, places, strict=True):
            others = max(0, busy - len(set(cores))) / max(1, len(self._names) - 1)
            crowded = job.step.crowded if isinstance(job.step, CoreStep) else 1.0
            share = sum(1 / loads[core] for core in cores) / len(cores)
            speed = share / (1 + (crowded - 1) * others)
            if speed != job.progress.speed:
                self._catch_up(job)
                job.progress.go_on(speed)

    def _placed(self) -> tuple[list[list[int]], list[int]]:
        """The cores of every job, and how many share each core: pinned ones first, the others where least is."""
        loads = [0] * len(self._names)
        places: list[list[int]] = [[] for _ in self._jobs]
        for number, job in sorted(enumerate(self._jobs), key=lambda one: one[1].step.accelerator == ANY_CORE):
            for _ in range(min(_threads(job.step), len(loads))):
                name = job.step.accelerator
                is_free = name is None or name == ANY_CORE
                core = loads.index(min(loads)) if is_free else self._names.index(name or "")
                loads[core] += 1
                places[number].append(core)
        return places, loads


def _threads(step: Step) -> int:
    return step.threads if isinstance(step, CoreStep) else 1
