"""TensorRT as a backend: engines are compiled once per machine and request, cached, and opened on the GPU."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, BuilderSettings, EngineOptions, Shapes, Span, Store, has_open_batch
from edgert.backend.tensorrt import engine_cache
from edgert.backend.tensorrt.build_process import BuildResult, Progress, build
from edgert.backend.tensorrt.build_request import GPU, BuildRequest, Pools, Precision, request_of
from edgert.backend.tensorrt.engine_cache import CacheEntry
from edgert.backend.tensorrt.library import Library, Wanted, load, unsupported
from edgert.backend.tensorrt.retry import build_retrying
from edgert.backend.tensorrt.sessions import Queue
from edgert.backend.tensorrt.trt_engine import TrtEngine, UnopenedError
from edgert.board import Machine, detect
from edgert.board.devices import cuda_driver
from edgert.errors import ArtifactError, BuildError, DeviceError
from edgert.graph import Graph, Model, TensorSpec, clean, inputs, read, with_shapes
from edgert.graph.operators import QDQ
from edgert.memory.cuda import CudaDevice, open_device
from edgert.policy import run_sizes

# The request for a model by itself, as it stands: its shapes from profiles, its precision from its own types.


def static_request(model: Model, options: EngineOptions, own_rows: int = 0, **further: Any) -> BuildRequest:
    """Return the request for a model and its profiles, with ``further`` fields.

    One profile makes the shapes static, with two exceptions. Several profiles allow several shapes. A batch of several
    rows stays open, so that fewer can be run; with ``own_rows`` it has exactly that many.

    Raises ModelError when a profile does not fit the model's inputs, and BuildError for an invalid field.
    """
    profiles = options.profiles or {DEFAULT_PROFILE: {}}
    if own_rows:
        profiles = {
            name: {tensor: (own_rows, *sizes[1:]) for tensor, sizes in one.items()} for name, one in profiles.items()
        }
    specs = [spec for spec in inputs(model) if not spec.is_static]
    fixed = {name: with_shapes(model, shapes) if shapes else model for name, shapes in profiles.items()}
    rows = max((sizes[0] for shapes in profiles.values() for sizes in shapes.values() if sizes), default=1)
    is_one = (
        len(profiles) == 1
        and not options.spans
        and (rows == 1 or own_rows or not has_open_batch(spec.shape for spec in specs))
    )
    if not specs or is_one:
        ready, spans = clean(next(iter(fixed.values())))[0], []
    else:
        ready, spans = clean(model)[0], [{**_spans(specs, shapes), **options.spans} for shapes in profiles.values()]
    graph = read(ready)
    fields = {"precision": precision_of(graph, options.precision), "profiles": tuple(filter(None, spans)), **further}
    return request_of(ready, **fields, **settings_of(options.builder, further.get("placement", {})))


def plan_sizes(model: Model, options: EngineOptions) -> tuple[int, ...]:
    """Return the batch sizes that get separate TensorRT-RTX plans; empty where one plan is enough.

    Its kernels for an open batch are slower, even for one size.
    """
    specs = inputs(model)
    shapes = [sizes for one in options.profiles.values() for sizes in one.values()]
    rows = {sizes[0] for sizes in shapes if sizes}
    is_one = len(options.profiles) == 1 and len(shapes) == len(specs) and len(rows) == 1 and not options.spans
    if not is_one or rows == {1} or not has_open_batch(spec.shape for spec in specs):
        return ()
    return run_sizes(rows.pop(), dynamic=True)


@dataclass(frozen=True, slots=True)
class Part:
    """Options for one of the plans that make up a model.

    Attributes:
        profile: its name; only that is in ``options``, where there are several parts.
        rows: how many it takes, no more and no less; 0 where that is left to the options.
        title: what it is called in messages, and known by from one start to the next; empty for the model's own.
    """

    options: EngineOptions
    profile: str = DEFAULT_PROFILE
    rows: int = 0
    title: str = ""


def parts_of(model: Model, options: EngineOptions) -> tuple[Part, ...]:
    """Return the TensorRT-RTX plans of a model: for each profile, and for each of the :func:`plan_sizes`.

    TensorRT-RTX 1.4 ends the process when a profile other than the first is chosen. The first plan is for all rows of
    the first profile.
    """
    profiles = options.profiles or {DEFAULT_PROFILE: {}}
    found = list[Part]()
    for name, shapes in profiles.items():
        alone = replace(options, profiles={name: shapes}) if len(profiles) > 1 else options
        sizes = plan_sizes(model, alone) or (0,)
        of_profile = "" if name == next(iter(profiles)) else f" for profile {name}"
        for rows in (sizes[-1], *sizes[:-1]):
            of_rows = "" if rows == sizes[-1] else f" in batches of {rows}"
            title = f"{model.path}{of_profile}{of_rows}" if of_profile or of_rows else ""
            found.append(Part(alone, name, rows, title))
    return tuple(found)


def settings_of(builder: BuilderSettings, placement: Mapping[str, str]) -> dict[str, Any]:
    """Return fields of a request. Pools of a DLA are left out where no node is placed on one."""
    dla = (builder.dla_sram_bytes, builder.dla_local_bytes, builder.dla_global_bytes)
    uses_dla = any(where != GPU for where in placement.values())
    return {
        "pools": Pools(builder.workspace_bytes, *(dla if uses_dla else ())),
        "optimization_level": builder.optimization_level,
        "version_compatible": builder.version_compatible,
        "sparse": builder.sparse,
    }


def precision_of(graph: Graph, requested: str) -> Precision:
    """Return the model's own precision: ``int8`` with Q/DQ nodes, ``fp16`` with float16 tensors, else ``requested``."""
    if any(node.op in QDQ for node in graph.nodes):
        return "int8"
    if any(array.dtype == "float16" for array in graph.constants.values()):
        return "fp16"
    return "fp16" if requested == "fp16" else "fp32"


def _spans(specs: Sequence[TensorSpec], shapes: Shapes) -> dict[str, Span]:
    """Return the profile's shapes, with every smaller batch where the batch is open."""
    found = {}
    is_open = has_open_batch(spec.shape for spec in specs)
    for spec in specs:
        most = tuple(shapes.get(spec.name, ()))
        least = (1, *most[1:]) if most and is_open else most
        found[spec.name] = Span(least, most, most)
    return found


log = logging.getLogger("edgert.backend")
BuildOnce = Callable[..., BuildResult]
"""A function that builds one request, as :func:`~edgert.backend.tensorrt.build_process.build` does."""


@dataclass(frozen=True)
class Listener:
    """Callbacks during compilation.

    Attributes:
        report: gets a line: why an engine is compiled again, why it is tried otherwise.
        step: gets the name of what is compiled, and how far the outermost phase of the compiler is.
        stop: ends a compilation when set.
    """

    report: Callable[[str], object] = log.warning
    step: Callable[[str, int, int], object] = lambda name, done, total: None
    stop: threading.Event = field(default_factory=threading.Event)


class TrtBackend:
    """The TensorRT backend; see :class:`~edgert.backend.base.Backend`.

    One object serves all engines of a pipeline: it counts DLA programs, and gives each DLA core one job at a time.

    Args:
        machine, root: this one by default.
        library: the TensorRT of this machine by default.
        device: opens the GPU, once, with the first engine; PyCUDA's by default.
        once: builds one engine, in a separate process by default.
        listener: gets progress while engines are compiled.
    """

    name = "tensorrt"

    def __init__(
        self,
        *,
        machine: Machine | None = None,
        root: Path = Path("/"),
        library: Library | None = None,
        device: Callable[[], CudaDevice] | None = None,
        once: BuildOnce | None = None,
        listener: Listener | None = None,
    ) -> None:
        self._given_machine, self._root, self._given_library = machine, root, library
        self._open_device, self._once = device or _open_gpu, once or build
        self.listener = listener or Listener()
        self._warned = False
        self._resident: Counter[int | None] = Counter()
        self._queues: dict[int | None, Queue] = {}

    @cached_property
    def library(self) -> Library:
        """Raises DeviceError where TensorRT is not installed; the fix names how to install it."""
        return self._given_library or load()

    @cached_property
    def facts(self) -> engine_cache.Facts:
        """The properties of this machine that engines depend on."""
        return engine_cache.machine_facts(self.library, self._machine, cuda_driver(), self._root)

    @cached_property
    def _machine(self) -> Machine:
        return self._given_machine or detect(self._root)

    @property
    def timed_facts(self) -> engine_cache.Facts:
        """The properties of this machine that an engine's times depend on."""
        return {**self.facts, **({engine_cache.POWER_MODE: self.mode} if self.mode else {})}

    @property
    def mode(self) -> str:
        """The power mode that engines are compiled and run in; empty where there is none."""
        return self._machine.mode

    @cached_property
    def unsupported(self) -> str:
        """Reason why TensorRT-RTX does not support this GPU, in one line; empty where it does."""
        driver = cuda_driver()
        return unsupported(self.library, driver.gpus[0].compute) if driver is not None and driver.gpus else ""

    @cached_property
    def _device(self) -> CudaDevice:
        return self._open_device()

    def why_no_library(self) -> str:
        """Return why nothing can be compiled here, and what to install, in one line; empty if it can."""
        return self._trouble("library")

    def why_not(self) -> str:
        """Return why nothing can be compiled and run here, and what to install, in one line; empty if it can."""
        return self._trouble("library") or self._trouble("_device")

    def _trouble(self, part: str) -> str:
        try:
            getattr(self, part)
        except (DeviceError, BuildError) as error:
            return f"{error.what}: {error.why}" + (f" ({error.fix})" if error.fix else "")
        return ""

    def compile(self, model: Model, options: EngineOptions) -> TrtEngine:
        """See :class:`~edgert.backend.base.Backend`. Precision is that of the model: float32, float16, or Q/DQ.

        Raises:
            BuildError: TensorRT refuses the model, or its compiler fails; nodes are named where it reports them.
            ModelError: a profile does not fit the model's inputs, or an output's size depends on the data.
            DeviceError: TensorRT, PyCUDA or the GPU is missing; each with how to install it.
        """
        parts = parts_of(model, options) if self.library.kind == "rtx" else (Part(options),)
        facts = self.facts  # found out once, not in each thread
        with ThreadPoolExecutor(len(parts), "edgert-trt") as pool:  # plans are large, and checked when read
            known = list(pool.map(lambda part: self._known(model, part, facts), parts))
        with suppress(UnopenedError):  # then it is compiled again, which is reported
            if (found := [one for one in known if one is not None]) and len(found) == len(known):
                self._report_mode(found[0])
                return self._open_all(list(zip(parts, found, strict=True)), options.profiles, options.store)
        requests = [(part, self._request(model, part)) for part in parts]
        if len(parts) == 1:
            return self.opened(requests[0][1], options.store, options.profiles)[1]
        return self.opened_all(requests, options.store, options.profiles)[1]

    def opened_all(
        self, requests: Sequence[tuple[Part, BuildRequest]], store: Store | None, profiles: Mapping[str, Shapes]
    ) -> tuple[list[engine_cache.BuiltEngine], TrtEngine]:
        """Return the plans of a model's :func:`parts_of`, as :meth:`built` gives each, and their one engine.

        Where a cached plan no longer opens, all are compiled again, which is reported. Raises as :meth:`compile`.
        """
        made, parts = self.built_all([request for _, request in requests], store), [part for part, _ in requests]
        try:
            return made, self._open_all(list(zip(parts, made, strict=True)), profiles, store)
        except UnopenedError as error:
            if store is None or not all(one.cached for one in made):
                raise
            self._again(made[0].request, f"the cached engine no longer opens ({error.why})")
            made = [self._made(one.request, one.facts, store) for one in made]
            return made, self._open_all(list(zip(parts, made, strict=True)), profiles, store)

    def built_all(self, requests: Sequence[BuildRequest], store: Store | None) -> list[engine_cache.BuiltEngine]:
        """See :meth:`built`; at once, as most of what TensorRT-RTX takes is the start of its process."""
        with ThreadPoolExecutor(len(requests), "edgert-trt") as pool:
            try:
                return list(pool.map(lambda request: self.built(request, store), requests))
            except KeyboardInterrupt:
                self.listener.stop.set()
                raise

    def _request(self, model: Model, part: Part) -> BuildRequest:
        """See :func:`static_request`; what it comes to is cached."""
        title = {"title": part.title} if part.title else {}
        request, store = static_request(model, part.options, part.rows, **title), part.options.store
        if store is not None:
            engine_cache.cache_request(store, engine_cache.options_key(model, part.options, part.rows), request)
        return request

    def _known(self, model: Model, part: Part, facts: engine_cache.Facts) -> engine_cache.BuiltEngine | None:
        """Return the engine compiled for a model and options before; None where the request must be made first."""
        options, store = part.options, part.options.store
        known = (
            engine_cache.cached_request(store, engine_cache.options_key(model, options, part.rows)) if store else None
        )
        if store is None or known is None:
            return None
        key = engine_cache.key_of({**facts, **known[0]})
        content = store.get(key)
        request = BuildRequest(b"", {}, str(model.path), precision=known[1], **settings_of(options.builder, {}))
        with suppress(ArtifactError):  # then it is compiled again, which is reported
            if content is not None:
                return engine_cache.read_built_engine(content, request, key)
        return None

    def _open_all(
        self,
        made: Sequence[tuple[Part, engine_cache.BuiltEngine]],
        profiles: Mapping[str, Shapes],
        store: Store | None,
    ) -> TrtEngine:
        """Return one engine of the plans for these parts."""
        return self.open(made[0][1], profiles, store, {(part.profile, part.rows): one for part, one in made[1:]})

    def opened(
        self, request: BuildRequest, store: Store | None = None, profiles: Mapping[str, Shapes] | None = None
    ) -> tuple[engine_cache.BuiltEngine, TrtEngine]:
        """Return the engine of a request as :meth:`built` gives it, and opened.

        A cached one that no longer opens is removed and compiled again. An engine whose DLA reads its input in a DLA
        layout is run once, and compiled again with plain inputs if that fails. Only then does TensorRT find out whether
        the DLA takes such input from memory shared with the processor. Both are reported. Raises as :meth:`compile`.
        """
        made = self.built(request, store)
        try:
            engine = self.open(made, profiles, store)
        except UnopenedError as error:
            if not made.cached or store is None:
                raise
            self._again(request, f"the cached engine no longer opens ({error.why})")
            store.remove(made.key)
            made = self._made(request, made.facts, store)
            engine = self.open(made, profiles, store)
        plain = {name: form for name, form in made.request.formats.items() if not form.optional}
        if made.request.dla_core is None or len(plain) == len(made.request.formats):
            return made, engine
        try:
            first = engine.session()
            first.run()
            first.close()
        except (BuildError, DeviceError) as error:
            reason = f"the DLA failed with the layout of its input in the first run ({error.what})"
            self._again(request, f"{reason}, so inputs are plain")
            again = replace(made.request, formats=plain)
            made = self._made(again, made.facts, store, (*made.attempts, reason))  # cached before anything else fails
            self._resident[made.request.dla_core] -= engine.loadables
            engine.close()
            engine = self.open(made, profiles, store)
        return made, engine

    def built(self, request: BuildRequest, store: Store | None = None) -> engine_cache.BuiltEngine:
        """Return the engine of a request: from the store, else compiled, and cached there.

        Before it is compiled again the listener gets the changes since the last time. Raises as :meth:`compile`.
        """
        facts = {**self.facts, **engine_cache.request_facts(request)}
        key = engine_cache.key_of(facts)
        content = store.get(key) if store is not None else None
        if content is not None:
            try:
                made = engine_cache.read_built_engine(content, request, key)
                self._report_mode(made)
                return made
            except ArtifactError as error:
                self._again(request, f"the cached engine cannot be read ({error})")
        before = engine_cache.last_facts(store, request.title)
        if before is not None and before != facts:
            self._again(request, ", ".join(engine_cache.changes(before, facts)))
        return self._made(request, facts, store)

    def _report_mode(self, made: engine_cache.BuiltEngine) -> None:
        if self._is_other_mode(made):
            modes = f"was compiled in power mode {made.mode} and runs in {self.mode}"
            self.listener.report(f"{made.request.title} {modes}: its kernels were chosen at other clocks")

    def _is_other_mode(self, made: engine_cache.BuiltEngine) -> bool:
        return bool(made.mode and self.mode) and made.mode != self.mode  # a container may not show it

    def _again(self, request: BuildRequest, why: str) -> None:
        self.listener.report(f"{request.title} is compiled again: {why}")

    def _made(
        self, request: BuildRequest, facts: engine_cache.Facts, store: Store | None, attempts: tuple[str, ...] = ()
    ) -> engine_cache.BuiltEngine:
        """Compile a request, and cache the engine under ``facts``; ``attempts`` came before this one."""
        requested = replace(request, timing_cache=engine_cache.timing_cache(store, self.facts))
        built = build_retrying(requested, self._build, lambda attempt: self.listener.report(f"again: {attempt.reason}"))
        reasons = tuple(attempt.reason for attempt in built.attempts if attempt.reason)
        made = engine_cache.BuiltEngine(facts, built.request, built.result, (*attempts, *reasons), self.mode)
        if store is not None:
            engine_cache.cache_engine(store, made, self.facts)
        return made

    def open(
        self,
        made: engine_cache.BuiltEngine,
        profiles: Mapping[str, Shapes] | None = None,
        store: Store | None = None,
        others: Mapping[tuple[str, int], engine_cache.BuiltEngine] = MappingProxyType({}),
    ) -> TrtEngine:
        """Open an engine for running; kernels that TensorRT-RTX compiles then are cached in the store.

        ``others`` are plans of the same model for other profiles and batch sizes, where each plan has one.

        Raises:
            DeviceError: there is no GPU or PyCUDA, TensorRT-RTX refuses the GPU, or the DLA core is missing or full.
            ModelError: an output's size depends on the data.
        """
        core, loadables = made.request.dla_core, made.engine_facts.loadables
        scales = {name: form.scale for name, form in made.request.formats.items() if form.scale}
        with self._device:
            if core is not None and core not in self._queues:  # which so gets one job at a time
                self._queues[core] = Queue(self._device.stream(), threading.RLock())
            engine = TrtEngine(
                made.result.plan,
                self.library,
                self._device,
                queue=self._queues.get(core),
                profiles=profiles or {DEFAULT_PROFILE: {}},
                scales=scales,
                dla_core=core,
                loadables=loadables,
                resident=self._resident[core],
                host_code=made.request.version_compatible,
                cache_entry=_cache_entry(store, made),
                others={part: (one.result.plan, _cache_entry(store, one)) for part, one in others.items()},
                title=made.request.title,
            )
        self._resident[core] += loadables  # none where there is no core
        compiled = {
            "precision": made.request.precision,
            "cached": all(one.cached for one in (made, *others.values())),
            "compile_s": sum(one.result.seconds for one in (made, *others.values())),
            "attempts": list(made.attempts),
        }
        if "unsupported" in engine.info and not self._warned:
            self._warned = True
            self.listener.report(f"this GPU's compute capability {engine.info['unsupported']}: it is run all the same")
        modes = {"compiled_in": made.mode, "runs_in": self.mode} if self._is_other_mode(made) else {}
        engine.info = {**engine.info, **compiled, **modes}
        return engine

    def _build(self, request: BuildRequest) -> BuildResult:
        listener = self.listener

        def step(progress: Progress) -> None:
            if not progress.parent:
                listener.step(request.title, progress.step, progress.steps)

        wanted: Wanted = "tensorrt_rtx" if self.library.kind == "rtx" else "tensorrt"
        return self._once(request, wanted=wanted, progress=step, cancel=listener.stop)


def _cache_entry(store: Store | None, made: engine_cache.BuiltEngine) -> CacheEntry | None:
    return CacheEntry(store, engine_cache.kernels_key(made.facts)) if store is not None else None


def _open_gpu() -> CudaDevice:
    driver = cuda_driver()
    if driver is None or not driver.gpus:
        why = "there is no CUDA driver (libcuda.so.1)" if driver is None else driver.trouble or "its driver drives none"
        raise DeviceError("there is no NVIDIA GPU here", why=why, code="E805")
    return open_device()
