"""Engines of a pipeline's models: which backend compiles each, and on which cores of this machine it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal, Protocol

from edgert.assemble.default_engines import leaves_engine
from edgert.backend import Engine, backend
from edgert.backend.chain import Chain, Skipped, why_not
from edgert.board import THIS_MACHINE, detect, host
from edgert.config import InferStage, ModelConfig, PipelineFile
from edgert.config.engine_choice import ORT, ORT_CUDA, TENSORRT, TENSORRT_DLA
from edgert.engine import build_engine, default_profile
from edgert.errors import ConfigError, PlacementError
from edgert.files import FileStore, cache_folder
from edgert.graph import Graph, Model, clean, load, read, with_shapes
from edgert.placement.cutting import Part, accelerators_of, assign, check_accelerators, partition, weights_of
from edgert.placement.segment_engines import SegmentedEngine, compile_segments
from edgert.reporter import Bar

if TYPE_CHECKING:  # imported when needed, to start faster
    from edgert.backend.tensorrt.trt_backend import TrtBackend
    from edgert.board.record import Board

log = logging.getLogger("edgert.backend")
_GPU_BACKENDS = ("tensorrt", "onnxruntime-cuda")
Form = Literal["ort", "gpu"]
"""Kind of engine for which an INT8 model is made."""
ModelOf = Callable[[str, ModelConfig, Form], Model]


def board_of(file: PipelineFile) -> Board | None:
    """Return the board that ``board:`` names, directly or by its description file; None for this machine.

    Raises ConfigError: there is no such board, or its description has errors.
    """
    name = file.config.board
    if name in THIS_MACHINE:
        return None
    from edgert.board.record import find_board

    try:
        return find_board(name, file.document.path.parent)
    except ConfigError as error:
        if not error.where:
            error.where, error.fix = file.where("board"), f"auto or host for this machine; {error.fix}"
        raise


class Engines(Protocol):
    """Compiled models of one pipeline."""

    in_bundle: bool

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        """Return the engine that runs a model here. Its ``info`` names it and the engines that were skipped.

        Raises BuildError: no engine accepts the model, or an engine would be skipped although ``strict`` forbids it.
        """


class ChainEngines:
    """The :class:`Engines` of a pipeline file: those of ``engines:``, or this machine's defaults.

    A model's own ``backend:``, or its placement on CPU cores, has priority. TensorRT uses FP16 where the precision is
    left open.
    """

    in_bundle = False

    def __init__(
        self,
        file: PipelineFile,
        model: ModelOf,
        strict: bool,
        bar: Bar | None,
        trt: TrtBackend | None = None,
    ) -> None:
        self._model = model
        tensorrt = self._tensorrt = _lazy_tensorrt(bar, trt)  # local: the functions below must not refer to self
        machine, name, chosen = detect(), file.document.path.name, file.passed_over is not None
        self._passed_over = [Skipped(engine, why) for engine, why in (file.passed_over or {}).items()]

        def reason(engine: str) -> str:
            """Return why an engine is skipped. A DLA needs the placement, scales and rewritten models of a bundle."""
            if chosen and engine == file.config.engines[0] != TENSORRT_DLA:
                return ""  # it was checked when it was chosen
            fix = f"edgert run {name}, or edgert build {name} --board {machine.name}"
            dla = f"models for a DLA are built first: {fix}" if engine == TENSORRT_DLA else ""
            return why_not(engine, machine, tensorrt() if engine in (TENSORRT, TENSORRT_DLA) else None) or dla

        def report(skipped: Skipped) -> None:
            """Log a skipped engine as a warning, unless it is a default that this machine lacks."""
            log.log(logging.INFO if chosen and not skipped.model else logging.WARNING, "%s", skipped)

        self.chain = Chain(file.config.engines, reason, strict=strict, report=report, where=file.where("engines"))

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        if config.backend == "tensorrt":
            return self._on_tensorrt(name, config, threads, batch)
        if config.backend == ORT_CUDA:
            return self._compile_on(ORT_CUDA, name, config, threads, batch)
        if config.backend != "auto" or config.placement != "auto":
            return build_engine(self._model(name, config, "ort"), config, threads, batch)

        return self._compile_on_first({name: (config, threads, batch)}, self.chain)[name]

    def compile_alike(self, models: Mapping[str, tuple[ModelConfig, int, int]]) -> dict[str, Engine]:
        """Return engines of one kind for models that replace each other, where their sections leave the engine open.

        All of them must read frames from the same memory. Raises as :meth:`compile` does. ``models`` has section,
        threads and batch of each.
        """
        wanted = {name: given for name, given in models.items() if leaves_engine(given[0])}
        on_cpu = [name for name in models if name not in wanted and models[name][0].backend not in _GPU_BACKENDS]
        if not on_cpu:
            return self._compile_on_first(wanted, self.chain)
        why = f"it takes turns with {on_cpu[0]}, which stays on the processor"
        chain = Chain(
            self.chain.engines, {**dict.fromkeys(self.chain.engines, why), ORT: ""}.__getitem__, report=log.debug
        )
        return self._compile_on_first(wanted, chain)

    def _compile_on_first(self, models: Mapping[str, tuple[ModelConfig, int, int]], chain: Chain) -> dict[str, Engine]:
        """Return all models compiled by the first engine of the chain that accepts them all."""

        def compile_all(engine: str) -> dict[str, Engine]:
            compiled: dict[str, Engine] = {}
            with ExitStack() as unused:
                for name, given in models.items():
                    compiled[name] = self._compile_on(engine, name, *given)
                    unused.callback(compiled[name].close)
                unused.pop_all()
            return compiled

        choice = chain.first_engine(" and ".join(models), compile_all)
        info = replace(choice, skipped=(*self._passed_over, *choice.skipped)).info
        for engine in choice.compiled.values():
            engine.info = {**engine.info, **info}
        return choice.compiled

    def _compile_on(self, engine: str, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        if engine == TENSORRT:
            return self._on_tensorrt(name, config, threads, batch)
        by = backend(ORT_CUDA if engine == ORT_CUDA else "ort")
        return build_engine(self._model(name, config, "ort"), config, threads, batch, by=by)

    def _on_tensorrt(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        """Return TensorRT's engine, in FP16 where the precision is left open.

        The model itself is converted. If it has several sizes, a flag is set instead, as a conversion needs one size.
        """
        wanted, precision = config, "fp32"
        if config.leaves_precision:
            precision, has_sizes = "fp16", len(config.profiles) > 1 or config.input.shape.is_open
            if not (has_sizes and self._tensorrt().library.kind == "weak"):
                wanted = config.model_copy(update={"precision": "fp16"})
        model = self._model(name, wanted, "gpu")
        return build_engine(model, config, threads, batch, by=self._tensorrt(), precision=precision)


def _lazy_tensorrt(bar: Bar | None, given: TrtBackend | None = None) -> Callable[[], TrtBackend]:
    """Return a function that makes TensorRT's backend at its first call, as loading its modules takes time."""

    @cache
    def made() -> TrtBackend:
        if given is not None:
            return given
        from edgert.backend.tensorrt.trt_backend import Listener, TrtBackend

        moved = bar or (lambda what, done, total: None)
        listener = Listener(step=lambda title, done, total: moved(f"compiling {title}", done, total))
        return TrtBackend(listener=listener)

    return made


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A model to run in segments: the static, simplified model, its graph, and the parts of it."""

    model: Model
    graph: Graph
    parts: tuple[Part, ...]


Cores = tuple[tuple[int, int], ...]
"""Cores that run a complete model: their numbers in the operating system, with relative shares of the frames."""


class Placer:
    """Resolver of ``placement:`` to cores of this machine."""

    def __init__(self, file: PipelineFile) -> None:
        self._file = file
        self._cores: Mapping[str, int] = host.core_accelerators()

    def plan(self, name: str, config: ModelConfig, stage: InferStage, model: Callable[[], Model]) -> Cores | SplitModel:
        """Return the placement of a model for one stage; no cores for ``placement: auto``. Compiles nothing.

        With ``backend: null``, the placement is only checked. For another board, it is checked without accelerators, as
        this machine does not have them. Raises PlacementError: the placement is not possible.
        """
        if config.placement == "auto":
            return ()
        try:
            plan = self._plan(config, stage, model)
        except PlacementError as error:
            raise error.at(self._file.where("models", name, "placement"))  # noqa: B904 - the same error, with its place
        return () if config.backend == "null" else plan

    def _plan(self, config: ModelConfig, stage: InferStage, model: Callable[[], Model]) -> Cores | SplitModel:
        is_here = self._file.config.board in THIS_MACHINE
        if config.backend != "null" or is_here:
            check_accelerators(accelerators_of(config.placement), self._cores)
        if config.backend not in ("auto", "ort", "null"):
            raise PlacementError(
                f"backend {config.backend} cannot be placed on cores",
                why="its own threads cannot be pinned; ONNX Runtime runs in the thread that calls it",
                fix="backend: ort, or placement: auto",
            )
        if isinstance(config.placement, dict):
            cut = _split_model(config, config.placement, model())
            if len(cut.parts) > 1:
                _check_split(config, stage)
                return cut
            weights: Mapping[str, int] = {cut.parts[0].accelerator: 1}
        else:
            weights = weights_of(config.placement)
        return tuple((self._cores.get(name, 0), weight) for name, weight in weights.items())

    def core(self, accelerator: str) -> int:
        """Return the operating system's number of an accelerator's core."""
        return self._cores[accelerator]


def compile_split_model(cut: SplitModel) -> SegmentedEngine:
    """Return an engine with all parts of a model, compiled. Raises PlacementError or BuildError."""
    return compile_segments(cut.model, cut.graph, cut.parts, FileStore(cache_folder() / "ort"))


def _split_model(config: ModelConfig, globs: Mapping[str, str], model: Model) -> SplitModel:
    """Split a model of fixed shapes, with constants folded as the backend would fold them."""
    shapes = next(iter((config.profiles or default_profile(model, config)).values()))
    ready = clean(with_shapes(model, shapes) if shapes else model)[0]
    graph = read(ready)
    places = assign(graph, globs, [node.name for node in read(load(config.onnx)).nodes])
    return SplitModel(ready, graph, partition(graph, places))


def _check_split(config: ModelConfig, stage: InferStage) -> None:
    if stage.parts is not None:
        raise PlacementError(
            f"a split model cannot process {'crops' if stage.crop else 'tiles'}",
            why="its segments work on different frames at the same time, but a frame has several crops or tiles",
            fix="one accelerator for the whole model (placement: cpu1), or placement: {replicate: [cpu0, cpu1]}",
        )
    if len(config.profiles) > 1:
        raise PlacementError(
            f"a split model has one profile, not {len(config.profiles)}",
            why="the tensors between its segments are allocated once",
            fix="remove all profiles but one, or use placement: auto",
        )
