"""``edgert run --as``: emulates a board on this machine, with the board's predicted speed and power."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgert.assemble import Environment
from edgert.assemble.models import threads_of
from edgert.board.record import Board, find_board
from edgert.config import PipelineFile, SourceStage
from edgert.config.flow import variants_of
from edgert.config.pipeline_file import BudgetConfig
from edgert.errors import ConfigError
from edgert.meters.all import Meters, Sample
from edgert.meters.rails import MARGIN, POWER, TEMPERATURE
from edgert.meters.reading import modeled, unavailable
from edgert.placement.cost.coefficients import coefficients
from edgert.placement.plan_record import Row
from edgert.placement.segment_engines import steps
from edgert.planner.plan_text import figures, row_text
from edgert.planner.planning import ALL, plan, shared_of
from edgert.planner.selection import with_results
from edgert.planner.simulation import CPU_BUDGET, NOT_KNOWN, row_notes, step_of
from edgert.reporter import OnProgress
from edgert.runtime import Summary, Task
from edgert.simulator.board_clock import BoardClock
from edgert.simulator.board_platform import as_requested, platform_of
from edgert.simulator.board_stages import board_stages
from edgert.simulator.design import source_rates
from edgert.simulator.paced_stages import paced_tasks
from edgert.stages.source.delivered import as_delivered
from edgert.stages.source.kinds import is_live, kind_of


@dataclass(frozen=True, slots=True)
class Emulation:
    """A pipeline on this machine that emulates a board.

    Attributes:
        file: the pipeline, without its placements, which are for the board.
        environment: environment in which :func:`edgert.pipeline.pipeline_in` runs the file: clock, meters, label and
            predictions of the board.
        board: the emulated board.
        row: emulated row of the plan, which is a power mode and a placement.
        budgets: budgets of the pipeline; memory is planned for the board, and not watched on this machine.
        notes: remarks on the emulation.
        clock: source of the board's time, load and heat.
    """

    file: PipelineFile
    environment: Environment
    board: Board
    row: Row
    budgets: BudgetConfig
    notes: tuple[str, ...]
    clock: BoardClock

    def report(self, summary: Summary) -> dict[str, Any]:
        """Return the board's results so far as plain data: ``figures`` as in a plan, and ``words`` on the verdict.

        Args:
            summary: summary of the run.
        """
        clock, heat = self.clock, self.clock.thermal
        power_w = heat.energy_j / heat.seconds if heat and heat.seconds else None
        busy = {name: one.busy_ms / 1e3 / clock.seconds for name, one in clock.used().items() if clock.seconds}
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

    def __init__(self, clock: BoardClock) -> None:
        super().__init__(clock=clock)
        self._board = clock

    def sample(self) -> Sample:
        sample, source = super().sample(), "simulated board"
        own = {name: one for name, one in sample.readings.items() if not name.startswith(f"{POWER}.")}
        heat, units = self._board.thermal, {POWER: "W", TEMPERATURE: "C", MARGIN: "C"}
        board = {name: unavailable(unit, source, NOT_KNOWN) for name, unit in units.items()}
        if heat is not None:
            values = {POWER: heat.sensed_w, TEMPERATURE: heat.temperature_c, MARGIN: heat.margin_c}
            board = {name: modeled(value, units[name], source) for name, value in values.items()}
        return replace(sample, readings={**own, **board})


def emulate(
    file: PipelineFile,
    board: str,
    mode: str | None = None,
    *,
    profiles: Sequence[str | Path] = (),
    pace: float = 1.0,
    on_progress: OnProgress | None = None,
) -> Emulation:
    """Prepare this machine to emulate a board.

    Args:
        file: the pipeline.
        board: name of the board.
        mode: power mode; None: the best of all.
        profiles: measured times, as for :func:`edgert.plan`.
        pace: least real seconds per second of the board; 0: as fast as this machine can. At least 1 with cameras.
        on_progress: function called before each power mode that is planned.

    Raises:
        ConfigError: there is no such board or mode, or no model.
        EdgertError: a model cannot be planned for the board.
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
    runs = {  # of the first row that runs a model
        model.name: [steps(model.network, one.assignment) for one in model.engines for _ in one.accelerators]
        for each in reversed(rows)
        for model in each.models
    }
    here = _without_placements(file, given, runs)
    paced_outside = _sources_with_own_pace(given)
    clock = BoardClock(platform, max(pace, 1.0) if paced_outside else pace)
    label = f"simulated: {plans[0].title} in {row.mode}"
    predicted = tuple(step_of(one, watts) for one in rows) if watts else ()
    takes = "engines and stages take the board's predicted time, whatever they take here"
    notes = [takes, *row_notes(plans[0], row), *stages.notes]
    budgets = given.config.budgets
    notes += [NOT_KNOWN] if watts is None else []
    notes += [CPU_BUDGET] if budgets.cpu is not None else []

    def pace_tasks(tasks: Sequence[Task]) -> None:
        paced_tasks(tasks, here, stages.own, runs, paced_outside, clock)

    environment = Environment(
        clock, meters=BoardMeters(clock), label=label, predicted=predicted, on_host=True, paced=pace_tasks
    )
    return Emulation(here, environment, record, row, budgets, tuple(notes), clock)


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


def _without_placements(file: PipelineFile, given: PipelineFile, runs: Mapping[str, Sequence[object]]) -> PipelineFile:
    """Return the pipeline for this machine, with a replica of each model for every engine that the board would have.

    Models that replace each other run in the same threads, so all have the largest number of replicas.
    """
    models = {}
    for name, config in file.config.models.items():
        chains = [chain for one in file.config.models if name in (chain := variants_of(file.config.models, one))]
        count = max((len(runs.get(one, (None,))) for chain in chains for one in chain), default=1)
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
