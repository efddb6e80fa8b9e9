"""A pipeline's budgets as the rules of a governor, and the execution of its actions while the pipeline runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from edgert.assemble.graph import Assembly, Environment
from edgert.assemble.run_settings import (
    PowerStep,
    PowerSteps,
    RunSetting,
    pareto_optimal,
    predicted_setting,
    run_settings,
    with_clock_steps,
)
from edgert.backend import Engine
from edgert.board import detect, host
from edgert.budget.loop import GovernorReport, Loop
from edgert.budget.rules import Action, Budget, Rules, Setting, Stop, Switch, Tolerances, check_meter, check_settings
from edgert.budget.watch import ALLOWED_TOLERANCES, CORES, CPU_TOLERANCES, VARIANT_TOLERANCES, Observer, Watch
from edgert.clock import Clock
from edgert.config import InferStage, PipelineFile, SourceStage
from edgert.config.flow import fallback_levels, sources_of, stages_at, streams_of
from edgert.config.pipeline_file import BudgetConfig
from edgert.errors import BudgetError, EdgertError, StageError
from edgert.meters import clocks, reading, usage
from edgert.meters.all import Meters, Model
from edgert.placement.cost.power import power as power_of
from edgert.placement.segment_engines import SegmentedEngine
from edgert.runtime import Source, SourceRateLimiter, branches, metrics, throttle
from edgert.tracing import ThreadEvents

_ASSUMED_HZ = 30.0  # rate of a camera, where the file leaves it open
_MIN_RUNS, _MAX_RUNS, _TIMED_S = 3, 100, 0.2
"""Least and most timed runs of an engine, and their time: enough for one to fall between two frames of a pipeline."""
_FALLBACK = 0.9
"""Assumed power of each fallback model relative to the larger one, where it cannot be predicted."""
_LATENCY_SAMPLES = 4  # two seconds


@dataclass(frozen=True, slots=True)
class Cost:
    """Known costs of a pipeline before its start.

    Attributes:
        rates_hz: frames per second by stream, if all pass.
        cores: CPU cores used at these rates by engines on complete frames; crops are left out, as their number is
            unknown. All cores for files that are read as fast as possible; None without an engine to time.
    """

    rates_hz: Mapping[str, float]
    cores: float | None
    engine_ms: float


def rules_of(
    budgets: BudgetConfig, found: tuple[RunSetting, ...], costs: Sequence[Cost], predicted: Sequence[PowerStep] = ()
) -> Rules:
    """Return the rules of a governor. The first setting passes all frames.

    Power that cannot be predicted is assumed to fit the budget when all frames pass. It decreases with the frames and
    the engines' time, by at least a tenth for each fallback model. The governor soon measures the real power. ``costs``
    and ``predicted`` are those at each degradation level; without a plan there are no predictions.
    """
    is_cpu = budgets.cpu is not None
    cap = budgets.cpu if is_cpu else budgets.power

    def predicted_for(run: RunSetting) -> Setting:
        cost = costs[run.level]
        work = cost.engine_ms / costs[0].engine_ms if costs[0].engine_ms else 1.0
        total_hz = sum(cost.rates_hz.values())
        share = sum(cost.rates_hz[stream] * share for stream, share in run.shares.items()) / total_hz
        if run.step is not None:
            return predicted_setting(run, cost.rates_hz, run.step, work)
        if predicted and not is_cpu:
            return predicted_setting(run, cost.rates_hz, predicted[run.level])
        full = cost.cores if is_cpu and cost.cores is not None else (cap or 0.0) * min(work, _FALLBACK**run.level)
        return Setting(run.name, full * share, total_hz * share, cost.engine_ms, run.level)

    budget = Budget(
        power_w=cap,
        latency_ms=None if budgets.latency is None else budgets.latency * 1e3,
        when_exceeded=budgets.when_exceeded,
        unit=CORES if is_cpu else "W",
        memory_bytes=budgets.memory,
    )
    tolerances = CPU_TOLERANCES if is_cpu else Tolerances()
    if is_cpu and budgets.when_exceeded == "degrade":
        tolerances = VARIANT_TOLERANCES if len(costs) > 1 else ALLOWED_TOLERANCES
    settings = tuple(map(predicted_for, found))
    if budgets.when_exceeded != "degrade":  # no frame is throttled
        settings = tuple(replace(one, least_share=1.0) for one in settings)
    return Rules(budget, settings, tolerances)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Settings and rules of a governor, and warnings before the start."""

    settings: tuple[RunSetting, ...]
    rules: Rules
    notes: tuple[str, ...]


class Governing:
    """Governor of one run: a thread that keeps the budgets, replaced when budgets or sources change.

    The constructor runs the engines a few times to measure their cost; the pipeline may already run. ``fail`` is called
    when a budget with ``when_exceeded: stop`` was exceeded for too long.
    """

    def __init__(self, assembly: Assembly, environment: Environment, fail: Callable[[EdgertError], None]) -> None:
        self._assembly, self._environment, self._fail = assembly, environment, fail
        self._timed = {name: time_run(engine) for name, engine in assembly.engines.items()}
        clock, root = environment.clock, Path("/")
        self._meters = environment.meters or Meters(root, clock, power_model(clock, root))
        self._meters.sample()  # energy counters yield power only from the second read on
        self._began_ns = clock.now_ns()
        self._previous_report: GovernorReport | None = None
        self._controls: Controls | None = None
        self._watch: Watch | None = None
        self._is_started = False

    @property
    def observer(self) -> Observer | None:
        """Observer of the governor; None while there are no budgets."""
        return None if self._watch is None else self._watch.observer

    def start(self) -> None:
        """Start the thread that keeps the budgets."""
        self._is_started = True
        if self._watch is not None:
            self._watch.start()

    def stop(self) -> None:
        """End the thread. May be called before the start, and more than once."""
        self._is_started = False
        if self._watch is not None:
            self._watch.stop()

    def report(self) -> GovernorReport | None:
        """Return the report of the run so far; None while there are no budgets. Callable from any thread."""
        if self._watch is None:
            return None
        now = self._watch.report()
        return now if self._previous_report is None else now.after(self._previous_report)

    def trace_events(self) -> Sequence[ThreadEvents]:
        """Return the governor's actions so far, for a trace."""
        if (report := self.report()) is None:
            return ()
        events = [
            ("governor", at_ns, at_ns, f"{one.kind}: {one.setting}", "", -1, {"reason": one.reason})
            for one in report.events
            for at_ns in [self._began_ns + round(one.at_s * 1e9)]
        ]
        return (ThreadEvents("governor", 0, events),)

    def prepare_change(self, file: PipelineFile) -> Callable[[], None]:
        """Return a function that switches to the budgets of a pipeline. Call it once its sources exist.

        Raises BudgetError: no setting is predicted to keep the budgets, or ``when_exceeded: stop`` has a power budget
        and this machine has no power meter. The current budgets stay then.
        """
        plan = self._plan_for(file)

        def change() -> None:
            is_started, past = self._is_started, self.report()
            self.stop()
            if self._controls is not None:
                carry_out(self._controls, Switch(0, 1.0, "other budgets or sources"))
                for limiter in self._controls.limiters.values():
                    limiter.bucket = None
            self._previous_report, self._is_started = past or self._previous_report, is_started
            self._watch = None if plan is None else self._new_watch(file, plan)
            if is_started:
                self.start()

        return change

    def _plan_for(self, file: PipelineFile) -> _Plan | None:
        budgets, power = file.config.budgets, self._environment.power
        if all(value is None for value in (budgets.power, budgets.cpu, budgets.latency, budgets.memory)):
            return None
        streams, smaller = streams_of(file.config.stages), fallback_levels(file.config.stages, file.config.models)
        found = run_settings(streams, smaller) if budgets.when_exceeded == "degrade" else run_settings(streams)[:1]
        costs = [_cost(file, self._assembly.live, self._timed, level) for level in range(1 + len(smaller))]
        if power is not None:
            found = with_clock_steps(found, power.steps)
            every = rules_of(budgets, found, costs).settings
            found = tuple(found[index] for index in pareto_optimal(every))
        rules = rules_of(budgets, found, costs, self._environment.predicted)
        try:
            return _Plan(found, rules, _check(rules, self._meters.sample().power))
        except BudgetError as error:
            error.where = file.where(*error.where.split("."))
            raise

    def _new_watch(self, file: PipelineFile, plan: _Plan) -> Watch:
        assembly, clock, budgets = self._assembly, self._environment.clock, file.config.budgets
        bucket = None
        if budgets.cpu is not None and budgets.when_exceeded == "degrade":
            bucket = throttle.CpuTokenBucket(budgets.cpu, clock)  # shared by all sources
        limiters = dict[str, SourceRateLimiter]()
        for task in assembly.tasks:
            if isinstance(task.stage, Source):
                limiters[task.name] = task.rate_limiter(clock)
                limiters[task.name].bucket = bucket
        where = file.where("budgets")
        controls = Controls(plan.settings, assembly.choice, limiters, self._environment.power, self._fail, where)
        ends = [task.meter for task in assembly.tasks if not task.wiring.outlets]
        recent = metrics.RecentLatency(ends, _LATENCY_SAMPLES)
        # A full channel is normal behind a file, which waits; behind a camera, it means overload.
        channels = [channel for task in assembly.tasks for channel in task.wiring.inlet.channels]
        pressure = throttle.QueuePressure([one for one in channels if assembly.live or one.drop != "never"])
        observer = Observer(
            self._meters,
            plan.rules.budget,
            lambda: recent.percentiles().p99 or None,
            bucket.share if bucket else lambda: 1.0,
            pressure.look,
            None if self._watch is None else self._watch.observer,
        )
        self._controls = controls
        loop = Loop(plan.rules, partial(carry_out, controls), clock.now_ns(), self._began_ns)
        logged = self._previous_report.notes if self._previous_report and self._is_started else ()
        notes = tuple(note for note in plan.notes if note not in logged)
        return Watch(loop, observer, clock, self._report_failure, notes)

    def _report_failure(self, error: Exception) -> None:
        own = f"the governor failed: {type(error).__name__}: {error}"
        fix = "edgert run --debug"
        self._fail(error if isinstance(error, EdgertError) else StageError(own, fix=fix).caused_by(error))


@dataclass(frozen=True, slots=True)
class Controls:
    """Controls of a running pipeline that a governor's actions use."""

    settings: tuple[RunSetting, ...]
    choice: branches.ModelLevel
    limiters: Mapping[str, SourceRateLimiter]
    power: PowerSteps | None
    fail: Callable[[EdgertError], None]
    where: str


def carry_out(controls: Controls, action: Action) -> None:
    """Carry out a governor's action; a warning changes nothing.

    Raises BudgetError: the power mode cannot be set. Raises DeviceError: the clocks cannot be set.
    """
    if isinstance(action, Switch):
        run = controls.settings[action.setting]
        controls.choice.level = run.level
        for stream, share in run.shares.items():
            controls.limiters[stream].share = share * action.share
        if controls.power is not None and run.step is not None:
            controls.power.take(run.step)
    elif isinstance(action, Stop):
        controls.fail(BudgetError("a budget was exceeded", why=action.reason, where=controls.where))


def _check(rules: Rules, power: reading.Reading) -> tuple[str, ...]:
    """Return warnings about the budgets before the start. Raises BudgetError if the run must not start."""
    budget, warnings = rules.budget, list[str]()
    try:
        check_settings(rules)
    except BudgetError as error:
        if budget.when_exceeded != "warn":
            raise
        warnings.append(f"{error.what}: {error.why}")
    if budget.unit != CORES and (note := check_meter(budget, power)):
        warnings.append(note)
    return tuple(warnings)


def _cost(file: PipelineFile, live: bool, timed: Mapping[str, tuple[float, float]], level: int) -> Cost:
    """Return the cost of the models at one degradation level; ``timed`` has CPU and wall seconds of a run, by model."""
    stages, streams = stages_at(file.config.stages, file.config.models, level), sources_of(file.config.stages)
    sources = {name: stage for name, stage in stages.items() if isinstance(stage, SourceStage)}
    rates_hz = {name: stage.fps or _ASSUMED_HZ for name, stage in sources.items()}
    used = [
        (timed[stage.infer], sum(rates_hz[source] for source in streams[name]) / stage.every)
        for name, stage in stages.items()
        if isinstance(stage, InferStage) and stage.infer in timed and stage.parts is None
    ]
    cores = float(host.core_count())
    if used and live:
        cores = min(cores, sum(cpu_s * hz for (cpu_s, _), hz in used))
    return Cost(rates_hz, cores if used else None, max((wall_s * 1e3 for (_, wall_s), _ in used), default=0.0))


def time_run(engine: Engine | SegmentedEngine) -> tuple[float, float]:
    """Return CPU and wall seconds of one run, of all segments of a split model: the minimum of some runs."""
    runs: list[Callable[[], object]]
    if isinstance(engine, SegmentedEngine):
        chain = engine.chain(0)
        runs = [partial(chain.run, segment, 0) for segment in range(chain.segments)]
    else:
        runs = [partial(engine.session().run, 1)]
    for run in runs:  # the first run of an engine is slower
        run()
    cpu_times, wall_times = list[int](), list[int]()
    until_ns = time.perf_counter_ns() + int(_TIMED_S * 1e9)
    while len(wall_times) < _MIN_RUNS or (len(wall_times) < _MAX_RUNS and time.perf_counter_ns() < until_ns):
        cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
        for run in runs:
            run()
        cpu_times.append(time.process_time_ns() - cpu_ns)
        wall_times.append(time.perf_counter_ns() - wall_ns)
    return min(cpu_times) / 1e9, min(wall_times) / 1e9


def power_model(clock: Clock, root: Path) -> Model | None:
    """Return a power model of the board whose file system is ``root``; None for other machines and unpublished power.

    It uses the board's idle power and the reported loads of its GPU and CPU. :mod:`edgert.placement.cost.power` has
    the formula and the sources of its numbers.
    """
    machine = detect(root)
    board, load = machine.board, clocks.gpu_gauges(root).get("gpu.load")
    if board is None:
        return None
    mode = board.mode(machine.mode) if board.has_mode(machine.mode) else board.usual_mode
    watts, cores = power_of(board, mode), usage.CpuLoad(root, clock)
    if not watts.is_known:
        return None

    def read() -> reading.Reading:
        percent = None if load is None else load().value
        busy_w = watts.busy_gpu_w * (1.0 if percent is None else percent / 100)
        percent = cores.read()[usage.MACHINE].value
        if percent is not None:
            busy_w += watts.cpu_w * (mode.cpu_cores or board.cpu.cores) * percent / 100
        why = "" if percent is not None else "without CPU cores"
        return reading.modeled(watts.static_w + busy_w, "W", f"cost model of {board.name}", why)

    return read
