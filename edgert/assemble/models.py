"""Models of a pipeline: each is compiled once, and the stages that run it are made."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import BaseModel

from edgert.assemble import batches, default_engines
from edgert.assemble.engines import ChainEngines, Cores, Engines, Form, Placer, SplitModel, compile_split_model
from edgert.assemble.gpu_models import gpu_inference, is_on_gpu
from edgert.backend import Engine
from edgert.backend.chain import Replicated
from edgert.board.host import core_count, share_cores
from edgert.clock import REAL, Clock
from edgert.config import InferStage, ModelConfig, PipelineConfig, PipelineFile, flow, model_section
from edgert.config.stages import PackageStage, PythonStage, SinkStage, SourceStage
from edgert.engine import build_engine, check_open, image_input, output_shapes
from edgert.errors import ConfigError, EdgertError, located_at
from edgert.graph import Model, load
from edgert.graph.batch_size import with_open_batch
from edgert.memory.cuda import CudaDevice
from edgert.placement.segment_engines import SegmentedEngine
from edgert.policy import Batcher
from edgert.reporter import Bar
from edgert.runtime import Result, Stage
from edgert.runtime.branches import Branch, ModelLevel
from edgert.stages import crop, infer, preprocess, tiles
from edgert.stages.decode.decoder import Decoder
from edgert.stages.decode.kinds import AGNOSTIC, checked_decoder, decoder_for, fitting_decoder, labels_of
from edgert.stages.decode.needed import needed_outputs
from edgert.stages.decode.record_check import CheckedRecords, RecordCheck
from edgert.stages.gpu.gpu_crops import CropModel, InferCropsOfModels
from edgert.stages.gpu.infer_gpu import GpuInference, PendingInference
from edgert.stages.gpu.infer_stage import GpuInfer
from edgert.wiring.head_activation import has_unknown_activation, with_activation

log = logging.getLogger("edgert.models")

TaskChange = Callable[[model_section.TaskConfig], Callable[[], None]]
"""Function that makes a decoder for a changed task and returns the function that installs it. Raises EdgertError."""
MOST_REPLICAS = 4
"""Maximum number of replicas, each with separate tensors; beyond four, an engine gets more threads instead."""


class Models:
    """Engines of one assembly, by the model's name.

    ``kept`` are engines of earlier pipelines of the file, to which engines made here are added.
    """

    def __init__(
        self,
        file: PipelineFile,
        bar: Bar | None,
        clock: Clock = REAL,
        engines: Engines | None = None,
        strict: bool = False,
        kept: dict[str, Engine | SegmentedEngine] | None = None,
        on_host: bool = False,
    ) -> None:
        self.file, self.config, self.directory = file, file.config, file.document.path.parent
        self._clock, self._given_engines, self._keeps_engines = clock, engines, kept is not None
        self._on_host = on_host
        self.engines: dict[str, Engine | SegmentedEngine] = {} if kept is None else kept
        self.inferences: list[GpuInference] = []
        self.devices: dict[str, CudaDevice] = {}  # stage → GPU on which it reads frames
        self._checked_inputs: set[str] = set()
        self.checks: dict[str, RecordCheck] = {}  # model → check of its records
        self.choice = ModelLevel()  # between models and their fallback models
        self.decoders: dict[str, list[TaskChange]] = {}
        self._placer = Placer(file)
        self._load_model = partial(load_model, file, bar)  # no bound method, as its holder must not hold engines
        self._compiler = engines or (ChainEngines(file, self._load_model, strict, bar) if file.config.engines else None)

    def of_file(self, file: PipelineFile) -> "Models":
        """Return the models of another pipeline file, without engines yet."""
        return Models(file, None, self._clock, self._given_engines)

    def close(self) -> None:
        """Free inferences, and engines unless they are kept. None of them may run."""
        for inference in self.inferences:
            inference.close()
        for engine in () if self._keeps_engines else self.engines.values():
            engine.close()

    def branches(self, name: str, stage: InferStage, live: bool) -> list[Branch]:
        """Return the branches that run a stage.

        Raises EdgertError: the model cannot be loaded, or does not fit its section.
        """
        names = flow.variants_of(self.config.models, stage.infer)
        if len(names) > 1 and any(self.config.models[one].placement != "auto" for one in names):
            return self._branches_by_level(name, stage, names, live)
        return self._branches(name, stage, self._model_section(stage.infer), live)

    def _branches_by_level(self, name: str, stage: InferStage, names: Sequence[str], live: bool) -> list[Branch]:
        """Return branches of a placed model and its fallback models, each in separate threads."""
        _check_same_labels(self.file, names)
        self._compile_alike(names, threads_of(self.config, stage.infer))
        made = []
        for level, one in enumerate(names):
            model = self._model_section(one).model_copy(update={"degrade_to": None})
            branches = self._branches(name, stage.model_copy(update={"infer": one}), model, live)
            made += [replace(branch, level=level) for branch in branches]
        engines = {one: self.engines[one] for one in names}
        on_gpu = {one: isinstance(made, Engine) and is_on_gpu(made) for one, made in engines.items()}
        _check_same_device(self.file, on_gpu)
        return made

    def _branches(self, name: str, stage: InferStage, model: ModelConfig, live: bool) -> list[Branch]:
        """Return the branches of one model. Raises as :meth:`branches` does."""
        with self.file.locating(self.file.where("models", stage.infer)):
            plan = self._placer.plan(stage.infer, model, stage, lambda: self._load_model(stage.infer, model))
            if stage.batch and model.placement != "auto":
                why = "placed models take one frame at a time"
                raise ConfigError("batch cannot go with placement", why=why, fix="placement: auto")
            if isinstance(plan, SplitModel):
                return [self._split(name, stage, model, plan)]
            return self._branches_of_model(name, stage, model, plan, live)

    def _model_section(self, name: str) -> ModelConfig:
        config = self.config.models[name]
        is_chosen = self.file.passed_over is not None and default_engines.leaves_engine(config)
        if self._compiler is not None and (is_chosen or config.placement == "gpu"):
            config = config.model_copy(update={"placement": "auto"})  # the chain of engines decides
        if config.tuning.spinning == "auto":
            spinning = spinning_of(self.file, config)
            config = config.model_copy(update={"tuning": config.tuning.model_copy(update={"spinning": spinning})})
        return config

    def _branches_of_model(
        self, name: str, stage: InferStage, model: ModelConfig, placed: Cores, live: bool
    ) -> list[Branch]:
        """Return the branches of a complete model: one for each accelerator, or replicas for the CPU's threads."""
        if model.degrade_to is not None:
            return self._with_fallbacks(name, stage, live)
        count = len(placed) or replicas_of(self.config, stage.infer, live)
        threads = 1 if placed else threads_of(self.config, stage.infer) // count
        made = self._engine(stage.infer, model, threads)
        if placed and not isinstance(made, Replicated):
            stages = [self._infer(name, stage, self._host_inference(stage, made, model)) for _ in placed]
            pairs = zip(stages, placed, strict=True)
            return [Branch((infer.Pinned(one, core),), weight) for one, (core, weight) in pairs]
        branches = []
        # Several engines get a branch each. A single one gets frames on the GPU where possible, else replicas.
        for engine, weight in made.parts if isinstance(made, Replicated) else [(made, 1)]:
            inference = self._gpu_inference(name, stage, engine, model, live)
            if inference is not None:
                branches.append(replace(self._on_gpu(name, stage, [inference]), weight=weight))
                continue
            for _ in range(1 if engine is not made else count):
                one = self._infer(name, stage, self._host_inference(stage, engine, model))
                branches.append(Branch((one,), weight))
        return branches

    def _on_gpu(self, name: str, stage: InferStage, inferences: Sequence[GpuInference]) -> Branch:
        """Return the branch of a model on the GPU: an asynchronous stage, or for crops, one that waits."""
        if stage.crop is not None and len(inferences) == 1 and stage.batch is None and not self._reads_text(stage):
            looks = [CropModel(name, inferences[0], stage.crop)]
            return Branch((InferCropsOfModels(looks, stage.every),), reads="anywhere")
        if stage.parts is not None:
            waiting = [PendingInference(inference) for inference in inferences]
            return Branch((self._infer(name, stage, self._variant_inference(waiting)),), reads="anywhere")
        batcher = None
        if (batch := stage.batch) is not None:
            why_not_wait = self._check_batch(name, stage, min(one.rows for one in inferences), on_gpu=True)
            batcher = Batcher[Result](batch.max, round(batch.wait * 1e9), stage.every, fills=not why_not_wait)
        made = GpuInfer(name, inferences, self._clock, batcher=batcher, every=stage.every, choice=self.choice)
        return Branch((made,), reads="anywhere")

    def _with_fallbacks(self, name: str, stage: InferStage, live: bool) -> list[Branch]:
        """Return the branches of a model and its fallback models, all loaded, in the same threads."""
        names = flow.variants_of(self.config.models, stage.infer)
        _check_same_labels(self.file, names)
        count = replicas_of(self.config, stage.infer, live)
        threads = threads_of(self.config, stage.infer) // count
        self._compile_alike(names, threads)
        as_stages = [stage.model_copy(update={"infer": one}) for one in names]  # the stage with each of the models
        parts = [(one, self._model_section(one.infer)) for one in as_stages]
        made = [(one, self._engine(one.infer, model, threads), model) for one, model in parts]
        on_gpu = [self._gpu_inference(name, *part, live) for part in made]
        inferences = [inference for inference in on_gpu if inference is not None]
        _check_same_device(self.file, dict(zip(names, (one is not None for one in on_gpu), strict=True)))
        if inferences:
            return [self._on_gpu(name, stage, inferences)]
        choosing = [self._variant_inference([self._host_inference(*part) for part in made]) for _ in range(count)]
        return [Branch((self._infer(name, stage, inference),)) for inference in choosing]

    def _compile_alike(self, names: Sequence[str], threads: int) -> None:
        """Compile models that replace each other for one kind of engine, if the file names no engine."""
        if (
            isinstance(self._compiler, ChainEngines)
            and self.file.passed_over is not None
            and self.engines.keys().isdisjoint(names)
        ):
            given = {one: (self._model_section(one), threads, batch_of(self.config, one)) for one in names}
            self.engines.update(self._compiler.compile_alike(given))

    def _variant_inference(self, inferences: Sequence[infer.Inference]) -> infer.Inference:
        """Return the only inference, or one that runs the chosen variant."""
        return inferences[0] if len(inferences) == 1 else infer.VariantInference(inferences, self.choice)

    def _infer(self, name: str, stage: InferStage, inference: infer.Inference) -> Stage:
        batch = stage.batch
        if batch is None:
            if stage.tiles is not None:
                agnostic = bool(getattr(self._model_section(stage.infer).task, "options", {}).get(AGNOSTIC))
                return tiles.InferTiles(name, inference, stage.tiles, stage.every, agnostic)
            if stage.crop is None:
                return infer.Infer(name, inference, stage.every)
            return infer.InferCrops(name, inference, stage.crop, stage.every, self._reads_text(stage))
        why_not_wait = self._check_batch(name, stage, inference.rows, on_gpu=False)
        return infer.InferBatch(name, inference, batch.max, batch.wait, self._clock, stage.every, not why_not_wait)

    def _check_batch(self, name: str, stage: InferStage, rows: int, on_gpu: bool) -> str:
        """Return why an idle model does not wait for a full batch, else ``""``; add a text on it to the engine's info.

        Raises ConfigError: the model takes fewer frames per run than its stage asks for, or mixes their results.
        """
        assert stage.batch is not None
        where = self.file.where("stages", name, "batch")
        batches.check_batch_size(stage, rows, where, self._compiler is not None and self._compiler.in_bundle)
        why_not_wait = batches.why_not_wait(self.config, name, self.directory) if on_gpu else batches.ON_PROCESSOR
        for one in flow.variants_of(self.config.models, stage.infer):
            engine = self.engines.get(one)
            if isinstance(engine, Engine):
                batches.check_batched(self._outputs_of_all_frames(one, engine), where)
                engine.info = {**engine.info, "batch": batches.describe_batches(stage.batch.max, why_not_wait)}
        return why_not_wait

    def _outputs_of_all_frames(self, name: str, engine: Engine) -> list[str]:
        """Return the outputs without a batch dimension that a decoder of edgert reads."""
        names = [tensor.name for tensor in engine.outputs]
        needed = needed_outputs(output_shapes(engine), names) or range(len(names))
        is_own = isinstance(self.config.models[name].task, model_section.PythonTask)
        return [] if is_own else [names[place] for place in needed if not engine.batched[place]]

    def _gpu_inference(
        self, name: str, stage: InferStage, engine: Engine, model: ModelConfig, live: bool
    ) -> GpuInference | None:
        """Return inference on the GPU if the engine is there and images can be prepared there; else None."""
        if self._on_host or not is_on_gpu(engine):
            return None
        decoder_for = partial(self._decoder, stage.infer, model, engine)
        # A stage on crops waits for their records at once; those of a single camera mostly precede its next frame.
        beside = stage.parts is None and not (live and stage.batch is None and self._has_one_source)
        is_urgent = model.priority == "high"
        inference = gpu_inference(
            engine,
            stage.profile,
            model.input,
            decoder_for,
            str(model.onnx),
            check_for=partial(self._check, stage.infer),
            beside=beside,
            refines=stage.parts is None,  # batches of crops are rarely full
            is_urgent=is_urgent,
            side_by_side=beside and not live and not batches.why_not_wait(self.config, name, self.directory),
        )
        if inference is not None:
            inference.model = stage.infer
            self._follow_task(stage.infer, model, engine, inference.network, inference.switch_decoder)
            self.inferences.append(inference)
            self.devices[name] = engine.device
        return inference

    @property
    def _has_one_source(self) -> bool:
        return sum(isinstance(stage, SourceStage) for stage in self.config.stages.values()) == 1

    def _split(self, name: str, stage: InferStage, model: ModelConfig, cut: SplitModel) -> Branch:
        """Return the branch of a split model: its segments, each on its core."""
        engine = self.engines.get(stage.infer)
        if not isinstance(engine, SegmentedEngine):
            engine = self.engines[stage.infer] = compile_split_model(cut)
        chain = engine.chain(flow.SEGMENT_QUEUE)
        image = image_input({t.name: chain.tensors(0)[t.name] for t in engine.inputs}, str(model.onnx))
        slots = [chain.tensors(slot)[image] for slot in range(chain.slots)]
        inputs = list({id(tensor): tensor for tensor in slots}.values())
        preprocessors = [preprocess.Preprocessor(model.input, tensor, str(model.onnx)) for tensor in inputs]
        decoder = self._checked_decoder(stage.infer, model, engine, preprocessors[0].network)
        middle = [infer.InferSegment(name, chain, number) for number in range(1, chain.segments - 1)]
        stages: Sequence[Stage] = [
            infer.FirstSegment(name, chain, preprocessors, stage.every),
            *middle,
            infer.LastSegment(name, chain, decoder, engine.batched),
        ]
        cores = [self._placer.core(segment.accelerator) for segment in engine.segments]
        return Branch(tuple(infer.Pinned(one, core) for one, core in zip(stages, cores, strict=True)))

    def _host_inference(self, stage: InferStage, engine: Engine, model: ModelConfig) -> infer.HostInference:
        session = engine.session(stage.profile)
        tensor = session.inputs[image_input(session.inputs, str(model.onnx))]
        preprocessor = preprocess.Preprocessor(model.input, tensor, str(model.onnx))
        decoder = self._checked_decoder(stage.infer, model, engine, preprocessor.network)
        return infer.HostInference(session, preprocessor, decoder, engine.batched)

    def _checked_decoder(
        self, name: str, model: ModelConfig, engine: Engine | SegmentedEngine, network: tuple[int, int]
    ) -> Decoder:
        decoder = self._decoder(name, model, engine, network)
        checked = CheckedRecords(decoder, self._check(name, decoder))
        self._follow_task(name, model, engine, network, partial(setattr, checked, "decoder"))
        return checked

    def _follow_task(
        self,
        name: str,
        model: ModelConfig,
        engine: Engine | SegmentedEngine,
        network: tuple[int, int],
        take: Callable[[Decoder], None],
    ) -> None:
        """Register a reader of a model's outputs, whose decoder is replaced when the task changes."""

        def new_decoder(task: model_section.TaskConfig) -> Callable[[], None]:
            return partial(take, self._decoder(name, model.model_copy(update={"task": task}), engine, network))

        self.decoders.setdefault(name, []).append(new_decoder)

    def _check(self, name: str, decoder: Decoder) -> RecordCheck:
        """Return the check of a model's records, shared by all its stages, so that a run warns once."""
        return self.checks.setdefault(name, RecordCheck(name, decoder))

    def _decoder(
        self, name: str, model: ModelConfig, engine: Engine | SegmentedEngine, network: tuple[int, int]
    ) -> Decoder:
        where = self.file.where("models", name, "task")
        labels = labels_of(model, where)
        names = [tensor.name for tensor in engine.outputs]
        if not engine.outputs_known:
            plain = decoder_for(model.task, labels if model.task.labels else (), where, self.directory)
            with suppress(EdgertError):  # shapes alone may not determine the decoder
                return checked_decoder(plain, tuple(output_shapes(engine)), network, names)
            return plain
        with located_at(where):
            shapes = tuple(output_shapes(engine))
            if has_unknown_activation(model.task) and model.onnx.is_file():  # the graph may show it without a frame
                task = with_activation(model.task, load(model.onnx), shapes, len(labels), as_auto=True)
                model = model.model_copy(update={"task": task})
            return fitting_decoder(model, labels, shapes, network, where, self.directory, names)

    def _engine(self, name: str, config: ModelConfig, threads: int) -> Engine:
        engine = self.engines.get(name)
        if engine is None or isinstance(engine, SegmentedEngine):
            batch = batch_of(self.config, name)
            if self._compiler is not None:
                engine = self._compiler.compile(name, config, threads, batch)
            else:
                form: Form = "gpu" if config.backend == "tensorrt" else "ort"
                engine = build_engine(self._load_model(name, config, form), config, threads, batch)
            self.engines[name] = engine
        self._check_levels(name, config, engine)
        return engine

    def _check_levels(self, name: str, config: ModelConfig, engine: Engine) -> None:
        """Warn once for each model whose integer input cannot hold the preprocessed values."""
        (image, *_), where = engine.inputs, self.file.where("models", name, "input")
        if name in self._checked_inputs or getattr(image, "scale", None):  # a quantized int8 tensor
            return
        self._checked_inputs.add(name)
        if lost := preprocess.check_levels(config.input, image.dtype, where):
            log.warning("model %s: %s", name, lost)

    def _reads_text(self, stage: InferStage) -> bool:
        """Return whether crops are rotated upright for the stage's model."""
        return isinstance(self.config.models[stage.infer].task, model_section.TextTask)


def check_stage_classes(file: PipelineFile, name: str) -> None:
    """Check that the classes of a stage can reach it, unless its own or a user's code may make more classes."""
    stages, models = file.config.stages, file.config.models
    before = [stages[other] for other in flow.upstream(stages, name)]
    read = [models[stage.infer] for stage in before if isinstance(stage, InferStage)]
    if any(
        isinstance(item, PythonStage | model_section.PythonTask | SinkStage)
        or (isinstance(item, PackageStage) and item.detects)
        for item in (stages[name], *before, *(model.task for model in read))
    ):
        return
    for keys, classes in _classes_in(stages[name]):
        labels = {label for model in read for label in labels_of(model)}
        crop.check_classes(classes, labels, file.where("stages", name, *keys))


def _classes_in(part: object, *keys: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield key path and value of every ``classes:`` in a section."""
    if isinstance(part, tuple) and keys[-1:] == ("classes",):
        yield keys, part
    items = part.items() if isinstance(part, Mapping) else part if isinstance(part, BaseModel) else ()
    for key, value in items:
        yield from _classes_in(value, *keys, str(key))


def load_model(file: PipelineFile, bar: Bar | None, name: str, config: ModelConfig, form: Form = "ort") -> Model:
    """Return the model in the precision that is asked for; unchanged with ``backend: null``."""
    if config.input.shape.extents or config.input.size:
        check_open(load(config.onnx), config)
    is_batched = any(stage.batch for stage in flow.users_of(file.config.stages, file.config.models, name))
    if config.backend == "null":
        from edgert.quantization.precision import check_precision  # imported when needed, to start faster

        check_precision(config, f"models.{name}")
        model = load(config.onnx)
        return with_open_batch(model) if config.precision == "int8" and is_batched else model
    if not config.is_converted:
        return load(config.onnx)
    from edgert.quantization.precision import in_precision
    from edgert.quantization.run import Run

    run = Run(file.where("models", name), file.document.path.parent, bar=bar)
    return in_precision(config, run, target=form, rows=batch_of(file.config, name), batched=is_batched)


def _check_same_labels(file: PipelineFile, variants: Sequence[str]) -> None:
    """Raise ConfigError if models that replace each other number their classes differently."""
    models = file.config.models
    read = {name: labels_of(models[name], file.where("models", name, "task")) for name in variants}
    for name in variants[1:]:
        if read[name] != read[variants[0]]:
            raise ConfigError(
                f"models {variants[0]!r} and {name!r} have different classes",
                why="tracks, crops and results use class numbers, which must mean the same in both",
                where=file.where("models", name, "task"),
                fix="use one labels file for both",
            )


def _check_same_device(file: PipelineFile, on_gpu: Mapping[str, bool]) -> None:
    """Raise ConfigError if only some of the models that replace each other are on the GPU."""
    if len(set(on_gpu.values())) > 1:
        away = [name for name, is_there in on_gpu.items() if not is_there]
        raise ConfigError(
            f"model {away[0]!r} is not on the GPU, unlike the models it takes turns with",
            why="all of them read frames in the same memory",
            where=file.where("models", away[0]),
            fix="use the same engine and backend for all, and inputs that can be prepared on the GPU",
        )


def batch_of(config: PipelineConfig, name: str) -> int:
    """Return the rows of a model of dynamic batch size: the largest number of crops or frames of its stages."""
    users = flow.users_of(config.stages, config.models, name)
    return max([s.parts for s in users if s.parts] + [s.batch.max for s in users if s.batch], default=1)


def spinning_of(file: PipelineFile, model: ModelConfig) -> bool | Literal["runs"]:
    """Return whether a model's threads spin while they wait for work: its section's setting, or a default.

    By default they spin during a run, and between runs if no source is live. Between a camera's frames, spinning would
    take more CPU time than the model. With a CPU budget, they never spin.
    """
    if model.tuning.spinning != "auto":
        return model.tuning.spinning
    if file.config.budgets.cpu is not None:
        return False
    folder = file.document.path.parent
    return "runs" if any(batches.is_paced(stage, folder) for stage in file.config.stages.values()) else True


def threads_of(config: PipelineConfig, name: str) -> int:
    """Return the number of CPU threads of a model: its section's setting, else its share of the cores."""
    infers = [stage for stage in config.stages.values() if isinstance(stage, InferStage)]
    return config.models[name].threads or share_cores(core_count(), len(infers))


def replicas_of(config: PipelineConfig, name: str, live: bool) -> int:
    """Return how many frames a model processes at a time: its section's setting, or a default.

    The default is one for cameras and crops, as waiting for a second frame would only add latency, and else the number
    of its threads. The result never exceeds the number of threads.
    """
    users = [stage for stage in config.stages.values() if isinstance(stage, InferStage) and stage.infer == name]
    requested = config.models[name].replicas
    if any(stage.batch for stage in users):
        return 1
    if requested is None and (live or any(stage.parts is not None for stage in users)):
        return 1
    return min(threads_of(config, name), requested or MOST_REPLICAS)
