"""Input of a simulation as plain records: rates, fallback models, sources, threads, and their work."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgert.budget.footprint import Kind
from edgert.config import CropStage, InferStage, PipelineConfig, PipelineFile, SourceStage, StageConfig
from edgert.config.flow import fallback_levels, sources_of, stages_at, upstream
from edgert.errors import ConfigError
from edgert.placement.plan_record import Row
from edgert.placement.segment_engines import Step
from edgert.policy import Drop

ASSUMED_HZ = 30.0
"""Assumed rate of a source without ``fps:``."""


def source_rates(config: PipelineConfig) -> dict[str, float]:
    """Return source → frames per second."""
    stages = config.stages.items()
    return {name: stage.fps or ASSUMED_HZ for name, stage in stages if isinstance(stage, SourceStage)}


@dataclass(frozen=True, slots=True)
class Demand:
    """Rate at which a pipeline runs a model.

    Attributes:
        rate_hz: runs per second, over all stages that use it.
        notes: assumptions about the rate.
    """

    model: str
    rate_hz: float
    notes: tuple[str, ...] = ()


def demands(config: PipelineConfig) -> tuple[Demand, ...]:
    """Return the demand for every model that a stage runs, in the order of the file.

    A stage runs once for each frame of its sources, or on every n-th. On crops it runs as often as its ``limit``
    allows, because a plan must hold on a busy frame. On tiles it runs for each tile and for the complete frame.
    """
    rates_hz, sources = source_rates(config), sources_of(config.stages)
    assumed = {name for name, stage in config.stages.items() if isinstance(stage, SourceStage) and stage.fps is None}
    found = []
    for model in config.models:
        runs = {
            name: _runs_per_frame(config.stages, name, stage)
            for name, stage in config.stages.items()
            if isinstance(stage, InferStage) and stage.infer == model
        }
        if not runs:
            continue
        rate_hz = sum(count * rates_hz[source] for name, count in runs.items() for source in sources[name])
        unsure = sorted({source for name in runs for source in sources[name]} & assumed)
        other = "--set stages.{0}.fps=15 plans for another rate"  # not fps: in the file, which some sources refuse
        notes = [f"{source}: {ASSUMED_HZ:g} fps assumed; {other.format(source)}" for source in unsure]
        tiled = {name for name in runs if getattr(config.stages[name], "tiles", None)}
        notes += [
            f"{name}: planned for {count:g} {'tiles' if name in tiled else 'crops'} a frame"
            for name, count in runs.items()
            if count > 1
        ]
        found.append(Demand(model, rate_hz, tuple(notes)))
    return tuple(found)


def check_demands(file: PipelineFile) -> None:
    """Raise ConfigError if no stage of a pipeline runs a model."""
    if not demands(file.config):
        raise ConfigError("no stage runs a model", where=file.where("stages"), fix="add one: {infer: MODEL, from: ...}")


def _runs_per_frame(stages: Mapping[str, StageConfig], name: str, stage: InferStage) -> float:
    """Return the runs of a stage per frame; behind a stage that crops it runs for each crop."""
    before = (stages[other] for other in upstream(stages, name))
    crops = [one.crop.limit for one in before if isinstance(one, CropStage) and not isinstance(one.crop, tuple)]
    return (stage.parts or 1) * float(math.prod(crops)) / stage.every


# Levels of fallback models, among which a governor may choose.

_LOADED: tuple[Kind, ...] = ("weights", "activations", "bindings", "structure")  # memory parts of an engine


def levels_of(file: PipelineFile) -> tuple[PipelineFile, ...]:
    """Return the pipeline of the file, then the one with every model's first fallback, and so on."""
    config = file.config
    smaller = (
        config.model_copy(update={"stages": stages_at(config.stages, config.models, level)})
        for level, _ in enumerate(fallback_levels(config.stages, config.models), 1)
    )
    return file, *(replace(file, config=one) for one in smaller)


def with_fallbacks(file: PipelineFile, row: Row, others: Sequence[Row]) -> Row:
    """Return a row with its fallbacks, and with the memory of all their engines, which are loaded from the start."""
    memory, loaded = list(row.memory), {model.name for model in row.models}
    for other in others:
        added = {model.name for model in other.models} - loaded
        memory += [part for part in other.memory if part.name in added and part.kind in _LOADED]
        loaded |= added
    held_bytes = sum(part.size_bytes for part in memory)

    def held(one: Row) -> Row:
        return replace(one, memory=tuple(memory), memory_bytes=held_bytes)

    smaller = fallback_levels(file.config.stages, file.config.models)
    named = [held(replace(one, fallback_models=models)) for one, models in zip(others, smaller, strict=False)]
    return held(replace(row, fallbacks=tuple(named)))


def counterpart(row: Row, others: Sequence[Row]) -> Row:
    """Return the fallback row for a placement: the one with the same name, else the one with most headroom."""
    return next((one for one in others if one.name == row.name), max(others, key=lambda one: one.headroom))


@dataclass(frozen=True, slots=True)
class Source:
    """Thread that produces frames.

    Attributes:
        name: name of the stage, and of its stream.
        rate_hz: frames per second; None if a frame is made as soon as the last one is taken.
        times_ms: times of a trace's frames since the first, repeated without end; they replace ``rate_hz``.
        jitter: standard deviation of a frame's time, as a share of the period.
        is_ahead: whether a frame is made before it is due, as from a file, or after, as from a camera.
        is_live: whether a governor skips frames; otherwise it slows the source down.
        steps: work to make a frame.
        limit: number of frames; None for no end.
        objects: number of objects on each frame of the trace, or the mean of a Poisson distribution.
        most: number of objects on every frame where ``objects`` is None.
    """

    name: str
    rate_hz: float | None = None
    times_ms: tuple[float, ...] = ()
    jitter: float = 0.0
    is_ahead: bool = False
    is_live: bool = True
    steps: tuple[Step, ...] = ()
    limit: int | None = None
    objects: tuple[int, ...] | float | None = None
    most: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """Channel into a node, an :class:`edgert.policy.BoundedQueue`."""

    producer: str
    capacity: int
    drop: Drop


@dataclass(frozen=True, slots=True)
class Task:
    """Work of a node on a result.

    Attributes:
        steps: steps for each processed result, with or without objects.
        run: additional steps for one run of a model; empty for other stages.
        every: interval of processed frames; the others cost nothing.
        crops: maximum number of objects on a frame for the model; None if it runs once on the complete frame.
        tiles: number of runs on every processed frame; 0 without tiles.
        rows: crops that fit in one run; a run of n rows takes n times as long as a run of one.
        batch: maximum number of frames that run together; None without batches.
        wait_ms: maximum time that the first frame of a batch waits for others.
    """

    steps: tuple[Step, ...] = ()
    run: tuple[Step, ...] = ()
    every: int = 1
    crops: int | None = None
    tiles: int = 0
    rows: int = 1
    batch: int | None = None
    wait_ms: float = math.inf


@dataclass(frozen=True, slots=True)
class Node:
    """Thread that takes results and passes them on.

    Attributes:
        inputs: edges into the node.
        weights: shares with which results are dispatched to listeners, in the order of ``Design.nodes``; empty if
            all listeners get all results.
        reorders: name of the dispatcher whose order is restored here; empty for none.
        joins: whether several inputs carry parts of the same frames.
        spread: maximum number of objects that each become a separate result; None if the frame is passed on.
        fallbacks: tasks at further fallback levels, the last one for all beyond; empty for the same task.
        levels: fallback level of each listener at which it gets results; empty for any level.
    """

    name: str
    inputs: tuple[Edge, ...]
    task: Task = Task()
    weights: tuple[float, ...] = ()
    reorders: str = ""
    joins: bool = True
    spread: int | None = None
    fallbacks: tuple[Task, ...] = ()
    levels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Design:
    """Simulated pipeline.

    Attributes:
        nodes: nodes, each after those it listens to.
    """

    sources: tuple[Source, ...]
    nodes: tuple[Node, ...]
