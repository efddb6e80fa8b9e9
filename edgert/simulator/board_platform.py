"""Simulated hardware: a board in a power mode, and engines placed by a plan or timed by profiles."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

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
from edgert.placement.plan_record import Row
from edgert.placement.profile import Profile, part_ms
from edgert.placement.segment_engines import Step, steps
from edgert.simulator import Cooling, Platform, simulate
from edgert.simulator.board_stages import UNMEASURED, BoardStages
from edgert.simulator.design import ASSUMED_HZ, Design, source_rates
from edgert.simulator.hardware import ANY_CORE
from edgert.simulator.pipeline_design import InferenceSlot, Scene, design_of

AMBIENT_C = 25.0
"""Default temperature of the air around the board."""
_RISE_C = 40.0
"""Assumed rise of a module's temperature at its highest nominal power, because its cooler is unknown."""


def contention_of(board: Board, mode: Mode, costs: Coefficients) -> Contention:
    """Return the contention model of a board's memory in a mode."""
    bandwidth = (board.bandwidth_gb_s(mode) or 0.0) * 1e9
    return Contention(costs.contention.ceiling * bandwidth, floor_bytes_s=costs.contention.floor * bandwidth)


def platform_of(board: Board, mode: Mode, costs: Coefficients, ambient_c: float = AMBIENT_C) -> Platform:
    """Return the simulated hardware of a board in a mode; without power and heat where no power is published."""
    watts = power(board, mode)
    named = [one.watts for one in board.modes if one.watts is not None]
    most_w = max(named, default=watts.static_w + watts.busy_gpu_w)
    return Platform(
        cores=tuple(f"cpu{number}" for number in range(mode.cpu_cores or board.cpu.cores)),
        contention=contention_of(board, mode, costs),
        power=watts if watts.is_known else None,
        cooling=Cooling(_RISE_C / most_w, ambient_c=ambient_c) if watts.is_known else None,
    )


@dataclass(frozen=True, eq=False)
class BoardSlots:
    """Engines as a row of a plan places them.

    An engine on several accelerators runs in one thread for each, with separate tensors, so that they work in parallel.
    """

    file: PipelineFile
    row: Row

    def __call__(self, stage: InferStage, live: bool) -> Sequence[InferenceSlot]:
        """Return the slots of a stage, as :data:`edgert.simulator.pipeline_design.Slots` does."""
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
    """Engines as ``edgert run`` sets them up on this machine, with the times of profiles.

    Args:
        file: pipeline file.
        profiles: model → profile.
    """

    file: PipelineFile
    profiles: Mapping[str, Profile]

    def __call__(self, stage: InferStage, live: bool) -> Sequence[InferenceSlot]:
        """Return the slots of a stage; raise PlacementError for accelerators that this machine lacks."""
        config, profile = self.file.config.models[stage.infer], self.profiles[stage.infer]
        rows = rows_of(config, stage)
        check_accelerators(accelerators_of(config.placement), core_accelerators())
        if isinstance(config.placement, dict):
            return [_split_slot(config, profile, config.placement)]
        if placed := weights_of(config.placement):
            return [
                InferenceSlot(((_model_step(profile, core, core),),), weight, (core,), rows)
                for core, weight in placed.items()
            ]
        count = replicas_of(self.file.config, stage.infer, live)
        threads = max(1, threads_of(self.file.config, stage.infer) // count)
        one = _model_step(profile, next(iter(profile.whole)), ANY_CORE)
        return [InferenceSlot(((replace(one, time_ms=one.time_ms / threads, threads=threads),),), rows=rows)] * count

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Assumptions about engines."""
        return (
            "times of this machine do not vary: a p99 is only that of the queues",
            *(
                f"{name}: its profile has the times of one thread; several are assumed to share the work evenly"
                for name, config in self.file.config.models.items()
                if config.placement == "auto" and threads_of(self.file.config, name) > 1
            ),
        )


def rows_of(config: ModelConfig, stage: InferStage) -> int:
    """Return the crops or frames in one run: the model's batch, or all of the stage's where its batch is dynamic."""
    rows = _rows(str(config.onnx), config.onnx.stat().st_mtime_ns if config.onnx.is_file() else 0)
    wanted = stage.parts or (stage.batch.max if stage.batch is not None else 1)
    return wanted if rows is None else rows


@cache
def _rows(file: str, changed_ns: int) -> int | None:
    """Return the first dimension of a model's first input; cached, because every row of a plan needs it."""
    first = inputs(load(file))[0].shape[:1]
    return first[0] if first and isinstance(first[0], int) else None


def _model_step(profile: Profile, measured: str, core: str) -> Step:
    whole = profile.whole[measured]
    return Step(core, whole.alone_ms, slowdown=whole.contention)


def _split_slot(config: ModelConfig, profile: Profile, globs: Mapping[str, str]) -> InferenceSlot:
    graph = static_graph(config)
    parts = partition(graph, assign(graph, globs, [node.name for node in read(load(config.onnx)).nodes]))
    cores = tuple(part.accelerator for part in parts)
    times_ms = (part_ms(profile, graph, parts, number) for number in range(len(parts)))
    timed = (replace(_model_step(profile, core, core), time_ms=ms) for core, ms in zip(cores, times_ms, strict=True))
    return InferenceSlot(tuple((step,) for step in timed), cores=cores)


def static_graph(config: ModelConfig) -> Graph:
    """Return the graph of a model as profiled: cleaned, with static shapes."""
    model = load(config.onnx)
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    return read(clean(with_shapes(model, shapes))[0])


# Figures of a row come from two simulations of the pipeline: at the requested rates, and with as many frames as it can
# process.

_FRAMES = 120  # frames of the slowest source; only the order of frames varies, so slow frames recur
_SATURATED_FRAMES = 240  # frames of all sources where only the rate is measured
_FEWEST = 24  # minimum of these frames for the slowest source
_SLOWEST = 1e3  # ratio to the expected time after which the simulation ends


def as_requested(file: PipelineFile, limit: bool = True) -> PipelineFile:
    """Return the pipeline with sources that run at their rates, as cameras do, even if they are files.

    With ``limit``, sources keep the file's ``limit:`` and ``realtime: false``.
    """
    stages = dict(file.config.stages)
    for name, stage in file.config.stages.items():
        if not isinstance(stage, SourceStage):
            continue
        if not limit:
            update = {"realtime": True, "fps": stage.fps or ASSUMED_HZ, "limit": None}
        elif stage.realtime is None:
            update = {"realtime": True, "fps": stage.fps or ASSUMED_HZ}
        else:
            continue
        stages[name] = stage.model_copy(update=update)
    return replace(file, config=file.config.model_copy(update={"stages": stages}))


def saturated(design: Design, frames: Mapping[str, int]) -> Design:
    """Return a design whose sources give these numbers of frames at full speed, without losses."""
    sources = tuple(
        replace(one, rate_hz=None, times_ms=(), is_ahead=True, is_live=False, limit=count)
        for one, count in ((source, frames[source.name]) for source in design.sources)
    )
    nodes = []
    for node in design.nodes:
        inputs = tuple(replace(edge, drop="never") for edge in node.inputs)
        nodes.append(replace(node, inputs=inputs))
    return Design(sources, tuple(nodes))


_NO_TRACES = Scene({})


def played(
    file: PipelineFile, row: Row, platform: Platform, stages: BoardStages | None = None, scene: Scene = _NO_TRACES
) -> Row:
    """Return the row with simulated figures: frames per second, latency, power, and headroom.

    Args:
        file: pipeline file.
        row: row whose ``error`` is that of its engines; the result's also includes that of CPU cores, by time.
        platform: hardware of the board.
        stages: costs of stages other than models; None for no cost.
        scene: frame times and objects.
    """
    if stages is not None:
        scene = replace(scene, own=stages.own)
    requested = as_requested(file, limit=False)
    rates_hz = source_rates(requested.config)
    total_hz, slowest_hz = sum(rates_hz.values()), min(rates_hz.values())
    design = design_of(requested, BoardSlots(requested, row), scene)
    found = simulate(design, platform, _FRAMES / slowest_hz)
    seconds = max(_SATURATED_FRAMES / total_hz, _FEWEST / slowest_hz)
    frames = {name: math.ceil(rate_hz * seconds) for name, rate_hz in rates_hz.items()}
    most = simulate(saturated(design, frames), platform, _SLOWEST * seconds)
    headroom = most.steady_hz * seconds / max(most.latency_ms.count, 1)
    per_frame_j = found.energy_j_per_frame
    return replace(
        row,
        headroom=headroom,
        fps=found.fps,
        requested_fps=total_hz,
        p50_ms=found.latency_ms.p50 if found.frames_out else math.inf,
        p99_ms=found.latency_ms.p99 if found.frames_out else math.inf,
        power_w=found.power_w,
        energy_mj=None if per_frame_j is None else 1e3 * per_frame_j,
        busy=found.busy,
        cores=len(platform.cores),
        error=row.error if stages is None or row.error is None else _error(row, row.error, stages),
    )


def _error(row: Row, error: float, stages: BoardStages) -> float:
    engines_ms = sum(model.latency_ms for model in row.models)
    part = stages.cores_ms / max(stages.cores_ms + engines_ms, 1e-9)
    return (1 - part) * error + part * stages.error + (UNMEASURED if stages.is_unmeasured else 0.0)
