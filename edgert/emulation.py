"""``edgert run --as``: emulates a board on this machine, with the board's predicted speed and power."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter_ns
from typing import Any

from edgert.assemble import Environment
from edgert.assemble.models import replicas_of, threads_of
from edgert.assemble.run_settings import PowerStep
from edgert.backend import Engine
from edgert.board.host import core_count
from edgert.board.record import find_board
from edgert.clock import Clock, SlowClock
from edgert.config import InferStage, ModelConfig, PipelineFile, SourceStage
from edgert.config.flow import users_of, variants_of
from edgert.engine import build_engine
from edgert.errors import ConfigError
from edgert.graph import load
from edgert.meters.all import Meters, Sample
from edgert.meters.rails import MARGIN, POWER, TEMPERATURE
from edgert.meters.reading import modeled, unavailable
from edgert.placement.cost.coefficients import coefficients
from edgert.placement.plan_record import Row
from edgert.placement.segment_engines import Step
from edgert.planner.planning import ALL, plan
from edgert.planner.simulation import NOT_KNOWN, step_of
from edgert.runtime import Stage
from edgert.simulator import ThermalModel
from edgert.simulator.board_platform import BoardSlots, as_asked, platform_of
from edgert.simulator.board_stages import BoardStages, board_stages
from edgert.simulator.design import levels_of
from edgert.simulator.paced_engine import PacedEngine, PacedInference, PacedStage, Pacer
from edgert.simulator.pipeline_design import InferenceSlot

_RUNS = 5
_ROOM = 1.5  # so much faster than the board this machine has to be, or its time is stretched
_BUSY = 0.8  # part of this machine's cores that models may take


@dataclass(frozen=True, slots=True)
class Emulation:
    """What a pipeline runs with so that this machine emulates a board.

    Attributes:
        file: the pipeline, without its placements, which are the board's.
        clock: the board's; slower than real time where this machine is too slow.
        engines: who compiles the models.
        meters: with the board's power and temperature.
        predicted: the board at each level of degraded models.
        label: for every output.
        notes: what to know about it.
        paced: what takes a stage's place, so that it takes the board's time.
    """

    file: PipelineFile
    clock: SlowClock
    engines: PacedEngines
    meters: BoardMeters
    predicted: tuple[PowerStep, ...]
    label: str
    notes: tuple[str, ...]
    paced: Callable[[str, Stage], Stage]

    @property
    def environment(self) -> Environment:
        """What :meth:`edgert.Pipeline.within` runs the file in."""
        here = Environment(self.clock, self.engines, self.meters, self.label, predicted=self.predicted)
        return replace(here, paced=self.paced)

    def report(self, frames: int) -> dict[str, Any]:
        """What the board would have drawn so far, as plain data.

        Args:
            frames: that came out.
        """
        meters = self.meters
        meters.catch_up()
        seconds, heat = meters.seconds, meters.thermal
        late, runs = meters.pacer.late, meters.pacer.runs
        return {
            "simulated": self.label,
            "slower": self.clock.factor,
            "power_w": heat.energy_j / seconds if heat and seconds else None,
            "energy_j_per_frame": heat.energy_j / frames if heat and frames else None,
            "temperature_c": heat.temperature_c if heat else None,
            "busy": {name: asdict(one) for name, one in meters.pacer.used().items()},
            "late_runs": late / runs if runs else 0.0,
            "notes": list(self.notes),
        }


class BoardMeters(Meters):
    """This machine's meters, except for power and temperature, which are the emulated board's.

    Args:
        thermal: None where nothing is known of what the board draws: both are unavailable then.
    """

    def __init__(self, pacer: Pacer, thermal: ThermalModel | None, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.pacer, self.thermal, self._board_clock = pacer, thermal, clock
        self._began_ns = self._last_ns = clock.now_ns()

    @property
    def seconds(self) -> float:
        """Of the board's time that went by."""
        return (self._last_ns - self._began_ns) / 1e9

    def catch_up(self) -> None:
        """Lets the board draw and get warm until now."""
        now_ns = self._board_clock.now_ns()
        if now_ns > self._last_ns:
            if self.thermal is not None:
                self.thermal.tick(self.pacer.used(), (now_ns - self._last_ns) / 1e9)
                self.pacer.clock = self.thermal.clock
            self._last_ns = now_ns

    def sample(self) -> Sample:
        """See :meth:`edgert.meters.all.Meters.sample`."""
        self.catch_up()
        sample, source = super().sample(), "simulated board"
        own = {name: one for name, one in sample.readings.items() if not name.startswith(f"{POWER}.")}
        heat, units = self.thermal, {POWER: "W", TEMPERATURE: "C", MARGIN: "C"}
        board = {name: unavailable(unit, source, NOT_KNOWN) for name, unit in units.items()}
        if heat is not None:
            values = {POWER: heat.power_w, TEMPERATURE: heat.temperature_c, MARGIN: heat.margin_c}
            board = {name: modeled(value, units[name], source) for name, value in values.items()}
        return replace(sample, readings={**own, **board})


class PacedEngines:
    """See :class:`edgert.assemble.engines.Engines`.

    Args:
        built: model → its engine, compiled already.
    """

    in_bundle = False

    def __init__(self, built: Mapping[str, PacedEngine]) -> None:
        self._built = built

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        """The engine that was made before the clock was set."""
        return self._built[name]


def emulate(file: PipelineFile, board: str, mode: str | None = None, *, slower: float = 1.0) -> Emulation:
    """Prepares this machine to emulate a board: compiles the models and runs each a few times.

    Args:
        slower: real seconds for each of the board's, at least.

    Raises:
        ConfigError: no such board or mode, or no model.
        EdgertError: a model cannot be planned for the board, or not be run here.
    """
    file = as_asked(file)
    made = plan(file, board=board, mode=mode or ALL).boards
    if len(made) != 1:
        raise ConfigError("one board at a time", where="--as", fix="edgert plan --board all compares them")
    row = made[0].rows[made[0].chosen or 0]
    record = find_board(board, file.document.path.parent)
    platform = platform_of(record, record.mode(row.mode), coefficients(record.soc))
    watts = platform.power
    rows = (row, *row.fallbacks)
    stages = board_stages(file, record, record.mode(row.mode))
    slots = _slots(file, rows)
    here = _here(file, slots)
    engines = {name: _engine(here, name) for name in slots}
    factor = max(slower, *(_factor(here, one, slots, engines, stages) for one in rows))
    clock = SlowClock(factor)
    pacer = Pacer(clock, platform.contention, len(platform.cores))
    label = f"simulated: {made[0].title} in {row.mode}" + (f", {factor:.1f} times slower" if factor > 1 else "")
    runs = {name: [(*_own(file, name, stages), *part) for slot in slots[name] for part in slot.parts] for name in slots}
    paced = {name: PacedEngine(engine, runs[name], pacer, label) for name, engine in engines.items()}
    heat = ThermalModel(watts, platform.cooling) if watts and platform.cooling else None
    meters = BoardMeters(pacer, heat, clock)
    predicted = tuple(step_of(one, watts) for one in rows) if watts else ()
    notes = ["engines and stages take the board's predicted time; sources take this machine's", *stages.notes]
    if watts is None:
        notes.append(NOT_KNOWN)
    if factor > 1:
        notes.append(
            f"this machine is too slow for it: {factor:.1f} real seconds are one of the board's; cameras, which know "
            "nothing of that, seem to be so much faster"
        )

    def pace(name: str, stage: Stage) -> Stage:
        if isinstance(file.config.stages[name], InferStage):
            return PacedInference(stage, pacer)
        return PacedStage(stage, stages.own[name], pacer) if stages.own.get(name) else stage

    return Emulation(here, clock, PacedEngines(paced), meters, predicted, label, tuple(notes), pace)


def _own(file: PipelineFile, model: str, stages: BoardStages) -> Sequence[Step]:
    """What a stage that runs a model does for each run of it, the same in every such stage."""
    users = (name for name, one in file.config.stages.items() if isinstance(one, InferStage) and one.infer == model)
    return next((stages.own.get(name, ()) for name in users), ())


def _slots(file: PipelineFile, rows: Sequence[Row]) -> dict[str, Sequence[InferenceSlot]]:
    """Model → its slots, as the first of the rows has them that runs it."""
    found: dict[str, Sequence[InferenceSlot]] = {}
    for at, row in zip(levels_of(file), rows, strict=True):
        made = BoardSlots(at, row)
        for name, stage in at.config.stages.items():
            if isinstance(stage, InferStage) and stage.infer not in found:
                found[stage.infer] = made(name, stage, True)
    return found


def _here(file: PipelineFile, slots: Mapping[str, Sequence[InferenceSlot]]) -> PipelineFile:
    """The pipeline with as many replicas of each model as the board would have engines of it, wherever they run; of
    those that take turns as many as of the one that has most, as they run in the same threads."""
    models = {}
    for name, config in file.config.models.items():
        turns = [chain for one in file.config.models if name in (chain := variants_of(file.config.models, one))]
        count = max((len(slots.get(one, (None,))) for chain in turns for one in chain), default=1)
        threads = max(count, threads_of(file.config, name))
        update = {"placement": "auto", "replicas": count, "threads": threads}
        models[name] = config.model_copy(update=update)
    here = {"models": models, "board": "auto", "engines": ()}
    return replace(file, config=file.config.model_copy(update=here))


def _engine(file: PipelineFile, name: str) -> Engine:
    config = file.config.models[name]
    threads = _threads(file, name)
    stages = users_of(file.config.stages, file.config.models, name)
    rows = [stage.crop.limit if stage.crop else stage.batch.max if stage.batch else 1 for stage in stages]
    if not config.is_converted:
        return build_engine(load(config.onnx), config, threads, max(rows))
    from edgert.quantization.precision import in_precision
    from edgert.quantization.run import Run

    where, directory = file.where("models", name), file.document.path.parent
    batched = any(stage.batch for stage in stages)
    model = in_precision(config, Run(where, directory), rows=max(rows), batched=batched)
    return build_engine(model, config, threads, max(rows))


def _factor(
    file: PipelineFile,
    row: Row,
    slots: Mapping[str, Sequence[InferenceSlot]],
    engines: Mapping[str, Engine],
    stages: BoardStages,
) -> float:
    """How many times slower than real time this machine has to run, to be no slower than the board on its clock."""
    factors, cores = [1.0], 0.0
    for model in row.models:
        session, taken = engines[model.name].session(), []
        for _ in range(_RUNS):  # of one row, on this machine
            began_ns = perf_counter_ns()
            session.run(1)
            taken.append(perf_counter_ns() - began_ns)
        real_ms = statistics.median(taken) / 1e6
        factors.append(_ROOM * real_ms / min(slot.engine_ms for slot in slots[model.name]))
        cores += model.rate_hz * min(1.0, row.headroom) * real_ms / 1e3 * _threads(file, model.name)
    rate_hz = row.asked_fps * min(1.0, row.headroom)
    for name, here_ms in stages.here_ms.items():
        own_ms = sum(step.time_ms for step in stages.own.get(name, ()))
        if own_ms and not isinstance(file.config.stages[name], SourceStage):
            factors.append(_ROOM * here_ms / own_ms)
        cores += rate_hz * here_ms / 1e3
    return max(*factors, cores / core_count() / _BUSY)


def _threads(file: PipelineFile, name: str) -> int:
    return max(1, threads_of(file.config, name) // replicas_of(file.config, name, live=True))
