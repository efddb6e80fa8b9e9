"""``edgert simulate``: simulation of a pipeline file on any board, and the clock settings for a governor."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edgert.assemble.run_settings import PowerStep, PowerSteps, RunSetting, predicted_setting, run_settings
from edgert.board import HOST, THIS_MACHINE, detect
from edgert.board.host import core_accelerators
from edgert.board.record import Board, find_board
from edgert.board.sections import Mode
from edgert.budget.control import PowerControl
from edgert.budget.rules import Budget, Rules, Setting, check_settings
from edgert.config import InferStage, PipelineFile, PipelineSource, load_pipeline
from edgert.config.flow import fallback_levels, streams_of
from edgert.errors import BudgetError, ConfigError, PlacementError
from edgert.limits import TRACE_OBJECTS
from edgert.placement.cost.coefficients import coefficients
from edgert.placement.cost.power import Power, power
from edgert.placement.plan_record import VERDICTS, BoardPlan, Check, Objective, Row, Verdict
from edgert.placement.profile import read_profile
from edgert.planner.plan_rows import PROFILED_ERROR, profile_of
from edgert.planner.plan_text import ESTIMATED, figures, row_text
from edgert.planner.planning import ALL, plan, plan_boards, shared_of
from edgert.planner.selection import with_results
from edgert.reporter import OnProgress
from edgert.simulator import Design, Governing, Platform, Simulated, simulate as play
from edgert.simulator.board_platform import AMBIENT_C, BoardSlots, HostSlots, as_requested, platform_of, played
from edgert.simulator.board_stages import OBJECTS, board_stages
from edgert.simulator.design import check_demands, demands, levels_of, source_rates
from edgert.simulator.pipeline_design import Scene, Slots, design_of
from edgert.simulator.sources import StageTimes, read_stage_times, read_trace
from edgert.stages.source.delivered import as_delivered

# Clock settings for a governor, predicted by a plan: lower caps of the GPU's clock, and lower power modes.

_LOG = logging.getLogger(__name__)
NOT_KNOWN = "the power draw of this board is not published, so its power and heat are unknown"
CPU_BUDGET = "budgets.cpu is neither simulated nor emulated: it limits the processor time of a run on its own machine"
_CAPS = 6
"""Maximum number of clock caps; neighbors in a Jetson's table of a dozen clocks hardly differ in power."""
_SLOWEST = 0.4  # lowest cap, as a share of the mode's clock


def power_steps(
    file: PipelineFile, control: PowerControl, *, is_placed: bool = False, root: Path = Path("/")
) -> PowerSteps:
    """Return the clock settings that a governor may use on this board, with predictions from a plan, in seconds.

    Args:
        file: pipeline file with budgets.
        control: entered context that changes what can be changed without a reboot.
        is_placed: whether the models run as a plan placed them, in a bundle; otherwise they run on the GPU.
        root: root of the file system.

    Raises:
        BudgetError: the file has no power budget to keep by degrading, or edgert does not know the board.
        DeviceError: settings cannot be changed here.
    """
    budgets = file.config.budgets
    if budgets.power is None or budgets.when_exceeded != "degrade":
        raise BudgetError(
            "there is no power budget to control",
            why="--allow-power-control keeps a power budget by lower clocks, and the pipeline sets none",
            where=file.where("budgets"),
            fix="budgets: {power: 15W, when_exceeded: degrade}, or leave --allow-power-control out",
        )
    machine = detect(root)
    if machine.board is None or not machine.board.has_mode(machine.mode):
        raise BudgetError(
            "cannot control the power of this machine",
            why=machine.mode_trouble
            or f"there is no plan for {machine.name} in power mode {machine.mode or 'unknown'}",
            where="--allow-power-control",
            fix="leave it out here; the option works on the Jetsons that edgert boards lists",
        )
    control.check()
    found = plan(file, board=machine.board.name).boards[0]
    placement = found.rows[found.chosen or 0].name if is_placed else "gpu"
    here = machine.board.mode(machine.mode)
    steps = steps_of(found, placement, machine.board, here, control)
    return PowerSteps(steps, control)


def levels_here(file: PipelineFile, root: Path = Path("/")) -> tuple[PowerStep, ...]:
    """Return the predictions for this board at each level of fallback models, in seconds.

    The result is empty without fallback models or a power budget, on an unknown board, and where planning fails.
    """
    budgets, machine = file.config.budgets, detect(root)
    is_requested = budgets.power is not None and budgets.when_exceeded == "degrade" and len(levels_of(file)) > 1
    if not is_requested or machine.board is None or not machine.board.has_mode(machine.mode):
        return ()
    mode = machine.board.mode(machine.mode)
    try:
        found = plan(file, board=machine.board.name, mode=mode.name).boards[0]
    except (ConfigError, PlacementError) as error:
        _LOG.info("no prediction of the models to choose among: %s", error.what)
        return ()
    row = found.rows[found.chosen or 0]
    watts = power(machine.board, mode)
    return tuple(step_of(one, watts) for one in (row, *row.fallbacks)) if watts.is_known else ()


def steps_of(
    found: BoardPlan, placement: str, board: Board, here: Mode, control: PowerControl
) -> tuple[PowerStep, ...]:
    """Return steps for the board's present setting, then for caps of the GPU's clock there, then for lower modes.

    Raises:
        BudgetError: the plan has no row for the present mode.
    """
    reachable = control.modes()

    def row_of(mode: str) -> Row | None:
        """Return the mode's row with the placement, or its first row if the file left no choice of placement."""
        of_mode = [one for one in found.rows if one.mode == mode and one.power_w is not None]
        return next((one for one in of_mode if one.name == placement), of_mode[0] if of_mode else None)

    now = row_of(here.name)
    if now is None:
        raise BudgetError(
            f"no plan for power mode {here.name}",
            why="; ".join(found.skipped) or f"{board.title} was planned without it",
            where="--allow-power-control",
            fix="change to a mode that edgert plan shows: sudo nvpmodel -m NUMBER",
        )
    steps = [step_of(now, power(board, here))]
    steps += _gpu_cap_steps(steps[0], board, here, control.gpu_steps_hz())
    for mode in board.modes:
        row = row_of(mode.name)
        # A mode is lower if its name has fewer watts; a mode without watts is the highest.
        is_lower = mode.watts is not None and (here.watts is None or mode.watts < here.watts)
        if row is not None and mode.name in reachable and is_lower:
            step = step_of(row, power(board, mode), f"power mode {mode.name}")
            steps.append(replace(step, mode=mode.name))
    return tuple(steps)


def step_of(row: Row, watts: Power, name: str = "") -> PowerStep:
    """Return a row with known power as a step of the governor."""
    assert row.power_w is not None
    return PowerStep(name, row.power_w, min(watts.static_w, row.power_w), row.headroom, row.p99_ms)


def _gpu_cap_steps(first: PowerStep, board: Board, mode: Mode, steps_hz: Sequence[int]) -> Iterator[PowerStep]:
    """Yield steps with a slower GPU: work takes longer in proportion, but less energy because the voltage falls.

    All work counts as the GPU's, which is the worst case for speed. The governor measures the real power.
    """
    if mode.gpu_mhz is None:
        return
    full = power(board, mode).gpu_w
    slower_hz = [hz for hz in steps_hz if _SLOWEST * mode.gpu_mhz * 1e6 <= hz < mode.gpu_mhz * 1e6]
    stride = -(-len(slower_hz) // _CAPS) or 1
    for hz in sorted(slower_hz, reverse=True)[::stride]:
        slower = hz / (mode.gpu_mhz * 1e6)
        headroom = first.headroom * slower
        busy_w = power(board, mode.model_copy(update={"gpu_mhz": hz / 1e6})).gpu_w
        work_w = (first.power_w - first.idle_w) * (busy_w / full) / slower  # as the GPU is busy for longer
        work_w *= min(1.0, headroom) / first.sustained()
        name = f"GPU at {hz / 1e6:.0f} MHz"
        yield PowerStep(name, first.idle_w + work_w, first.idle_w, headroom, first.latency_ms / slower, gpu_hz=hz)


SECONDS = 60.0
_MODELED = "times and power by a model fitted to published measurements; nothing of this was measured on the board"
_CORRECTED = "times and power by a model fitted to published measurements, models measured or corrected by measurements"
_PROFILED = "times as profiled on this machine"


_DURATION_S = (0.01, 1e6)  # the upper limit is eleven days, which take hours to simulate
_AMBIENT_C = (-60.0, 150.0)  # from cold polar air to more than any module survives


@dataclass(frozen=True, slots=True)
class Scenario:
    """Length of a simulation, and its assumptions about cameras, scene and surroundings.

    Attributes:
        seconds: length of the simulated run.
        seed: random seed of jitter and objects.
        trace: path of a trace of a camera's frames, or of the output of ``sink: jsonl``; None for the source's rate.
        objects: mean number of objects on a frame without a trace; None for the maximum that crops take.
        jitter: standard deviation of a camera's frame times, as a fraction of the frame period.
        stages: path of a summary from ``edgert run --json``, with times of stages other than models. None means
            predicted times on a board, and no time on this machine.
        ambient_c: temperature of the air around the board, in degrees Celsius.

    Raises:
        ConfigError: a number is out of range.
    """

    seconds: float = SECONDS
    seed: int = 0
    trace: Path | None = None
    objects: float | None = None
    jitter: float = 0.0
    stages: Path | None = None
    ambient_c: float = AMBIENT_C

    def __post_init__(self) -> None:
        for where, number, (least, most), unit in (
            ("seconds", self.seconds, _DURATION_S, "s"),
            ("ambient_c", self.ambient_c, _AMBIENT_C, "°C"),
            ("objects", self.objects or 0.0, (0.0, TRACE_OBJECTS), "on a frame"),
            ("jitter", self.jitter, (0.0, 10.0), "of the period"),
        ):
            if not least <= number <= most:  # true for NaN too
                fix = f"from {least:g} to {most:g} {unit}"
                raise ConfigError(f"cannot simulate {where} {number:g} {unit}", where=where, fix=fix)


@dataclass(frozen=True, slots=True)
class Simulation:
    """Simulation of a pipeline on a board.

    Attributes:
        pipeline, board, title: names of the pipeline and the board, and the board's full name.
        mode, placement: power mode and placement of the simulated row; empty for this machine.
        budgets: budgets of the file, as a governor kept them.
        basis: what the numbers are based on, in words.
        notes: assumptions of the simulation.
        played: results of the simulation.
        checks: checks of every limit against the results; only of latency for this machine.
        most_fps: maximum frames per second of the sources in the plan; None for this machine.
        error, power_error: relative errors of times and watts in the plan; None if unknown.
        figures: result of :func:`edgert.planner.plan_text.figures`; empty for this machine.
        words: verdict on the checks as text; empty for this machine.
    """

    pipeline: str
    board: str
    title: str
    mode: str
    placement: str
    budgets: Budget
    basis: str
    notes: tuple[str, ...]
    played: Simulated = field(repr=False)
    checks: tuple[Check, ...] = ()
    most_fps: float | None = None
    error: float | None = None
    power_error: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict, repr=False)
    words: str = ""

    @property
    def verdict(self) -> Verdict:
        """Combined verdict of all checks; ``kept`` where there is none."""
        return max((check.verdict for check in self.checks), key=VERDICTS.index, default="kept")

    def to_json(self) -> dict[str, Any]:
        """Return JSON values that are marked as simulated."""
        checks = [{**asdict(one), "verdict": one.verdict} for one in self.checks]
        plain = {**asdict(self), "played": self.played.to_json(), "checks": checks}
        return {"simulated": True, "verdict": self.verdict, **plain}


def simulate(
    pipeline: PipelineSource,
    *,
    board: str | None = None,
    mode: str | None = None,
    objective: Objective = "energy",
    tensorrt: str | None = None,
    profiles: Sequence[str | Path] = (),
    overrides: Iterable[str] = (),
    scenario: Scenario = Scenario(),
    on_progress: OnProgress | None = None,
) -> Simulation:
    """Simulate a pipeline event by event, without running a model or opening a camera.

    The same input gives the same result.

    Args:
        pipeline: path, or any other value that :func:`edgert.load_pipeline` takes or returns.
        board: name of a board, path of a board file, or ``host`` with ``profiles``; by default the board of the
            pipeline file.
        mode: power mode; by default the mode that a plan chooses.
        objective: what the placement is optimized for: ``energy``, ``throughput`` or ``latency``.
        tensorrt: TensorRT release of the plan; by default that of the board's usual JetPack.
        profiles: paths of measured times, as for :func:`edgert.plan`.
        overrides: ``key.path=value``, as given to ``--set``.
        scenario: length of the simulation, and assumptions about cameras, scene and surroundings.
        on_progress: function called before each planned power mode; an exception from it ends the simulation.

    Raises:
        ConfigError: the board or mode is unknown, there is no model or no profile of one, or a trace or summary cannot
            be used.
        BudgetError: budgets are enforced, and no share of the frames is predicted to keep them.
    """
    file, seen = as_delivered(load_pipeline(pipeline, overrides))
    check_demands(file)
    traces = read_trace(scenario.trace) if scenario.trace is not None else {}
    times = read_stage_times(scenario.stages) if scenario.stages is not None else StageTimes()
    scene = Scene(traces, scenario.objects, scenario.jitter, times)
    requested = board or file.config.board
    if requested in THIS_MACHINE and profiles:
        levels = levels_of(file)
        measured = {profile.digest: profile for profile in map(read_profile, map(Path, profiles))}
        known = {one.model: profile_of(at, one.model, measured) for at in levels for one in demands(at.config)}
        on_host = [HostSlots(at, known) for at in levels]
        here = (HOST, "This machine", None, None)
        return _simulate_on(
            file, here, on_host, Platform(tuple(core_accelerators())), scene, scenario, (*on_host[0].notes, *seen)
        )
    made = plan_boards(file, requested, mode or ALL, objective, tensorrt, profiles, on_progress=on_progress).boards
    if len(made) != 1:
        raise ConfigError(
            "a simulation takes one board at a time", where="--board", fix="edgert plan --board all compares them"
        )
    found = made[0]
    row = found.rows[found.chosen or 0]
    record = find_board(requested, file.document.path.parent)
    platform = platform_of(record, record.mode(row.mode), coefficients(record.soc), scenario.ambient_c)
    notes = [*row_notes(found, row), *seen]
    slots = [BoardSlots(at, one) for at, one in zip(levels_of(file), (row, *row.fallbacks), strict=True)]
    objects = OBJECTS if scenario.objects is None else scenario.objects
    stages = board_stages(file, record, record.mode(row.mode), objects, shared_of(profiles))
    if times.threads:  # times of a run replace assumed times, so the sustained rate is simulated again
        row = played(file, row, platform, stages, replace(scene, traces={}))
    scene = replace(scene, own=stages.own)
    notes += stages.notes if not times.threads else ()
    where = row.board, found.title, row, record
    return _simulate_on(as_requested(file), where, slots, platform, scene, scenario, tuple(notes))


def row_notes(found: BoardPlan, row: Row) -> Iterator[str]:
    """Yield notes on a simulated or emulated row that keeps no budget surely, or whose mode is estimated."""
    is_open = "whether a row of the plan keeps every budget is not known"
    doubt = is_open if row.verdict == "unknown" else "no row of the plan keeps every budget"
    if found.chosen is None:
        yield f"{doubt}; {row.mode}, {row.name} is closest"
    if row.estimated:
        yield f"{row.mode}: {ESTIMATED[2:]}, not measured: {', '.join(row.estimated)}"


def _simulate_on(
    file: PipelineFile,
    where: tuple[str, str, Row | None, Board | None],
    slots: Sequence[Slots],
    platform: Platform,
    scene: Scene,
    scenario: Scenario,
    notes: Sequence[str],
) -> Simulation:
    board, title, row, record = where
    design = design_of(file, slots[0], scene, slots[1:])
    budgets = file.config.budgets
    budget = Budget(
        power_w=budgets.power if row is not None else None,
        latency_ms=None if budgets.latency is None else 1e3 * budgets.latency,
        when_exceeded=budgets.when_exceeded,
    )
    if row is not None and platform.power is not None:
        steps = [step_of(one, platform.power) for one in (row, *row.fallbacks)]
    else:  # without power, only the latency of the slowest engine, as in a run
        steps = []
        for at, one in zip(levels_of(file), slots, strict=True):
            stages = [stage for stage in at.config.stages.values() if isinstance(stage, InferStage)]
            slowest_ms = max(min(slot.engine_ms for slot in one(stage, True)) for stage in stages)
            steps.append(PowerStep("", 0.0, 0.0, 1.0, slowest_ms))
    known = budget if platform.power is not None else replace(budget, power_w=None)
    governing = _governing(file, known, steps)
    played = play(design, platform, scenario.seconds, seed=scenario.seed, governing=governing, record=True)
    seen = None
    if row is not None and record is not None:
        seen = with_results(row, budgets, record, played.fps, played.latency_ms, played.power_w, played.busy)
    return Simulation(
        pipeline=file.config.name,
        board=board,
        title=title,
        mode=row.mode if row else "",
        placement=row.name if row else "",
        budgets=budget,
        basis=_PROFILED if row is None else _CORRECTED if any(one.measured for one in row.models) else _MODELED,
        notes=(*notes, *_notes(file, design, scene, row, platform)),
        played=played,
        checks=seen.checks if seen else tuple(_checks(budget, played)),
        most_fps=row.most_fps if row else None,
        error=row.error if row else PROFILED_ERROR,
        power_error=row.power_error if row else None,
        figures=figures(seen) if seen else {},
        words=row_text(seen) if seen else "",
    )


def _checks(budget: Budget, played: Simulated) -> Iterator[Check]:
    if budget.latency_ms is not None:
        p99_ms = played.latency_ms.p99 if played.frames_out else math.inf
        text = f"p99 {p99_ms:.3g} of {budget.latency_ms:g} ms"
        yield Check("latency", p99_ms / budget.latency_ms, PROFILED_ERROR, text, "")


def _governing(file: PipelineFile, budget: Budget, steps: Sequence[PowerStep]) -> Governing | None:
    """Return the governor's settings as in a run: fewer frames, then fewer streams, then both with fallback models."""
    if budget.power_w is None and budget.latency_ms is None:
        return None
    streams, smaller = streams_of(file.config.stages), fallback_levels(file.config.stages, file.config.models)
    found = run_settings(streams, smaller) if budget.when_exceeded == "degrade" else run_settings(streams)[:1]
    rates_hz = source_rates(file.config)

    def setting(one: RunSetting) -> Setting:
        predicted = predicted_setting(one, rates_hz, steps[one.level])
        may_throttle = budget.power_w is not None and budget.when_exceeded == "degrade"
        return predicted if may_throttle else replace(predicted, least_share=1.0)

    rules = Rules(budget, tuple(map(setting, found)))
    if budget.when_exceeded != "warn":
        check_settings(rules)
    return Governing(rules, tuple(one.shares for one in found), tuple(one.level for one in found))


def _notes(file: PipelineFile, design: Design, scene: Scene, row: Row | None, platform: Platform) -> list[str]:
    notes = list(dict.fromkeys(note for demand in demands(file.config) for note in demand.notes if "fps" in note))
    if not scene.times.threads and row is None:
        notes.append("stages other than models take no time: edgert.Scenario(stages=...) takes the times of a run")
    if any(source.most for source in design.sources) and scene.objects is None and not scene.traces:
        most = max(source.most for source in design.sources)
        notes.append(f"{most} objects on every frame, as many as crops take: edgert.Scenario(objects=...) sets others")
    notes += [f"{one.name}: {one.measured}" for one in (row.models if row else ()) if one.measured]
    if row is not None and platform.power is None:
        notes.append(NOT_KNOWN)
    elif row is not None:
        notes.append("the board's cooler is assumed, and how fast heat lowers the clocks of GPU and DLA")
    elif file.config.budgets.power is not None:
        notes.append("budgets.power is not simulated: the power of this machine is unknown")
    if file.config.budgets.cpu is not None:
        notes.append(CPU_BUDGET)
    return notes
