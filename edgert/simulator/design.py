"""Input of a simulation as plain records: rates, fallback models, sources, threads and their work."""

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

# Rates: how often each model of a pipeline has to run.

ASSUMED_HZ = 30.0
"""Rate of a source whose file gives none."""


def source_rates(config: PipelineConfig) -> dict[str, float]:
    """Return source → frames a second."""
    stages = config.stages.items()
    return {name: stage.fps or ASSUMED_HZ for name, stage in stages if isinstance(stage, SourceStage)}


@dataclass(frozen=True, slots=True)
class Demand:
    """Load that a pipeline puts on one model.

    Attributes:
        model: its name in the file.
        rate_hz: runs per second, over all stages that use it.
        notes: what had to be assumed.
    """

    model: str
    rate_hz: float
    notes: tuple[str, ...] = ()


def demands(config: PipelineConfig) -> tuple[Demand, ...]:
    """Return every model that a stage runs, in the order of the file.

    A stage runs once per frame of each of its sources, or on every n-th. On crops of detections it runs as often as its
    ``limit`` allows, since a plan has to hold on a busy frame. On tiles it runs once for each, and for the complete
    frame.
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
    """Raise ConfigError where no stage of a pipeline runs a model."""
    if not demands(file.config):
        raise ConfigError("no stage runs a model", where=file.where("stages"), fix="add one: {infer: MODEL, from: ...}")


def _runs_per_frame(stages: Mapping[str, StageConfig], name: str, stage: InferStage) -> float:
    """Return runs per frame: a stage on crops, after a stage that crops, runs once for each."""
    before = (stages[other] for other in upstream(stages, name))
    crops = [one.crop.limit for one in before if isinstance(one, CropStage) and not isinstance(one.crop, tuple)]
    return (stage.parts or 1) * float(math.prod(crops)) / stage.every


# A pipeline with fallback models, level by level, as a governor may choose to run it.

_LOADED: tuple[Kind, ...] = ("weights", "activations", "bindings", "structure")  # of an engine


def levels_of(file: PipelineFile) -> tuple[PipelineFile, ...]:
    """Return the pipeline as its file has it, then with every model's first fallback model, and so on."""
    config = file.config
    smaller = (
        config.model_copy(update={"stages": stages_at(config.stages, config.models, level)})
        for level, _ in enumerate(fallback_levels(config.stages, config.models), 1)
    )
    return file, *(replace(file, config=one) for one in smaller)


def with_fallbacks(file: PipelineFile, row: Row, others: Sequence[Row]) -> Row:
    """Return a row with the memory of further levels, all of whose engines are loaded from the start."""
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
    """Return the row of a further level for a placement: of the same name, else the one with most headroom."""
    return next((one for one in others if one.name == row.name), max(others, key=lambda one: one.headroom))


@dataclass(frozen=True, slots=True)
class Source:
    """A thread that makes frames.

    Attributes:
        name: of the stage, and of its stream.
        rate_hz: frames that are due per second; None: the next is made when the last is taken.
        times_ms: when the frames of a trace came, from the first; played over and over in place of ``rate_hz``.
        jitter: standard deviation of when a frame is due, as a part of the period.
        is_ahead: whether a frame is made before it is due, as a file's, and not after, as a camera's.
        is_live: whether a governor has frames left out; otherwise it has them made more slowly.
        steps: what making one takes.
        limit: frames; None: no end.
        objects: how many are on each frame of the trace, or on every one: the mean of a Poisson distribution.
        most: objects on every frame where ``objects`` is None.
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
    """A channel into a node; see :class:`edgert.policy.BoundedQueue`."""

    producer: str
    capacity: int
    drop: Drop


@dataclass(frozen=True, slots=True)
class Task:
    """Work of a node on a result.

    Attributes:
        steps: of each result that it processes, with or without objects.
        run: of one run of a model on top of that; empty for other stages.
        every: frames between two that the model processes; the others cost nothing.
        crops: most objects of a frame for the model; None: it runs once, on the complete frame.
        tiles: runs of the model on every frame that it processes; 0: as ``crops`` says.
        rows: crops that fit in one run. A run of n rows takes n times as long as a run of one.
        batch: frames that are run together, if as many have come when the first is ready; None: each alone.
        wait_ms: the longest that the first frame of a batch waits for others.
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
    """A thread that takes results and passes them on.

    Attributes:
        inputs: what it listens to.
        weights: how results are dispatched to those who listen to it, in the order of ``Design.nodes``; empty: all get
            all.
        reorders: the dispatcher whose order is restored here; empty: none.
        joins: whether several inputs bring parts of the same frames.
        spread: most objects of a frame that each go on as a result of their own; None: the frame goes on.
        fallbacks: tasks at further levels of degrading, the last for all beyond; empty: always the same.
        levels: of each listener that results are dispatched to, the level of degrading at which it gets any; empty:
            any.
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
        nodes: each after those it listens to.
    """

    sources: tuple[Source, ...]
    nodes: tuple[Node, ...]
