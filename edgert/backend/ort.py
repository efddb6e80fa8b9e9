"""ONNX Runtime on the CPU: the engine that runs anywhere, and the only door to the onnxruntime package."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, Array, EngineOptions, Shapes, Store, Tensor, share_first_dimension
from edgert.errors import ArtifactError, BuildError, DeviceError, ModelError, nearest
from edgert.graph.clean import clean
from edgert.graph.model import Model, to_bytes
from edgert.graph.shape import with_shapes
from edgert.graph.spec import inputs
from edgert.memory import aligned_empty

log = logging.getLogger("edgert.backend")

_RECIPE = 1
"""Part of the cache key: raise it when edgert prepares a model in another way."""
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


class OrtBackend:
    """Compiles with all of ONNX Runtime's graph optimisations and keeps the optimised model in the store."""

    name = "ort"

    def compile(self, model: Model, options: EngineOptions) -> OrtEngine:
        """See :class:`~edgert.backend.base.Backend`.

        Raises:
            BuildError: ONNX Runtime cannot take the model; the node it stumbled over is named where it tells.
            ModelError: a profile does not fit the model's inputs.
        """
        started = time.perf_counter()
        profiles = options.profiles or {DEFAULT_PROFILE: {}}
        static = next(iter(profiles.values())) if len(profiles) == 1 else {}
        if not static:
            for shapes in profiles.values():
                with_shapes(model, shapes)  # raises where they do not fit; one engine then serves all of them
        session, cached = _session(model, static, options)
        info = {
            "backend": self.name,
            "version": _ort().__version__,
            "threads": options.threads,
            "cached": cached,
            "compile_s": round(time.perf_counter() - started, 3),
        }
        return OrtEngine(session, profiles, str(model.path), info)


class OrtEngine:
    """See :class:`~edgert.backend.base.Engine`. ONNX Runtime sessions run from several threads at once."""

    def __init__(self, session: Any, profiles: Mapping[str, Shapes], path: str, info: Mapping[str, Any]) -> None:
        self._ort_session, self._profiles, self.path = session, profiles, path
        self.info: Mapping[str, Any] = info
        self.profiles = tuple(profiles)
        first = self.session()
        self.inputs = tuple(Tensor(name, array.shape, array.dtype.name) for name, array in first.inputs.items())
        specs, arrays = session.get_outputs(), first.run()
        self.outputs = tuple(
            Tensor(out.name, array.shape, array.dtype.name) for out, array in zip(specs, arrays, strict=True)
        )
        self.outputs_known = not _has_open_outputs(session)
        declared = share_first_dimension([arg.shape for arg in session.get_inputs()], [out.shape for out in specs])
        self.batched = tuple(
            known or _looks_batched(out.shape, array.shape, first.rows)
            for known, out, array in zip(declared, specs, arrays, strict=True)
        )
        self.dynamic_batch = first.dynamic

    def session(self, profile: str | None = None) -> OrtSession:
        """A new set of bound tensors."""
        name = profile or self.profiles[0]
        if self._ort_session is None:
            raise ModelError("the engine is closed", why="its memory was given back", where=self.path)
        if name not in self._profiles:
            raise ModelError(
                f"no profile {name!r}{nearest(name, self.profiles)}",
                where=self.path,
                fix=f"profiles: {', '.join(self.profiles)}",
            )
        return OrtSession(self._ort_session, self._profiles[name], self.path)

    def close(self) -> None:
        """Drops ONNX Runtime's session."""
        self._ort_session = None


class OrtSession:
    """See :class:`~edgert.backend.base.Session`: cache-line-aligned host tensors, bound once."""

    def __init__(self, session: Any, shapes: Shapes, path: str) -> None:
        self._session, self._path = session, path
        self.inputs: Mapping[str, Array] = {arg.name: _bound_input(arg, shapes, path) for arg in session.get_inputs()}
        self.rows = min((array.shape[0] for array in self.inputs.values() if array.ndim), default=1)
        batches = {arg.shape[0] if arg.shape else 1 for arg in session.get_inputs()}
        self.dynamic = len(batches) == 1 and not isinstance(batches.pop(), int)
        self._runs: dict[int, Callable[[], Sequence[Array]]] = {}

    def run(self, rows: int | None = None) -> Sequence[Array]:
        """Runs; see :class:`~edgert.backend.base.Session`.

        Raises:
            BuildError: ONNX Runtime fails.
            ModelError: more rows than there are, or none.
        """
        count = self.rows if rows is None or not self.dynamic else rows
        if not 1 <= count <= self.rows:
            raise ModelError(f"cannot run {count} rows", why=f"this session has {self.rows}", where=self._path)
        run = self._runs.get(count)
        try:
            if run is None:
                run = self._runs[count] = self._bind(count)
            return run()
        except _ort_errors() as error:
            raise BuildError("ONNX Runtime failed while running", why=_first_line(error), where=self._path) from error

    def _bind(self, rows: int) -> Callable[[], Sequence[Array]]:
        """Binds the first ``rows`` rows of the inputs, and outputs of the shapes that a first run shows."""
        binding = self._session.io_binding()
        inputs = {name: array[:rows] if rows < self.rows else array for name, array in self.inputs.items()}
        for name, array in inputs.items():
            _bind_array(binding.bind_input, name, array)
        specs = self._session.get_outputs()
        if _has_open_outputs(self._session):
            return self._unbound(binding, [out.name for out in specs])
        first = self._session.run(None, inputs)
        outputs = [aligned_empty(array.shape, array.dtype) for array in first]
        for out, array in zip(specs, outputs, strict=True):
            _bind_array(binding.bind_output, out.name, array)
        for array, value in zip(outputs, first, strict=True):
            array[...] = value
        session = self._session

        def run() -> Sequence[Array]:
            session.run_with_iobinding(binding)
            return outputs

        return run

    def _unbound(self, binding: Any, names: Sequence[str]) -> Callable[[], Sequence[Array]]:
        """For outputs whose size depends on the data, as after NonMaxSuppression: ONNX Runtime allocates them."""
        session = self._session

        def run() -> Sequence[Array]:
            for name in names:
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding)
            return [value.numpy() for value in binding.get_outputs()]

        return run


def _has_open_outputs(session: Any) -> bool:
    """Whether the size of an output depends on the data: it has a dimension that no input has."""
    known = {dim for arg in session.get_inputs() for dim in arg.shape if isinstance(dim, str)}
    dims = [dim for out in session.get_outputs() for dim in out.shape]
    return any(dim is None or (isinstance(dim, str) and dim not in known) for dim in dims)


def _looks_batched(declared: Sequence[object], seen: Sequence[int], rows: int) -> bool:
    """Whether an output whose first dimension the exporter left open turned out to be as long as the batch."""
    return rows > 1 and len(seen) > 0 and seen[0] == rows and not isinstance(declared[0], int)


def _bind_array(bind: Callable[..., None], name: str, array: Array) -> None:
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _bound_input(arg: Any, shapes: Shapes, path: str) -> Array:
    if arg.type not in _DTYPES:
        raise ModelError(f"input {arg.name!r} is a {arg.type}", why="edgert feeds plain tensors only", where=path)
    shape = shapes.get(arg.name) or tuple(arg.shape)
    if not all(isinstance(dim, int) for dim in shape):
        raise ModelError(
            f"input {arg.name!r} has dynamic dimensions {list(shape)}",
            why="tensors are bound once, so their size must be known",
            where=path,
            fix=f"write input: size, or a profile: profiles: {{default: {{{arg.name}: [1, 3, 320, 320]}}}}",
        )
    tensor = aligned_empty(shape, _DTYPES[arg.type])
    tensor.fill(0)
    return tensor


def _session(model: Model, static: Shapes, options: EngineOptions) -> tuple[Any, bool]:
    """An ONNX Runtime session and whether its optimised model came from the store."""
    ort = _ort()
    key = _key(model, static)
    cached = options.store.get(key) if options.store else None
    settings = _settings(options)
    if cached is not None:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return _open(str(cached), settings, model), True
    ready = _prepared(model, static, settings)
    if options.store is None:
        return _open(to_bytes(ready), settings, model), False
    with tempfile.TemporaryDirectory(prefix="edgert-") as folder:
        content = Path(folder) / "optimised.onnx"
        settings.optimized_model_filepath = str(content)
        session = _open(to_bytes(ready), settings, model)
        _keep(options.store, key, content)
    return session, False


def _prepared(model: Model, static: Shapes, settings: Any) -> Model:
    """The model with a profile's shapes fixed and cleaned; a batch of several rows stays open, for runs of fewer."""
    open_batch = {
        spec.shape[0]
        for spec in inputs(model)
        if spec.shape and not isinstance(spec.shape[0], int) and static.get(spec.name, (1,))[0] > 1
    }
    if not open_batch:
        return clean(with_shapes(model, static) if static else model)[0]
    with_shapes(model, static)  # raises where they do not fit
    for spec in inputs(model):
        for dim, size in zip(spec.shape, static.get(spec.name, ()), strict=False):
            if isinstance(dim, str) and dim not in open_batch:
                settings.add_free_dimension_override_by_name(dim, size)
    return clean(model)[0]


def _keep(store: Store, key: str, content: Path) -> None:
    """A cache that cannot be written costs time at the next start, nothing else."""
    try:
        store.put(key, content)
    except ArtifactError as error:
        log.warning("%s", error)


def _settings(options: EngineOptions) -> Any:
    ort = _ort()
    settings = ort.SessionOptions()
    settings.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.inter_op_num_threads = 1
    settings.intra_op_num_threads = options.threads or 0
    settings.log_severity_level = 3  # its warnings name nodes of the optimised graph, which help nobody
    return settings


def _open(source: str | bytes, settings: Any, model: Model) -> Any:
    try:
        return _ort().InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    except _ort_errors() as error:
        raise BuildError(
            "ONNX Runtime cannot run this model",
            why=_first_line(error),
            where=str(model.path),
            fix="edgert inspect MODEL lists its operators; export it again with standard ONNX operators",
        ) from error


def _key(model: Model, static: Shapes) -> str:
    """What an optimised model depends on: the model, our preparation, ONNX Runtime, and the CPU's instructions."""
    facts = [_RECIPE, model.digest, sorted((k, list(v)) for k, v in static.items()), _ort().__version__, _cpu()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def _cpu() -> str:
    """Machine and instruction-set flags; ONNX Runtime chooses tensor layouts by them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return f"{platform.machine()} {flags}"


def _ort() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise DeviceError(
            "ONNX Runtime is not installed", why=str(error), fix="pip install onnxruntime, or onnxruntime-gpu"
        ) from error
    module: ModuleType = onnxruntime
    return module


@lru_cache(maxsize=1)
def _ort_errors() -> tuple[type[Exception], ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = [value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*found, RuntimeError, ValueError)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
