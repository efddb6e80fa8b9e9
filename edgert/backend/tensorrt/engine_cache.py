"""Built engines in a store: what an engine depends on, its record, and what is cached with it."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgert._version import __version__
from edgert.backend.base import EngineOptions, Shapes, Store, cache_content
from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.build_process import BuildResult, plain_result, result_of
from edgert.backend.tensorrt.build_request import GPU, BuildRequest, Format, Pools, Precision
from edgert.backend.tensorrt.engine_layers import EngineFacts, engine_facts, logged_facts
from edgert.backend.tensorrt.library import Library, full_version
from edgert.board import Machine
from edgert.board.detect import package_version
from edgert.board.devices import CudaDriver
from edgert.errors import ArtifactError, DeviceError
from edgert.graph import Model

# What an engine depends on: the machine it is built on and runs on, and what was asked for. Each has a name.
#
# An engine that was built under other facts is never run, and never built again without saying which of them
# changed.

Facts = Mapping[str, str]
"""Name → value, both readable. A value that begins with ``#`` is a digest."""

POWER_MODE = "power mode"
"""A fact that times depend on, but engines do not: they run in every mode, with one mode's fastest kernels."""
DLA_COMPILER = "nvidia-l4t-dla-compiler"
"""Debian package of Jetson Linux with the DLA's compiler: https://docs.nvidia.com/jetson/archives/."""
_RECIPE = "2"
"""Raise it when edgert drives TensorRT in another way, so that engines are built again."""


def machine_facts(library: Library, machine: Machine, driver: CudaDriver | None, root: Path = Path("/")) -> Facts:
    """Return the properties of a machine that an engine depends on; absent ones are left out."""
    gpu = driver.gpus[0] if driver is not None and driver.gpus else None
    found = {
        "TensorRT": full_version(library, root),
        "module": machine.name,
        "L4T": machine.l4t,
        "GPU": f"{gpu.name}, compute {gpu.compute}" if gpu else "",
        "CUDA driver": driver.version if driver is not None else "",
        "DLA software": package_version(DLA_COMPILER, root) if machine.is_jetson else "",
    }
    return {name: value for name, value in found.items() if value}


def request_facts(request: BuildRequest) -> Facts:
    """Return the properties of a request. The timing cache makes no difference: it only saves time."""
    placed = {name: where for name, where in request.placement.items() if where != GPU}
    settings = [request.version_compatible]
    settings += [request.sparse] if request.sparse else []
    formats = {name: asdict(form) for name, form in request.formats.items()}
    shapes = [{name: asdict(span) for name, span in one.items()} for one in request.profiles]
    operators = {"operators": _digest([_digest(Path(file).read_bytes()) for file in request.operators])}
    return {
        **(operators if request.operators else {}),
        "model": _digest(request.model),
        "precision": request.precision,
        "placement": _digest(placed) if placed else GPU,
        "float16 nodes": _digest(request.fp16_nodes) if request.fp16_nodes else "none",
        "calibration": _digest(request.calibration) if request.calibration else "none",
        "shapes": _digest(shapes) if request.profiles else "static",
        "formats": _digest(formats) if formats else "plain",
        "memory pools": _digest(asdict(request.pools)),
        "settings": _digest([*settings, request.optimization_level, request.compute, _RECIPE]),
    }


def key_of(facts: Facts) -> str:
    """Return the key under which an engine is cached. Equal facts give equal keys."""
    return f"trt-{hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:40]}"


def kernels_key(facts: Facts) -> str:
    """Return the key of the kernels that TensorRT-RTX compiles when this engine first runs."""
    return key_of(facts).replace("trt-", "trt-kernels-", 1)


def changes(before: Facts, now: Facts) -> tuple[str, ...]:
    """Return the differences in words: ``TensorRT 10.3.0 → 10.7.0``, ``another model``."""
    found = []
    for name in dict.fromkeys((*now, *before)):
        pair = before.get(name, ""), now.get(name, "")
        if all(value.startswith("#") for value in pair) and pair[0] != pair[1]:
            found.append(f"other {name}" if name.endswith("s") else f"another {name}")
        elif pair[0] != pair[1]:
            shown = [f"{value[:9]}…" if value.startswith("#") else value or "unknown" for value in pair]
            found.append(f"{name} {' → '.join(shown)}")
    return tuple(found)


def _digest(value: object) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return f"#{hashlib.sha256(content).hexdigest()[:40]}"


_SCHEMA = 2


@dataclass(frozen=True, slots=True, eq=False)
class BuiltEngine:
    """An engine that can be opened.

    Attributes:
        facts: under which it was built.
        request: what was built in the end; placement, pools and formats may differ from what was asked for.
        result: the plan, and TensorRT's log.
        attempts: why it was tried otherwise, each in words; empty where the first try went well.
        mode: the board's power mode while it was compiled; empty where there is none.
        cached: whether it was there already.
    """

    facts: Facts
    request: BuildRequest
    result: BuildResult
    attempts: tuple[str, ...] = ()
    mode: str = ""
    cached: bool = False

    @property
    def key(self) -> str:
        """The key it is cached under."""
        return key_of(self.facts)

    @property
    def engine_facts(self) -> EngineFacts:
        """Its layers: from the inspector, else from the log."""
        return engine_facts(self.result.inspector) if self.result.inspector else logged_facts(self.result.log)

    @property
    def record(self) -> bytes:
        """Everything but the plan, as JSON on one line."""
        plain = {
            "schema": _SCHEMA,
            "facts": dict(self.facts),
            "placement": dict(self.request.placement),
            "pools": asdict(self.request.pools),
            "formats": {name: asdict(form) for name, form in self.request.formats.items()},
            "attempts": list(self.attempts),
            "power_mode": self.mode,
            "result": plain_result(self.result),
        }
        return json.dumps(plain, sort_keys=True).encode() + b"\n"

    @property
    def content(self) -> bytes:
        """All of it, as it is cached."""
        return self.record + self.result.plan


def read_built_engine(content: bytes, request: BuildRequest, where: str = "") -> BuiltEngine:
    """Read :attr:`BuiltEngine.content`, built for a request with the same facts. Raises ArtifactError."""
    record, _, plan = content.partition(b"\n")
    plain = read_record(record, where)
    formats = {name: Format(**form) for name, form in plain.get("formats", {}).items()}
    final = replace(request, placement=plain["placement"], pools=Pools(**plain["pools"]), formats=formats)
    try:
        result = result_of(plain["result"], plan)
    except ValueError as error:
        raise ArtifactError("another version of edgert cached this engine", why=str(error), where=where) from error
    return BuiltEngine(plain["facts"], final, result, tuple(plain["attempts"]), plain["power_mode"], cached=True)


def read_record(record: bytes, where: str = "") -> Mapping[str, Any]:
    """Read :attr:`BuiltEngine.record`. Raises ArtifactError for other content."""
    try:
        plain: Mapping[str, Any] = json.loads(record)
        if plain["schema"] != _SCHEMA:
            raise ValueError(f"its schema is {plain['schema']!r}, not {_SCHEMA}")
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            "this file is no engine that edgert cached",
            why=f"{type(error).__name__}: {error}",
            where=where,
            fix="remove it: the engine is then compiled again",
        ) from error
    return plain


# What is cached besides engines: under which facts each was last built, what was asked for, and what kernels took.

log = logging.getLogger("edgert.backend")


def cache_engine(store: Store, made: BuiltEngine, machine: Facts) -> None:
    """Cache an engine, its facts, and the timings measured, which hold for this machine only.

    A failed write costs time at the next start, nothing else; it is logged.
    """
    cache_content(store, made.key, made.content)
    cache_content(store, _last_key(made.request.title), json.dumps(dict(made.facts)).encode())
    if made.result.timing_cache:
        cache_content(store, _timing_key(machine), made.result.timing_cache)


def last_facts(store: Store | None, title: str) -> Facts | None:
    """Return the facts of the last engine of that title; None where there was none, or they are unknown."""
    content = store.get(_last_key(title)) if store is not None else None
    if content is None:
        return None
    try:
        return {str(name): str(value) for name, value in json.loads(content).items()}
    except (ValueError, AttributeError):  # written by another edgert: unknown
        return None


def last_build(store: Store, title: str) -> tuple[Facts, float]:
    """Return the facts of the last engine of that title, and the seconds to build it; empty and 0 when unknown."""
    facts = last_facts(store, title) or {}
    record, _, _ = (store.get(key_of(facts)) or b"").partition(b"\n")
    with suppress(ArtifactError):
        return facts, float(read_record(record)["result"]["seconds"])
    return facts, 0.0


def timing_cache(store: Store | None, machine: Facts) -> bytes:
    """Return the timings of earlier builds on this machine; empty without any."""
    return (store.get(_timing_key(machine)) if store is not None else None) or b""


def _last_key(title: str) -> str:
    return f"trt-last-{hashlib.sha256(title.encode()).hexdigest()[:40]}"


def _timing_key(machine: Facts) -> str:
    return key_of(machine).replace("trt-", "trt-timing-", 1)


def options_key(model: Model, options: EngineOptions, rows: int) -> str:
    """Return the key of the request for a model and options; making the request takes seconds for a large model.

    0 ``rows`` means those of the options.
    """
    shapes = {name: asdict(span) for name, span in options.spans.items()}
    profiles = {name: dict(sizes) for name, sizes in options.profiles.items()}
    requested = [model.digest, str(model.path), profiles, shapes, options.precision, asdict(options.builder), rows]
    return f"trt-request-{_digest([__version__, _RECIPE, *requested])[1:]}"


def cache_request(store: Store, key: str, request: BuildRequest) -> None:
    """Cache a request's facts and precision, unless it has custom operators, whose files may change."""
    if not request.operators:
        plain = {"facts": dict(request_facts(request)), "precision": request.precision}
        cache_content(store, key, json.dumps(plain).encode())


def cached_request(store: Store, key: str) -> tuple[Facts, Precision] | None:
    """Return what :func:`cache_request` cached; None where there is nothing, or it is of another edgert."""
    with suppress(ValueError, KeyError, TypeError):
        plain = json.loads(store.get(key) or b"")
        return plain["facts"], plain["precision"]
    return None


# The kernels of a TensorRT-RTX engine: compiled when it first runs, cached beside its plan, found at the next start.
#
# What TensorRT-RTX builds is no code for a GPU yet. Its runtime makes that, seconds of work, and holds it in a runtime
# cache (https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/work-with-runtime-cache.html).

_PAUSES_S = 0.01, 0.1
"""Pauses before the second and the third try to read cached kernels."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Cache entry for the compiled kernels of one engine.

    Attributes:
        key: of the engine's plan, its GPU, driver and release of TensorRT-RTX.
    """

    store: Store
    key: str


class KernelCache:
    """One runtime cache for all execution contexts of an engine, so that a kernel is compiled once for all of them.

    Not for several threads at once: callers hold the lock of the engine's queue. It must outlive the contexts.

    Args:
        cache_entry: where kernels of an earlier start are found, and new ones cached; None caches nothing.
        title: of the model, for messages.
        synchronize: waits for the GPU; raises DeviceError while another thread keeps it from work like this one's.
    """

    def __init__(
        self,
        library: api.Library,
        engine: api.ICudaEngine,
        cache_entry: CacheEntry | None,
        title: str,
        synchronize: Callable[[], None],
    ) -> None:
        self._trt: api.Trt = library.trt
        self._engine: api.ICudaEngine = engine
        self._cache_entry, self._title, self._synchronize = cache_entry, title, synchronize
        self._made_by: api.IRuntimeConfig = engine.create_runtime_config()
        self._kernels: api.IRuntimeCache = self._made_by.create_runtime_cache()
        self._cached_bytes, self._ran = self._read(), set[object]()

    def context(self) -> api.IExecutionContext:
        """Return a new execution context; None where TensorRT makes none.

        Its kernels are compiled for its shapes at once (eager). By default TensorRT-RTX runs generic kernels while it
        compiles better ones in the background, and a CUDA graph would keep the generic ones:
        https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/work-with-dynamic-shapes.html.
        """
        settings: api.IRuntimeConfig = self._engine.create_runtime_config()
        settings.dynamic_shapes_kernel_specialization_strategy = (
            self._trt.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        settings.set_runtime_cache(self._kernels)
        return self._engine.create_execution_context(settings)

    def opened(self) -> None:
        """Cache the kernels of a context that was opened, if there were none: the process may end before it runs."""
        if not self._cached_bytes:
            self._cache()

    def ran(self, profile: int, shapes: Shapes) -> None:
        """Cache the kernels of a context that ran for the first time, atomically."""
        ran = profile, tuple(shapes.items())
        if ran not in self._ran:  # else another session's context brought them here
            self._ran.add(ran)
            self._cache()

    def _cache(self) -> None:
        if self._cache_entry is None:
            return
        made: api.IHostMemory = self._kernels.serialize()
        content = bytes(memoryview(made)) if made is not None else b""
        if len(content) > self._cached_bytes:  # it only ever grows
            cache_content(self._cache_entry.store, self._cache_entry.key, content)
            self._cached_bytes = len(content)

    def _read(self) -> int:
        """Read the cached kernels and return how many bytes they are; 0 where there are none to use.

        TensorRT-RTX also refuses good ones while another thread of the program records or frees on the GPU. So a
        refusal is tried again, and kernels are only removed where the GPU itself is fine: then they are damaged, or of
        another release or GPU than their key says.
        """
        content = self._cache_entry.store.get(self._cache_entry.key) if self._cache_entry is not None else None
        if content is None or self._cache_entry is None:
            log.info("%s: TensorRT-RTX compiles its kernels for this GPU, which takes seconds", self._title)
            return 0
        for pause_s in (*_PAUSES_S, None):
            if self._kernels.deserialize(content):
                return len(content)
            self._kernels = self._made_by.create_runtime_cache()
            is_disturbed = self._is_disturbed()
            if pause_s is not None:
                time.sleep(pause_s)
        if is_disturbed:
            log.warning(
                "%s: its cached kernels cannot be read while another thread uses the GPU; compiled again for now, and "
                "kept for the next start",
                self._title,
            )
            return len(content)
        log.warning("%s: its cached kernels are not those of this TensorRT-RTX and GPU: compiled again", self._title)
        self._cache_entry.store.remove(self._cache_entry.key)
        return 0

    def _is_disturbed(self) -> bool:
        """Return whether the GPU refuses ordinary work now, as it does while a CUDA graph is recorded."""
        try:
            self._synchronize()
        except DeviceError as error:
            log.debug("%s: %s", self._title, error)
            return True
        return False
