"""A deserialized plan: what execution contexts are made of."""

import re
from functools import partial

from edgert.backend.base import Shapes
from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.execution_context import Context, dtype_of
from edgert.backend.tensorrt.kernel_cache import CacheEntry, KernelCache
from edgert.backend.tensorrt.log import shared_logger, tail
from edgert.backend.tensorrt.plugin import can_plug, register_operators
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice, Stream
from edgert.units import format_bytes

_CAPABILITY = re.compile(r"compute capabilit|\bSM ?\d", re.IGNORECASE)
"""Words of TensorRT-RTX 1.4 and 1.7 where they refuse a GPU's compute capability."""


class UnopenedError(DeviceError):
    """TensorRT does not open a plan: another TensorRT or GPU made it, or it is damaged. Compiling it here helps."""


class OpenPlan:
    """A plan that TensorRT has read, with its runtime, which outlives it.

    Args:
        dla_core: the DLA core it was built for; None for none.
        host_code: whether the plan's code for the processor may be run.
        cache_entry: where kernels are cached that TensorRT-RTX compiles when the engine first runs.

    Raises:
        DeviceError: the core is missing or refused; or there is no memory; or TensorRT-RTX refuses a GPU that it
            does not list.
        UnopenedError: TensorRT refuses the plan, which it does for one of another TensorRT or GPU.
    """

    def __init__(
        self,
        plan: bytes,
        library: api.Library,
        device: CudaDevice,
        *,
        dla_core: int | None = None,
        host_code: bool = False,
        cache_entry: CacheEntry | None = None,
        title: str = "engine",
    ) -> None:
        self._library, self._device, self._title = library, device, title
        self.unsupported = api.unsupported(library, "{}.{}".format(*device.traits.compute))
        self._log = shared_logger(library.trt)[1]
        self._runtime: api.Runtime = _runtime(library, dla_core, title, host_code=host_code)
        self._engine: api.ICudaEngine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            why = tail(self._log) or "it logged no reason"
            if self.unsupported and _CAPABILITY.search(why):
                raise self._refusal(why)
            raise (DeviceError if "memory" in why else UnopenedError)(
                f"{library.title} cannot open this engine",
                why=why,
                where=title,
                fix="an engine runs with the TensorRT and on the kind of GPU it was built for: build it here",
            )
        is_rtx = library.kind == "rtx"
        self._kernels = KernelCache(library, self._engine, cache_entry, title, device.synchronize) if is_rtx else None

    @property
    def dla_core(self) -> int:
        """The core that the runtime uses."""
        return int(self._runtime.DLA_core)

    @property
    def context_bytes(self) -> int:
        """GPU memory of one execution context for intermediate tensors, without inputs and outputs."""
        if hasattr(self._engine, "device_memory_size_v2"):
            return int(self._engine.device_memory_size_v2)
        return int(self._engine.device_memory_size) if hasattr(self._engine, "device_memory_size") else 0

    def shapes(self, mode: str) -> dict[str, tuple[int, ...]]:
        """Return the tensors that are ``INPUT`` or ``OUTPUT``, in order; an open dimension is negative."""
        trt: api.Trt = self._library.trt
        wanted = trt.TensorIOMode.INPUT if mode == "INPUT" else trt.TensorIOMode.OUTPUT
        names = [str(self._engine.get_tensor_name(index)) for index in range(self._engine.num_io_tensors)]
        ours = [name for name in names if self._engine.get_tensor_mode(name) == wanted]
        return {name: tuple(self._engine.get_tensor_shape(name)) for name in ours}

    def dtype(self, name: str) -> str:
        """Return NumPy's name for a tensor's type. Raises ModelError for a type that NumPy lacks."""
        return dtype_of(self._engine, name, self._title)

    def context(self, index: int, shapes: Shapes, stream: Stream) -> Context:
        """Return a new execution context for input shapes within an optimization profile, on a stream.

        Raises DeviceError where TensorRT makes none, and ModelError as :class:`Context`.
        """
        kernels = self._kernels
        made: api.IExecutionContext = kernels.context() if kernels else self._engine.create_execution_context()
        why = tail(self._log) if made is None else ""
        if made is None and self.unsupported and (not why or _CAPABILITY.search(why)):
            raise self._refusal(why or "it made no execution context")
        if made is None:
            raise DeviceError(
                "TensorRT made no execution context: the GPU has too little memory",
                why=f"planned: {format_bytes(self.context_bytes)}, beside weights, inputs and outputs; actual: "
                + self._device.room(),
                where=self._title,
                fix="a smaller batch or input size, fewer models, or end other programs that use the GPU",
            )
        context = Context(
            self._library.trt,
            self._engine,
            made,
            stream,
            index=index,
            shapes=shapes,
            title=self._title,
            ran=partial(kernels.ran, index, shapes) if kernels else None,
            why=partial(tail, self._log, 1),
        )
        if kernels is not None:
            kernels.opened()
        return context

    def close(self) -> None:
        """Free the engine, then the runtime, once the contexts are gone."""
        self._kernels = None
        self._engine = None
        self._runtime = None

    def _refusal(self, why: str) -> DeviceError:
        """Return the error for a GPU that this TensorRT-RTX does not list; another build would not help."""
        return DeviceError(
            f"{self._library.title} refuses this GPU",
            why=f"compute capability {self.unsupported}: {why}",
            where=self._title,
            fix="engines: [onnxruntime-cuda, onnxruntime], or TensorRT: pip install tensorrt",
        )


def _runtime(library: api.Library, core: int | None, title: str, *, host_code: bool) -> api.Runtime:
    """Return a runtime that can open an engine of ``core``. It must outlive the engine."""
    trt: api.Trt = library.trt
    if can_plug(library):
        register_operators(trt)
    runtime: api.Runtime = trt.Runtime(shared_logger(trt)[0])
    if host_code:
        runtime.engine_host_code_allowed = True
    cores = runtime.num_DLA_cores if core is not None else 0
    if core is not None and core < cores:
        runtime.DLA_core = core  # before an engine is read; one that is not there would be replaced without a word
    if core is not None and (core >= cores or runtime.DLA_core != core):
        raise DeviceError(
            f"dla{core} cannot be used",
            why=f"TensorRT sees {cores} DLA cores" if core >= cores else f"it chose core {runtime.DLA_core} instead",
            where=title,
            fix="edgert doctor lists the DLA cores",
        )
    return runtime
