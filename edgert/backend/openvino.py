"""OpenVINO on the CPU, the fastest engine for INT8 on many x86 and Arm processors. Extra ``edgert[openvino]``.

The only module that imports the openvino package (Apache-2.0).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from edgert import installation
from edgert.backend import base
from edgert.board.host import core_count
from edgert.errors import BuildError, DeviceError
from edgert.graph import Model, TensorSpec, clean, inputs, outputs, to_bytes, with_shapes
from edgert.memory import aligned_empty


class OpenVinoBackend:
    """OpenVINO backend that compiles for latency. As many calls run in parallel as the cores allow."""

    name = "openvino"

    def compile(self, model: Model, options: base.EngineOptions) -> OpenVinoEngine:
        """See :class:`~edgert.backend.base.Backend`.

        Compiled models are not cached in the store: OpenVINO compiles about as fast as it would load them. Raises
        BuildError: OpenVINO does not support the model, or it has a custom operator. Raises ModelError: a profile does
        not fit the model's inputs, or leaves a dimension open. Raises DeviceError: OpenVINO is not installed.
        """
        base.refuse_custom_operators(model, "OpenVINO")
        started = time.perf_counter()
        profiles = options.profiles or {base.DEFAULT_PROFILE: {}}
        models = {name: with_shapes(model, shapes) if shapes else model for name, shapes in profiles.items()}
        open_batch = base.has_open_batch(spec.shape for spec in inputs(model))
        compiled = {
            name: _compile(clean(model if open_batch else each)[0], inputs(each), open_batch, options.threads)
            for name, each in models.items()
        }
        info = {
            "backend": self.name,
            "version": _openvino().__version__.partition("-")[0],
            "threads": options.threads,
            "cached": False,
            "compile_s": round(time.perf_counter() - started, 3),
        }
        return OpenVinoEngine(model, models, compiled, info)


def why_not() -> str:
    """Return in one line why OpenVINO cannot run models here, and what to install; empty if it can."""
    try:
        _openvino()
    except DeviceError as error:
        return f"{error.what}: {error.fix}"
    return ""


class OpenVinoEngine:
    """Model compiled by OpenVINO; see :class:`~edgert.backend.base.Engine`. ``models`` have the shapes of profiles."""

    def __init__(
        self, model: Model, models: Mapping[str, Model], compiled: Mapping[str, Any], info: Mapping[str, Any]
    ) -> None:
        self._compiled, self._models, self.path = dict(compiled), models, str(model.path)
        self.info: Mapping[str, Any] = info
        self.profiles = tuple(compiled)
        declared_in, declared_out = inputs(model), outputs(model)
        self.dynamic_batch = base.has_open_batch(spec.shape for spec in declared_in)
        self.outputs_known = all(spec.is_static for spec in outputs(models[self.profiles[0]]))
        self.batched = base.share_first_dimension([s.shape for s in declared_in], [s.shape for s in declared_out])
        first = self.session()
        self.inputs = tuple(base.Tensor(name, array.shape, array.dtype.name) for name, array in first.inputs.items())
        names = [spec.name for spec in declared_out]
        self.outputs = tuple(
            base.Tensor(name, array.shape, array.dtype.name) for name, array in zip(names, first.run(), strict=True)
        )
        if self.dynamic_batch:
            self.batched = tuple(
                known or (first.rows > 1 and bool(t.shape) and t.shape[0] == first.rows)
                for known, t in zip(self.batched, self.outputs, strict=True)
            )

    def session(self, profile: str | None = None) -> OpenVinoSession:
        if not self._compiled:
            raise base.closed_error(self.path)
        name = base.checked_profile(profile, self.profiles, self.path)
        specs = inputs(self._models[name])
        return OpenVinoSession(self._compiled[name], specs, self.dynamic_batch, self.outputs_known, self.path)

    def close(self) -> None:
        """Drop the compiled models."""
        self._compiled.clear()


class OpenVinoSession:
    """Session with host tensors that one OpenVINO inference request reads and writes in place."""

    def __init__(self, compiled: Any, specs: Sequence[TensorSpec], dynamic: bool, known: bool, path: str) -> None:
        self._compiled, self._known, self._path = compiled, known, path
        self.inputs: Mapping[str, base.Array] = {
            spec.name: base.bound_input(spec.name, spec.shape, spec.dtype, path) for spec in specs
        }
        self.dynamic = dynamic
        self.rows = base.row_count(self.inputs.values())
        self._runs: dict[int, Callable[[], Sequence[base.Array]]] = {}

    def run(self, rows: int | None = None) -> Sequence[base.Array]:
        count = base.checked_rows(rows if self.dynamic else None, self.rows, self._path)
        run = self._runs.get(count)
        try:
            if run is None:
                run = self._runs[count] = self._bind(count)
            return run()
        except RuntimeError as error:
            raise BuildError("OpenVINO failed while running", why=_reason(error), where=self._path) from error

    def _bind(self, rows: int) -> Callable[[], Sequence[base.Array]]:
        """Return a run of the first rows of the inputs, into outputs with the shapes of a first run."""
        tensor = _openvino().Tensor
        request = self._compiled.create_infer_request()
        for position, array in enumerate(self.inputs.values()):
            request.set_input_tensor(position, tensor(array[:rows] if self.dynamic else array, shared_memory=True))
        count = len(self._compiled.outputs)

        def infer() -> Sequence[base.Array]:
            request.start_async()  # unlike infer(), it does not copy the outputs
            request.wait()
            return [request.get_output_tensor(position).data for position in range(count)]

        if not self._known:
            return infer
        # OpenVINO reports the shape of a scalar as (1,) or (); the returned array has the right one.
        bound = [aligned_empty(array.shape, array.dtype) for array in infer()]
        for position, array in enumerate(bound):
            request.set_output_tensor(position, tensor(array, shared_memory=True))

        def run() -> Sequence[base.Array]:
            request.start_async()
            request.wait()
            return bound

        run()
        return run


def _compile(model: Model, specs: Sequence[TensorSpec], open_batch: bool, threads: int | None) -> Any:
    """Compile with one stream per group of ``threads`` cores, so that requests of several sessions run in parallel.

    An open batch may have up to as many rows as ``specs``.
    """
    ov = _openvino()
    cores = core_count()
    stream_threads = min(threads or cores, cores)
    streams = max(cores // stream_threads, 1)
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": str(streams),
        "INFERENCE_NUM_THREADS": str(streams * stream_threads),
        "ENABLE_CPU_PINNING": "NO",  # readers and encoders share the cores
        "INFERENCE_PRECISION_HINT": "f32",  # keeps the model's precision on processors with bfloat16
    }
    try:
        core = ov.Core()
        network = core.read_model(to_bytes(model), b"")
        if open_batch:
            network.reshape({spec.name: [(1, spec.shape[0]), *spec.shape[1:]] for spec in specs})
        return core.compile_model(network, "CPU", settings)
    except RuntimeError as error:
        raise BuildError(
            "OpenVINO cannot run this model",
            why=_reason(error),
            where=str(model.path),
            fix="backend: ort runs more operators",
        ) from error


def reference_run(path: Path, feeds: Mapping[str, base.Array], threads: int) -> tuple[str, base.RunOnce]:
    """Return ``"openvino 2026.4.1"``, and a function that runs a model once, as in OpenVINO's documentation.

    All options but the threads are defaults, as in :func:`edgert.backend.ort.cpu.reference_run`.
    """
    ov = _openvino()
    arrays = dict(feeds)
    try:
        compiled = ov.Core().compile_model(str(path), "CPU", {"INFERENCE_NUM_THREADS": str(threads)})
        compiled(arrays)
    except RuntimeError as error:
        raise BuildError("OpenVINO cannot run this model", why=_reason(error), where=str(path)) from error
    names = [port.any_name for port in compiled.outputs]
    version = ov.__version__.partition("-")[0]
    return f"openvino {version}", lambda: dict(zip(names, compiled(arrays).values(), strict=True))


def _reason(error: Exception) -> str:
    """Return the line of the message with the cause, after those that name OpenVINO's source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return (causes or lines or [type(error).__name__])[0]


@lru_cache(maxsize=1)
def _openvino() -> ModuleType:
    try:
        import openvino
    except ImportError as error:
        raise DeviceError("OpenVINO is not installed", why=str(error), fix=installation.command("openvino")) from error
    module: ModuleType = openvino
    return module
