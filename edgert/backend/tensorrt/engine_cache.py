"""Built engines in a store: the facts that an engine depends on, its record, and other data cached with it."""

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgert._version import __version__
from edgert.backend.base import EngineOptions, Shapes, Store, cache_content
from edgert.backend.tensorrt import build_process, library as api
from edgert.backend.tensorrt.build_request import GPU, BuildRequest, Format, Pools, Precision
from edgert.backend.tensorrt.engine_layers import EngineFacts, engine_facts, logged_facts
from edgert.backend.tensorrt.library import Library, full_version
from edgert.board import Machine
from edgert.board.detect import package_version
from edgert.board.devices import CudaDriver
from edgert.errors import ArtifactError, BuildError, raised_as
from edgert.graph import Model

# Facts: named properties of the machine and the request that an engine depends on.
#
# An engine with other facts is never run. Before it is built again, the facts that changed are reported.

Facts = Mapping[str, str]
"""Readable values by name. A value that begins with ``#`` is a digest."""

POWER_MODE = "power mode"
"""Fact that times depend on. Engines do not: they run in every mode, with the kernels that were fastest in one."""
DLA_COMPILER = "nvidia-l4t-dla-compiler"
"""Debian package of Jetson Linux with the DLA's compiler: https://docs.nvidia.com/jetson/archives/."""
_RECIPE = "2"
"""Part of the facts, to be raised when edgert uses TensorRT differently, so that engines are built again."""


def machine_facts(library: Library, machine: Machine, driver: CudaDriver | None, root: Path = Path("/")) -> Facts:
    """Return the properties of a machine that an engine depends on, without unknown ones."""
    gpu = driver.gpus[0] if driver is not None and driver.gpus else None
    facts = {
        "TensorRT": full_version(library, root),
        "module": machine.name,
        "L4T": machine.l4t,
        "GPU": f"{gpu.name}, compute {gpu.compute}" if gpu else "",
        "CUDA driver": driver.version if driver is not None else "",
        "DLA software": package_version(DLA_COMPILER, root) if machine.is_jetson else "",
    }
    return {name: value for name, value in facts.items() if value}


def request_facts(request: BuildRequest) -> Facts:
    """Return the properties of a request that an engine depends on, without the timing cache, which only saves time."""
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
    differences = []
    for name in dict.fromkeys((*now, *before)):
        pair = before.get(name, ""), now.get(name, "")
        if all(value.startswith("#") for value in pair) and pair[0] != pair[1]:
            differences.append(f"other {name}" if name.endswith("s") else f"another {name}")
        elif pair[0] != pair[1]:
            shown = [f"{value[:9]}…" if value.startswith("#") else value or "unknown" for value in pair]
            differences.append(f"{name} {' → '.join(shown)}")
    return tuple(differences)


def _digest(value: object) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return f"#{hashlib.sha256(content).hexdigest()[:40]}"


_SCHEMA = 2


@dataclass(frozen=True, slots=True, eq=False)
class BuiltEngine:
    """A built engine.

    Attributes:
        request: request of the last attempt; placement, pools and formats may differ from the original request.
        result: plan, and data about its build.
        attempts: reasons of the retries in words; empty if the first attempt succeeded.
    """

    facts: Facts
    request: BuildRequest
    result: build_process.BuildResult
    attempts: tuple[str, ...] = ()
    mode: str = ""
    cached: bool = False

    @property
    def key(self) -> str:
        """Key of the engine in a store."""
        return key_of(self.facts)

    @property
    def engine_facts(self) -> EngineFacts:
        """Layers of the engine, from the inspector or else from the log."""
        return engine_facts(self.result.inspector) if self.result.inspector else logged_facts(self.result.log)

    @property
    def record(self) -> bytes:
        """All data but the plan, as JSON on one line."""
        plain = {
            "schema": _SCHEMA,
            "facts": dict(self.facts),
            "placement": dict(self.request.placement),
            "pools": asdict(self.request.pools),
            "formats": {name: asdict(form) for name, form in self.request.formats.items()},
            "attempts": list(self.attempts),
            "power_mode": self.mode,
            "result": build_process.plain_result(self.result),
        }
        return json.dumps(plain, sort_keys=True).encode() + b"\n"

    @property
    def content(self) -> bytes:
        """Record and plan, as they are cached."""
        return self.record + self.result.plan


def read_built_engine(content: bytes, request: BuildRequest, where: str = "") -> BuiltEngine:
    """Read :attr:`BuiltEngine.content` of a request with the same facts. Raises ArtifactError for other content."""
    record, _, plan = content.partition(b"\n")
    plain = read_record(record, where)
    odd = (ValueError, KeyError, TypeError, AttributeError, BuildError)
    with raised_as(ArtifactError, "another version of edgert cached this engine", of=odd, where=where):
        formats = {name: Format(**form) for name, form in plain["formats"].items()}
        final = replace(request, placement=plain["placement"], pools=Pools(**plain["pools"]), formats=formats)
        result = build_process.result_of(plain["result"], plan)
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
            fix="remove it, so that the engine is compiled again",
        ) from error
    return plain


# Other cached data: the facts of the last build, requests, and kernel timings.

log = logging.getLogger("edgert.backend")


def cache_engine(store: Store, built: BuiltEngine, machine: Facts) -> None:
    """Cache an engine, its facts, and the measured kernel timings, which are valid on this machine only.

    A failed write only costs time at the next start; it is logged.
    """
    cache_content(store, built.key, built.content)
    cache_content(store, _last_key(built.request.title), json.dumps(dict(built.facts)).encode())
    if built.result.timing_cache:
        cache_content(store, _timing_key(machine), built.result.timing_cache)


def last_facts(store: Store | None, title: str) -> Facts | None:
    """Return the facts of the last engine with a title; None without such an engine, or if its facts are unknown."""
    content = store.get(_last_key(title)) if store is not None else None
    if content is None:
        return None
    try:
        return {str(name): str(value) for name, value in json.loads(content).items()}
    except (ValueError, AttributeError):  # damaged, or of another edgert
        return None


def last_build(store: Store, title: str) -> tuple[Facts, float]:
    """Return the facts of the last engine with a title, and the seconds of its build; empty and 0 if unknown."""
    facts = last_facts(store, title) or {}
    record, _, _ = (store.get(key_of(facts)) or b"").partition(b"\n")
    with suppress(ArtifactError):
        return facts, float(read_record(record)["result"]["seconds"])
    return facts, 0.0


def timing_cache(store: Store | None, machine: Facts) -> bytes:
    """Return the kernel timings of earlier builds on this machine; empty without any."""
    return (store.get(_timing_key(machine)) if store is not None else None) or b""


def _last_key(title: str) -> str:
    return f"trt-last-{hashlib.sha256(title.encode()).hexdigest()[:40]}"


def _timing_key(machine: Facts) -> str:
    return key_of(machine).replace("trt-", "trt-timing-", 1)


def options_key(model: Model, options: EngineOptions, rows: int) -> str:
    """Return the key under which the request for a model and options is cached.

    ``rows`` is the fixed number of rows; 0 for that of the options.
    """
    shapes = {name: asdict(span) for name, span in options.spans.items()}
    profiles = {name: dict(sizes) for name, sizes in options.profiles.items()}
    requested = [
        model.engine_key,
        str(model.path),
        profiles,
        shapes,
        options.precision,
        options.builder.model_dump(),
        rows,
    ]
    return f"trt-request-{_digest([__version__, _RECIPE, *requested])[1:]}"


def cache_request(store: Store, key: str, request: BuildRequest) -> None:
    """Cache a request's facts and precision, as creating the request of a large model takes seconds.

    Requests with custom operators are not cached, as their files may change.
    """
    if not request.operators:
        plain = {"facts": dict(request_facts(request)), "precision": request.precision}
        cache_content(store, key, json.dumps(plain).encode())


def cached_request(store: Store, key: str) -> tuple[Facts, Precision] | None:
    """Return the data that :func:`cache_request` cached; None without any, or if it is of another edgert."""
    with suppress(ValueError, KeyError, TypeError):
        plain = json.loads(store.get(key) or b"")
        return plain["facts"], plain["precision"]
    return None


# Kernels of a TensorRT-RTX engine, cached with its plan.
#
# A plan of TensorRT-RTX contains no GPU code. Its runtime compiles kernels in seconds when the engine first runs, and
# keeps them in a runtime cache:
# https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/work-with-runtime-cache.html.

_PAUSES_S = 0.0, 0.01, 0.1
"""Pauses before each attempt to read cached kernels."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Cache entry of an engine's compiled kernels; the key depends on plan, GPU, driver and TensorRT-RTX."""

    store: Store
    key: str


class KernelCache:
    """One runtime cache for all execution contexts of an engine, so that each kernel is compiled once.

    It is not thread-safe: callers hold the lock of the engine's queue. It must outlive the contexts.
    """

    def __init__(
        self, library: api.Library, engine: api.ICudaEngine, cache_entry: CacheEntry | None, title: str
    ) -> None:
        self._trt: api.Trt = library.trt
        self._engine: api.ICudaEngine = engine
        self._cache_entry, self._title = cache_entry, title
        self._config: api.IRuntimeConfig = engine.create_runtime_config()
        self._kernels: api.IRuntimeCache = self._config.create_runtime_cache()
        self._cached_bytes, self._ran = self._read(), set[object]()

    def context(self) -> api.IExecutionContext:
        """Return a new execution context; None if TensorRT cannot create it.

        Kernels are compiled for its shapes at once (eager). By default, TensorRT-RTX runs generic kernels while it
        compiles better ones in the background, and a CUDA graph would keep the generic ones:
        https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/work-with-dynamic-shapes.html.
        """
        settings: api.IRuntimeConfig = self._engine.create_runtime_config()
        settings.dynamic_shapes_kernel_specialization_strategy = (
            self._trt.DynamicShapesKernelSpecializationStrategy.EAGER
        )
        settings.set_runtime_cache(self._kernels)
        return self._engine.create_execution_context(settings)

    def cache_after_opening(self) -> None:
        """Cache the kernels of an opened context unless some are cached, as the process may end before it runs."""
        if not self._cached_bytes:
            self._cache()

    def cache_after_first_run(self, profile: int, shapes: Shapes) -> None:
        """Cache the kernels of a context that ran for the first time."""
        ran = profile, tuple(shapes.items())
        if ran not in self._ran:  # else a context of another session has the same kernels
            self._ran.add(ran)
            self._cache()

    def _cache(self) -> None:
        if self._cache_entry is None:
            return
        serialized: api.IHostMemory = self._kernels.serialize()
        content = bytes(memoryview(serialized)) if serialized is not None else b""
        if len(content) > self._cached_bytes:  # a runtime cache only grows
            cache_content(self._cache_entry.store, self._cache_entry.key, content)
            self._cached_bytes = len(content)

    def _read(self) -> int:
        """Read the cached kernels and return their size in bytes; 0 without usable kernels.

        TensorRT-RTX also fails to read valid kernels while another thread records on the GPU, or frees its memory, so a
        failure is tried again. Kernels that stay unreadable are replaced by those that are compiled now.
        """
        content = self._cache_entry.store.get(self._cache_entry.key) if self._cache_entry is not None else None
        if content is None:
            log.info("%s: TensorRT-RTX compiles its kernels for this GPU, which takes seconds", self._title)
            return 0
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            if self._kernels.deserialize(content):
                return len(content)
            self._kernels = self._config.create_runtime_cache()
        log.warning(
            "%s: cached kernels cannot be read and are compiled again: they are of another TensorRT-RTX or GPU, or "
            "another thread uses the GPU",
            self._title,
        )
        return 0
