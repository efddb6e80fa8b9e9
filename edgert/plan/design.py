"""A pipeline file as what a simulation plays: the same nodes and queues as a run has, with the times of its engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgert.assemble.build import queue_of
from edgert.assemble.model import SEGMENT_QUEUE, STAGE_QUEUE
from edgert.config import CropStage, InferStage, PipelineFile, SourceStage, StageConfig
from edgert.config.flow import inputs_of, order
from edgert.errors import ConfigError, nearest
from edgert.place.step import Step
from edgert.plan.workload import ASSUMED_HZ
from edgert.simulate.core import ANY_CORE, CoreStep
from edgert.simulate.design import Design, Edge, Node, Source, Task
from edgert.simulate.measured import StageTimes
from edgert.simulate.trace import Trace
from edgert.spread import Spread, mean_of
from edgert.stages.source.select import is_live, kind_of


@dataclass(frozen=True, slots=True)
class Lane:
    """One way through a model.

    Attributes:
        parts: what its threads do, one after the other; frames follow one another from part to part.
        weight: its share of the frames, against those of the other lanes.
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
        return sum(step.mean_ms for part in self.parts for step in part)

    @property
    def spread(self) -> Spread:
        """Of times on the first part's core."""
        return next((step.spread for step in self.parts[0] if isinstance(step, CoreStep)), ())


Lanes = Callable[[str, InferStage, bool], Sequence[Lane]]
"""Called with a stage's name, the stage, and whether any source is live."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What comes into a pipeline, and what its stages take besides models.

    Attributes:
        traces: source → what its camera delivered.
        objects: mean on a frame without a trace; None: as many as the crops of the pipeline take at most.
        jitter: of cameras without a trace, as a part of the period.
        times: of stages.
    """

    traces: Mapping[str, Trace]
    objects: float | None = None
    jitter: float = 0.0
    times: StageTimes = field(default_factory=StageTimes)


def design_of(file: PipelineFile, lanes: Lanes, scene: Scene) -> Design:
    """What ``edgert run`` would set up.

    Raises:
        ConfigError: a trace is of no source of the pipeline.
    """
    stages = file.config.stages
    _check_traces(stages, scene.traces)
    designer = _Designer(stages, file.document.path.parent, lanes, scene)
    return designer.design()


def is_live_source(stage: StageConfig, directory: Path) -> bool:
    """Whether a stage gives frames that are lost when nobody takes them."""
    return isinstance(stage, SourceStage) and is_live(stage, directory)


@dataclass(frozen=True, eq=False)
class _Designer:
    stages: Mapping[str, StageConfig]
    directory: Path
    lanes: Lanes
    scene: Scene

    def design(self) -> Design:
        sources = tuple(
            self._source(name, stage) for name, stage in self.stages.items() if isinstance(stage, SourceStage)
        )
        fed = [name for name in order(self.stages) if not isinstance(self.stages[name], SourceStage)]
        return Design(sources, tuple(node for name in fed for node in self._nodes(name)))

    def _source(self, name: str, stage: SourceStage) -> Source:
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
            steps=self._own(name, ANY_CORE),
            limit=stage.limit,
            objects=trace.objects if trace is not None else self.scene.objects,
            most=_most_objects(self.stages),
        )

    def _nodes(self, name: str) -> list[Node]:
        stage = self.stages[name]
        inputs = tuple(self._edge(other, stage) for other in inputs_of(stage))
        if isinstance(stage, InferStage):
            return self._infers(name, stage, inputs)
        spread = stage.crop.limit if isinstance(stage, CropStage) and not isinstance(stage.crop, tuple) else None
        return [Node(name, inputs, Task(self._own(name, ANY_CORE)), spread=spread)]

    def _edge(self, producer: str, stage: StageConfig) -> Edge:
        before = self.stages[producer]
        return Edge(producer, *queue_of(before, stage, is_live_source(before, self.directory)))

    def _infers(self, name: str, stage: InferStage, inputs: tuple[Edge, ...]) -> list[Node]:
        """One thread, a chain of them, or a dealer, chains and what puts their results in order again."""
        any_live = any(is_live_source(one, self.directory) for one in self.stages.values())
        lanes = self.lanes(name, stage, any_live)
        is_cut = any(len(lane.parts) > 1 for lane in lanes)
        capacity = SEGMENT_QUEUE if is_cut else STAGE_QUEUE
        if len(lanes) == 1:
            return _chain(name, inputs, self._tasks(name, stage, lanes[0]), capacity, last=name)
        dealer = Node(f"{name}:deal", inputs, weights=tuple(lane.weight for lane in lanes))
        nodes, ends, count = [dealer], [], 0
        for lane in lanes:
            way = (Edge(dealer.name, capacity, "never"),)
            made = _chain(name, way, self._tasks(name, stage, lane), capacity, first=count)
            count += len(made)
            ends.append(Edge(made[-1].name, capacity, "never"))
            nodes += made
        return [*nodes, Node(name, tuple(ends), gathers=dealer.name, joins=False)]

    def _tasks(self, name: str, stage: InferStage, lane: Lane) -> list[Task]:
        """Of every part; what the stage does besides is done by the first."""
        crops = stage.crop.limit if stage.crop is not None else None
        runs = 1.0 if crops is None else self._objects(crops)
        own = self._own(name, lane.core(0), lane.engine_ms * runs, lane.spread)
        batch = min(stage.batch.max, lane.rows) if stage.batch is not None else 1
        wait_ms = 1e3 * stage.batch.wait if stage.batch is not None else 0.0
        return [
            Task(() if number else own, part, stage.every, crops, lane.rows, batch, wait_ms)
            for number, part in enumerate(lane.parts)
        ]

    def _own(self, name: str, core: str, engine_ms: float = 0.0, spread: Spread = ()) -> tuple[Step, ...]:
        """What a stage takes besides its model; nothing where nobody measured it.

        A summary tells means. What is done in a model's thread, on its core, scatters as the model does.
        """
        own_ms = self.scene.times.busy_of(name) - engine_ms
        return (CoreStep(core, own_ms / mean_of(spread), spread=spread),) if own_ms > 0 else ()

    def _objects(self, most: int) -> float:
        """The mean on a frame, as far as a stage looks at them."""
        counts = [min(count, most) for trace in self.scene.traces.values() for count in trace.objects]
        if counts:
            return sum(counts) / len(counts)
        return min(self.scene.objects if self.scene.objects is not None else most, most)


def _chain(
    name: str, inputs: tuple[Edge, ...], tasks: Sequence[Task], capacity: int, *, first: int = 0, last: str = ""
) -> list[Node]:
    nodes: list[Node] = []
    for number, task in enumerate(tasks):
        label = last if last and number == len(tasks) - 1 else f"{name}:{first + number}"
        nodes.append(Node(label, inputs, task))
        inputs = (Edge(label, capacity, "never"),)
    return nodes


def _most_objects(stages: Mapping[str, StageConfig]) -> int:
    crops = [stage.crop for stage in stages.values() if isinstance(stage, (InferStage, CropStage))]
    return max((crop.limit for crop in crops if crop is not None and not isinstance(crop, tuple)), default=0)


def _check_traces(stages: Mapping[str, StageConfig], traces: Mapping[str, Trace]) -> None:
    sources = [name for name, stage in stages.items() if isinstance(stage, SourceStage)]
    for name in traces:
        if name and name not in sources:
            raise ConfigError(
                f"the trace is of stream {name!r}, which is no source here{nearest(name, sources)}",
                where="--trace",
                fix=f"sources: {', '.join(sources)}; or leave stream out: it is then any source's",
            )
