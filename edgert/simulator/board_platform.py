"""What simulations run on: a board in a power mode, and engines placed by a plan's row or timed by profiles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from edgert.assemble.models import replicas_of, threads_of
from edgert.board.host import core_accelerators
from edgert.board.record import Board
from edgert.board.sections import Mode
from edgert.config import InferStage, ModelConfig, PipelineFile, SourceStage
from edgert.engine import default_profile
from edgert.graph import Graph, clean, inputs, load, read, with_shapes
from edgert.placement.contention import Contention
from edgert.placement.cost.coefficients import Coefficients
from edgert.placement.cost.power import power
from edgert.placement.cutting import accelerators_of, assign, check_accelerators, partition, weights_of
from edgert.placement.plan_record import BoardPlan, Row
from edgert.placement.profile import Profile, part_ms
from edgert.placement.segment_engines import Step, steps
from edgert.simulator import Cooling, Platform, simulate
from edgert.simulator.design import ASSUMED_HZ, levels_of, source_rates
from edgert.simulator.hardware import ANY_CORE
from edgert.simulator.pipeline_design import InferenceSlot, Scene, design_of

# A board in a power mode.

AMBIENT_C = 25.0
"""Ambient temperature around the board, by default."""
_RISE_C = 40.0
"""Assumed, as no cooler is known: how much warmer than the air a module gets at the most that a mode is named for."""


def contention_of(board: Board, mode: Mode, costs: Coefficients) -> Contention:
    """What the memory of a board in this mode gives to accelerators that ask at once."""
    bandwidth = (board.bandwidth_gb_s(mode) or 0.0) * 1e9
    return Contention(costs.contention.ceiling * bandwidth, floor_bytes_s=costs.contention.floor * bandwidth)


def platform_of(board: Board, mode: Mode, costs: Coefficients, ambient_c: float = AMBIENT_C) -> Platform:
    """Cores, memory, power and heat. What processor cores draw is not known apart; some of it is in the idle power."""
    watts = power(board, mode)
    named = [one.watts for one in board.modes if one.watts is not None]
    most_w = max(named, default=watts.static_w + watts.gpu_w)
    return Platform(
        cores=tuple(f"cpu{number}" for number in range(mode.cpu_cores or board.cpu.cores)),
        contention=contention_of(board, mode, costs),
        power=watts,
        cooling=Cooling(_RISE_C / most_w, ambient_c=ambient_c),
    )


@dataclass(frozen=True, eq=False)
class BoardSlots:
    """Engines as a row of a plan places them. One that uses several accelerators is run by as many threads, each with
    tensors of its own, so that the accelerators work at the same time."""

    file: PipelineFile
    row: Row

    def __call__(self, name: str, stage: InferStage, live: bool) -> Sequence[InferenceSlot]:
        """See :data:`edgert.simulator.pipeline_design.Slots`."""
        model = next(one for one in self.row.models if one.name == stage.infer)
        rows = rows_of(self.file.config.models[stage.infer], stage)
        slots = []
        for engine in model.engines:
            count = len(engine.accelerators)
            run = steps(model.network, engine.assignment)
            slots += [InferenceSlot((run,), engine.share / count, rows=rows)] * count
        return slots


@dataclass(frozen=True, eq=False)
class HostSlots:
    """Engines as ``edgert run`` sets them up here, with the times of profiles.

    Args:
        profiles: model → its profile.
    """

    file: PipelineFile
    profiles: Mapping[str, Profile]

    def __call__(self, name: str, stage: InferStage, live: bool) -> Sequence[InferenceSlot]:
        """See :data:`edgert.simulator.pipeline_design.Slots`. Raises PlacementError for a placement that this machine
        has not."""
        config, profile = self.file.config.models[stage.infer], self.profiles[stage.infer]
        rows = rows_of(config, stage)
        check_accelerators(accelerators_of(config.placement), core_accelerators())
        if isinstance(config.placement, dict):
            return [_split(config, profile, config.placement)]
        if placed := weights_of(config.placement):
            return [
                InferenceSlot(((_step(profile, core, core),),), weight, (core,), rows)
                for core, weight in placed.items()
            ]
        count = replicas_of(self.file.config, stage.infer, live)
        threads = max(1, threads_of(self.file.config, stage.infer) // count)
        step = _step(profile, next(iter(profile.whole)), ANY_CORE, threads)
        return [InferenceSlot(((step,),), rows=rows)] * count

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What had to be assumed."""
        return tuple(
            f"{name}: several threads are taken to share its work without loss; profiles are of one thread"
            for name, config in self.file.config.models.items()
            if config.placement == "auto" and threads_of(self.file.config, name) > 1
        ) + tuple(
            f"{name}: its profile has no jitter, so a p99 is too low; measure its profile again (edgert bench --units)"
            for name, profile in self.profiles.items()
            if not all(whole.jitter for whole in profile.whole.values())
        )


def rows_of(config: ModelConfig, stage: InferStage) -> int:
    """Crops or frames that fit in one run: all where the model leaves its batch open, else as many as it has rows."""
    first = inputs(load(config.onnx))[0].shape[:1]
    wanted = stage.crop.limit if stage.crop is not None else stage.batch.max if stage.batch is not None else 1
    return first[0] if first and isinstance(first[0], int) else wanted


def _step(profile: Profile, measured: str, core: str, threads: int = 1) -> Step:
    whole = profile.whole[measured]
    return Step(core, whole.alone_ms / threads, slowdown=whole.contention, threads=threads, jitter=whole.jitter)


def _split(config: ModelConfig, profile: Profile, globs: Mapping[str, str]) -> InferenceSlot:
    graph = static_graph(config)
    parts = partition(graph, assign(graph, globs, [node.name for node in read(load(config.onnx)).nodes]))
    cores = tuple(part.accelerator for part in parts)
    times_ms = (part_ms(profile, graph, parts, number) for number in range(len(parts)))
    timed = (replace(_step(profile, core, core), time_ms=ms) for core, ms in zip(cores, times_ms, strict=True))
    return InferenceSlot(tuple((step,) for step in timed), cores=cores)


def static_graph(config: ModelConfig) -> Graph:
    """The model as a profile knows it: of fixed shapes, with everything folded."""
    model = load(config.onnx)
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    return read(clean(with_shapes(model, shapes))[0])


# The rows of a plan that may be chosen, simulated as whole pipelines.

_FRAMES = 240  # of the slowest source: enough for a 99th percentile

Judge = Callable[[list[Row]], BoardPlan]
"""Orders rows by the budgets and takes one."""


def sized(file: PipelineFile, rows: list[Row], judge: Judge, platform_of: Callable[[str], Platform]) -> BoardPlan:
    """A board's plan whose chosen row, or closest where there is none, has a simulated p99.

    What the models need at worst, one after the other, comes first; a row that keeps its budgets by that is played, and
    has to keep them then, too.

    Args:
        platform_of: called with a power mode's name.
    """
    made = judge(rows)
    live = levels_of(as_live(file))
    while made.rows and not (picked := made.rows[made.chosen or 0]).is_simulated:
        played = _played(live, picked, platform_of(picked.mode))
        made = judge([played if row is picked else row for row in made.rows])
    return made


def as_live(file: PipelineFile) -> PipelineFile:
    """The pipeline with all sources at their rate, as it will run on cameras, even where they are files now."""
    stages = {
        name: stage.model_copy(update={"realtime": True, "fps": stage.fps or ASSUMED_HZ, "limit": None})
        if isinstance(stage, SourceStage)
        else stage
        for name, stage in file.config.stages.items()
    }
    return replace(file, config=file.config.model_copy(update={"stages": stages}))


def _played(levels: Sequence[PipelineFile], row: Row, platform: Platform) -> Row:
    """The row with the p99 of a simulation, and each of its fallbacks with its own."""
    fallbacks = [_played([file], one, platform) for file, one in zip(levels[1:], row.fallbacks, strict=True)]
    file = levels[0]
    slowest_hz = min(source_rates(file.config).values())
    played = simulate(design_of(file, BoardSlots(file, row), Scene({})), platform, _FRAMES / slowest_hz)
    p99_ms = played.latency_ms.p99 if played.frames_out else row.p99_ms
    return replace(row, p99_ms=p99_ms, is_simulated=True, fallbacks=tuple(fallbacks))
