"""Models on ONNX Runtime's CPU provider: compiled and cached, run unchanged, or timed kernel by kernel."""

import hashlib
import json
import logging
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from edgert.backend.base import DEFAULT_PROFILE, Array, EngineOptions, RunOnce, Shapes, cache_content, deadline
from edgert.backend.ort.custom_ops import CustomOpEngine, CustomOpFunction, compile_with_custom_ops
from edgert.backend.ort.runtime import OrtEngine, first_line, open_session, ort, ort_errors, run_error, session_settings
from edgert.board.host import saturates_bytes
from edgert.errors import BuildError
from edgert.files import memory_file
from edgert.graph import PASSES, Change, Graph, Model, Pass, clean, inputs, to_bytes, with_shapes
from edgert.graph.model import all_nodes, element_type
from edgert.graph.operators import about, of_kind
from edgert.graph.type_inference import has_custom_operators

# Rewriting of stored int8 weights for processors whose byte products saturate.


def session_bytes(model: Model) -> bytes:
    """Return the model as one ONNX file for a session. Raises ModelError above 2 GiB.

    On an x86 processor without VNNI, sessions convert stored int8 to uint8 (``session.x64quantprecision``) with a
    single zero point. Runs fail for weights with a scale per channel and no zero points, so zero points are added.
    """
    if not saturates_bytes():
        return to_bytes(model)
    scales = {one.name: one.dims[0] for one in model.proto.graph.initializer if len(one.dims) == 1}
    int8, operators = element_type("int8"), of_kind("dequantize")
    stored = {one.name for one in model.proto.graph.initializer if one.data_type == int8}

    def lacks_zero_points(node: Any) -> bool:
        if node.op_type not in operators or any(node.input[2:]):
            return False
        return bool(node.input[0] in stored and node.input[1] in scales)

    if not any(map(lacks_zero_points, model.proto.graph.node)):
        return to_bytes(model)
    proto = model.copied_proto()
    for node in filter(lacks_zero_points, proto.graph.node):
        name, count = f"{node.output[0]}_zero_point", scales[node.input[1]]
        proto.graph.initializer.add(name=name, dims=[count], data_type=int8, raw_data=bytes(count))
        node.input[:] = [*node.input[:2], name]
    return to_bytes(Model(proto, model.path, model.digest))


# Times of a model's kernels, by ONNX Runtime's profiler.

_SUFFIX = "_kernel_time"
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Kernel:
    """A node of the optimized graph.

    It usually has the name of the original node, or of the tensor it writes, with a suffix.
    """

    name: str
    time_ms: float


def kernel_times(model: Model, feeds: Mapping[str, Array], runs: int) -> tuple[Kernel, ...]:
    """Return the kernels in the order in which one thread runs them. Raises BuildError if ONNX Runtime fails."""
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        settings = session_settings(1)
        settings.enable_profiling, settings.profile_file_prefix = True, str(Path(folder) / "run")
        session = open_session(session_bytes(prepare(model, {})), settings, model)
        try:
            for _ in range(_WARM_UP + runs):
                session.run(None, dict(feeds))
        except ort_errors() as error:
            raise run_error(error, ort().RunOptions(), str(model.path)) from error
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times_us: dict[str, list[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            times_us.setdefault(name.removesuffix(_SUFFIX), []).append(float(event["dur"]))  # Chrome's trace format: us
    return tuple(Kernel(name, statistics.median(times[_WARM_UP:]) / 1e3) for name, times in times_us.items())


class Function:
    """Model that ONNX Runtime runs unchanged on the CPU. Several threads may call it at once.

    Unlike an engine, it is not prepared or cached, and it allocates its outputs on every call. Without ``fused``, ONNX
    Runtime does not rewrite the graph, for example Q/DQ pairs into integer kernels: every node computes exactly what
    the ONNX standard defines. Raises BuildError: ONNX Runtime cannot load the model.
    """

    def __init__(self, model: Model, *, threads: int = 1, fused: bool = True) -> None:
        settings = session_settings(threads)
        settings.enable_cpu_mem_arena = False
        if not fused:
            settings.graph_optimization_level = ort().GraphOptimizationLevel.ORT_DISABLE_ALL
        self._where = str(model.path)
        self._may_be_endless = any(node.op_type == "Loop" for node in all_nodes(model.proto.graph))

        def open_part(part: Model) -> Any:
            return open_session(session_bytes(part), settings, part)

        self._session = CustomOpFunction(model, open_part) if has_custom_operators(model.proto) else open_part(model)
        self.inputs: tuple[str, ...] = tuple(item.name for item in self._session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(item.name for item in self._session.get_outputs())

    def __call__(self, feeds: Mapping[str, Array], wanted: Sequence[str] | None = None) -> dict[str, Array]:
        """Run once and return new arrays by output name.

        Unknown inputs are ignored; ``wanted`` are the outputs to compute, by default all. Raises BuildError: ONNX
        Runtime failed, or an input is missing or has the wrong shape.
        """
        names = list(self.outputs if wanted is None else wanted)
        given = {name: feeds[name] for name in self.inputs if name in feeds}
        options = ort().RunOptions()
        try:
            with deadline(partial(setattr, options, "terminate", True)) if self._may_be_endless else nullcontext():
                return dict(zip(names, self._session.run(names, given, options), strict=True))
        except ort_errors() as error:
            raise run_error(error, options, self._where) from error


# ONNX Runtime as its documentation shows it, with which edgert's engine is compared.


def reference_run(path: Path, feeds: Mapping[str, Array], threads: int) -> tuple[str, RunOnce]:
    """Return ``"onnxruntime 1.31.1"``, and a function that runs an ONNX file once with default options.

    Raises DeviceError: ONNX Runtime is not installed. Raises BuildError: ONNX Runtime cannot run the model.
    """
    settings = ort().SessionOptions()
    settings.intra_op_num_threads = threads
    settings.log_severity_level = 3
    arrays = dict(feeds)
    try:
        session = ort().InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        session.run(None, arrays)
    except ort_errors() as error:
        raise BuildError("ONNX Runtime cannot run this model", why=first_line(error), where=str(path)) from error
    names = [one.name for one in session.get_outputs()]
    return f"onnxruntime {ort().__version__}", lambda: dict(zip(names, session.run(None, arrays), strict=True))


# The backend: a model is prepared, optimized, and cached in the store.

log = logging.getLogger("edgert.backend")

_RECIPE = 3
"""Part of the cache key, to be raised when edgert prepares models differently."""


class OrtBackend:
    """ONNX Runtime on the CPU, with all graph optimizations; the optimized model is cached in the store."""

    name = "ort"

    @property
    def version(self) -> str:
        """Version of ONNX Runtime. Raises DeviceError if it is not installed."""
        return str(ort().__version__)

    def compile(self, model: Model, options: EngineOptions) -> OrtEngine | CustomOpEngine:
        """See :class:`~edgert.backend.base.Backend`.

        Raises BuildError: ONNX Runtime cannot load the model; the error names the node if it is known. Raises
        ModelError: a profile does not fit the model's inputs.
        """
        if has_custom_operators(model.proto):
            return compile_with_custom_ops(model, options, self._compile_standard)
        return self._compile_standard(model, options)

    def _compile_standard(self, model: Model, options: EngineOptions) -> OrtEngine:
        started = time.perf_counter()
        profiles = options.profiles or {DEFAULT_PROFILE: {}}
        static = next(iter(profiles.values())) if len(profiles) == 1 else {}
        if len(profiles) > 1:
            for shapes in profiles.values():
                with_shapes(model, shapes)  # raises if they do not fit; one engine serves all of them
        session, cached = _session(model, static, options)
        info = {
            "backend": self.name,
            "version": self.version,
            "threads": options.threads,
            "cached": cached,
            "compile_s": round(time.perf_counter() - started, 3),
        }
        return OrtEngine(session, profiles, str(model.path), info)


def _session(model: Model, static: Shapes, options: EngineOptions) -> tuple[Any, bool]:
    """Return an ONNX Runtime session, and whether its optimized model came from the store."""
    # An optimized model depends on the model, edgert's preparation, ONNX Runtime, and the CPU's instructions.
    shapes = sorted((name, list(shape)) for name, shape in static.items())
    facts = [_RECIPE, model.engine_key, shapes, options.tuning.optimization, ort().__version__, _cpu()]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    cached = options.store.open(key) if options.store else None
    settings = session_settings(options.threads, options.tuning)
    if cached is not None:
        unoptimized = session_settings(options.threads, options.tuning)
        unoptimized.graph_optimization_level = ort().GraphOptimizationLevel.ORT_DISABLE_ALL
        with suppress(BuildError):  # ONNX Runtime may refuse a Loop that it wrote, such as in Mask R-CNN
            return open_session(cached, unoptimized, model), True
    if not static and len(options.profiles) < 2:
        with_shapes(model, {})  # raises if the model's own shapes are not static
    prepared = prepare(model, static)
    fix_other_dimensions(settings, model, static)
    content = session_bytes(prepared)
    if options.store is None or cached is not None:
        return open_session(content, settings, model), False
    with memory_file(b"") as optimized:  # needs no disk, and is gone with this process, however that ends
        settings.optimized_model_filepath = f"/proc/self/fd/{optimized.fileno()}"
        session = open_session(content, settings, model)
        cache_content(options.store, key, optimized.read())
    return session, False


def prepare(model: Model, static: Shapes) -> Model:
    """Return the cleaned model with a profile's shapes; a batch of several rows stays open for smaller runs."""
    fixed = with_shapes(model, static) if static else model  # raises if they do not fit
    return clean(model if open_batch_names(model, static) else fixed, (*PASSES, SPECKS))[0]


_SPECK = float(np.sqrt(np.finfo(np.float32).tiny))


def _remove_specks(graph: Graph) -> tuple[Graph, tuple[Change, ...]]:
    changed = {}
    for name, array in graph.constants.items():
        is_weight = array.dtype == np.float32 and all(about(node.op).work for node in graph.consumers.get(name, ()))
        if is_weight and (small := (array != 0) & (np.abs(array) < _SPECK)).any():
            changed[name] = np.where(small, np.float32(0), array)
    if not changed:
        return graph, ()
    changes = (Change(SPECKS.name, name, f"weights below {_SPECK:.1g} became zero") for name in changed)
    return replace(graph, constants={**graph.constants, **changed}), tuple(changes)


SPECKS = Pass(
    "remove-specks",
    "weights that are multiplied become zero if their squares are subnormal",
    _remove_specks,
)
"""Pass that speeds up networks in which weight decay left subnormal weights.

x86 processors take some hundred cycles for an operation on a subnormal number. Such networks take up to five times as
long, for sums that differ by less than 1e-18 of the inputs."""


def open_batch_names(model: Model, static: Shapes) -> frozenset[str | None]:
    """Return the names of first dimensions that stay open, for runs of fewer rows than a profile has."""
    firsts = ((spec.shape[0], static.get(spec.name, (1,))[0]) for spec in inputs(model) if spec.shape)
    return frozenset(dim for dim, rows in firsts if not isinstance(dim, int) and rows > 1)


def fix_other_dimensions(settings: Any, model: Model, static: Shapes) -> None:
    """Set a profile's sizes in session options for all open dimensions except the batch."""
    batch_names = open_batch_names(model, static)
    for spec in inputs(model) if batch_names else ():
        for dim, size in zip(spec.shape, static.get(spec.name, ()), strict=False):
            if isinstance(dim, str) and dim not in batch_names:
                settings.add_free_dimension_override_by_name(dim, size)


@lru_cache(maxsize=1)
def _cpu() -> str:
    """Return the machine type and its instruction-set flags, by which ONNX Runtime chooses tensor layouts."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {flags}"
