"""``edgert run --as``: emulates a board on this machine, with the board's predicted speed and power."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgert.assemble import Environment
from edgert.assemble.models import batch_of, load_model, replicas_of, threads_of
from edgert.backend import Engine
from edgert.board.record import Board, find_board
from edgert.config import InferStage, ModelConfig, PipelineFile, SourceStage
from edgert.config.flow import variants_of
from edgert.config.pipeline_file import BudgetConfig
from edgert.engine import build_engine
from edgert.errors import ConfigError
from edgert.meters.all import Meters, Sample
from edgert.meters.rails import MARGIN, POWER, TEMPERATURE
from edgert.meters.reading import modeled, unavailable
from edgert.placement.cost.coefficients import coefficients
from edgert.placement.plan_record import Row
from edgert.planner.plan_text import figures, row_text
from edgert.planner.planning import ALL, plan, shared_of
from edgert.planner.selection import with_results
from edgert.planner.simulation import CPU_BUDGET, NOT_KNOWN, row_notes, step_of
from edgert.reporter import OnProgress
from edgert.runtime import Summary, Task
from edgert.simulator.board_clock import BoardClock
from edgert.simulator.board_platform import BoardSlots, as_requested, platform_of
from edgert.simulator.board_stages import board_stages
from edgert.simulator.design import levels_of, source_rates
from edgert.simulator.paced_engine import PacedEngine, Pacer, paced_tasks
from edgert.simulator.pipeline_design import InferenceSlot
from edgert.stages.source.delivered import as_delivered
from edgert.stages.source.kinds import is_live, kind_of


@dataclass(frozen=True, slots=True)
class Emulation:
    """A pipeline on this machine that emulates a board.

    Attributes:
        file: the pipeline, without its placements, which are for the board.
        environment: environment in which :func:`edgert.pipeline.pipeline_in` runs the file: clock, engines, meters,
            label and predictions of the board.
        board: the emulated board.
        row: emulated row of the plan, which is a power mode and a placement.
        budgets: budgets of the pipeline; memory is planned for the board, and not watched on this machine.
        notes: remarks on the emulation.
        pacer: source of the board's time, load and heat.
    """

    file: PipelineFile
    environment: Environment
    board: Board
    row: Row
    budgets: BudgetConfig
    notes: tuple[str, ...]
    pacer: Pacer

    def report(self, summary: Summary) -> dict[str, Any]:
        """Return the board's results so far as plain data: ``figures`` as in a plan, and ``words`` on the verdict.

        Args:
            summary: summary of the run.
        """
        clock, heat, used = self.pacer.clock, self.pacer.thermal, self.pacer.used()
        power_w = heat.energy_j / heat.seconds if heat and heat.seconds else None
        busy = {name: one.busy_ms / 1e3 / clock.seconds for name, one in used.items() if clock.seconds}
        result = with_results(self.row, self.budgets, self.board, summary.fps, summary.latency_ms, power_w, busy)
        return {
            "simulated": self.environment.label,
            "slower": clock.slowdown,
            "temperature_c": heat.temperature_c if heat else None,
            "figures": figures(result),
            "verdict": result.verdict,
            "words": row_text(result),
            "notes": list(self.notes),
        }


class BoardMeters(Meters):
    """This machine's meters, with power and temperature of the emulated board where its draw is known."""

    def __init__(self, pacer: Pacer) -> None:
        super().__init__(clock=pacer.clock)
        self.pacer = pacer

    def sample(self) -> Sample:
        sample, source = super().sample(), "simulated board"
        own = {name: one for name, one in sample.readings.items() if not name.startswith(f"{POWER}.")}
        heat, units = self.pacer.thermal, {POWER: "W", TEMPERATURE: "C", MARGIN: "C"}
        board = {name: unavailable(unit, source, NOT_KNOWN) for name, unit in units.items()}
        if heat is not None:
            values = {POWER: heat.sensed_w, TEMPERATURE: heat.temperature_c, MARGIN: heat.margin_c}
            board = {name: modeled(value, units[name], source) for name, value in values.items()}
        return replace(sample, readings={**own, **board})


class PacedEngines:
    """Engines slowed down to the emulated board's times; see :class:`edgert.assemble.engines.Engines`.

    Args:
        built: model → compiled engine.
    """

    in_bundle = False

    def __init__(self, built: Mapping[str, PacedEngine]) -> None:
        self._built = built

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        """Return the engine of a model, which was compiled before the board's clock started."""
        return self._built[name]


def emulate(
    file: PipelineFile,
    board: str,
    mode: str | None = None,
    *,
    profiles: Sequence[str | Path] = (),
    pace: float = 1.0,
    on_progress: OnProgress | None = None,
) -> Emulation:
    """Prepare this machine to emulate a board, and compile the models.

    Args:
        file: the pipeline.
        board: name of the board.
        mode: power mode; None: the best of all.
        profiles: measured times, as for :func:`edgert.plan`.
        pace: least real seconds per second of the board; 0: as fast as this machine can. At least 1 with cameras.
        on_progress: function called before each power mode that is planned.

    Raises:
        ConfigError: there is no such board or mode, or no model.
        EdgertError: a model cannot be planned for the board, or not be run here.
    """
    given, file = file, as_requested(file)
    plans = plan(given, board=board, mode=mode or ALL, profiles=profiles, on_progress=on_progress).boards
    if len(plans) != 1:
        what, fix = f"cannot emulate {len(plans)} boards", "edgert plan --board all compares them"
        raise ConfigError(what, where="--as", fix=fix)
    row = plans[0].rows[plans[0].chosen or 0]
    record = find_board(board, file.document.path.parent)
    platform = platform_of(record, record.mode(row.mode), coefficients(record.soc))
    rows, watts = (row, *row.fallbacks), platform.power
    complete, _ = as_delivered(file)  # with sizes and rates that the file leaves out, as in a plan
    stages = board_stages(complete, record, record.mode(row.mode), profiles=shared_of(profiles))
    slots = _slots(file, rows)
    here = _without_placements(file, given, slots)
    paced_outside = _sources_with_own_pace(given)
    pacer = Pacer(BoardClock(max(pace, 1.0) if paced_outside else pace), platform)
    label = f"simulated: {plans[0].title} in {row.mode}"
    runs = {name: [part for slot in slots[name] for part in slot.parts] for name in slots}
    with ExitStack() as unused:
        built = {name: unused.enter_context(closing(_engine(here, name))) for name in slots}
        unused.pop_all()
    engines = {name: PacedEngine(engine, runs[name], pacer, label) for name, engine in built.items()}
    predicted = tuple(step_of(one, watts) for one in rows) if watts else ()
    takes = "engines and stages take the board's predicted time, whatever they take here"
    notes = [takes, *row_notes(plans[0], row), *stages.notes]
    budgets = given.config.budgets
    notes += [NOT_KNOWN] if watts is None else []
    notes += [CPU_BUDGET] if budgets.cpu is not None else []

    def pace_tasks(tasks: Sequence[Task]) -> None:
        paced_tasks(tasks, file.config.stages, stages.own, paced_outside, pacer)

    meters = BoardMeters(pacer)
    environment = Environment(pacer.clock, PacedEngines(engines), meters, label, predicted=predicted, paced=pace_tasks)
    return Emulation(here, environment, record, row, budgets, tuple(notes), pacer)


def _sources_with_own_pace(file: PipelineFile) -> dict[str, float]:
    """Return the rates of sources that this machine cannot slow down, such as cameras and programs."""
    folder, found = file.document.path.parent, dict[str, float]()
    for name, rate_hz in source_rates(file.config).items():
        stage = file.config.stages[name]
        assert isinstance(stage, SourceStage)
        kind = kind_of(stage.source, folder)
        if kind == "api" or (kind not in ("file", "images", "python", "synthetic") and is_live(stage, folder)):
            found[name] = rate_hz
    return found


def _slots(file: PipelineFile, rows: Sequence[Row]) -> dict[str, Sequence[InferenceSlot]]:
    """Return the inference slots of each model, from the first row that runs it."""
    found: dict[str, Sequence[InferenceSlot]] = {}
    for at, row in zip(levels_of(file), rows, strict=True):
        slots_of = BoardSlots(at, row)
        for stage in at.config.stages.values():
            if isinstance(stage, InferStage) and stage.infer not in found:
                found[stage.infer] = slots_of(stage, True)
    return found


def _without_placements(
    file: PipelineFile, given: PipelineFile, slots: Mapping[str, Sequence[InferenceSlot]]
) -> PipelineFile:
    """Return the pipeline for this machine, with a replica of each model for every engine that the board would have.

    Models that replace each other run in the same threads, so all have the largest number of replicas.
    """
    models = {}
    for name, config in file.config.models.items():
        chains = [chain for one in file.config.models if name in (chain := variants_of(file.config.models, one))]
        count = max((len(slots.get(one, (None,))) for chain in chains for one in chain), default=1)
        threads = max(count, threads_of(file.config, name))
        update = {"placement": "auto", "replicas": count, "threads": threads}
        models[name] = config.model_copy(update=update)
    stages = {  # a program paces its frames itself
        name: given.config.stages[name] if isinstance(stage, SourceStage) and stage.source == "api" else stage
        for name, stage in file.config.stages.items()
    }
    budgets = file.config.budgets.model_copy(update={"cpu": None, "memory": None})
    here = {"models": models, "stages": stages, "board": "auto", "engines": (), "budgets": budgets}
    return replace(file, config=file.config.model_copy(update=here))


def _engine(file: PipelineFile, name: str) -> Engine:
    config = file.config.models[name]
    threads = max(1, threads_of(file.config, name) // replicas_of(file.config, name, live=True))
    return build_engine(load_model(file, None, name, config), config, threads, batch_of(file.config, name))
