"""ONNX Runtime's CUDA provider on edgert's stream and memory.

Tensors are bound once (I/O binding), and written and read on the GPU or by the host. A run can be recorded as a CUDA
graph. Provider and run options: https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from edgert.backend import base
from edgert.backend.gpu import GpuTensor, HostSides, OnHost
from edgert.backend.ort import cpu, cuda_model, runtime
from edgert.board.detect import is_jetson
from edgert.config.model_section import TuningConfig
from edgert.errors import BuildError, DeviceError, EdgertError
from edgert.graph import Model, read, with_shapes
from edgert.graph.count import peak_bytes
from edgert.memory.cuda import CudaDevice, Stream, driver, open_device
from edgert.units import format_bytes

_PROVIDER = "CUDAExecutionProvider"

log = logging.getLogger("edgert.backend")

_LOG_ERRORS = 3  # ORT_LOGGING_LEVEL_ERROR

_FIX = "pip install onnxruntime-gpu in place of onnxruntime: docs/gpu.md has the lines"
_JETSON_FIX = (
    "use engines: [tensorrt], for which scripts/setup-jetson installs what is missing; JetPack 6 "
    "(Python 3.10 on aarch64) has no wheel of onnxruntime-gpu"
)


class OrtCudaBackend:
    """ONNX Runtime's CUDA provider.

    Nodes that it does not support run on the CPU, and ONNX Runtime copies their tensors. Convolutions of float32 models
    use TF32 by default, as in PyTorch. The prepared model is cached in the store; ONNX Runtime cannot save its
    convolution plans, and creates them at every start.
    """

    name = "onnxruntime-cuda"

    def __init__(self, device: CudaDevice | None = None) -> None:
        self._device = device

    def compile(self, model: Model, options: base.EngineOptions) -> OrtCudaEngine:
        """See :class:`~edgert.backend.base.Backend`.

        Raises DeviceError: there is no GPU, no PyCUDA, no CUDA provider, or too little GPU memory. Raises BuildError:
        ONNX Runtime cannot load the model, or cannot start its provider. Raises ModelError: a profile does not fit, or
        the size of an output is unknown.
        """
        check_provider()
        base.refuse_custom_operators(model, "ONNX Runtime on CUDA")
        started = time.perf_counter()
        device = self._device or open_device()
        profiles = options.profiles or {base.DEFAULT_PROFILE: {}}
        static = next(iter(profiles.values())) if len(profiles) == 1 else {}
        content, cached = cuda_model.prepare_cached(model, profiles, static, options.store)
        settings = runtime.session_settings(options.threads, options.tuning)
        settings.log_severity_level = 3  # why a library of CUDA cannot be loaded is logged only
        cpu.fix_other_dimensions(settings, model, static)
        info = {
            "backend": self.name,
            "version": str(runtime.ort().__version__),
            "device": device.name,
            "cached": cached,
        }

        def open_engine(layout: Mapping[str, str]) -> OrtCudaEngine:
            stream, free = device.stream(), device.free_bytes()[0]
            provider = {**provider_options(device, stream, options.tuning), **layout}
            with device.recording:  # opening waits for all work of the GPU, which fails while work is recorded
                session = open_on_gpu(content, settings, provider, model)
            engine = OrtCudaEngine(session, profiles, str(model.path), info, device, stream)
            engine.nbytes = max(len(content), free - device.free_bytes()[0])
            return engine

        try:
            engine = _open_in_best_layout(open_engine, options.tuning.channels_last, str(model.path))
        except (BuildError, DeviceError) as error:
            if not is_out_of_memory(error):
                raise
            raise memory_error(model, static, device) from error
        info["compile_s"] = round(time.perf_counter() - started, 3)
        return engine


def _open_in_best_layout(
    open_engine: Callable[[Mapping[str, str]], OrtCudaEngine], channels_last: bool, path: str
) -> OrtCudaEngine:
    """Return the engine with NHWC kernels, or with NCHW kernels if cuDNN lacks one of them."""
    if channels_last:
        try:
            return open_engine({"prefer_nhwc": "1"})
        except BuildError as error:
            if is_out_of_memory(error):
                raise
            log.info("%s: channels-last kernels are not used: %s", path, error.why)
    return open_engine({})


def provider_options(device: CudaDevice, stream: Stream, tuning: TuningConfig) -> dict[str, str]:
    """Return the options of the CUDA provider as text."""
    return {
        "device_id": str(device.ordinal),
        "user_compute_stream": str(stream.handle),  # edgert's, so that work before and after a run is in order
        "arena_extend_strategy": "kSameAsRequested",  # not in powers of two
        "cudnn_conv_algo_search": tuning.conv_search.upper(),
        **({} if tuning.tf32 else {"use_tf32": "0"}),  # releases before 1.18 always use TF32, and lack the option
    }


def why_not() -> str:
    """Return in one line why this machine cannot run models on CUDA, and what to install; empty if it can."""
    try:
        check_provider()
        open_device().close()
    except DeviceError as error:
        return ": ".join(filter(None, (error.what, error.why))) + (f" ({error.fix})" if error.fix else "")
    return ""


def check_provider() -> None:
    """Raise DeviceError if the installed ONNX Runtime was built without CUDA."""
    providers = runtime.ort().get_available_providers()
    if _PROVIDER not in providers:
        raise DeviceError(
            "this ONNX Runtime has no CUDA provider",
            why=f"version {runtime.ort().__version__} has {', '.join(providers)}",
            fix=_JETSON_FIX if is_jetson() else _FIX,
        )


def memory_error(model: Model, shapes: base.Shapes, device: CudaDevice) -> DeviceError:
    """Return the error for a model that needs more memory than the GPU has."""
    graph = read(with_shapes(model, shapes) if shapes else model)
    weights = sum(array.nbytes for array in graph.constants.values())
    tensors = peak_bytes(graph)
    return DeviceError(
        "the model does not fit into the memory of the GPU",
        why=f"planned: weights {format_bytes(weights)} and tensors {format_bytes(tensors)}, beside scratch space of "
        f"kernels; actual: {device.describe_free_memory()}",
        where=str(model.path),
        fix="use a smaller batch or input size, or precision: fp16; or end other programs that use the GPU",
    )


@lru_cache(maxsize=1)
def load_libraries() -> None:
    """Load CUDA's libraries from pip's packages. ONNX Runtime before 1.21 searches only the loader's path."""
    preload = getattr(runtime.ort(), "preload_dlls", None)
    if preload is not None:
        runtime.ort().set_default_logger_severity(_LOG_ERRORS)  # else it warns of missing plugins
        preload()


def open_on_gpu(content: bytes, settings: Any, options: Mapping[str, str], model: Model) -> Any:
    """Return a session that runs on the GPU. Raises BuildError; ONNX Runtime would silently use the CPU."""
    load_libraries()
    providers = [(_PROVIDER, dict(options)), "CPUExecutionProvider"]
    session = runtime.open_session(content, settings, model, providers)
    session.disable_fallback()  # else a failed run is repeated on the CPU, with tensors of the GPU
    if _PROVIDER not in session.get_providers():
        raise BuildError(
            "ONNX Runtime could not start its CUDA provider",
            why=f"the CUDA and cuDNN that version {runtime.ort().__version__} was built for are missing or too old",
            where=str(model.path),
            fix="pip install nvidia-cudnn-cu12 or -cu13, as onnxruntime.ai lists for this version; or install cuDNN 9",
        )
    return session


class OrtCudaEngine(runtime.OrtEngine):
    """Model on ONNX Runtime's CUDA provider; see :class:`~edgert.backend.gpu.GpuEngine`.

    All sessions share one stream and the weights. The sizes of all outputs must follow from the profile's shapes.
    """

    def __init__(
        self,
        session: Any,
        profiles: Mapping[str, base.Shapes],
        path: str,
        info: Mapping[str, Any],
        device: CudaDevice,
        stream: Stream,
    ) -> None:
        self.device, self.stream, self.nbytes = device, stream, 0
        self._exclusive, self._sessions = threading.RLock(), list[OrtCudaSession]()
        self._output_shapes: dict[str, _OutputShapes] = {profile: {} for profile in profiles}
        super().__init__(session, profiles, path, info)
        self._sessions.pop().close()  # it was opened to find the shapes
        self.outputs_known = True

    def session(self, profile: str | None = None, on_host: OnHost = "all", queue_index: int = 0) -> OrtCudaSession:
        """Return a new set of bound tensors. All sets share one queue, as an ONNX Runtime session has one stream."""
        shapes, output_shapes = self.shapes_of(profile), self._output_shapes[profile or self.profiles[0]]
        session = OrtCudaSession(
            self.open_session(), shapes, self.path, self.device, self.stream, self._exclusive, on_host, output_shapes
        )
        self._sessions.append(session)
        return session

    def close(self) -> None:
        """Wait for the GPU, then free the memory of all sessions and the ONNX Runtime session."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        super().close()


_OutputShapes = dict[int, list[tuple[int, ...]]]
"""Shapes of all outputs by the number of rows; the first session that runs this number adds them."""


class OrtCudaSession(runtime.OrtSession):
    """Session on one CUDA stream; see :class:`~edgert.backend.gpu.GpuSession`."""

    def __init__(
        self,
        session: Any,
        shapes: base.Shapes,
        path: str,
        device: CudaDevice,
        stream: Stream,
        exclusive: threading.RLock,
        on_host: OnHost,
        output_shapes: _OutputShapes,
    ) -> None:
        self.device, self.stream, self.exclusive, self.recordable = device, stream, exclusive, True
        self._on_host, self._output_shapes = on_host, output_shapes
        self.inputs_on_gpu: dict[str, GpuTensor] = {}
        self.outputs_on_gpu: tuple[GpuTensor, ...] = ()
        self._enqueue_runs: dict[int, Callable[[], None]] = {}
        self._async_options = runtime.ort().RunOptions()
        self._async_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._runs = {}
        try:
            super().__init__(session, shapes, path)
            self.enqueue(self.rows)  # allocates the outputs, whose shapes a first run shows, and scratch memory
            self.stream.synchronize()
        except BaseException:
            self.close()
            raise

    def enqueue(self, rows: int | None = None) -> None:
        """See :meth:`edgert.backend.gpu.GpuSession.enqueue`.

        Raises DeviceError: the GPU has too little memory, or is lost. Raises BuildError: ONNX Runtime failed.
        """
        count = self._checked_rows(rows)
        try:
            with self.exclusive:
                if count not in self._enqueue_runs:
                    self._runs[count] = self._bind(count)
                self._enqueue_runs[count]()
        except runtime.ort_errors() as error:
            raise self._run_error(error) from error

    def close(self) -> None:
        """Wait for the GPU, then free the tensors. May be called twice."""
        self._enqueue_runs.clear()
        self._runs.clear()
        tensors = [*self.inputs_on_gpu.values(), *self.outputs_on_gpu]
        self.inputs_on_gpu, self.outputs_on_gpu = {}, ()
        if tensors:
            self.device.drain()
        for tensor in tensors:
            tensor.block.release()

    def _bind(self, rows: int) -> Callable[[], Sequence[base.Array]]:
        """Bind the first ``rows`` rows, and return a function that runs them from host memory to host memory."""
        if rows not in self._output_shapes:
            with self.exclusive:
                zeros = {name: np.zeros(shape, one.dtype) for (name, one), shape in self._inputs_of_rows(rows)}
                arrays = self._session.run(None, zeros)
            self._output_shapes[rows] = [array.shape for array in arrays]
        shapes = self._output_shapes[rows]
        if not self.outputs_on_gpu:
            for_host, arguments = self._on_host != "none", self._session.get_outputs()
            for arg, shape in zip(arguments, shapes, strict=True):  # one by one, so that close() frees them on errors
                self.outputs_on_gpu += (self._allocate(arg, shape, "output", for_host),)
        binding = self._session.io_binding()
        for (_, tensor), shape in self._inputs_of_rows(rows):
            self._bind_tensor(binding.bind_input, tensor, shape)
        for tensor, shape in zip(self.outputs_on_gpu, shapes, strict=True):
            self._bind_tensor(binding.bind_output, tensor, shape)
        self._enqueue_runs[rows] = partial(self._session.run_with_iobinding, binding, self._async_options)
        lengths = [shape[0] if shape else None for shape in shapes]

        def run() -> Sequence[base.Array]:
            for tensor in self.inputs_on_gpu.values():
                tensor.block.upload(self.stream)
            self.enqueue(rows)
            for tensor in self.outputs_on_gpu:
                tensor.block.download(self.stream)
            self.stream.synchronize()
            pairs = zip(self.outputs_on_gpu, lengths, strict=True)
            return [tensor.host if length is None else tensor.host[:length] for tensor, length in pairs]

        return run

    def _inputs_of_rows(self, rows: int) -> list[tuple[tuple[str, GpuTensor], tuple[int, ...]]]:
        """Return the inputs, and their shapes for this number of rows."""
        items, some = self.inputs_on_gpu.items(), rows < self.rows
        return [(item, (rows, *item[1].shape[1:]) if some and item[1].shape else item[1].shape) for item in items]

    def _bound_inputs(self, arguments: Sequence[Any], shapes: base.Shapes) -> Mapping[str, base.Array]:
        for arg in arguments:
            shape = base.static_shape(arg.name, shapes.get(arg.name) or arg.shape, self._path)
            self.inputs_on_gpu[arg.name] = self._allocate(arg, shape, "input", self._on_host == "all")
        return HostSides(self.inputs_on_gpu)

    def _row_count(self) -> int:
        return base.row_count(self.inputs_on_gpu.values())

    def _allocate(self, arg: Any, shape: tuple[int, ...], role: str, for_host: bool) -> GpuTensor:
        dtype = runtime.dtype_of(arg, f"{role} {arg.name!r}", self._path)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return GpuTensor(arg.name, tuple(shape), dtype, self.device.tensor_block(max(nbytes, 1), for_host=for_host))

    def _bind_tensor(self, bind: Any, tensor: GpuTensor, shape: tuple[int, ...]) -> None:
        dtype = np.dtype(tensor.dtype).type
        bind(tensor.name, "cuda", self.device.ordinal, dtype, shape, tensor.block.address)

    def _run_error(self, error: Exception) -> EdgertError:
        if is_out_of_memory(error):
            return DeviceError("the GPU has too little memory", why=runtime.first_line(error), where=self._path)
        if driver.is_lost(str(error)):
            return driver.cuda_error(error, "running the model").at(self._path)
        return super()._run_error(error)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of ONNX Runtime or CUDA says that the GPU's memory was too small."""
    text = str(error).lower()
    return any(part in text for part in ("out of memory", "failed to allocate memory", "cuda failure 2:", "too little"))
