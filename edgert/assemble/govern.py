"""A pipeline's budgets as a governor's rules, and what it may turn while the pipeline runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from edgert.assemble.build import Assembly
from edgert.backend import Engine
from edgert.board.host import core_count
from edgert.budget.governor import Action, Budget, Patience, Rules, Setting, check_meter, check_settings
from edgert.budget.loop import Loop
from edgert.budget.meter.meters import Meters
from edgert.budget.meter.reading import Reading
from edgert.budget.watch import CORES, CPU_PATIENCE, Eyes, Watch
from edgert.clock import Clock
from edgert.config import InferStage, PipelineFile, SourceStage
from edgert.config.flow import sources_of
from edgert.config.pipeline import BudgetConfig
from edgert.errors import BudgetError, EdgertError, StageError
from edgert.runtime import Gate, Source
from edgert.runtime.allowance import Allowance
from edgert.runtime.metric import RecentLatency

_ASSUMED_HZ = 30.0  # of a camera whose rate the file does not tell
_STEPS = 10  # of the share of frames that goes on
_FEWER = 3  # tenths: below this, streams are left out one by one, the last in the file first
_RUNS = 3
_LATENCY_LOOKS = 4  # two seconds

Fail = Callable[[EdgertError], None]
"""Ends the pipeline with an error."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a pipeline: stream → share of its frames that go on, in the order of the file."""

    shares: Mapping[str, float]

    @property
    def name(self) -> str:
        """``"40 % of the frames, without yard"``."""
        most = max(self.shares.values())
        frames = "all frames" if most >= 1 else f"{round(100 * most)} % of the frames"
        closed = [stream for stream, share in self.shares.items() if share == 0]
        return f"{frames}, without {' and '.join(closed)}" if closed else frames


@dataclass(frozen=True, slots=True)
class Cost:
    """What is known of a pipeline before its start.

    Attributes:
        rates_hz: stream → frames a second, if all go on.
        cores: CPU time of that: of engines on whole frames, as nobody knows how many crops will come; all cores where
            files go as fast as they can; None where no engine tells.
        engine_ms: of the slowest engine's run: no frame is through in less.
    """

    rates_hz: Mapping[str, float]
    cores: float | None
    engine_ms: float


def ways(streams: tuple[str, ...]) -> tuple[Way, ...]:
    """Fewer frames of all streams, evenly, down to 30 %; then fewer streams; then fewer frames of the first."""

    def way(tenths: int, count: int) -> Way:
        return Way({stream: tenths / _STEPS * (place < count) for place, stream in enumerate(streams)})

    even = [way(tenths, len(streams)) for tenths in range(_STEPS, _FEWER - 1, -1)]
    fewer = [way(_FEWER, count) for count in range(len(streams) - 1, 0, -1)]
    return (*even, *fewer, *(way(tenths, 1) for tenths in range(_FEWER - 1, 0, -1)))


def rules_of(budgets: BudgetConfig, found: tuple[Way, ...], cost: Cost) -> Rules:
    """What a governor goes by; the first way is that of all frames.

    Power that nobody can predict is taken to fit the budget when all frames go on, and to fall with them; the governor
    measures what is true within its first seconds.
    """
    is_cpu = budgets.cpu is not None
    cap = budgets.cpu if is_cpu else budgets.power
    full = cost.cores if is_cpu and cost.cores is not None else cap or 0.0
    total_hz = sum(cost.rates_hz.values())

    def setting(way: Way) -> Setting:
        hz = sum(cost.rates_hz[stream] * share for stream, share in way.shares.items())
        return Setting(way.name, full * hz / total_hz, hz, cost.engine_ms)

    budget = Budget(
        power_w=cap,
        latency_ms=None if budgets.latency is None else budgets.latency * 1e3,
        when_exceeded=budgets.when_exceeded,
        unit=CORES if is_cpu else "W",
        memory_bytes=budgets.memory,
    )
    return Rules(budget, tuple(map(setting, found)), CPU_PATIENCE if is_cpu else Patience())


def watch(file: PipelineFile, assembly: Assembly, meters: Meters, clock: Clock, fail: Fail) -> Watch | None:
    """The thread that keeps the budgets of a pipeline, not started; None for one without budgets.

    Runs the engines a few times, to know what they cost.

    Args:
        fail: called when a budget with ``when_exceeded: stop`` was exceeded for too long.

    Raises:
        BudgetError: no setting is predicted to keep the budgets, or ``stop`` with power that nothing here measures.
    """
    budgets = file.config.budgets
    if all(value is None for value in (budgets.power, budgets.cpu, budgets.latency, budgets.memory)):
        return None
    meters.sample()  # energy counters give no power before they are read a second time
    gates = _gates(assembly, clock)
    found = ways(tuple(gates)) if budgets.when_exceeded == "degrade" else ways(tuple(gates))[:1]
    rules = rules_of(budgets, found, _cost(file, assembly))
    try:
        notes = _check(rules, meters.sample().power)
    except BudgetError as error:
        error.where = file.where(*error.where.split("."))
        raise

    def carry(action: Action) -> None:
        for stream, share in found[action.setting].shares.items():
            gates[stream].share = share
        if action.kind == "stop":
            fail(BudgetError("a budget was exceeded", why=action.reason, where=file.where("budgets")))

    ends = [node.meter.latency for node in assembly.nodes if not node.outlets]
    recent = RecentLatency(ends, _LATENCY_LOOKS)
    granted = _allow(budgets, gates.values(), clock)
    eyes = Eyes(meters, rules.budget, lambda: recent.percentiles().p99 or None, granted)
    return Watch(Loop(rules, carry, clock.now_ns()), eyes, clock, lambda error: fail(_failure(error)), notes)


def _gates(assembly: Assembly, clock: Clock) -> dict[str, Gate]:
    """A gate behind every source."""
    gates = {}
    for node in assembly.nodes:
        if isinstance(node.work, Source):
            node.gate = gates[node.name] = Gate(node.work.live, clock)
    return gates


def _allow(budgets: BudgetConfig, gates: Iterable[Gate], clock: Clock) -> Callable[[], float]:
    """Where CPU time is to be kept by fewer frames, sources are given no more of it; what tells the part that passed."""
    if budgets.cpu is None or budgets.when_exceeded != "degrade":
        return lambda: 1.0
    allowance = Allowance(budgets.cpu, clock)
    for gate in gates:
        gate.allowance = allowance
    return allowance.share


def _check(rules: Rules, power: Reading) -> tuple[str, ...]:
    """What has to be said of the budgets before the start."""
    budget = rules.budget
    if budget.when_exceeded != "warn":
        check_settings(rules)
    told = "" if budget.unit == CORES else check_meter(budget, power)
    return (told,) if told else ()


def _cost(file: PipelineFile, assembly: Assembly) -> Cost:
    stages, streams = file.config.stages, sources_of(file.config.stages)
    sources = {name: stage for name, stage in stages.items() if isinstance(stage, SourceStage)}
    rates_hz = {name: stage.fps or _ASSUMED_HZ for name, stage in sources.items()}
    timed = {name: _timed(engine) for name, engine in assembly.engines.items() if isinstance(engine, Engine)}
    used = [
        (timed[stage.infer], sum(rates_hz[source] for source in streams[name]) / stage.every)
        for name, stage in stages.items()
        if isinstance(stage, InferStage) and stage.infer in timed and stage.crop is None
    ]
    cores = float(core_count())
    if used and assembly.live:
        cores = min(cores, sum(cpu_s * hz for (cpu_s, _), hz in used))
    return Cost(rates_hz, cores if used else None, max((wall_s * 1e3 for (_, wall_s), _ in used), default=0.0))


def _timed(engine: Engine) -> tuple[float, float]:
    """CPU and wall seconds of one run: the least of a few, as what disturbs only adds."""
    session = engine.session()
    session.run(1)
    taken = []
    for _ in range(_RUNS):
        cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
        session.run(1)
        taken.append((time.process_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns))
    return min(cpu for cpu, _ in taken) / 1e9, min(wall for _, wall in taken) / 1e9


def _failure(error: Exception) -> EdgertError:
    if isinstance(error, EdgertError):
        return error
    failure = StageError(f"the governor failed: {type(error).__name__}: {error}", fix="edgert run --debug")
    failure.__cause__ = error
    return failure
