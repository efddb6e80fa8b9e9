"""Hardware in simulated time: cores that threads share evenly, and a board's power and heat."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgert.meters.energy import SENSOR_AVERAGE_S
from edgert.placement.contention import MEASURED, requested_share
from edgert.placement.cost.power import Power, relative_energy
from edgert.placement.schedule import AcceleratorUse, Callback, Progress, Timeline
from edgert.placement.segment_engines import Step

ANY_CORE = "cpu"
"""Accelerator of steps that may run on any core."""


@dataclass(slots=True, eq=False)
class _Job:
    step: Step
    progress: Progress


class Cores:
    """CPU cores of one machine.

    A step names its core, or :data:`ANY_CORE`. Steps for any core run on the least loaded one, and move at once when
    that changes. Effects on caches are not simulated.

    Args:
        timeline: simulated time.
        names: names of the cores, as in steps.
    """

    def __init__(self, timeline: Timeline, names: Sequence[str]) -> None:
        self._timeline, self._names = timeline, tuple(names)
        self._jobs: list[_Job] = []
        self._used = AcceleratorUse()

    def __contains__(self, name: str | None) -> bool:
        return name == ANY_CORE or name in self._names

    def run(self, step: Step, then: Callback) -> None:
        """Begin a step at once, sharing the cores with other steps; call ``then`` at its end."""

        def finish() -> None:
            self._catch_up(job)
            self._jobs.remove(job)
            self._pace()
            then()

        job = _Job(step, Progress(self._timeline, step.time_ms, finish))
        self._jobs.append(job)
        self._pace()

    def used(self) -> AcceleratorUse:
        """Return the work of all cores so far."""
        for job in self._jobs:
            self._catch_up(job)
        return self._used

    def _catch_up(self, job: _Job) -> None:
        passed_ms = job.progress.catch_up()
        self._used.busy_ms += min(passed_ms * job.progress.speed, passed_ms) * job.step.threads

    def _pace(self) -> None:
        places, loads = self._assign_cores()
        busy = sum(load > 0 for load in loads)
        for job, cores in zip(self._jobs, places, strict=True):
            share = sum(1 / loads[core] for core in cores) / len(cores)
            speed = share
            if job.step.slowdown != 1.0:
                # Each other busy core is assumed to request as much memory bandwidth as this step.
                demand = requested_share(job.step.slowdown, len(self._names))
                speed /= MEASURED.slowdown(demand, max(0, busy - len(set(cores))) * demand)
            if speed != job.progress.speed:
                self._catch_up(job)
                job.progress.resume(speed)

    def _assign_cores(self) -> tuple[list[list[int]], list[int]]:
        """Return the cores of every job, and the jobs per core: pinned jobs first, others on the least loaded."""
        loads = [0] * len(self._names)
        places: list[list[int]] = [[] for _ in self._jobs]
        for number, job in sorted(enumerate(self._jobs), key=lambda one: one[1].step.accelerator == ANY_CORE):
            for _ in range(min(job.step.threads, len(loads))):
                name = job.step.accelerator
                core = loads.index(min(loads)) if name is None or name == ANY_CORE else self._names.index(name)
                loads[core] += 1
                places[number].append(core)
        return places, loads


# Power and temperature of a board at work, and the reading of its power sensor.
#
# Heat is modeled by one resistance and one capacity: C dT/dt = P - (T - ambient) / R. No resistance of a module with
# its cooler is published, so :class:`Cooling` is an assumption that users can replace.
#
# At the passive trip point clocks are lowered as by Linux's step-wise thermal governor: one step at each check while
# the board is too warm, and one step back at each check below (drivers/thermal/gov_step_wise.c). The size of steps and
# the interval of checks are in each board's device tree; both are assumed here.

TICK_MS = 100.0
_STEP, _SLOWEST, _STEP_S = 0.05, 0.25, 1.0  # step and minimum of the relative clock, and interval of checks
_WINDOW = round(SENSOR_AVERAGE_S * 1e3 / TICK_MS)


@dataclass(frozen=True, slots=True)
class Cooling:
    """Thermal parameters of the board's cooling.

    Attributes:
        c_per_w: steady-state degrees above ambient temperature per watt.
        tau_s: time constant: seconds until 63 % of a change has happened.
        ambient_c: ambient temperature.
        throttle_c: temperature at which the hardware lowers clocks.
    """

    c_per_w: float
    tau_s: float = 60.0
    ambient_c: float = 25.0
    throttle_c: float = 95.0


class ThermalModel:
    """Power and temperature of a board, updated by ticks.

    Args:
        power: watts of the idle board, of busy cores and of the video decoder; steps contain those of accelerators.
        cooling: thermal parameters.

    Attributes:
        clock: clocks of the accelerators under the thermal limit, relative, up to 1.
        seconds: elapsed time.
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
        """Reading of a Jetson's power sensor, in watts: the mean of the last 0.4 s."""
        return sum(self._ticks) / len(self._ticks)

    @property
    def margin_c(self) -> float:
        """Degrees below the throttling temperature."""
        return self.cooling.throttle_c - self.temperature_c

    def tick(self, used: Mapping[str, AcceleratorUse], seconds: float = TICK_MS / 1e3) -> None:
        """Advance time.

        Args:
            used: work of each accelerator since the beginning.
            seconds: time to advance.
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
