"""Who compiles the models of a pipeline: one backend, or the first of a chain that can."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, Protocol

from edgert.backend import Backend, Engine, backend
from edgert.backend.chain import Chain, why_not
from edgert.backend.trt.backend import Listener, TrtBackend
from edgert.board import Machine, detect
from edgert.config import ModelConfig, PipelineFile
from edgert.config.engine import ORT_CUDA, TENSORRT, TENSORRT_DLA
from edgert.graph.model import Model
from edgert.ready import build_engine

Form = Literal["ort", "gpu"]
"""Who a model that is made INT8 is made for."""
ModelOf = Callable[[str, ModelConfig, Form], Model]
Bar = Callable[[str, int, int], object]


class Engines(Protocol):
    """Compiles the models of one pipeline.

    Attributes:
        in_bundle: whether the models are those of a bundle, whose sizes were decided when it was built.
    """

    in_bundle: bool

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        """The engine that runs a model here; its ``info`` says which, and what was skipped.

        Raises:
            BuildError: no engine takes it; or an engine would be skipped where that must not be.
        """
        ...


class ChainEngines:
    """See :class:`Engines`; for a pipeline file with ``engines:``. A section's own ``backend:`` comes first.

    Args:
        model: loads a model in the precision its section asks for.
        strict: an engine that would be skipped is an error.
        bar: moved while TensorRT compiles.
        trt: compiles and opens TensorRT's engines; that of this machine by default.
    """

    in_bundle = False

    def __init__(
        self, file: PipelineFile, model: ModelOf, strict: bool, bar: Bar | None, trt: TrtBackend | None = None
    ) -> None:
        self._model, self._trt = model, trt or TrtBackend(listener=_listener(bar))
        reasons = partial(_why_not, machine=detect(), trt=self._trt, file=file.document.path.name)
        self.chain = Chain(file.config.engines, reasons, strict=strict, where=file.where("engines"))

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        """See :class:`Engines`."""
        if config.backend != "auto":
            return build_engine(self._model(name, config, "ort"), config, threads, batch)
        taken = self.chain.first(name, partial(self._made, name, config, threads, batch))
        engine = taken.made
        engine.info = {**engine.info, **taken.info}
        return engine

    def _made(self, name: str, config: ModelConfig, threads: int, batch: int, engine: str) -> Engine:
        model = self._model(name, config, "gpu" if engine == TENSORRT else "ort")
        return build_engine(model, config, threads, batch, by=self._backend(engine))

    def _backend(self, engine: str) -> Backend:
        if engine == TENSORRT:
            return self._trt
        return backend("onnxruntime-cuda" if engine == ORT_CUDA else "ort")


def _why_not(engine: str, machine: Machine, trt: TrtBackend, file: str) -> str:
    """A DLA wants a placement, scales and rewritten models, which stand in a bundle."""
    why = why_not(engine, machine, trt)
    if why or engine != TENSORRT_DLA:
        return why
    return f"what runs on a DLA is prepared first: edgert run {file}, or edgert build {file} --board {machine.name}"


def _listener(bar: Bar | None) -> Listener:
    if bar is None:
        return Listener()
    return Listener(step=lambda title, done, total: bar(f"compiling {title}", done, total))
