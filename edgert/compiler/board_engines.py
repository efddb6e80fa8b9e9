"""Engines of an unpacked bundle on this machine: compiled or found in the cache, checked, and opened."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edgert.backend import Backend, Engine, Store, backend
from edgert.backend.chain import Chain, Replicated, Skipped
from edgert.backend.tensorrt.engine_cache import BuiltEngine
from edgert.backend.tensorrt.trt_backend import Listener, TrtBackend
from edgert.backend.tensorrt.trt_engine import TrtEngine
from edgert.bundle.manifest import Manifest
from edgert.compiler import engine_checks
from edgert.compiler.engine_specs import BundleModel, EngineSpec, engine_specs
from edgert.config import ModelConfig
from edgert.config.engine_choice import ORT_CUDA, TENSORRT, TENSORRT_DLA
from edgert.engine import build_engine
from edgert.errors import EdgertError
from edgert.graph import load
from edgert.reporter import OnProgress, Progress, State
from edgert.units import format_bytes

COMPILE, CHECK = "compile", "check"


@dataclass
class StepEnd:
    """Details of the end of a step, which are set while it runs."""

    cached: bool = False
    detail: str = ""


class BuildEvents:
    """Events of compiling the engines of a bundle, one model after the other.

    Args:
        on_progress: function called for every event.
    """

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        self._emit = on_progress or (lambda event: None)
        self._model = ""

    @contextmanager
    def step(self, name: str, model: str) -> Iterator[StepEnd]:
        """Report the start and end of the block as a step; after an error, it ends as failed."""
        self._model, started, ended = model, time.perf_counter(), StepEnd()
        self._emit(Progress(name, model, "started"))
        try:
            yield ended
        except EdgertError as error:
            self._emit(Progress(name, model, "failed", time.perf_counter() - started, error.what))
            raise
        state: State = "cached" if ended.cached else "done"
        self._emit(Progress(name, model, state, time.perf_counter() - started, ended.detail))

    def note(self, text: str) -> None:
        """Report a line about the model that is being compiled."""
        self._emit(Progress(COMPILE, self._model, "note", detail=text))

    def skipped(self, one: Skipped) -> None:
        """Report an engine that cannot run a model, or any model."""
        self._emit(Progress(COMPILE, one.model, "skipped", detail=f"{one.engine}: {one.why}"))

    def refused(self, one: Skipped) -> None:
        """Report an engine that cannot run one model; the start of a pipeline reports those that can run none."""
        if one.model:
            self.skipped(one)

    def listener(self, stop: threading.Event) -> Listener:
        """Return the listener for the backend that compiles."""

        def progress(title: str, done: int, total: int) -> None:
            self._emit(Progress(COMPILE, self._model, "progress", detail=title, done=done, total=total))

        return Listener(self.note, progress, stop)


@dataclass(frozen=True, slots=True)
class Compiled:
    """One engine of a model, compiled and checked; ``plans`` are those of :attr:`EngineSpec.requests`."""

    spec: EngineSpec
    plans: Sequence[BuiltEngine]
    checks: Mapping[str, Any]


class BundleEngines:
    """Engines of a bundle's models, which are cached for the next start.

    Args:
        folder: folder of the unpacked bundle.
        manifest: manifest of the bundle.
        chain: engines that may run the models; if it is strict, running nodes elsewhere than planned is an error.
        trt: backend that compiles and opens TensorRT's engines.
        store: cache of engines.
        events: receiver of events.
        opens: whether engines can be opened here; otherwise they are only compiled.
    """

    in_bundle = True

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        chain: Chain,
        trt: TrtBackend,
        store: Store,
        events: BuildEvents,
        *,
        opens: bool = True,
    ) -> None:
        self._folder, self._manifest = folder, manifest
        self.chain, self._trt, self._store = chain, trt, store
        self._events, self._opens = events, opens
        self._policy: engine_checks.Policy = "strict" if chain.strict else "warn"
        trt.listener = events.listener(trt.listener.stop)

    def compile(self, name: str, config: ModelConfig, threads: int, batch: int) -> Engine:
        """Compile a model for the first engine that takes it; see :class:`~edgert.assemble.engines.Engines`."""
        choice = self.chain.first_engine(name, partial(self._open_engine, name, config, threads, batch))
        engine = choice.compiled
        engine.info = {**engine.info, **choice.info}
        return engine

    def compiled(self, name: str, config: ModelConfig, engine: str) -> tuple[Compiled, ...]:
        """Return a model's engines of TensorRT for one name of the chain; ONNX Runtime only fills its own cache.

        Raises:
            EdgertError: the model cannot be compiled, or an engine fails its checks.
        """
        if engine not in (TENSORRT, TENSORRT_DLA):
            with self._events.step(COMPILE, name) as ended:
                made = build_engine(load(config.onnx), config, None, by=_onnxruntime(engine))
                ended.cached = bool(made.info.get("cached"))
                ended.detail = f"{engine} {made.info.get('version', '')}".strip()
                made.close()
            return ()
        found = []
        for spec in self._specs(name, config, engine):
            one, opened = self._compile_and_check(name, config, spec)
            found.append(one)
            if opened is not None:
                opened.close()
        return tuple(found)

    def _open_engine(self, name: str, config: ModelConfig, threads: int, batch: int, engine: str) -> Engine:
        if engine not in (TENSORRT, TENSORRT_DLA):
            return build_engine(load(config.onnx), config, threads, batch, by=_onnxruntime(engine))
        parts: list[tuple[Engine, int]] = []
        with ExitStack() as unused:
            for spec in self._specs(name, config, engine):
                _, opened = self._compile_and_check(name, config, spec)
                if opened is not None:
                    parts.append((unused.enter_context(closing(opened)), spec.weight))
            unused.pop_all()
        return parts[0][0] if len(parts) == 1 else Replicated(parts)

    def _specs(self, name: str, config: ModelConfig, engine: str) -> tuple[EngineSpec, ...]:
        return engine_specs(BundleModel(self._folder, self._manifest, name, config), engine, self._trt.library)

    def _compile_and_check(self, name: str, config: ModelConfig, spec: EngineSpec) -> tuple[Compiled, TrtEngine | None]:
        """Return an engine that was compiled or found, checked in this power mode, and opened if that is possible."""
        with self._events.step(COMPILE, name) as ended:
            plans, opened = self._build_plans(spec)
            made = plans[0]
            ended.cached = all(one.cached for one in plans)
            if spec.input is not None and not made.cached:
                self._events.note(spec.input.describe(made.request.formats))
            size_bytes = sum(len(one.result.plan) for one in plans)
            count = f" in {len(plans)} plans" if len(plans) > 1 else ""
            ended.detail = f"{made.result.library}, {format_bytes(size_bytes)}{count}"
        with self._events.step(CHECK, name) as ended:
            mode, cached = self._trt.mode, None
            if made.cached:
                cached = engine_checks.cached_checks(self._store, made.key, mode, ran=self._opens)
            try:
                if cached is not None and self._policy == "strict":  # it may have been cached under "warn"
                    engine_checks.check_placement(spec.request, made.result, self._policy)
                found = cached or self._run_checks(config, spec, made, opened)
            except EdgertError:
                if opened is not None:
                    opened.close()
                raise
            ended.cached, ended.detail = cached is not None, engine_checks.summary(found)
        return Compiled(spec, plans, found), opened

    def _build_plans(self, spec: EngineSpec) -> tuple[list[BuiltEngine], TrtEngine | None]:
        if self._opens:
            return self._trt.build_and_open(spec.requests, self._store, spec.profiles)
        return self._trt.find_or_build_all(list(spec.requests.values()), self._store), None

    def _run_checks(
        self, config: ModelConfig, spec: EngineSpec, made: BuiltEngine, opened: TrtEngine | None
    ) -> Mapping[str, Any]:
        found: dict[str, Any] = {"placement": engine_checks.check_placement(spec.request, made.result, self._policy)}
        if spec.input is not None:
            found["input"] = spec.input.describe(made.request.formats)
        if opened is not None:
            found["outputs"] = engine_checks.compare_outputs(
                opened, load(spec.reference), config, made.request.precision
            )
            found["profile"] = engine_checks.time_runs(opened)
            found["layers"] = engine_checks.time_layers(opened, made)
            found["memory"] = engine_checks.memory_use(opened, made)
        engine_checks.cache_checks(self._store, made.key, self._trt.mode, found)
        return found


def _onnxruntime(engine: str) -> Backend:
    return backend(engine if engine == ORT_CUDA else "ort")
