"""Simulation of a design on a platform: threads, cores and accelerators, power and heat, and a governor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from edgert.budget.loop import PERIOD_S, Loop
from edgert.budget.rules import Action, Observation, Rules, Stop, Switch
from edgert.placement.contention import Contention
from edgert.placement.cost.power import Power
from edgert.placement.schedule import Accelerators, AcceleratorUse, Callback, Timeline
from edgert.placement.segment_engines import Step
from edgert.simulator.design import Design
from edgert.simulator.hardware import ANY_CORE, TICK_MS, Cooling, Cores, ThermalModel
from edgert.simulator.sources import Camera, connect
from edgert.simulator.spans import Recorder
from edgert.simulator.statistics import Meter, Simulated
from edgert.simulator.threads import LEAST_MS, BatchThread, Perform, Thread, Token


@dataclass(frozen=True, slots=True)
class Platform:
    """Hardware that a simulation runs on.

    Attributes:
        cores: names of the CPU cores, as in steps; other accelerators need no list.
        contention: contention of accelerators for memory; None for no slowdown.
        power, cooling: power and cooling of the board; None if unknown.
    """

    cores: tuple[str, ...] = ()
    contention: Contention | None = None
    power: Power | None = None
    cooling: Cooling | None = None


@dataclass(frozen=True, slots=True)
class Governing:
    """Rules that keep the budgets in a simulation, and the effects of each setting.

    Attributes:
        shares: source → share of its frames that are processed, for each setting of the rules.
        levels: fallback level of each setting; empty for no fallback models.
    """

    rules: Rules
    shares: tuple[Mapping[str, float], ...]
    levels: tuple[int, ...] = ()


class Machine:
    """Platform at work on a timeline: cores and accelerators, their power, and throttling by heat."""

    def __init__(self, timeline: Timeline, platform: Platform) -> None:
        self._time = timeline
        self._cores = Cores(timeline, platform.cores or (ANY_CORE,))
        self._accelerators = Accelerators(timeline, platform.contention)
        self.thermal = ThermalModel(platform.power, platform.cooling) if platform.power and platform.cooling else None

    def perform(self, steps: Sequence[Step], then: Callback) -> None:
        """Run steps one after the other, and then ``then``; even no steps take time, so that time always advances."""
        if not steps:
            self._time.call_at(self._time.now_ms + LEAST_MS, then)
            return
        first, *rest = steps
        follow = partial(self.perform, rest, then) if rest else then
        if first.accelerator in self._cores:
            self._cores.run(first, follow)
        else:
            self._accelerators.run(first, follow)

    def used(self) -> dict[str, AcceleratorUse]:
        """Return accelerator → work so far; all cores count as one."""
        used = self._accelerators.used()
        cores = self._cores.used()
        return {**used, ANY_CORE: cores} if cores.busy_ms else used

    def tick(self, used: Mapping[str, AcceleratorUse]) -> None:
        """Advance power and temperature by :data:`TICK_MS`; ``used`` is all work so far."""
        if self.thermal is not None:
            self.thermal.tick(used)
            self._accelerators.throttle(self.thermal.clock)


def simulate(
    design: Design,
    platform: Platform,
    seconds: float,
    *,
    seed: int = 0,
    governing: Governing | None = None,
    record: bool = False,
) -> Simulated:
    """Simulate a pipeline for ``seconds``; the same seed gives the same result.

    Args:
        design: pipeline to simulate.
        platform: hardware to simulate.
        seconds: simulated time.
        seed: random seed of arrivals and objects.
        governing: rules of a governor; None for no governor.
        record: whether to record one second in detail.
    """
    return _Simulation(design, platform, seconds, seed, governing, record).run()


class _Simulation:
    def __init__(
        self,
        design: Design,
        platform: Platform,
        seconds: float,
        seed: int,
        governing: Governing | None,
        record: bool,
    ) -> None:
        self._end_ms, rng = 1e3 * seconds, Random(seed)  # noqa: S311 - a simulation
        self._time = Timeline()
        self._machine = Machine(self._time, platform)
        self._thermal = self._machine.thermal
        self._recorder = Recorder(self._time, self._machine.perform, platform.cores) if record else None
        self._threads = [
            (BatchThread if node.task.batch else Thread)(
                node, self._perform_for(node.name), self._count_result, self._time
            )
            for node in design.nodes
        ]
        self._cameras = [
            Camera(source, self._time, Random(rng.random()), self._perform_for(source.name))  # noqa: S311
            for source in design.sources
        ]
        connect(self._cameras, self._threads)
        if self._recorder is not None:
            self._recorder.watch(channel for thread in self._threads for channel in thread.inlets)
        self._meter = Meter(self._cameras, self._threads, self._thermal, self._end_ms)
        self._governing = governing
        self._is_stopped = False
        self._loop = Loop(governing.rules, self._apply, 0) if governing else None

    def run(self) -> Simulated:
        for thread in self._threads:
            self._time.call_at(0.0, thread.free)
        for camera in self._cameras:
            self._time.call_at(0.0, camera.start)
        self._time.call_at(TICK_MS, self._tick)
        if self._loop is not None:
            self._time.call_at(1e3 * PERIOD_S, self._govern)
        while self._time.now_ms < self._end_ms and not self._is_stopped:
            is_working = any(thread.is_working for thread in self._threads)
            if not is_working and all(camera.has_ended for camera in self._cameras):
                break
            self._time.run(min(self._time.now_ms + TICK_MS, self._end_ms))
        governed = self._loop.report() if self._loop else None
        result = self._meter.result(self._time.now_ms, self._machine.used(), governed)
        return result if self._recorder is None else replace(result, second=self._recorder.result(self._time.now_ms))

    def _perform_for(self, stage: str) -> Perform:
        if self._recorder is not None:
            return self._recorder.perform_for(stage)
        return self._machine.perform

    def _count_result(self, thread: Thread, token: Token) -> None:
        if not thread.outlets:
            self._meter.note(self._time.now_ms, token.born_ms)

    def _tick(self) -> None:
        used = self._machine.used()
        self._machine.tick(used)
        self._meter.tick(self._time.now_ms, used, self._loop.setting.name if self._loop else "")
        if self._recorder is not None and (moment := self._meter.last) is not None:
            self._recorder.end_second(1e3 * moment.at_s, moment.p99_ms)
        self._time.call_at(self._time.now_ms + TICK_MS, self._tick)

    def _govern(self) -> None:
        assert self._loop is not None
        queued, lost = self._meter.pressure()
        self._loop.step(
            Observation(
                round(self._time.now_ms * 1e6),
                self._thermal.sensed_w if self._thermal else None,
                latency_ms=self._meter.recent_p99_ms(self._time.now_ms),
                margin_c=self._thermal.margin_c if self._thermal else None,
                queued=queued,
                lost=lost,
            )
        )
        self._time.call_at(self._time.now_ms + 1e3 * PERIOD_S, self._govern)

    def _apply(self, action: Action) -> None:
        assert self._governing is not None
        if isinstance(action, Switch):
            for camera in self._cameras:
                camera.limiter.share = self._governing.shares[action.setting][camera.source.name] * action.share
            for thread in self._threads:
                thread.level = self._governing.levels[action.setting] if self._governing.levels else 0
        self._is_stopped = self._is_stopped or isinstance(action, Stop)
