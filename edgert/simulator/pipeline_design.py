"""Conversion of a pipeline file into the design of a simulation: nodes and queues as in a run, with engine times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgert.config import CropStage, InferStage, ModelConfig, PipelineFile, SourceStage, StageConfig
from edgert.config.flow import SEGMENT_QUEUE, STAGE_QUEUE, inputs_of, queue_of, topological_order, variants_of
from edgert.errors import ConfigError, nearest
from edgert.placement.segment_engines import Step
from edgert.simulator.design import ASSUMED_HZ, Design, Edge, Node, Source, Task
from edgert.simulator.hardware import ANY_CORE
from edgert.simulator.sources import StageTimes, Trace
from edgert.stages.source.kinds import is_live, kind_of

Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class InferenceSlot:
    """Inference slot: one engine of a model and the threads that run it.

    Attributes:
        parts: steps of each of its threads; a frame passes through them in order.
        weight: share of the frames, relative to other slots.
        cores: core for the stage's own work in each part; empty for any core.
        rows: crops that fit in one run.
    """

    parts: tuple[tuple[Step, ...], ...]
    weight: float = 1.0
    cores: tuple[str, ...] = ()
    rows: int = 1

    def core(self, number: int) -> str:
        """Return the core for a part."""
        return self.cores[number] if self.cores else ANY_CORE

    @property
    def engine_ms(self) -> float:
        """Milliseconds of one run alone."""
        return sum(self.part_ms(number) for number in range(len(self.parts)))

    def part_ms(self, number: int) -> float:
        """Return the milliseconds of a part."""
        return _sum_ms(self.parts[number])


Slots = Callable[[InferStage, bool], Sequence[InferenceSlot]]
"""Function of a stage, and whether any source is live."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Input of a pipeline, and times of stages other than models.

    Attributes:
        traces: source → trace of its camera.
        objects: mean number of objects on a frame without a trace; None for the maximum that crops take.
        jitter: jitter of cameras without a trace, as a share of the period.
        times: times of stages, as measured in a run.
        own: stage that no run measured → steps for a frame, without those of a model.
    """

    traces: Mapping[str, Trace]
    objects: float | None = None
    jitter: float = 0.0
    times: StageTimes = field(default_factory=StageTimes)
    own: Mapping[str, Steps] = field(default_factory=dict)

    def other_steps(self, name: str) -> Steps:
        """Return the steps of a stage without a model for a frame."""
        measured_ms = self.times.of(name)
        return (Step(ANY_CORE, measured_ms),) if measured_ms else self.own.get(name, ())


def design_of(file: PipelineFile, slots: Slots, scene: Scene, fallbacks: Sequence[Slots] = ()) -> Design:
    """Return the design of a pipeline, as ``edgert run`` would set it up.

    Args:
        file: pipeline file.
        slots: function that returns the slots of a stage.
        scene: frame times and objects.
        fallbacks: such functions for each further level of fallback models; empty for none.

    Raises:
        ConfigError: a trace names no source of the pipeline.
    """
    stages = file.config.stages
    _check_traces(stages, scene.traces)
    designer = _Designer(stages, file.config.models, file.document.path.parent, (slots, *fallbacks), scene)
    return designer.design()


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
        for name in topological_order(self.stages):
            nodes += self._nodes(name, self.stages[name])
        return Design(tuple(sources), tuple(nodes))

    def _source(self, name: str, stage: SourceStage, most: int) -> Source:
        trace = self.scene.traces.get(name) or self.scene.traces.get("")
        is_camera = kind_of(stage.source, self.directory) in ("camera", "network", "gst")
        live = is_live(stage, self.directory)
        is_paced = live or bool(stage.realtime)
        rate_hz = stage.fps or ASSUMED_HZ
        return Source(
            name,
            rate_hz=rate_hz if is_paced and trace is None else None,
            times_ms=trace.times_ms if is_paced and trace is not None else (),
            jitter=self.scene.jitter if is_camera else 0.0,
            is_ahead=not is_camera,
            is_live=live,
            steps=self.scene.other_steps(name),
            limit=stage.limit,
            objects=trace.objects if trace is not None else self.scene.objects,
            most=most,
        )

    def _is_live(self, stage: StageConfig) -> bool:
        return isinstance(stage, SourceStage) and is_live(stage, self.directory)

    def _nodes(self, name: str, stage: StageConfig) -> list[Node]:
        if isinstance(stage, SourceStage):
            return []
        inputs = tuple(
            Edge(other, *queue_of(self.stages[other], stage, self._is_live(self.stages[other])))
            for other in inputs_of(stage)
        )
        if isinstance(stage, InferStage):
            return self._inference_nodes(name, stage, inputs)
        spread = stage.crop.limit if isinstance(stage, CropStage) and not isinstance(stage.crop, tuple) else None
        return [Node(name, inputs, Task(self.scene.other_steps(name)), spread=spread)]

    def _inference_nodes(self, name: str, stage: InferStage, inputs: tuple[Edge, ...]) -> list[Node]:
        """Return the nodes of a model: one thread, a chain of threads, or a dispatcher, chains and a reorder buffer."""
        branches = self._branches(stage)
        is_cut = any(len(slots[0].parts) > 1 for _, slots in branches)
        capacity = SEGMENT_QUEUE if is_cut else STAGE_QUEUE
        if len(branches) == 1:
            slots = branches[0][1]
            first = len(slots[0].parts) - 1
            labels = [*(f"{name}:{number}" for number in range(first)), name]
            return self._chain(name, stage, slots, labels, inputs, capacity)
        label, weights = f"{name}:dispatch", tuple(slots[0].weight for _, slots in branches)
        levels = tuple(level for level, _ in branches)
        dispatcher = Node(label, inputs, weights=weights, levels=levels)
        nodes, ends, count = [dispatcher], [], 0
        for _, slots in branches:
            feed = (Edge(dispatcher.name, capacity, "never"),)
            labels = [f"{name}:{number}" for number in range(count, count + len(slots[0].parts))]
            chain = self._chain(name, stage, slots, labels, feed, capacity)
            count += len(chain)
            ends.append(Edge(chain[-1].name, capacity, "never"))
            nodes += chain
        return [*nodes, Node(name, tuple(ends), reorders=dispatcher.name, joins=False)]

    def _branches(self, stage: InferStage) -> list[tuple[int, Sequence[InferenceSlot]]]:
        """Return (first level that uses it, its slots by level) for each thread or chain of a stage.

        As in a run, a model and its fallbacks share threads. They have separate threads if one has a ``placement:`` or
        their engines differ in number.
        """
        any_live = any(map(self._is_live, self.stages.values()))
        chain = variants_of(self.models, stage.infer)[: len(self.slots)]
        as_stages = [stage.model_copy(update={"infer": one}) for one in chain]
        levels = [slots(one, any_live) for slots, one in zip(self.slots, as_stages, strict=False)]
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
        """Return the threads of a slot, with its task at each level; the first also does the stage's other work."""
        nodes: list[Node] = []
        times = self.scene.times
        for number, label in enumerate(labels):
            if len(labels) > 1:
                measured_ms = times.of(label)  # 0 if the run cut the model elsewhere
            else:
                measured_ms = times.of_stage(name) if label == name else times.of_part(label, name)
            task = self._task(name, stage, slots[0], number, measured_ms)
            others = tuple(_fallback_task(task, stage, slots[0], slot, number) for slot in slots[1:])
            nodes.append(Node(label, inputs, task, fallbacks=others))
            inputs = (Edge(label, capacity, "never"),)
        return nodes

    def _task(self, name: str, stage: InferStage, slot: InferenceSlot, number: int, measured_ms: float) -> Task:
        crops = stage.crop.limit if stage.crop is not None else None
        tiles = stage.tiles.count if stage.tiles is not None else 0
        runs = float(tiles or (1 if crops is None else self._objects(crops)))
        own_ms = measured_ms - slot.part_ms(0) * runs
        own: Steps = (Step(slot.core(0), own_ms),) if own_ms > 0 else ()
        predicted = () if measured_ms else self.scene.own.get(name, ())
        parts = slot.parts[number]
        if number == 0 and stage.parts is None:
            own = (*own, *predicted)
        elif number == 0:
            parts = (*predicted, *parts)  # for each crop
        wait_ms = 1e3 * stage.batch.wait if stage.batch is not None else 0.0
        batch = _batch(stage, slot)
        return Task(own if number == 0 else (), parts, stage.every, crops, tiles, slot.rows, batch, wait_ms)

    def _objects(self, most: int) -> float:
        """Return the mean number of objects on a frame that a stage processes, at most ``most``."""
        counts = [min(count, most) for trace in self.scene.traces.values() for count in trace.objects]
        if counts:
            return sum(counts) / len(counts)
        return min(self.scene.objects if self.scene.objects is not None else most, most)


def _fallback_task(task: Task, stage: InferStage, first: InferenceSlot, slot: InferenceSlot, number: int) -> Task:
    """Return a task with another slot's model, scaled by measured over planned time of the first slot.

    Other work is assumed to be the same.
    """
    planned_ms = first.part_ms(number)
    slower = _sum_ms(task.run) / planned_ms if planned_ms else 1.0
    run = tuple(replace(step, time_ms=step.time_ms * slower) for step in slot.parts[number])
    return replace(task, run=run, rows=slot.rows, batch=_batch(stage, slot))


def _batch(stage: InferStage, slot: InferenceSlot) -> int | None:
    return min(stage.batch.max, slot.rows) if stage.batch is not None else None


def _sum_ms(steps: Steps) -> float:
    return sum(step.time_ms for step in steps)


def _check_traces(stages: Mapping[str, StageConfig], traces: Mapping[str, Trace]) -> None:
    sources = [name for name, stage in stages.items() if isinstance(stage, SourceStage)]
    for name in traces:
        if name and name not in sources:
            raise ConfigError(
                f"the trace names stream {name!r}, which is not a source of the pipeline{nearest(name, sources)}",
                where="trace",
                fix=f"sources: {', '.join(sources)}; a trace without stream is for any source",
            )
