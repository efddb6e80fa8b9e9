"""Hardware in simulated time: cores that threads share evenly, times that jitter, and a board's power and heat."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from edgert.jitter import SLOT_MS, Jitter, Quantiles, draw
from edgert.meters.energy import SENSOR_AVERAGE_S
from edgert.placement.contention import MEASURED, demand_of
from edgert.placement.cost.power import Power, relative_energy
from edgert.placement.schedule import Progress, Then, Timeline, Used
from edgert.placement.segment_engines import Step

# Times that jitter.


class Sampler:
    """Draws from what was measured: single times anew each time, and slow phases as they came, from a moment of the
    measured run that is drawn once. So these last as long as they did, and strike threads together where they did.
    """

    def __init__(self, random: Random, timeline: Timeline) -> None:
        self._random, self.timeline = random, timeline
        self._start = random.random()

    def of(self, quantiles: Quantiles) -> float:
        """A time, or a ratio, of those at :data:`edgert.jitter.AT`."""
        return draw(quantiles, self._random)

    def now(self, jitter: Jitter) -> float:
        """What something takes that begins now, as a ratio to its usual time."""
        slow_phases = jitter.slow_phases
        if not slow_phases:
            return self.of(jitter.quantiles)
        slot = int(self.timeline.now_ms / SLOT_MS + self._start * len(slow_phases)) % len(slow_phases)
        return self.of(jitter.quantiles) * slow_phases[slot]


ANY_CORE = "cpu"
"""The accelerator of a step that any core may run."""


@dataclass(slots=True, eq=False)
class _Job:
    """Attributes:
    thread: whose it is; empty: nobody's in particular.
    place: the core that it stays on; None: it goes where least runs.
    """

    step: Step
    progress: Progress
    thread: str = ""
    place: int | None = None


class Cores:
    """Cores of one machine.

    A step names its core, or :data:`ANY_CORE`. Those that may run anywhere go where least runs, and move at once when
    that changes; what the memory cache makes of that is not simulated. Threads that wait for the next run of their
    engine spin for a while, which keeps cores busy like work.

    Schedulers need not move threads at once: each core has a queue of its own, a thread that wakes up is taken to go to
    a core that is idle and otherwise where it was last, and a core that runs out of work to leave the queues of others
    alone for a while. That is a model of what was seen, not of a scheduler's code. Where a time is given for it, cores
    are idle for so long while threads wait for others.

    Args:
        names: of the cores, as steps name them.
        rng: source of jitter.
        fetch_ms: how long a core that is idle leaves a thread waiting for another core: quantiles at
            :data:`edgert.jitter.AT`; empty: not at all.
    """

    def __init__(self, timeline: Timeline, names: Sequence[str], rng: Random, fetch_ms: Quantiles = ()) -> None:
        self._timeline, self._names, self._rng = timeline, tuple(names), rng
        self._fetch_ms, self._stretch = fetch_ms, 0
        self._is_uneven = False
        self._homes: dict[str, int] = {}
        self._jobs: list[_Job] = []
        self._spinning: list[_Job] = []
        self._used = Used()

    def __contains__(self, name: str | None) -> bool:
        return name == ANY_CORE or name in self._names

    def run(self, step: Step, then: Then, thread: str = "") -> None:
        """Begins at once, as fast as the others leave room; ``then`` follows when the step is done.

        Args:
            thread: whose step it is, which goes on where it was last; empty: nobody's in particular.
        """
        time_ms = step.time_ms
        if step.jitter:
            time_ms = time_ms / step.rows * sum(draw(step.jitter, self._rng) for _ in range(step.rows))

        if step.threads > 1:
            self._end_spinning()
        self._begin(step, time_ms, then, thread)

    def _begin(self, step: Step, time_ms: float, then: Then, thread: str = "") -> _Job:
        def finish() -> None:
            self._catch_up(job)
            self._jobs.remove(job)
            if step.spin_ms and step.threads > 1:
                self._spin(step)
            self._pace()
            then()

        job = _Job(step, Progress(self._timeline, time_ms, finish), thread)
        if self._fetch_ms and thread and step.threads == 1 and step.accelerator == ANY_CORE:
            loads = self._placed()[1]
            home = self._homes.get(thread, loads.index(min(loads)))
            job.place = self._homes[thread] = loads.index(0) if loads[home] and 0 in loads else home
        self._jobs.append(job)
        self._pace()
        return job

    def _spin(self, step: Step) -> None:
        """Its other threads wait for work."""
        waiting = Step(ANY_CORE, step.spin_ms, threads=step.threads - 1)
        self._spinning.append(self._begin(waiting, waiting.time_ms, self._spinning.clear))

    def _end_spinning(self) -> None:
        """They have some."""
        for job in self._spinning:
            self._catch_up(job)
            job.progress.stop()
            self._jobs.remove(job)
        self._spinning.clear()

    def used(self) -> Used:
        """What all cores together did up to now."""
        for job in self._jobs:
            self._catch_up(job)
        return self._used

    def _catch_up(self, job: _Job) -> None:
        passed_ms = job.progress.catch_up()
        worked_ms = passed_ms * job.progress.speed
        self._used.worked_ms += worked_ms
        self._used.busy_ms += min(worked_ms, passed_ms) * job.step.threads

    def _pace(self) -> None:
        """New speeds, and so new ends, for all that runs."""
        places, loads = self._placed()
        if self._fetch_ms:
            self._look(loads)
        busy = sum(load > 0 for load in loads)
        for job, cores in zip(self._jobs, places, strict=True):
            share = sum(1 / loads[core] for core in cores) / len(cores)
            speed = share
            if job.step.slowdown != 1.0:
                # Each of the other cores that are busy is taken to ask the memory for as much as this step.
                demand = demand_of(job.step.slowdown, len(self._names))
                speed /= MEASURED.slowdown(demand, max(0, busy - len(set(cores))) * demand)
            if speed != job.progress.speed:
                self._catch_up(job)
                job.progress.go_on(speed)

    def _look(self, loads: Sequence[int]) -> None:
        """Whether a core is idle from now on while a thread waits for another; it fetches that some time later."""
        is_uneven = min(loads) == 0 and self._waiting(loads) is not None
        if is_uneven and not self._is_uneven:
            self._stretch += 1
            self._timeline.at(
                self._timeline.now_ms + draw(self._fetch_ms, self._rng), partial(self._fetch, self._stretch)
            )
        self._is_uneven = is_uneven

    def _waiting(self, loads: Sequence[int]) -> _Job | None:
        """The last to come of those that share the core most are on, of those that stay where they are."""
        shared = [job for job in self._jobs if job.place is not None and loads[job.place] > 1]
        return max(shared, key=lambda job: loads[job.place or 0], default=None)

    def _fetch(self, stretch: int) -> None:
        loads = self._placed()[1]
        if stretch == self._stretch and self._is_uneven and (job := self._waiting(loads)) is not None:
            job.place = self._homes[job.thread] = loads.index(0)
            self._is_uneven = False
            self._pace()

    def _placed(self) -> tuple[list[list[int]], list[int]]:
        """The cores of every job, and how many share each core: pinned ones first, the others where least is."""
        loads = [0] * len(self._names)
        places: list[list[int]] = [[] for _ in self._jobs]
        for number, job in sorted(enumerate(self._jobs), key=_is_free):
            for _ in range(min(job.step.threads, len(loads))):
                name = job.step.accelerator
                core = loads.index(min(loads)) if name is None or name == ANY_CORE else self._names.index(name)
                core = core if job.place is None else job.place
                loads[core] += 1
                places[number].append(core)
        return places, loads


def _is_free(numbered: tuple[int, _Job]) -> bool:
    """Whether a job goes where least runs; those that do not come first."""
    job = numbered[1]
    return job.step.accelerator == ANY_CORE and job.place is None


# What a board draws and how warm it gets while it works, and what its sensor reads.
#
# Heat is one resistance and one capacity, the simplest model with a time constant: C dT/dt = P - (T - ambient) / R.
# No resistance of a module with its cooler is published, so :class:`Cooling` is an assumption that people set for
# theirs.
#
# At the passive trip point clocks are lowered as Linux's step-wise thermal governor does it: a step at each look
# while it is too warm, and a step back at each look below (drivers/thermal/gov_step_wise.c). How large steps are
# and how often it looks is set in each board's device tree: both are assumed.

TICK_MS = 100.0
_STEP, _SLOWEST, _STEP_S = 0.05, 0.25, 1.0  # of the clock, its least, and between two looks
_WINDOW = round(SENSOR_AVERAGE_S * 1e3 / TICK_MS)


@dataclass(frozen=True, slots=True)
class Cooling:
    """How heat leaves the board.

    Attributes:
        c_per_w: degrees above the surroundings for each watt, in the long run.
        tau_s: seconds until 63 % of a change has happened.
        ambient_c: the surroundings.
        throttle_c: where clocks are lowered by the hardware.
    """

    c_per_w: float
    tau_s: float = 60.0
    ambient_c: float = 25.0
    throttle_c: float = 95.0


class ThermalModel:
    """A board's power and temperature, tick by tick.

    Args:
        power: watts of idling, of busy cores and of the video decoder; what accelerators draw stands in their steps.
        cooling: how heat leaves.

    Attributes:
        clock: what the heat leaves of the accelerators' clocks, up to 1.
        seconds: that went by.
    """

    def __init__(self, power: Power, cooling: Cooling) -> None:
        self.power, self.cooling = power, cooling
        self.power_w = power.static_w
        self.temperature_c = cooling.ambient_c + cooling.c_per_w * power.static_w
        self.energy_j = self.seconds = 0.0
        self.clock, self._looked_s = 1.0, 0.0
        self._before: dict[str, tuple[float, float]] = {}
        self._ticks: deque[float] = deque([power.static_w] * _WINDOW, maxlen=_WINDOW)

    @property
    def sensed_w(self) -> float:
        """What a Jetson's sensor reads: the mean of the last 0.4 s."""
        return sum(self._ticks) / len(self._ticks)

    @property
    def margin_c(self) -> float:
        """Degrees to throttling."""
        return self.cooling.throttle_c - self.temperature_c

    def tick(self, used: Mapping[str, Used], seconds: float = TICK_MS / 1e3) -> None:
        """Time went by.

        Args:
            used: what the accelerators did since the beginning.
        """
        drawn_mj = 0.0
        for name, one in used.items():
            busy_ms, energy_mj = self._before.get(name, (0.0, 0.0))
            drawn_mj += self.power.unit_w(name) * (one.busy_ms - busy_ms)
            drawn_mj += relative_energy(self.clock) * (one.energy_mj - energy_mj)
            self._before[name] = one.busy_ms, one.energy_mj
        self.power_w = self.power.static_w + drawn_mj / 1e3 / seconds
        self.energy_j += self.power_w * seconds
        self.seconds += seconds
        self._ticks.append(self.power_w)
        settled_c = self.cooling.ambient_c + self.cooling.c_per_w * self.power_w
        self.temperature_c += (settled_c - self.temperature_c) * (1 - math.exp(-seconds / self.cooling.tau_s))
        self._looked_s += seconds
        if self._looked_s >= _STEP_S:
            self._looked_s = 0.0
            step = -_STEP if self.margin_c <= 0 else _STEP
            self.clock = min(max(self.clock + step, _SLOWEST), 1.0)
