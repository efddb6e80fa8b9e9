"""Config in, live objects out: the only place that knows everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgert.backend import Engine
from edgert.board.host import core_count, share_cores
from edgert.clock import REAL, Clock
from edgert.config import (
    CropConfig,
    CropStage,
    DrawStage,
    InferStage,
    ModelConfig,
    PipelineFile,
    PythonStage,
    PythonTask,
    SinkStage,
    SourceStage,
    StageConfig,
    TrackStage,
)
from edgert.config.flow import inputs_of, order, sources_of, upstream
from edgert.errors import EdgertError
from edgert.graph.load import load
from edgert.graph.model import Model
from edgert.memory import Counter
from edgert.ready import build_engine, one_picture, picture_input
from edgert.runtime import Node, Result, Source, Stage
from edgert.runtime.channel import Drop
from edgert.runtime.edge import connect
from edgert.stages.decode.base import Decoder
from edgert.stages.decode.select import decoder_for
from edgert.stages.draw import Draw
from edgert.stages.infer import Gather, Infer, InferCrops, Lane
from edgert.stages.label import read_labels
from edgert.stages.preprocess import Preprocessor
from edgert.stages.python import python_stage
from edgert.stages.region import CropDetections, CropRegion, check_classes
from edgert.stages.resample import set_opencv_threads
from edgert.stages.sink.select import sink_for
from edgert.stages.source.select import source_for
from edgert.stages.track import Track
from edgert.stages.user import load_object

Callback = Callable[[Result], object]
Bar = Callable[[str, int, int], object]
"""Called with what is being counted, how many are done and how many there are."""
FILE_QUEUE, LIVE_QUEUE, STAGE_QUEUE = 4, 1, 2
"""Results that may wait: after a file, ahead of the decoder's bursts; after a camera, only the newest; elsewhere, one
being made while one is taken."""
MOST_REPLICAS = 4
"""Each has tensors of its own; beyond four, an engine gets more threads instead."""
_ASSUMED_RATE_HZ = 30.0  # of a stream whose rate nobody told


@dataclass(slots=True)
class Assembly:
    """A pipeline ready to run.

    Attributes:
        nodes: every node after those it listens to, connected.
        streams: stage name → the sources whose frames reach it.
        engines: model name → its engine.
        counter: copies and allocations of this pipeline.
        live: whether all sources are cameras or the like.
        stats: the state of the run as plain data, for live pages; set by whoever runs it.
        opencv_threads: how many OpenCV had before. While a pipeline lives it has one per caller: pictures of network
            size are too small to share out, and its pool fights the engine's for cores.
    """

    nodes: list[Node]
    streams: Mapping[str, frozenset[str]]
    engines: dict[str, Engine]
    counter: Counter
    live: bool
    stats: Callable[[], Mapping[str, object]] = field(default=dict)
    opencv_threads: int = -1

    def node(self, name: str) -> Node:
        """The node of a stage."""
        return next(node for node in self.nodes if node.name == name)

    def close(self) -> None:
        """Gives the engines back, once no thread runs, and OpenCV its threads."""
        for engine in self.engines.values():
            engine.close()
        set_opencv_threads(self.opencv_threads)


def assemble(
    file: PipelineFile,
    *,
    callbacks: Mapping[str, Callback] | None = None,
    clock: Clock = REAL,
    backend_name: str | None = None,
    bar: Bar | None = None,
) -> Assembly:
    """Builds every engine and stage of a pipeline and connects them; starts nothing and opens no camera.

    Args:
        callbacks: functions for the stages ``sink: callback``, by stage name.
        backend_name: runs every model on this backend, whatever the file says.
        bar: moved while a model is calibrated: what, done, total.

    Raises:
        EdgertError: whatever does not fit together, with the line of the file it comes from.
    """
    return _Assembler(file, callbacks or {}, clock, backend_name, bar).build()


class _Assembler:
    """Holds what all steps of one assembly share."""

    def __init__(
        self,
        file: PipelineFile,
        callbacks: Mapping[str, Callback],
        clock: Clock,
        backend_name: str | None,
        bar: Bar | None,
    ) -> None:
        self.file, self.callbacks, self.clock, self.backend_name, self.bar = file, callbacks, clock, backend_name, bar
        self.config, self.directory = file.config, file.document.path.parent
        self.counter = Counter()
        self.engines: dict[str, Engine] = {}
        self.assembly: Assembly | None = None
        self.live = False  # whether any source is

    def build(self) -> Assembly:
        stages = self.config.stages
        streams = sources_of(stages)
        nodes: dict[str, Node] = {}
        heads: dict[
            str, list[Node]
        ] = {}  # the nodes that take a stage's input, where these are not the one of its name
        sources_first = sorted(order(stages), key=lambda name: not isinstance(stages[name], SourceStage))
        for name in sources_first:
            self.live = any(self._is_live(node) for node in nodes.values())
            *replicas, last = self._work(name, stages[name])
            nodes[name] = Node(name, last)
            heads[name] = [Node(f"{name}:{n}", replica) for n, replica in enumerate(replicas)] or [nodes[name]]
            for head in heads[name]:
                if head is not nodes[name]:
                    connect(head, nodes[name], streams[name], STAGE_QUEUE, "never")
        for name, stage in stages.items():
            for other in inputs_of(stage):
                capacity, drop = self._edge(nodes[other], stages[other], stage)
                for head in heads[name]:
                    connect(nodes[other], head, streams[other], capacity, drop)
        everything = [node for name in nodes for node in dict.fromkeys([*heads[name], nodes[name]])]
        live = all(self._is_live(node) for node in nodes.values() if isinstance(node.work, Source))
        self.assembly = Assembly(
            everything, streams, self.engines, self.counter, live, opencv_threads=set_opencv_threads(1)
        )
        return self.assembly

    @staticmethod
    def _is_live(node: Node) -> bool:
        return isinstance(node.work, Source) and node.work.live

    def _edge(self, producer: Node, before: StageConfig, after: StageConfig) -> tuple[int, Drop]:
        """The bound of one edge: what the listener asks for, else what the source asks for, else what suits it."""
        live = self._is_live(producer)
        suits = LIVE_QUEUE if live else FILE_QUEUE if isinstance(producer.work, Source) else STAGE_QUEUE
        asked = before if isinstance(before, SourceStage) else None
        queue = after.queue or (asked and asked.queue) or suits
        drop = after.drop or (asked and asked.drop) or ("oldest" if live else "never")
        return queue, drop

    def _work(self, name: str, stage: StageConfig) -> list[Source | Stage]:
        """What runs a stage: one thing, or replicas and what gathers from them."""
        where = self.file.where("stages", name)
        try:
            return self._infer(name, stage) if isinstance(stage, InferStage) else [self._make(name, stage, where)]
        except EdgertError as error:
            raise self.file.located(error, where)  # noqa: B904 - the same error, with its place

    def _make(self, name: str, stage: StageConfig, where: str) -> Source | Stage:
        if isinstance(stage, SourceStage):
            return source_for(name, stage, self.counter, self.clock, self.directory)
        if isinstance(stage, TrackStage):
            return Track(name, stage, self._rate_hz(name))
        if isinstance(stage, DrawStage):
            return Draw(name, stage)
        if isinstance(stage, CropStage):
            if isinstance(stage.crop, tuple):
                return CropRegion(stage.crop)
            self._check_classes(name, stage.crop)
            return CropDetections(name, stage.crop)
        if isinstance(stage, PythonStage):
            found = load_object(stage.python, where, self.directory)
            return python_stage(name, found, stage.args, where)
        assert isinstance(stage, SinkStage)
        return self._sink(name, stage, where)

    def _sink(self, name: str, stage: SinkStage, where: str) -> Stage:
        function: Any = self.callbacks.get(name)
        if function is None and stage.python:
            function = load_object(stage.python, where, self.directory)
        return sink_for(name, stage, stats=self._stats, function=function)

    def _stats(self) -> Mapping[str, object]:
        """The state of the run, once there is one; for live pages."""
        return self.assembly.stats() if self.assembly else {}

    def _rate_hz(self, name: str) -> float:
        """How often detections reach a stage, as far as the file tells."""
        before = [self.config.stages[other] for other in upstream(self.config.stages, name)]
        rates = [stage.fps for stage in before if isinstance(stage, SourceStage) and stage.fps]
        every = max((stage.every for stage in before if isinstance(stage, InferStage)), default=1)
        return min(rates, default=_ASSUMED_RATE_HZ) / every

    def _check_classes(self, name: str, crop: CropConfig) -> None:
        """Holds the classes a stage crops to those that reach it, unless the user's own code may make others."""
        before = [self.config.stages[other] for other in upstream(self.config.stages, name)]
        tasks = [self.config.models[stage.infer].task for stage in before if isinstance(stage, InferStage)]
        if any(isinstance(item, PythonStage | PythonTask) for item in (*before, *tasks)):
            return
        files = {task.labels for task in tasks if not isinstance(task, PythonTask) and task.labels}
        labels = {label for file in files for label in read_labels(file)}
        check_classes(crop, labels, self.file.where("stages", name, "crop"))

    def _infer(self, name: str, stage: InferStage) -> list[Source | Stage]:
        model = self.config.models[stage.infer]
        try:
            engine = self._engine(stage.infer, model)
            if stage.crop is not None:
                self._check_classes(name, stage.crop)
                lane = self._lane(stage, engine, model)
                return [InferCrops(name, lane, stage.crop, stage.every)]
            count = self._replicas(stage.infer)
            lanes = [self._lane(stage, engine, model) for _ in range(count)]
            infers: list[Source | Stage] = [
                Infer(name, lane, stage.every, replica, count) for replica, lane in enumerate(lanes)
            ]
            return infers if count == 1 else [*infers, Gather()]
        except EdgertError as error:
            raise self.file.located(error, self.file.where("models", stage.infer))  # noqa: B904 - with its place

    def _lane(self, stage: InferStage, engine: Engine, model: ModelConfig) -> Lane:
        session = engine.session(stage.profile)
        tensor = session.inputs[picture_input(session.inputs, str(model.onnx))]
        preprocessor = Preprocessor(model.input, tensor, str(model.onnx))
        decoder = self._decoder(stage.infer, model, engine, preprocessor.network)
        return Lane(session, preprocessor, decoder, engine.batched)

    def _decoder(self, name: str, model: ModelConfig, engine: Engine, network: tuple[int, int]) -> Decoder:
        where = self.file.where("models", name, "task")
        labels = read_labels(model.task.labels, where) if model.task.labels else ()
        decoder = decoder_for(model.task, labels, where, self.directory)
        if engine.outputs_known:
            try:
                decoder.check(one_picture(engine), network)
            except EdgertError as error:
                raise error.at(where)  # noqa: B904 - the same error, with its place
        return decoder

    def _engine(self, name: str, config: ModelConfig) -> Engine:
        if name not in self.engines:
            if self.backend_name:
                config = config.model_copy(update={"backend": self.backend_name})
            model = self._model(name, config)
            self.engines[name] = build_engine(
                model, config, self._threads(config) // self._replicas(name), self._batch(name)
            )
        return self.engines[name]

    def _model(self, name: str, config: ModelConfig) -> Model:
        """The model in the precision asked for; as the file has it where nothing will be computed."""
        if not config.is_converted:
            return load(config.onnx)
        from edgert.precision.ready import check_precision, in_precision  # most pipelines start without it

        if config.backend == "null":
            check_precision(config)
            return load(config.onnx)
        return in_precision(config, where=self.file.where("models", name), directory=self.directory, bar=self.bar)

    def _threads(self, config: ModelConfig) -> int:
        infers = [stage for stage in self.config.stages.values() if isinstance(stage, InferStage)]
        return config.threads or share_cores(core_count(), len(infers))

    def _replicas(self, name: str) -> int:
        """How many frames a model works on at a time: for files as many as it has threads, for cameras and crops one,
        as waiting for a second frame would only add latency."""
        users = [s for s in self.config.stages.values() if isinstance(s, InferStage) and s.infer == name]
        if self.live or any(stage.crop is not None for stage in users):
            return 1
        return min(self._threads(self.config.models[name]), MOST_REPLICAS)

    def _batch(self, model: str) -> int:
        """Rows that a model of dynamic batch size is given: as many crops as any of its stages asks for."""
        stages = self.config.stages.values()
        crops = [s.crop.limit for s in stages if isinstance(s, InferStage) and s.infer == model and s.crop]
        return max(crops, default=1)
