"""From a pipeline file to what a simulation plays: the nodes and queues of a run, with the times of its engines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgert.assemble.graph import queue_of
from edgert.assemble.models import SEGMENT_QUEUE, STAGE_QUEUE
from edgert.config import CropStage, InferStage, ModelConfig, PipelineFile, SourceStage, StageConfig
from edgert.config.flow import inputs_of, order, variants_of
from edgert.errors import ConfigError, nearest
from edgert.jitter import STEADY, Jitter, Quantiles, mean_of
from edgert.placement.segment_engines import Step
from edgert.simulator.design import ASSUMED_HZ, Design, Edge, Node, Source, Task
from edgert.simulator.hardware import ANY_CORE
from edgert.simulator.recorded import StageTime, StageTimes, Trace
from edgert.stages.source.kinds import is_live, kind_of

Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class InferenceSlot:
    """An inference slot: one engine of a model and the threads that run it.

    Attributes:
        parts: what its threads do, one after the other; frames follow one another from part to part.
        weight: its share of the frames, against those of the other slots.
        cores: of each part, where its own work is done; any core where there are none.
        rows: crops that fit in one run.
    """

    parts: tuple[tuple[Step, ...], ...]
    weight: float = 1.0
    cores: tuple[str, ...] = ()
    rows: int = 1

    def core(self, number: int) -> str:
        """Of a part."""
        return self.cores[number] if self.cores else ANY_CORE

    @property
    def engine_ms(self) -> float:
        """One run, alone, on average."""
        return sum(self.part_ms(number) for number in range(len(self.parts)))

    def part_ms(self, number: int) -> float:
        """What a thread does of it."""
        return sum(step.mean_ms for step in self.parts[number])

    @property
    def jitter(self) -> Quantiles:
        """Of times on the first part's core."""
        return next((step.jitter for step in self.parts[0]), ())


Slots = Callable[[str, InferStage, bool], Sequence[InferenceSlot]]
"""Called with a stage's name, the stage, and whether any source is live."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What comes into a pipeline, and what its stages take besides models.

    Attributes:
        traces: source → what its camera delivered.
        objects: mean on a frame without a trace; None: as many as the crops of the pipeline take at most.
        jitter: of cameras without a trace, as a part of the period.
        times: of stages, as a run measured them.
        own: of stages that no run measured, what a frame takes in them beside their model.
    """

    traces: Mapping[str, Trace]
    objects: float | None = None
    jitter: float = 0.0
    times: StageTimes = field(default_factory=StageTimes)
    own: Mapping[str, Steps] = field(default_factory=dict)

    def beside(self, name: str, measured: StageTime, core: str = ANY_CORE) -> Steps:
        """What a stage without a model takes for a frame."""
        return _own(measured, core) if measured.busy_ms else self.own.get(name, ())


def design_of(file: PipelineFile, slots: Slots, scene: Scene, fallbacks: Sequence[Slots] = ()) -> Design:
    """What ``edgert run`` would set up.

    Args:
        fallbacks: of each further level of degraded models; none: they are never degraded.

    Raises:
        ConfigError: a trace is of no source of the pipeline.
    """
    stages = file.config.stages
    _check_traces(stages, scene.traces)
    designer = _Designer(stages, file.config.models, file.document.path.parent, (slots, *fallbacks), scene)
    return designer.design()


def is_live_source(stage: StageConfig, directory: Path) -> bool:
    """Whether a stage gives frames that are lost when nobody takes them."""
    return isinstance(stage, SourceStage) and is_live(stage, directory)


@dataclass(frozen=True, eq=False)
class _Designer:
    stages: Mapping[str, StageConfig]
    models: Mapping[str, ModelConfig]
    directory: Path
    slots: Sequence[Slots]
    scene: Scene

    def design(self) -> Design:
        crops = [stage.crop for stage in self.stages.values() if isinstance(stage, (InferStage, CropStage))]
        most = max((crop.limit for crop in crops if crop is not None and not isinstance(crop, tuple)), default=0)
        sources, nodes = [], []
        for name, stage in self.stages.items():
            if isinstance(stage, SourceStage):
                sources.append(self._source(name, stage, most))
        for name in order(self.stages):
            nodes += self._nodes(name, self.stages[name])
        return Design(tuple(sources), tuple(nodes))

    def _source(self, name: str, stage: SourceStage, most: int) -> Source:
        measured = self.scene.times.of(name)
        trace = self.scene.traces.get(name) or self.scene.traces.get("")
        is_camera = kind_of(stage.source, self.directory) in ("camera", "network", "gst")
        live = is_live(stage, self.directory)
        is_paced = live or bool(stage.realtime)
        rate_hz = stage.fps or ASSUMED_HZ
        return Source(
            name,
            rate_hz=rate_hz if is_paced and trace is None else None,
            times_ms=trace.times_ms if is_paced and trace is not None else (),
            start_ms=measured.first_result_ms,
            late_ms=measured.wakeup_latency_ms if live else (),
            jitter=self.scene.jitter if is_camera else 0.0,
            is_ahead=not is_camera,
            is_live=live,
            steps=self.scene.beside(name, measured),
            hand_over=_hand_over(measured),
            limit=stage.limit,
            objects=trace.objects if trace is not None else self.scene.objects,
            most=most,
        )

    def _nodes(self, name: str, stage: StageConfig) -> list[Node]:
        """Those of a stage; none of a source."""
        if isinstance(stage, SourceStage):
            return []
        inputs = tuple(
            Edge(other, *queue_of(self.stages[other], stage, is_live_source(self.stages[other], self.directory)))
            for other in inputs_of(stage)
        )
        if isinstance(stage, InferStage):
            return self._infers(name, stage, inputs)
        spread = stage.crop.limit if isinstance(stage, CropStage) and not isinstance(stage.crop, tuple) else None
        measured = self.scene.times.of(name)
        task = Task(_together(self.scene.beside(name, measured), measured.jitter), jitter=measured.jitter)
        return [_node(name, inputs, measured, task=task, spread=spread)]

    def _infers(self, name: str, stage: InferStage, inputs: tuple[Edge, ...]) -> list[Node]:
        """One thread, a chain of them, or a dispatcher, chains and what puts their results in order again."""
        branches = self._branches(name, stage)
        is_cut = any(len(slots[0].parts) > 1 for _, slots in branches)
        capacity = SEGMENT_QUEUE if is_cut else STAGE_QUEUE
        if len(branches) == 1:
            slots = branches[0][1]
            first = len(slots[0].parts) - 1
            labels = [*(f"{name}:{number}" for number in range(first)), name]
            return self._chain(name, stage, slots, labels, inputs, capacity)
        label, weights = f"{name}:dispatch", tuple(slots[0].weight for _, slots in branches)
        levels = tuple(level for level, _ in branches)
        dispatcher = _node(label, inputs, self.scene.times.of(label), weights=weights, levels=levels)
        nodes, ends, count = [dispatcher], [], 0
        for _, slots in branches:
            feed = (Edge(dispatcher.name, capacity, "never"),)
            labels = [f"{name}:{number}" for number in range(count, count + len(slots[0].parts))]
            made = self._chain(name, stage, slots, labels, feed, capacity)
            count += len(made)
            ends.append(Edge(made[-1].name, capacity, "never"))
            nodes += made
        times = self.scene.times.of(name)
        return [*nodes, _node(name, tuple(ends), times, reorders=dispatcher.name, joins=False)]

    def _branches(self, name: str, stage: InferStage) -> list[tuple[int, Sequence[InferenceSlot]]]:
        """The threads, or chains of them, that a stage has, each with the level at which it gets frames and its slots
        at that level and further ones. As in a run, models take turns in the same threads, or, where they are placed
        or their engines differ in number, each in its own."""
        any_live = any(is_live_source(one, self.directory) for one in self.stages.values())
        chain = variants_of(self.models, stage.infer)[: len(self.slots)]
        as_stages = [stage.model_copy(update={"infer": one}) for one in chain]
        levels = [slots(name, one, any_live) for slots, one in zip(self.slots, as_stages, strict=False)]
        is_placed = any(self.models[one].placement != "auto" for one in chain)
        shapes = {tuple(len(slot.parts) for slot in slots) for slots in levels}
        if len(levels) == 1 or is_placed or len(shapes) > 1:
            return [(level, (slot,)) for level, slots in enumerate(levels) for slot in slots]
        return [(0, slots) for slots in zip(*levels, strict=True)]

    def _chain(
        self,
        name: str,
        stage: InferStage,
        slots: Sequence[InferenceSlot],
        labels: Sequence[str],
        inputs: tuple[Edge, ...],
        capacity: int,
    ) -> list[Node]:
        """The threads of one slot, or of one at each level; what the stage does besides its model is done by the
        first."""
        nodes: list[Node] = []
        times = self.scene.times
        for number, label in enumerate(labels):
            if len(labels) > 1:
                measured = times.of(label)  # a run that was cut elsewhere has no times of this segment
            else:
                measured = times.of_stage(name) if label == name else times.of_part(label, name)
            task = self._task(name, stage, slots[0], number, measured)
            others = tuple(_instead(task, stage, slots[0], slot, number) for slot in slots[1:])
            core = slots[0].core(number)
            nodes.append(_node(label, inputs, measured, core, task=task, fallbacks=others))
            inputs = (Edge(label, capacity, "never"),)
        return nodes

    def _task(self, name: str, stage: InferStage, slot: InferenceSlot, number: int, measured: StageTime) -> Task:
        crops = stage.crop.limit if stage.crop is not None else None
        tiles = stage.tiles.count if stage.tiles is not None else 0
        runs = float(tiles or (1 if crops is None else self._objects(crops)))
        # Where results are not all the same work, the jitter of a run is that of the work as well.
        is_even = stage.every == 1 and (stage.crop is None or not (self.scene.traces or self.scene.objects))
        jitter = measured.jitter if is_even else STEADY
        own = _own(measured, slot.core(0), slot.part_ms(0) * runs, jitter.quantiles or slot.jitter)
        predicted = () if measured.busy_ms else self.scene.own.get(name, ())
        batch, parts = _batch(stage, slot), slot.parts[number]
        if batch is not None and measured.batch_fill_ms:
            own, parts = _divided(own, parts, measured.batch_fill_ms)
        if number == 0 and stage.parts is None:
            own = (*own, *predicted)
        elif number == 0:
            parts = (*predicted, *parts)  # for each crop
        steps, run = _together(own if number == 0 else (), jitter), _together(parts, jitter)
        wait_ms = 1e3 * stage.batch.wait if stage.batch is not None else 0.0
        return Task(steps, run, stage.every, crops, tiles, slot.rows, batch, wait_ms, jitter)

    def _objects(self, most: int) -> float:
        """The mean on a frame, as far as a stage looks at them."""
        counts = [min(count, most) for trace in self.scene.traces.values() for count in trace.objects]
        if counts:
            return sum(counts) / len(counts)
        return min(self.scene.objects if self.scene.objects is not None else most, most)


def _node(name: str, inputs: tuple[Edge, ...], measured: StageTime, core: str = ANY_CORE, **how: Any) -> Node:
    return Node(
        name,
        inputs,
        wakeup_latency_ms=measured.wakeup_latency_ms,
        startup_ms=measured.startup_ms,
        hand_over=_hand_over(measured, core),
        **how,
    )


def _hand_over(measured: StageTime, core: str = ANY_CORE) -> Steps:
    return (Step(core, measured.hand_over_ms),) if measured.hand_over_ms else ()


def _own(measured: StageTime, core: str, engine_ms: float = 0.0, jitter: Quantiles = ()) -> tuple[Step, ...]:
    """What a thread does besides its model; nothing where nobody measured it. ``jitter`` is for runs without any."""
    own_ms = measured.busy_ms - engine_ms
    jitter = measured.jitter.quantiles if not engine_ms else jitter
    return (Step(core, own_ms / mean_of(jitter), jitter=jitter),) if own_ms > 0 else ()


def _divided(own: Steps, parts: Steps, batch_fill_ms: float) -> tuple[Steps, Steps]:
    """The same time in all, so much of it before a batch is run: on a slow machine its model is slow as well."""
    own_ms, parts_ms = _mean_ms(own), _mean_ms(parts)
    before_ms = min(batch_fill_ms, own_ms)
    if not before_ms or not parts_ms:
        return own, parts
    return _longer(own, before_ms / own_ms), _longer(parts, (parts_ms + own_ms - before_ms) / parts_ms)


def _instead(task: Task, stage: InferStage, first: InferenceSlot, slot: InferenceSlot, number: int) -> Task:
    """A task with the runs of another slot's model, as much slower than planned as those of the first slot are; the
    rest of its work is taken to be the same."""
    planned_ms = first.part_ms(number)
    slower = _mean_ms(task.run) * task.jitter.mean / planned_ms if planned_ms else 1.0
    run = _together(_longer(slot.parts[number], slower), task.jitter)
    return replace(task, run=run, rows=slot.rows, batch=_batch(stage, slot))


def _batch(stage: InferStage, slot: InferenceSlot) -> int | None:
    return min(stage.batch.max, slot.rows) if stage.batch is not None else None


def _mean_ms(steps: Steps) -> float:
    return sum(step.mean_ms for step in steps)


def _longer(steps: Steps, factor: float) -> Steps:
    """The same work in so many times the time."""
    return tuple(replace(step, time_ms=step.time_ms * factor) for step in steps)


def _together(steps: Sequence[Step], jitter: Jitter) -> tuple[Step, ...]:
    """Steps that do not jitter by themselves any more, but all alike: the mean of each is kept."""
    if not jitter:
        return tuple(steps)
    return tuple(replace(step, jitter=(), time_ms=step.mean_ms / jitter.mean) for step in steps)


def _check_traces(stages: Mapping[str, StageConfig], traces: Mapping[str, Trace]) -> None:
    sources = [name for name, stage in stages.items() if isinstance(stage, SourceStage)]
    for name in traces:
        if name and name not in sources:
            raise ConfigError(
                f"the trace is of stream {name!r}, which is no source here{nearest(name, sources)}",
                where="--trace",
                fix=f"sources: {', '.join(sources)}; or leave stream out: it is then any source's",
            )
