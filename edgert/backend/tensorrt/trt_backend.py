"""TensorRT as a backend: engines are compiled once per machine and request, cached, and opened on the GPU."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias
from weakref import WeakSet

from edgert.backend.base import DEFAULT_PROFILE, EngineOptions, Shapes, Span, Store, has_open_batch
from edgert.backend.tensorrt import build_process, engine_cache, retry, sessions, trt_engine
from edgert.backend.tensorrt.build_request import GPU, BuildRequest, Pools, Precision, request_of
from edgert.backend.tensorrt.engine_cache import CacheEntry
from edgert.backend.tensorrt.library import Library, Wanted, load, why_unsupported
from edgert.board import Machine, detect
from edgert.board.devices import cuda_driver
from edgert.config.model_section import TensorRtConfig
from edgert.errors import ArtifactError, BuildError, DeviceError
from edgert.graph import Graph, Model, TensorSpec, clean, inputs, operators, read, with_shapes
from edgert.memory.cuda import CudaDevice, open_device
from edgert.policy import run_sizes

# The request for a model without a placement: its shapes are from profiles, and its precision is from its types.


def static_request(model: Model, options: EngineOptions, fixed_rows: int = 0, **further: Any) -> BuildRequest:
    """Return the request for a model and its profiles.

    One profile makes the shapes static, except for a batch of several rows, which stays open so that fewer can be run.
    Several profiles allow several shapes.

    ``fixed_rows`` are those of a static batch, 0 for those of the profiles. ``further`` are other request fields.
    Raises ModelError if a profile does not fit the model's inputs, and BuildError for an invalid field.
    """
    profiles = options.profiles or {DEFAULT_PROFILE: {}}
    if fixed_rows:
        profiles = {
            name: {tensor: (fixed_rows, *sizes[1:]) for tensor, sizes in one.items()} for name, one in profiles.items()
        }
    specs = [spec for spec in inputs(model) if not spec.is_static]
    fixed = {name: with_shapes(model, shapes) if shapes else model for name, shapes in profiles.items()}
    rows = max((sizes[0] for shapes in profiles.values() for sizes in shapes.values() if sizes), default=1)
    is_static = (
        len(profiles) == 1
        and not options.spans
        and (rows == 1 or fixed_rows or not has_open_batch(spec.shape for spec in specs))
    )
    if not specs or is_static:
        cleaned, spans = clean(next(iter(fixed.values())))[0], []
    else:
        cleaned, spans = clean(model)[0], [{**_spans(specs, shapes), **options.spans} for shapes in profiles.values()]
    graph = read(cleaned)
    fields = {"precision": precision_of(graph, options.precision), "profiles": tuple(filter(None, spans)), **further}
    return request_of(cleaned, **fields, **settings_of(options.builder, further.get("placement", {})))


def plan_sizes(model: Model, options: EngineOptions) -> tuple[int, ...]:
    """Return the batch sizes that get separate TensorRT-RTX plans; empty if one plan is enough.

    Its kernels for an open batch are slower, even if only one size is run.
    """
    specs = inputs(model)
    shapes = [sizes for one in options.profiles.values() for sizes in one.values()]
    rows = {sizes[0] for sizes in shapes if sizes}
    has_one_shape = len(options.profiles) == 1 and len(shapes) == len(specs) and len(rows) == 1 and not options.spans
    if not has_one_shape or rows == {1} or not has_open_batch(spec.shape for spec in specs):
        return ()
    return run_sizes(rows.pop(), dynamic=True)


PlanKey: TypeAlias = "tuple[str, int]"
"""Profile and fixed number of rows of one of a model's plans; 0 rows for a plan with all rows of its profile."""


@dataclass(frozen=True, slots=True)
class Part:
    """Options for one of a model's plans.

    Attributes:
        rows: fixed number of rows; 0 for that of the options.
        title: name of the plan in messages, which is the same at every start; empty for that of the model.
    """

    options: EngineOptions
    profile: str = DEFAULT_PROFILE
    rows: int = 0
    title: str = ""

    @property
    def key(self) -> PlanKey:
        """Key of the plan among those of the model."""
        return self.profile, self.rows


def parts_of(model: Model, options: EngineOptions) -> tuple[Part, ...]:
    """Return the TensorRT-RTX plans of a model: for each profile, and for each of its :func:`plan_sizes`.

    TensorRT-RTX 1.4 ends the process when a profile other than the first is chosen. The first plan is for all rows of
    the first profile.
    """
    profiles = options.profiles or {DEFAULT_PROFILE: {}}
    parts = list[Part]()
    for name, shapes in profiles.items():
        own = replace(options, profiles={name: shapes}) if len(profiles) > 1 else options
        sizes = plan_sizes(model, own) or (0,)
        suffix = "" if name == next(iter(profiles)) else f" for profile {name}"
        for rows in (sizes[-1], *sizes[:-1]):
            of_rows = "" if rows == sizes[-1] else f" in batches of {rows}"
            parts.append(Part(own, name, rows, f"{model.path}{suffix}{of_rows}" if suffix or of_rows else ""))
    return tuple(parts)


def settings_of(builder: TensorRtConfig, placement: Mapping[str, str]) -> dict[str, Any]:
    """Return fields of a request. They contain pools of a DLA only if a node is placed on one."""
    dla = (builder.dla_sram, builder.dla_local, builder.dla_global)
    uses_dla = any(where != GPU for where in placement.values())
    return {
        "pools": Pools(builder.workspace, *(dla if uses_dla else ())),
        "optimization_level": builder.optimization,
        "version_compatible": builder.version_compatible,
        "sparse": builder.sparse,
    }


def precision_of(graph: Graph, requested: str) -> Precision:
    """Return the model's own precision: ``int8`` with Q/DQ nodes, ``fp16`` with float16 tensors, else ``requested``."""
    if any(node.op in operators.QDQ for node in graph.nodes):
        return "int8"
    if any(array.dtype == "float16" for array in graph.constants.values()):
        return "fp16"
    return "fp16" if requested == "fp16" else "fp32"


def _spans(specs: Sequence[TensorSpec], shapes: Shapes) -> dict[str, Span]:
    """Return the profile's shapes, with all smaller batches if the batch is open."""
    spans = {}
    is_open = has_open_batch(spec.shape for spec in specs)
    for spec in specs:
        most = tuple(shapes.get(spec.name, ()))
        least = (1, *most[1:]) if most and is_open else most
        spans[spec.name] = Span(least, most, most)
    return spans


log = logging.getLogger("edgert.backend")
BuildOnce = Callable[..., build_process.BuildResult]
"""Function that builds one request, as :func:`~edgert.backend.tensorrt.build_process.build` does."""


@dataclass(frozen=True)
class Listener:
    """Callbacks during compilation.

    ``step`` gets the engine's name, and the done and total steps of the compiler's outermost phase.
    """

    report: Callable[[str], object] = log.warning
    step: Callable[[str, int, int], object] = lambda name, done, total: None
    stop: threading.Event = field(default_factory=threading.Event)


class TrtBackend:
    """The TensorRT backend; see :class:`~edgert.backend.base.Backend`.

    One object serves all engines of a pipeline: it counts DLA programs, and gives each DLA core one job at a time.

    Args:
        device: function that opens the GPU, called once for the first engine; by default with PyCUDA.
        build_once: function that builds one engine; by default in a separate process.
    """

    name = "tensorrt"

    def __init__(
        self,
        *,
        machine: Machine | None = None,
        root: Path = Path("/"),
        library: Library | None = None,
        device: Callable[[], CudaDevice] | None = None,
        build_once: BuildOnce | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._given_machine, self._root, self._given_library = machine, root, library
        self._open_device, self._build_once = device or _open_gpu, build_once or build_process.build
        self.listener = listener or Listener()
        self._warned = False
        self._on_core: dict[int, WeakSet[trt_engine.TrtEngine]] = {}
        self._queues: dict[int | None, sessions.Queue] = {}

    @cached_property
    def library(self) -> Library:
        """TensorRT. Raises DeviceError if it is not installed; the fix is how to install it."""
        return self._given_library or load()

    @cached_property
    def facts(self) -> engine_cache.Facts:
        """Properties of this machine that engines depend on."""
        return engine_cache.machine_facts(self.library, self._machine, cuda_driver(), self._root)

    @cached_property
    def _machine(self) -> Machine:
        return self._given_machine or detect(self._root)

    @property
    def timed_facts(self) -> engine_cache.Facts:
        """Properties of this machine that an engine's times depend on."""
        return {**self.facts, **({engine_cache.POWER_MODE: self.mode} if self.mode else {})}

    @property
    def mode(self) -> str:
        """Power mode of the machine; empty if it has none."""
        return self._machine.mode

    @cached_property
    def unsupported(self) -> str:
        """Reason in one line why TensorRT-RTX does not support this GPU; empty if it does."""
        driver = cuda_driver()
        return why_unsupported(self.library, driver.gpus[0].compute) if driver is not None and driver.gpus else ""

    @cached_property
    def _device(self) -> CudaDevice:
        return self._open_device()

    def why_no_library(self) -> str:
        """Return in one line why TensorRT cannot compile here, and what to install; empty if it can."""
        return self._why_missing("library")

    def why_not(self) -> str:
        """Return in one line why TensorRT cannot compile and run engines here, and what to install; empty if it can."""
        return self._why_missing("library") or self._why_missing("_device")

    def _why_missing(self, part: str) -> str:
        try:
            getattr(self, part)
        except (DeviceError, BuildError) as error:
            return f"{error.what}: {error.why}" + (f" ({error.fix})" if error.fix else "")
        return ""

    def compile(self, model: Model, options: EngineOptions) -> trt_engine.TrtEngine:
        """See :class:`~edgert.backend.base.Backend`. The precision is that of the model: float32, float16, or Q/DQ.

        Raises BuildError: TensorRT does not support the model, or its compiler fails; the error names the nodes if
        TensorRT does. Raises ModelError: a profile does not fit the model's inputs, or an output's size depends on the
        data. Raises DeviceError: TensorRT, PyCUDA or the GPU is missing; the fix is how to install it.
        """
        parts = parts_of(model, options) if self.library.kind == "rtx" else (Part(options),)
        facts = self.facts  # read once, and not in each thread
        with ThreadPoolExecutor(len(parts), "edgert-trt") as pool:  # plans are large, and checked when they are read
            cached = list(pool.map(lambda part: self._find_cached(model, part, facts), parts))
        with suppress(trt_engine.UnopenedError):  # it is then compiled again, which is reported
            if len(found := [one for one in cached if one is not None]) == len(parts):
                self._report_mode(found[0])
                plans = {part.key: one for part, one in zip(parts, found, strict=True)}
                return self._open_plans(plans, options.profiles, options.store)
        requests = {part.key: self._request(model, part) for part in parts}
        return self.build_and_open(requests, options.store, options.profiles)[1]

    def build_and_open(
        self,
        requests: Mapping[PlanKey, BuildRequest],
        store: Store | None = None,
        profiles: Mapping[str, Shapes] | None = None,
    ) -> tuple[list[engine_cache.BuiltEngine], trt_engine.TrtEngine]:
        """Return the plans of a model, from the store or built, and the engine that has them all.

        Cached plans that can no longer be opened are compiled again. An engine whose DLA reads its input in a DLA
        layout is run once, and compiled again with plain inputs if that fails: only a run shows whether the DLA can
        read such input from memory shared with the CPU. Both are reported. Raises as :meth:`compile`.
        """
        plans = dict(zip(requests, self.find_or_build_all(list(requests.values()), store), strict=True))
        try:
            engine = self._open_plans(plans, profiles, store)
        except trt_engine.UnopenedError as error:
            if store is None or not all(one.cached for one in plans.values()):
                raise
            self._report_rebuild(next(iter(requests.values())), f"the cached engine no longer opens ({error.why})")
            for one in plans.values():
                store.remove(one.key)
            plans = {key: self._build_and_cache(requests[key], one.facts, store) for key, one in plans.items()}
            engine = self._open_plans(plans, profiles, store)
        built, *_ = plans.values()
        plain = {name: form for name, form in built.request.formats.items() if not form.optional}
        if built.request.dla_core is None or len(plain) == len(built.request.formats):
            return list(plans.values()), engine
        try:
            first = engine.session()
            first.run()
            first.close()
        except (BuildError, DeviceError) as error:
            reason = f"the DLA failed with the layout of its input in the first run ({error.what})"
            self._report_rebuild(built.request, f"{reason}, so inputs are plain")
            plain_request = replace(built.request, formats=plain)
            try:  # built and cached first, as the GPU may be lost after a failed run
                built = self._build_and_cache(plain_request, built.facts, store, (*built.attempts, reason))
            finally:
                engine.close()
            engine = self.open(built, profiles, store)
        return [built], engine

    def find_or_build_all(
        self, requests: Sequence[BuildRequest], store: Store | None
    ) -> list[engine_cache.BuiltEngine]:
        """Do :meth:`find_or_build` for all requests at once, as starting TensorRT-RTX takes longer than building."""
        if len(requests) == 1:
            return [self.find_or_build(requests[0], store)]
        with ThreadPoolExecutor(len(requests), "edgert-trt") as pool:
            try:
                return list(pool.map(lambda request: self.find_or_build(request, store), requests))
            except KeyboardInterrupt:
                self.listener.stop.set()
                raise

    def _request(self, model: Model, part: Part) -> BuildRequest:
        title = {"title": part.title} if part.title else {}
        request, store = static_request(model, part.options, part.rows, **title), part.options.store
        if store is not None:
            engine_cache.cache_request(store, engine_cache.options_key(model, part.options, part.rows), request)
        return request

    def _find_cached(self, model: Model, part: Part, facts: engine_cache.Facts) -> engine_cache.BuiltEngine | None:
        """Return the cached engine of a part, without creating its request; None if that must be created."""
        options, store = part.options, part.options.store
        key = engine_cache.options_key(model, options, part.rows)
        cached = engine_cache.cached_request(store, key) if store is not None else None
        if store is None or cached is None:
            return None
        key = engine_cache.key_of({**facts, **cached[0]})
        content = store.get(key)
        request = BuildRequest(b"", {}, str(model.path), precision=cached[1], **settings_of(options.builder, {}))
        with suppress(ArtifactError):  # it is then compiled again, which is reported
            if content is not None:
                return engine_cache.read_built_engine(content, request, key)
        return None

    def _open_plans(
        self,
        plans: Mapping[PlanKey, engine_cache.BuiltEngine],
        profiles: Mapping[str, Shapes] | None,
        store: Store | None,
    ) -> trt_engine.TrtEngine:
        first, *others = plans.items()
        return self.open(first[1], profiles, store, dict(others))

    def find_or_build(self, request: BuildRequest, store: Store | None = None) -> engine_cache.BuiltEngine:
        """Return the engine of a request from the store, or build and cache it.

        If it was built before with other facts, the changes are reported first. Raises as :meth:`compile`.
        """
        facts = {**self.facts, **engine_cache.request_facts(request)}
        key = engine_cache.key_of(facts)
        content = store.get(key) if store is not None else None
        if content is not None:
            try:
                built = engine_cache.read_built_engine(content, request, key)
                self._report_mode(built)
                return built
            except ArtifactError as error:
                self._report_rebuild(request, f"the cached engine cannot be read ({error})")
        before = engine_cache.last_facts(store, request.title)
        if before is not None and before != facts:
            self._report_rebuild(request, ", ".join(engine_cache.changes(before, facts)))
        return self._build_and_cache(request, facts, store)

    def _report_mode(self, built: engine_cache.BuiltEngine) -> None:
        if self._is_other_mode(built):
            modes = f"was compiled in power mode {built.mode} and runs in {self.mode}"
            self.listener.report(f"{built.request.title} {modes}: its kernels were chosen at other clocks")

    def _is_other_mode(self, built: engine_cache.BuiltEngine) -> bool:
        return bool(built.mode and self.mode) and built.mode != self.mode  # a container may not show the mode

    def _report_rebuild(self, request: BuildRequest, why: str) -> None:
        self.listener.report(f"{request.title} is compiled again: {why}")

    def _build_and_cache(
        self, request: BuildRequest, facts: engine_cache.Facts, store: Store | None, attempts: tuple[str, ...] = ()
    ) -> engine_cache.BuiltEngine:
        """Build the engine of a request, and cache it under ``facts``. ``attempts`` are reasons of earlier attempts."""
        requested = replace(request, timing_cache=engine_cache.timing_cache(store, self.facts))
        done = retry.build_retrying(
            requested, self._build, lambda attempt: self.listener.report(f"again: {attempt.reason}")
        )
        reasons = tuple(attempt.reason for attempt in done.attempts if attempt.reason)
        built = engine_cache.BuiltEngine(facts, done.request, done.result, (*attempts, *reasons), self.mode)
        if store is not None:
            engine_cache.cache_engine(store, built, self.facts)
        return built

    def open(
        self,
        built: engine_cache.BuiltEngine,
        profiles: Mapping[str, Shapes] | None = None,
        store: Store | None = None,
        others: Mapping[PlanKey, engine_cache.BuiltEngine] = MappingProxyType({}),
    ) -> trt_engine.TrtEngine:
        """Open an engine for running; kernels that TensorRT-RTX compiles are cached in the store.

        ``others`` are further plans of the model by profile and number of rows; see :class:`TrtEngine`. Raises
        DeviceError: there is no GPU or PyCUDA; or TensorRT-RTX does not support the GPU; or the DLA core is missing or
        full. Raises ModelError: an output's size depends on the data.
        """
        core, loadables = built.request.dla_core, built.engine_facts.loadables
        scales = {name: form.scale for name, form in built.request.formats.items() if form.scale}
        with self._device:
            if core is not None and core not in self._queues:  # one queue, so that the core gets one job at a time
                self._queues[core] = sessions.Queue(self._device.stream(), threading.RLock())
                self._on_core[core] = WeakSet()
            on_core = self._on_core.get(core, ()) if core is not None else ()
            engine = trt_engine.TrtEngine(
                built.result.plan,
                self.library,
                self._device,
                queue=self._queues.get(core),
                profiles=profiles or {DEFAULT_PROFILE: {}},
                scales=scales,
                dla_core=core,
                loadables=loadables,
                resident=sum(one.loadables for one in on_core if one.is_open),
                host_code=built.request.version_compatible,
                cache_entry=_cache_entry(store, built),
                others={part: (one.result.plan, _cache_entry(store, one)) for part, one in others.items()},
                title=built.request.title,
            )
        if core is not None:
            self._on_core[core].add(engine)
        plans = (built, *others.values())
        compiled = {
            "precision": built.request.precision,
            "cached": all(one.cached for one in plans),
            "compile_s": sum(one.result.seconds for one in plans),
            "attempts": list(built.attempts),
        }
        if "unsupported" in engine.info and not self._warned:
            self._warned = True
            self.listener.report(f"this GPU's compute capability {engine.info['unsupported']}: the engine runs anyway")
        modes = {"compiled_in": built.mode, "runs_in": self.mode} if self._is_other_mode(built) else {}
        engine.info = {**engine.info, **compiled, **modes}
        return engine

    def _build(self, request: BuildRequest) -> build_process.BuildResult:
        listener = self.listener

        def step(progress: build_process.Progress) -> None:
            if not progress.parent:
                listener.step(request.title, progress.step, progress.steps)

        wanted: Wanted = "tensorrt_rtx" if self.library.kind == "rtx" else "tensorrt"
        return self._build_once(request, wanted=wanted, progress=step, cancel=listener.stop)


def _cache_entry(store: Store | None, built: engine_cache.BuiltEngine) -> CacheEntry | None:
    return CacheEntry(store, engine_cache.kernels_key(built.facts)) if store is not None else None


def _open_gpu() -> CudaDevice:
    driver = cuda_driver()
    if driver is None or not driver.gpus:
        why = "there is no CUDA driver (libcuda.so.1)" if driver is None else driver.trouble or "its driver drives none"
        raise DeviceError("there is no NVIDIA GPU here", why=why, code="E805")
    return open_device()
