"""Construction of a pipeline's connected tasks, engines and stages from its file. Nothing is started."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from edgert.assemble.crops import crop_chains, crop_siblings, run_beside, run_together
from edgert.assemble.engines import Engines, board_of
from edgert.assemble.models import Models, TaskChange, check_stage_classes
from edgert.assemble.pixels import mark_pixel_use, put_on_gpu
from edgert.backend import Engine
from edgert.backend.chain import Replicated
from edgert.clock import REAL, Clock, NotedClock
from edgert.config import PipelineFile, flow, stages as section
from edgert.errors import ConfigError, StageError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.placement.segment_engines import SegmentedEngine
from edgert.policy import Drop, OnError
from edgert.reporter import OnProgress, counting
from edgert.runtime import Graph, Result, Source, Stage, Task, decisions
from edgert.runtime.branches import Branch, Dispatch, ModelLevel, Reorder, branch_tasks
from edgert.runtime.graph import connect
from edgert.runtime.task import STOP_ON_FAILURE, FailurePolicy
from edgert.stages import crop, draw, infer, preprocess, python, track
from edgert.stages.context import Context, make_stage
from edgert.stages.decode.record_check import RecordCheck
from edgert.stages.gpu.infer_gpu import GpuInference
from edgert.stages.source.kinds import source_for, starts_over
from edgert.user_code import load_object

if TYPE_CHECKING:  # imported when needed, to start faster
    from edgert.assemble.run_settings import PowerStep, PowerSteps
    from edgert.meters.all import Meters

log = logging.getLogger("edgert.backend")
Callback = Callable[[Result], object]
Loaded = tuple[Models, Mapping[str, list[Branch]]]
_ASSUMED_RATE_HZ = 30.0  # for a stream of unknown rate


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a pipeline: this machine, that of an unpacked bundle, or an emulated board.

    Attributes:
        callbacks: stage name → function called with its results.
        on_progress: function called while models are prepared.
        strict: whether an engine that would be skipped is an error.
        engines: engines of the models; None: those of the file's ``engines:``, or each section's backend.
        meters: meters for budgets; None: those of this machine.
        label: label of every result that a sink gets; empty for none.
        power: clock settings of this board that a governor may use; None: it must not change clocks.
        predicted: predictions of a plan for this board at each degradation level; empty without a plan.
        kept: engines of earlier pipelines of the same file, by model; they are used, added to, and left open. None: the
            pipeline owns its engines.
        on_host: whether all models read frames on the host, even those on a GPU.
        paced: function called with all connected tasks before a thread starts, to make them follow the clock.
        run: id of the run, such as that of a recording for its replay; empty: a new one.
    """

    clock: Clock = REAL
    callbacks: Mapping[str, Callback] = field(default_factory=dict)
    on_progress: OnProgress | None = None
    strict: bool = False
    engines: Engines | None = None
    meters: Meters | None = None
    label: str = ""
    power: PowerSteps | None = None
    predicted: Sequence[PowerStep] = ()
    kept: dict[str, Engine | SegmentedEngine] | None = None
    on_host: bool = False
    paced: Callable[[Sequence[Task]], object] = len
    run: str = ""


HERE = Environment()
"""This machine, in real time."""


@dataclass(slots=True)
class Hooks:
    """Functions by which stages reach the run; outside a run, they do nothing.

    Attributes:
        swap_page: function that returns the report of the newest model swap as HTML; empty without one.
        about: function that returns the head of a recording; see :mod:`edgert.assemble.recording_head`.
    """

    stats: Callable[[], Mapping[str, object]] = field(default=dict)
    control: Callable[[bytes, str], bytes] = field(default=lambda line, who: b"")
    swap_page: Callable[[], str] = field(default=str)
    about: Callable[[], Mapping[str, Any]] = field(default=dict)
    on_no_viewers: Callable[[], None] = field(default=lambda: None)


@dataclass(slots=True)
class Assembly:
    """A pipeline ready to run.

    Attributes:
        streams: sources whose frames reach a stage, by stage name.
        counter: counter of copies and allocations of this pipeline, on the host and to and from its GPUs.
        inferences: inferences that hold GPU memory beside the engines.
        opencv_threads: OpenCV's number of threads before the pipeline. A pipeline sets it to 1: images of network size
            are too small to split, and OpenCV's pool would compete with the engine's for cores.
        frames: text on where the frames of each source that a model on a GPU reads are, and why.
        tracks: text on the lowest scores from which each tracker follows objects.
        ends: task that the results of a stage come from, by stage name.
        listener: failure policy of the program's functions that are called with results.
        make: function that makes the source or stage of that name from another pipeline file, not opened.
        load: function that loads a model of another pipeline file, with the branches of each stage that runs it.
        keeps_engines: whether engines stay open when the assembly is closed.
    """

    graph: Graph
    streams: Mapping[str, frozenset[str]]
    engines: Mapping[str, Engine | SegmentedEngine]
    counter: Counter
    live: bool
    inferences: Sequence[GpuInference] = ()
    choice: ModelLevel = field(default_factory=ModelLevel)
    hooks: Hooks = field(default_factory=Hooks)
    opencv_threads: int = -1
    frames: Mapping[str, str] = field(default_factory=dict)
    tracks: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, RecordCheck] = field(default_factory=dict)
    ends: Mapping[str, Task] = field(default_factory=dict)
    listener: FailurePolicy = STOP_ON_FAILURE
    decoders: dict[str, list[TaskChange]] = field(default_factory=dict)
    devices: Mapping[str, CudaDevice] = field(default_factory=dict)
    make: Callable[[PipelineFile, str], Source | Stage] | None = None
    load: Callable[[PipelineFile, str], Loaded] | None = None
    keeps_engines: bool = False
    journal: decisions.Journal | None = None
    run: str = ""
    closed: bool = False

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The current tasks."""
        return self.graph.tasks

    def task(self, name: str) -> Task:
        """Return the task of that name."""
        return self.graph.task(name)

    def readers(self, file: PipelineFile, model: str) -> list[tuple[Task, TaskChange]]:
        """Return each task that decodes a model's outputs, and the function that changes its decoder's task."""
        decoders, models = self.decoders.get(model, []), file.config.models
        users = {
            name
            for name, stage in file.config.stages.items()
            if isinstance(stage, section.InferStage) and model in flow.variants_of(models, stage.infer)
        }
        tasks = [
            task
            for task in self.graph.tasks
            if task.name.partition(":")[0] in users
            and not isinstance(task.stage, Dispatch | Reorder)
            and (not isinstance(task.stage, infer.InferSegment) or isinstance(task.stage, infer.LastSegment))
        ]
        if len(tasks) != len(decoders):  # one task runs several stages
            tasks = tasks[:1] * len(decoders)
        return list(zip(tasks, decoders, strict=True))

    def add_source(self, file: PipelineFile, name: str, source: Source | Stage | None = None) -> None:
        """Add a source and start it, connected to the stages that have it as an input.

        Raises EdgertError: the source cannot be made, or a listener cannot have another edge. Nothing has changed then.
        """
        assert self.make is not None
        stages, graph = file.config.stages, self.graph
        source = source or self.make(file, name)
        assert isinstance(source, Source)
        place = put_on_gpu(stages, {name: source}, self.devices)
        policy = failure_policy_of(stages[name], file.config.watchdog, endless=True)
        task = Task(name, source, policy=replace(policy, on_error=stages[name].on_error or "drop"))
        task.execution.reads = flow.reads_of(stages, self.devices)[name]
        if self.journal is not None:
            task.use_journal(self.journal)
        connected = list[Task]()
        try:
            for one, stage in stages.items():
                if name in flow.inputs_of(stage):
                    listener = self._first_task(one)
                    graph.connect(task, listener, frozenset({name}), *flow.queue_of(stages[name], stage, source.live))
                    connected.append(listener)
            graph.add(task)
        except BaseException:
            for listener in connected:
                graph.disconnect(task, listener)
            raise
        self.ends, self.frames = {**self.ends, name: task}, {**self.frames, **place}
        self.streams = {one: sources for one, sources in flow.sources_of(stages).items() if one in self.ends}

    def _first_task(self, name: str) -> Task:
        """Return the task that receives a stage's input. Raises StageError if it belongs to another stage."""
        ends = set(map(id, self.ends.values()))
        for task in self.tasks:
            producers = [producer for producer, _ in task.wiring.edges()]
            if task.name.partition(":")[0] == name and all(id(producer) in ends for producer in producers):
                return task
        raise StageError(f"stage {name!r} cannot listen to another source", why="it shares its input with another")

    def remove_source(self, file: PipelineFile, name: str) -> None:
        """Remove a source after its last frames are passed on; see :meth:`edgert.runtime.Graph.remove`."""
        self.graph.remove(self.ends[name])
        self.ends = {one: task for one, task in self.ends.items() if one != name}
        self.frames = {one: place for one, place in self.frames.items() if one != name}
        self.streams = {
            one: sources for one, sources in flow.sources_of(file.config.stages).items() if one in self.ends
        }

    def listen(self, stage: str, listener: Task, capacity: int, drop: Drop) -> None:
        """Connect a listener to the results of a stage."""
        self.graph.connect(self.ends[stage], listener, self.streams[stage], capacity, drop)

    def close(self) -> None:
        """Free inference slots and engines, and restore OpenCV's threads. No task may run. May be called twice."""
        if self.closed:
            return
        self.closed, self.hooks.stats, self.hooks.about, self.hooks.on_no_viewers = True, dict, dict, lambda: None
        self.hooks.swap_page = str
        self.hooks.control = Hooks().control
        self.decoders.clear()
        self.make = self.load = None
        for inference in self.inferences:
            inference.close()
        for engine in () if self.keeps_engines else self.engines.values():
            engine.close()
        preprocess.set_opencv_threads(self.opencv_threads)


def assemble(file: PipelineFile, environment: Environment = HERE) -> Assembly:
    """Make all engines and stages of a pipeline and connect them. Starts nothing, and opens no camera.

    Raises EdgertError: parts do not fit together; the error names the line of the file.
    """
    board_of(file)
    here, bar = environment, counting(environment.on_progress)
    models = Models(file, bar, here.clock, here.engines, here.strict, here.kept, here.on_host)
    try:
        assembly = _Assembler(file, environment, models).build()
    except BaseException:
        models.close()
        raise
    assembly.keeps_engines = environment.kept is not None
    return assembly


def _gpus_of(engine: Engine | SegmentedEngine) -> Iterator[Any]:
    for part in [one for one, _ in engine.parts] if isinstance(engine, Replicated) else [engine]:
        if (device := getattr(part, "device", None)) is not None:
            yield device


def is_endless(stages: Iterable[section.StageConfig], directory: Path) -> bool:
    """Return whether any source has no end, such as a camera, so that the run cannot simply be repeated."""
    sources = (stage for stage in stages if isinstance(stage, section.SourceStage))
    return not all(starts_over(stage, directory) for stage in sources)


def failure_policy_of(stage: section.StageConfig, watchdog_s: float, endless: bool) -> FailurePolicy:
    """Return the failure policy of a stage: that of the file, or a default.

    If the pipeline is :func:`is_endless`, a failing sink does not stop it by default.
    """
    default: OnError = "stop"
    if endless and isinstance(stage, section.SinkStage):
        default = "log" if stage.sink == "callback" else "restart" if "restart" in stage.on_errors else "drop"
    own_s = None if isinstance(stage, section.SourceStage) else stage.watchdog
    return FailurePolicy(stage.on_error or default, stage.on_error is not None, watchdog_s if own_s is None else own_s)


def check_on_error(name: str, stage: section.InferStage, branches: Sequence[Branch], on_gpu: bool) -> None:
    """Raise ConfigError if ``on_error`` asks to restart or skip a model that does not support it."""
    if stage.on_error in (None, "stop"):
        return
    why = "a failure on a GPU leaves the whole process unusable" if on_gpu else ""
    if any(len(branch.stages) > 1 for branch in branches):
        why = why or "its model runs in parts, which wait for each other"
    if stage.batch is not None and len(branches) > 1:
        why = why or "frames of its other batches wait for those that would be lost, unless replicas: 1 is set"
    if why:
        what, where = f"on_error: {stage.on_error} is not possible here", f"stages.{name}.on_error"
        raise ConfigError(what, why=why, where=where, fix="let a service manager start edgert again instead")


class _Assembler:
    """The steps of one assembly, and their shared state."""

    def __init__(self, file: PipelineFile, environment: Environment, models: Models) -> None:
        self.file, self.callbacks, self.clock = file, environment.callbacks, environment.clock
        self.journal: decisions.Journal | None = None
        self.run = environment.run or uuid4().hex
        if any(getattr(stage, "sink", "") == "mcap" for stage in file.config.stages.values()):
            self.clock = NotedClock() if self.clock is REAL else self.clock
            clock, choice = self.clock, models.choice
            self.journal = decisions.Journal(lambda: (choice.level, getattr(clock, "offset_ns", 0)))
        self.config, self.directory = file.config, file.document.path.parent
        self.counter = Counter()
        self.models, self.label = models, environment.label
        self.hooks, self.sources = Hooks(), dict[str, Source]()
        self.live = False  # whether any source is live
        self.sinks = {name for name, stage in file.config.stages.items() if isinstance(stage, section.SinkStage)}
        self.endless = is_endless(file.config.stages.values(), self.directory)

    def build(self) -> Assembly:
        """Return the assembly: the tasks of all stages, connected, and where their frames are."""
        stages, models, streams = self.config.stages, self.models, flow.sources_of(self.config.stages)
        chains = self._make_tasks(streams)
        self._connect_tasks(chains, streams)
        tasks = [task for chain in chains.values() for task in chain]
        frames = put_on_gpu(stages, self.sources, models.devices, self.callbacks)
        for name, reads in flow.reads_of(stages, models.devices).items():
            if not isinstance(stages[name], section.InferStage):
                chains[name][0].execution.reads = reads
        for inference in models.inferences:
            inference.is_patient = self.live  # there is time to sleep between frames of a camera
        for counter in {device.counter for engine in models.engines.values() for device in _gpus_of(engine)}:
            self.counter.include(counter)
        assembly = Assembly(
            Graph(tasks),
            streams,
            models.engines,
            self.counter,
            all(self._is_live(task) for task in tasks if isinstance(task.stage, Source)),
            models.inferences,
            models.choice,
            self.hooks,
            opencv_threads=preprocess.set_opencv_threads(1),
            frames=frames,
            tracks=flow.tracker_thresholds(stages, self.config.models),
            checks=models.checks,
            ends={name: chain[-1] for name, chain in chains.items()},
            listener=FailurePolicy("log" if self.endless else "stop", watchdog_s=self.config.watchdog),
            decoders=models.decoders,
            devices=models.devices,
            make=self.remake_stage,
            load=self.load_model,
            journal=self.journal,
            run=self.run,
        )
        if self.journal is not None:
            for task in tasks:
                task.use_journal(self.journal)
        if frames:  # else frames stay as their source made them
            assembly.graph.mark_pixel_use = mark_pixel_use
            mark_pixel_use(tasks)
        return assembly

    def _make_tasks(self, streams: Mapping[str, frozenset[str]]) -> dict[str, list[Task]]:
        """Return stage → its tasks in order, connected with each other but not with those of other stages."""
        stages, chains = self.config.stages, dict[str, list[Task]]()
        order = flow.topological_order(stages)
        for name in sorted(order, key=lambda name: not isinstance(stages[name], section.SourceStage)):
            self.live = any(self._is_live(tasks[-1]) for tasks in chains.values())
            chains[name] = self._tasks_of(name, stages[name], streams[name])
            policy = failure_policy_of(stages[name], self.config.watchdog, self.endless)
            for task in chains[name]:
                task.policy = replace(policy, remake=task.policy.remake)
        for names in crop_chains(stages):
            run_together([chains[name] for name in names])
        for names in crop_siblings(stages):
            run_beside([chains[name] for name in names], streams[names[0]], flow.STAGE_QUEUE)
        return chains

    def _connect_tasks(self, chains: Mapping[str, list[Task]], streams: Mapping[str, frozenset[str]]) -> None:
        stages = self.config.stages
        simulated_cameras = {
            name
            for name, stage in stages.items()
            if isinstance(stage, section.SourceStage) and stage.loop and stage.realtime
        }
        fed = {tasks[0] for tasks in chains.values() if tasks[0].wiring.producers}
        for name, stage in stages.items():
            for other in flow.inputs_of(stage):
                before, after = chains[other][-1], chains[name][0]
                capacity, drop = flow.queue_of(stages[other], stage, self._is_live(before))
                if drop == "never" and other in simulated_cameras:
                    simulated_cameras.remove(other)
                    what, fix = "plays like a camera but waits for slow stages, so latency grows", "drop: oldest"
                    log.warning("stages.%s: %s; set %s to drop frames as a camera does", other, what, fix)
                if after not in fed:
                    connect(before, after, streams[other], capacity, drop)

    @staticmethod
    def _is_live(task: Task) -> bool:
        return isinstance(task.stage, Source) and task.stage.live

    def _tasks_of(self, name: str, stage: section.StageConfig, streams: frozenset[str]) -> list[Task]:
        """Return the connected tasks that run a stage; the first receives its input."""
        where = self.file.where("stages", name)
        with self.file.locating(where):
            check_stage_classes(self.file, name)
            if not isinstance(stage, section.InferStage):
                task = Task(name, self._make(name, stage, where))
                if isinstance(stage, section.PythonStage) and stage.on_error == "restart":
                    task.policy = FailurePolicy(remake=lambda: cast("Stage", self._make(name, stage, where)))
                return [task]
            branches = self.models.branches(name, stage, self.live)
            check_on_error(name, stage, branches, name in self.models.devices)
            is_split = any(len(branch.stages) > 1 for branch in branches)
            capacity = flow.SEGMENT_QUEUE if is_split else flow.STAGE_QUEUE
            return branch_tasks(name, branches, streams, capacity, stage.every, self.models.choice)

    def remake_stage(self, file: PipelineFile, name: str) -> Source | Stage:
        """Make the source or stage of that name from another file. Raises EdgertError."""
        other = copy(self)
        other.file, other.config = file, file.config
        with file.locating(file.where("stages", name)):
            check_stage_classes(file, name)
            return other._make(name, file.config.stages[name], file.where("stages", name))

    def load_model(self, file: PipelineFile, model: str) -> Loaded:
        """Load a model of another file for all stages that run it. Raises EdgertError; nothing is left open then."""
        models = self.models.of_file(file)
        try:
            users = [name for name, stage in file.config.stages.items() if getattr(stage, "infer", "") == model]
            stages = {name: cast("section.InferStage", file.config.stages[name]) for name in users}
            return models, {name: models.branches(name, stage, self.live) for name, stage in stages.items()}
        except BaseException:
            models.close()
            raise

    def _make(self, name: str, stage: section.StageConfig, where: str) -> Source | Stage:
        if isinstance(stage, section.SourceStage):
            context = Context(self.directory, self.clock, self.counter, pipeline=self.config.name)
            source = self.sources[name] = source_for(name, stage, context)
            return source
        if isinstance(stage, section.DrawStage):
            return draw.Draw(name, stage, self.clock)
        if isinstance(stage, section.CropStage):
            if isinstance(stage.crop, tuple):
                return crop.CropRegion(stage.crop)
            return crop.CropDetections(name, stage.crop)
        function: Any = self.callbacks.get(name) if isinstance(stage, section.SinkStage) else None
        code = getattr(stage, "python", None) if isinstance(stage, section.SinkStage | section.PythonStage) else None
        if function is None and code:
            function = load_object(code, where, self.directory)
        if isinstance(stage, section.PythonStage):
            return python.python_stage(name, function, stage.args, where)
        context = self._context(name, function)
        if isinstance(stage, section.TrackStage):
            return track.Track(name, stage, context)
        assert isinstance(stage, section.SinkStage | section.PackageStage)
        own: Stage = make_stage(stage, name, context)
        if self.label and isinstance(stage, section.SinkStage):
            return draw.SimulationLabel(own, self.label, stage.shows_images and stage.reads_images)
        return own

    def _context(self, name: str, function: Callback | None) -> Context:
        """Return the context that gives a stage access to the pipeline, such as to the state of the run."""
        sections = {other: self.config.stages[other] for other in flow.upstream(self.config.stages, name)}
        before = sections.values()
        rates = [stage.fps for stage in before if isinstance(stage, section.SourceStage) and stage.fps]
        every = max((stage.every for stage in before if isinstance(stage, section.InferStage)), default=1)

        hooks, sinks = self.hooks, self.sinks  # locals, as the functions below must not refer to self

        def leave() -> None:
            sinks.discard(name)
            if not sinks:
                hooks.on_no_viewers()

        rate_hz = min(rates, default=_ASSUMED_RATE_HZ) / every
        again = all(starts_over(one, self.directory) for one in before if isinstance(one, section.SourceStage))
        score = flow.score_before(self.config.stages, self.config.models, name)
        shared = self.directory, self.clock, self.counter, lambda: hooks.stats(), function, rate_hz, score, leave, again
        reach = {one: self.sources[one] for one in flow.sources_of(self.config.stages)[name]}
        swap_page, control = lambda: hooks.swap_page(), lambda line, who: hooks.control(line, who)
        recorded = self.run, self.journal, lambda: hooks.about()
        return Context(*shared, self.config.name, reach, sections, swap_page, control, *recorded)
