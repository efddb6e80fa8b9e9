"""ONNX Runtime on an NVIDIA GPU: its CUDA provider, on a stream of ours, over memory of ours.

Tensors are bound once, and fed and read on the GPU or from the host. Provider and run options:
https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from edgert.backend import base
from edgert.backend.gpu import GpuTensor, HostSides, OnHost
from edgert.backend.ort import cpu, cuda_model, runtime
from edgert.backend.ort.fused import FusedRun, Refinement
from edgert.errors import BuildError, DeviceError, EdgertError
from edgert.graph import Model, read, with_shapes
from edgert.graph.count import peak_bytes
from edgert.memory.cuda import CudaDevice, Stream, open_device
from edgert.memory.cuda.driver import failed, is_lost
from edgert.units import format_bytes

_PROVIDER = "CUDAExecutionProvider"

log = logging.getLogger("edgert.backend")

_CHANNELS_LAST = {"prefer_nhwc": "1"}
_FUSED = {**_CHANNELS_LAST, "fuse_conv_bias": "1"}
"""Each bias is added by its convolution's kernel, which cuDNN compiles when a size is first run: that takes seconds for
a network, and is done anew by every process, and whenever the size changes. Not known to it without channels last."""

_ERRORS = 3  # ORT_LOGGING_LEVEL_ERROR

_INSTALL = "pip install onnxruntime-gpu in place of onnxruntime; on a Jetson, the wheel that is built for its JetPack"


class OrtCudaBackend:
    """Compiles for the GPU; nodes that the provider cannot take run on the CPU, and ONNX Runtime copies between.

    Float32 models may use TF32 in convolutions, as PyTorch does, by default. The cleaned model is cached in the store;
    ONNX Runtime's plans of convolutions are made anew at every start, since it cannot save them.

    Args:
        device: the GPU; the first one, opened when a model is compiled, by default.
    """

    name = "onnxruntime-cuda"

    def __init__(self, device: CudaDevice | None = None) -> None:
        self._device = device

    def compile(self, model: Model, options: base.EngineOptions) -> OrtCudaEngine:
        """See :class:`~edgert.backend.base.Backend`.

        Raises:
            DeviceError: there is no GPU, no PyCUDA, no CUDA provider, or too little memory on the GPU.
            BuildError: ONNX Runtime cannot take the model, or cannot start its provider.
            ModelError: a profile does not fit, or the size of an output is not known.
        """
        check_provider()
        base.refuse_custom_operators(model, "ONNX Runtime on CUDA")
        started = time.perf_counter()
        device = self._device or open_device()
        profiles = options.profiles or {base.DEFAULT_PROFILE: {}}
        static = next(iter(profiles.values())) if len(profiles) == 1 else {}
        content, cached = cuda_model.cleaned(model, profiles, static, options.store)
        settings, tuning = runtime.session_settings(options.threads, options.tuning), options.tuning
        cpu.fix_others(settings, model, static)
        info = {
            "backend": self.name,
            "version": str(runtime.ort().__version__),
            "device": device.name,
            "cached": cached,
        }

        def session(stream: Stream, kernels: Mapping[str, str]) -> Any:
            provider = {
                "device_id": str(device.ordinal),
                "user_compute_stream": str(stream.handle),  # ours, so that its work is ordered with ours
                "arena_extend_strategy": "kSameAsRequested",  # not in powers of two
                "cudnn_conv_algo_search": tuning.conv_search.upper(),
                **({} if tuning.tf32 else {"use_tf32": "0"}),  # not known to releases before 1.18, where it is on, too
                **kernels,
            }
            return _open(content, settings, provider, model)

        def opened(kernels: Mapping[str, str]) -> OrtCudaEngine:
            stream = device.stream()
            first = session(stream, kernels)
            info["compile_s"] = round(time.perf_counter() - started, 3)
            is_refined = kernels == _CHANNELS_LAST and tuning.fused == "later"
            fused = (lambda other: session(other, _FUSED)) if is_refined else None
            return OrtCudaEngine(first, profiles, str(model.path), info, device, stream, fused)

        fast = _FUSED if tuning.fused == "start" else _CHANNELS_LAST
        try:
            if not tuning.channels_last:
                return opened({})
            try:
                engine = opened(fast)
                if not engine.dynamic_batch or not (why := engine.not_recorded()):
                    return engine
                engine.close()
            except BuildError as error:
                if is_out_of_memory(error):
                    raise
                why = error.why  # cuDNN may have none for some layer
            log.info("channels-last kernels are not used: %s", why)
            return opened({})
        except (BuildError, DeviceError) as error:
            if not is_out_of_memory(error):
                raise
            raise too_little(model, static, device) from error


def why_not() -> str:
    """Why this machine cannot run models here, and what to install; empty when it can. Opens the GPU for a
    moment, and loads no model."""
    try:
        check_provider()
        open_device().close()
    except DeviceError as error:
        return ": ".join(filter(None, (error.what, error.why))) + (f" ({error.fix})" if error.fix else "")
    return ""


def check_provider() -> None:
    """Raises DeviceError when the installed ONNX Runtime was built without CUDA."""
    providers = runtime.ort().get_available_providers()
    if _PROVIDER not in providers:
        raise DeviceError(
            "this ONNX Runtime has no CUDA provider",
            why=f"version {runtime.ort().__version__} has {', '.join(providers)}",
            fix=_INSTALL,
        )


def too_little(model: Model, shapes: base.Shapes, device: CudaDevice) -> DeviceError:
    """What a model should take, beside what the GPU has."""
    graph = read(with_shapes(model, shapes) if shapes else model)
    weights = sum(array.nbytes for array in graph.constants.values())
    tensors = peak_bytes(graph)
    return DeviceError(
        "the model does not fit into the memory of the GPU",
        why=f"planned: weights {format_bytes(weights)} and tensors {format_bytes(tensors)}, beside scratch space of "
        f"kernels; actual: {device.room()}",
        where=str(model.path),
        fix="a smaller batch or input size, precision: fp16, or end other programs that use the GPU",
    )


@lru_cache(maxsize=1)
def load_libraries() -> None:
    """Finds CUDA's libraries where pip put them; ONNX Runtime before 1.21 searches the loader's path alone."""
    preload = getattr(runtime.ort(), "preload_dlls", None)
    if preload is not None:
        runtime.ort().set_default_logger_severity(_ERRORS)  # else it warns of plugins that nobody installed
        preload()


def _open(content: bytes, settings: Any, options: Mapping[str, str], model: Model) -> Any:
    """A session that is really on the GPU: ONNX Runtime itself falls back to the CPU in silence."""
    load_libraries()
    providers = [(_PROVIDER, dict(options)), "CPUExecutionProvider"]
    session = runtime.open_session(content, settings, model, providers)
    session.disable_fallback()  # else a run that fails is done again on the CPU, with tensors of the GPU
    if _PROVIDER not in session.get_providers():
        raise BuildError(
            "ONNX Runtime could not start its CUDA provider",
            why=f"the CUDA and cuDNN that version {runtime.ort().__version__} was built for are missing or too old",
            where=str(model.path),
            fix="pip install nvidia-cudnn-cu12 or -cu13, as onnxruntime.ai lists for this version; or install cuDNN 9",
        )
    return session


class OrtCudaEngine(runtime.OrtEngine):
    """See :class:`~edgert.backend.gpu.GpuEngine`. All sessions put their work on one stream, and share the weights.

    The sizes of all outputs must follow from the profile's shapes.
    """

    def __init__(
        self,
        session: Any,
        profiles: Mapping[str, base.Shapes],
        path: str,
        info: Mapping[str, Any],
        device: CudaDevice,
        stream: Stream,
        fused: Callable[[Stream], Any] | None = None,
    ) -> None:
        self.device, self.stream, self._guard = device, stream, threading.RLock()
        self._sessions: list[OrtCudaSession] = []
        super().__init__(session, profiles, path, info)
        self._sessions.pop().close()  # it showed the shapes
        self.outputs_known = True
        self.refinement: Refinement | None = None
        self._fused = fused

    def session(self, profile: str | None = None, on_host: OnHost = "all") -> OrtCudaSession:
        """A new set of bound tensors."""
        shapes = self.shapes_of(profile)
        made = OrtCudaSession(self.open_session(), shapes, self.path, self.device, self.stream, self._guard, on_host)
        self._sessions.append(made)
        return made

    def refine(self) -> None:
        """Has full batches run with fused kernels as soon as these are compiled, in a thread of its own; what was
        recorded of them before is then among the ``renewed`` of a session. Does nothing where that is not wanted; what
        stands in the way is logged, and all goes on as it was."""
        if self._fused is not None and self.refinement is None:
            self.refinement = Refinement(self._refine, "fused kernels for full batches", self.path)

    def _refine(self, options: Any) -> None:
        assert self._fused is not None
        own, shapes = self.device.stream(), self.shapes_of(None)
        session = self._fused(own)
        trial = OrtCudaSession(session, shapes, self.path, self.device, own, threading.RLock(), "none", options)
        with self._guard:
            for one in self._sessions:
                if one.shapes == trial.shapes:
                    one.run_full_by(session, own)
        trial.close()
        self._fused = None  # and with it the model

    def not_recorded(self) -> str:
        """Why a run of all rows cannot be a CUDA graph; empty where it can. Without memory to find out, it closes."""
        try:
            session = self.session(None, "none")
        except EdgertError:
            self.close()
            raise
        reason = ""
        for _ in range(2):  # another thread, or a library in this one, may come between once
            try:
                self.device.capture(self.stream, session.enqueue)
                reason = ""
                break
            except (BuildError, DeviceError) as error:
                reason = error.why or error.what
                try:
                    session.enqueue()  # CUDA reports it a second time, to whoever asks next in this thread
                except BuildError as again:
                    log.debug("reported once more: %s", again.why)
        self._sessions.remove(session)
        session.close()
        return reason

    def close(self) -> None:
        """Drops ONNX Runtime's sessions and the memory of all of ours, once the GPU is done."""
        if self.refinement is not None:
            self.refinement.close()
        self.refinement = self._fused = None
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        super().close()


class OrtCudaSession(runtime.OrtSession):
    """See :class:`~edgert.backend.gpu.GpuSession`.

    Args:
        first: run options of what takes long, its first run of a number of rows.

    Attributes:
        renewed: numbers of rows whose runs have become faster since they were recorded.
        shapes: of the inputs.
    """

    def __init__(
        self,
        session: Any,
        shapes: base.Shapes,
        path: str,
        device: CudaDevice,
        stream: Stream,
        guard: threading.RLock,
        on_host: OnHost = "all",
        first: Any = None,
    ) -> None:
        self.device, self.stream, self.exclusive, self.recordable = device, stream, guard, True
        self._on_host, self._first = on_host, first
        self.renewed: set[int] = set()
        self._full: FusedRun | None = None
        self.inputs_on_gpu: dict[str, GpuTensor] = {}
        self.outputs_on_gpu: tuple[GpuTensor, ...] = ()
        self._bindings: dict[int, Any] = {}
        self._settings = runtime.ort().RunOptions()
        self._settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        super().__init__(session, shapes, path)
        self.shapes = {name: tensor.shape for name, tensor in self.inputs_on_gpu.items()}
        try:
            self._prepare(self.rows)  # allocates the outputs, whose shapes a first run shows
        except EdgertError:
            self.close()
            raise

    def enqueue(self, rows: int | None = None) -> None:
        """See :meth:`edgert.backend.gpu.GpuSession.enqueue`. Raises DeviceError, too, for too little memory."""
        count = self._count(rows)
        if count not in self._bindings:
            self._prepare(count)
        try:
            with self.exclusive:
                if self._full is not None and count == self.rows:
                    self._full.enqueue(self.stream, self._settings)
                else:
                    self._session.run_with_iobinding(self._bindings[count], self._settings)
        except runtime.ort_errors() as error:
            raise self._failed(error) from error

    def run_full_by(self, session: Any, own: Stream) -> None:
        """Has another ONNX Runtime session, on a stream of its own, run all rows from now on."""
        binding = session.io_binding()
        self._place_all(binding, self.shapes, [tensor.shape for tensor in self.outputs_on_gpu])
        self._full = FusedRun(session, binding, self.device, own)
        self.renewed.add(self.rows)

    def _prepare(self, rows: int) -> None:
        """Binds the first ``rows`` rows and runs them once, over what the GPU holds, since a first run may allocate."""
        try:
            self._runs[rows] = self._bind(rows)
        except runtime.ort_errors() as error:
            raise self._failed(error) from error
        self.enqueue(rows)
        self.stream.synchronize()

    def close(self) -> None:
        """Frees the tensors, once the GPU is done with them. Twice is once."""
        self._bindings.clear()
        self._full = None
        self._runs.clear()
        tensors = [*self.inputs_on_gpu.values(), *self.outputs_on_gpu]
        self.inputs_on_gpu, self.outputs_on_gpu = {}, ()
        if tensors:
            self.device.settle()
        for tensor in tensors:
            tensor.block.release()

    def _bind(self, rows: int) -> Callable[[], Sequence[base.Array]]:
        """Binds the first ``rows`` rows; what it returns runs from host memory to host memory."""
        tensors, some = self.inputs_on_gpu.items(), rows < self.rows
        shapes = {name: (rows, *one.shape[1:]) if some and one.shape else one.shape for name, one in tensors}
        with self.exclusive:
            zeros = {name: np.zeros(shapes[name], one.dtype) for name, one in tensors}
            first = self._session.run(None, zeros, self._first)
        arguments = self._session.get_outputs()
        if not self.outputs_on_gpu:
            for_host = self._on_host != "none"
            pairs = zip(arguments, first, strict=True)
            self.outputs_on_gpu = tuple(self._tensor(arg, array.shape, "output", for_host) for arg, array in pairs)
        binding = self._session.io_binding()
        self._place_all(binding, shapes, [array.shape for array in first])
        self._bindings[rows] = binding
        lengths = [len(array) if array.ndim else None for array in first]

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

    def _bound_inputs(self, arguments: Sequence[Any], shapes: base.Shapes) -> Mapping[str, base.Array]:
        for arg in arguments:
            shape = base.static_shape(arg.name, shapes.get(arg.name) or arg.shape, self._path)
            self.inputs_on_gpu[arg.name] = self._tensor(arg, shape, "input", self._on_host == "all")
        return HostSides(self.inputs_on_gpu)

    def _row_count(self) -> int:
        return base.row_count(self.inputs_on_gpu.values())

    def _tensor(self, arg: Any, shape: tuple[int, ...], role: str, for_host: bool) -> GpuTensor:
        dtype = runtime.dtype_of(arg, f"{role} {arg.name!r}", self._path)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return GpuTensor(arg.name, tuple(shape), dtype, self.device.tensor_block(max(nbytes, 1), for_host=for_host))

    def _place_all(self, binding: Any, inputs: base.Shapes, outputs: Sequence[tuple[int, ...]]) -> None:
        for name, tensor in self.inputs_on_gpu.items():
            self._place(binding.bind_input, tensor, inputs[name])
        for tensor, shape in zip(self.outputs_on_gpu, outputs, strict=True):
            self._place(binding.bind_output, tensor, shape)

    def _place(self, bind: Any, tensor: GpuTensor, shape: tuple[int, ...]) -> None:
        dtype = np.dtype(tensor.dtype).type
        bind(tensor.name, "cuda", self.device.ordinal, dtype, shape, tensor.block.address)

    def _failed(self, error: Exception) -> EdgertError:
        if is_out_of_memory(error):
            return DeviceError("the GPU has too little memory", why=runtime.first_line(error), where=self._path)
        if is_lost(str(error)):
            return failed(error, "running the model").at(self._path)
        return super()._failed(error)


def is_out_of_memory(error: Exception) -> bool:
    """Whether it is the GPU's memory that was too small, by ONNX Runtime's words or CUDA's."""
    text = str(error).lower()
    return any(part in text for part in ("out of memory", "failed to allocate memory", "cuda failure 2:", "too little"))
