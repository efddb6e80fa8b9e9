"""Serialized engines opened for running."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, Shapes, Tensor, checked_profile, closed_engine, share_first_dimension
from edgert.backend.gpu import OnHost
from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.execution_context import Context, dtype_of
from edgert.backend.tensorrt.kernel_cache import KernelCache, Shelf
from edgert.backend.tensorrt.log import shared_logger, tail
from edgert.backend.tensorrt.plugin import can_plug, register_operators
from edgert.backend.tensorrt.sessions import Queue, TrtSession
from edgert.errors import DeviceError
from edgert.memory.cuda import CudaDevice
from edgert.units import format_bytes

MAX_LOADABLES = 16
"""Programs that one DLA core holds at the same time: NVIDIA's page on DLA layer restrictions."""


class UnopenedError(DeviceError):
    """TensorRT does not open a plan: another TensorRT or GPU made it, or it is damaged. Compiling it here helps."""


class TrtEngine:
    """A deserialized engine, see :class:`~edgert.backend.gpu.GpuEngine`. Each session has an execution context.

    Args:
        plan: what a build gave.
        library: the TensorRT that built it, or a later one for a version-compatible engine.
        device: the GPU.
        queue: takes the work of all sessions; a new one by default. Engines of one DLA core must share one.
        profiles: name → input shapes, one per optimization profile of the engine, in order.
        scales: int8 input → what one step is worth, where callers have real numbers.
        dla_core: the DLA core it was built for; None for none.
        loadables: DLA programs in it (:attr:`~edgert.backend.tensorrt.engine_layers.EngineFacts.loadables`).
        resident: DLA programs of other engines on that core.
        host_code: whether the plan's code for the processor may be run; version-compatible ones bring a runtime along.
        shelf: where kernels are cached that TensorRT-RTX compiles when the engine first runs.
        title: for messages.

    Raises:
        DeviceError: the core would hold too many programs, is not there, or is not taken; or there is no memory; or
            TensorRT-RTX refuses a GPU that it does not list.
        UnopenedError: TensorRT refuses the plan, which it does for one of another TensorRT or GPU.
    """

    def __init__(
        self,
        plan: bytes,
        library: api.Library,
        device: CudaDevice,
        *,
        queue: Queue | None = None,
        profiles: Mapping[str, Shapes] | None = None,
        scales: Mapping[str, float] | None = None,
        dla_core: int | None = None,
        loadables: int = 0,
        resident: int = 0,
        host_code: bool = False,
        shelf: Shelf | None = None,
        title: str = "engine",
    ) -> None:
        if loadables + resident > MAX_LOADABLES:  # afterwards it would only fail when it runs
            raise DeviceError(
                f"{loadables} DLA programs do not fit on dla{dla_core if dla_core is not None else ''}",
                why=f"a core holds {MAX_LOADABLES}, and {resident} of other engines are there",
                where=title,
                fix="place fewer, longer regions on the DLA, or move a model to the other core",
            )
        self._library, self.device, self.title, self.loadables = library, device, title, loadables
        self._log = shared_logger(library.trt)[1]
        self._log.clear()
        self._runtime: api.Runtime = _runtime(library, dla_core, title, host_code=host_code)
        self._engine: api.ICudaEngine = self._runtime.deserialize_cuda_engine(plan)
        self._unsupported = api.unsupported(library, "{}.{}".format(*device.traits.compute))
        if self._engine is None:
            why = tail(self._log) or "it logged no reason"
            if self._unsupported and "memory" not in why:
                raise self._refusal(why)
            raise (DeviceError if "memory" in why else UnopenedError)(
                f"{library.title} cannot open this engine",
                why=why,
                where=title,
                fix="an engine runs with the TensorRT and on the kind of GPU it was built for: build it here",
            )
        self._queue, self._scales = queue or Queue(device.stream(), threading.RLock()), scales or {}
        self._profiles = profiles or {DEFAULT_PROFILE: {}}
        self._sessions: list[TrtSession] = []
        self._kernels = KernelCache(library, self._engine, shelf, title) if library.kind == "rtx" else None
        self.profiles = tuple(self._profiles)
        self.recordable = loadables == 0
        """Whether runs may be recorded as CUDA graphs: not with DLA layers (TensorRT issue 3524)."""
        declared = [self._shape(name) for name in self._names("INPUT")]
        self.dynamic_batch = bool(declared) and all(shape and shape[0] < 0 for shape in declared)
        self.batched = share_first_dimension(declared, [self._shape(name) for name in self._names("OUTPUT")])
        first = self._opened(self.profiles[0])  # tensors of the first profile are as a session of it has them
        self._spare = [first]
        taken = first.inputs_on_gpu.items()
        self.inputs = tuple(Tensor(name, one.shape, "float32" if one.scale else one.dtype) for name, one in taken)
        self.outputs = tuple(
            Tensor(one.name, one.shape, dtype_of(self._engine, one.name, title)) for one in first.outputs_on_gpu
        )
        self.outputs_known = True
        core = int(self._runtime.DLA_core) if loadables else None
        info = {"backend": "tensorrt", "version": library.version, "dla_core": core, "loadables": loadables}
        if self._unsupported:
            info["unsupported"] = self._unsupported
        self.info: Mapping[str, Any] = MappingProxyType(info)

    def session(self, profile: str | None = None, on_host: OnHost = "all") -> TrtSession:
        """A new set of bound tensors, all of them the host's, too, where a DLA takes them, and an execution context.
        Raises ModelError when there is no such profile, or an output's size depends on the data, and DeviceError when
        there is no memory."""
        if self._engine is None:
            raise closed_engine(self.title)
        name = checked_profile(profile, self.profiles, self.title)
        if name == self.profiles[0]:
            with suppress(IndexError):
                spare = self._spare.pop()  # that of the beginning, which nobody has yet
                spare.place(self._touched(on_host))
                return spare
        return self._opened(name, on_host)

    def _touched(self, on_host: OnHost) -> OnHost:
        """What a DLA takes is shared with the host whoever touches it."""
        return "all" if self.loadables else on_host

    def _opened(self, name: str, on_host: OnHost = "none") -> TrtSession:
        made = TrtSession(
            partial(self._open_context, self.profiles.index(name)),
            self.device,
            self._queue,
            shapes=self._profiles[name],
            scales=self._scales,
            dynamic=self.dynamic_batch,
            recordable=self.recordable,
            title=self.title,
            on_host=self._touched(on_host),
        )
        self._sessions.append(made)
        return made

    @property
    def context_bytes(self) -> int:
        """What an execution context takes on the GPU for tensors between layers, besides inputs and outputs."""
        if hasattr(self._engine, "device_memory_size_v2"):
            return int(self._engine.device_memory_size_v2)
        return int(self._engine.device_memory_size) if hasattr(self._engine, "device_memory_size") else 0

    def close(self) -> None:
        """Gives the memory of all sessions back, then the engine, then the runtime, which must outlive it."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        self._spare.clear()
        with self.device:
            self._kernels = None
            self._engine = None
            self._runtime = None

    def _open_context(self, index: int, shapes: Shapes) -> Context:
        kernels = self._kernels
        made: api.IExecutionContext = kernels.context() if kernels else self._engine.create_execution_context()
        if made is None and self._unsupported and "memory" not in (why := tail(self._log)):
            raise self._refusal(why or "it made no execution context")
        if made is None:
            raise DeviceError(
                "TensorRT made no execution context: the GPU has too little memory",
                why=f"planned: {format_bytes(self.context_bytes)}, beside weights, inputs and outputs; actual: "
                + self.device.room(),
                where=self.title,
                fix="a smaller batch or input size, fewer models, or end other programs that use the GPU",
            )
        return Context(
            self._library.trt,
            self._engine,
            made,
            self._queue.stream,
            index=index,
            shapes=shapes,
            title=self.title,
            ran=partial(kernels.ran, index, shapes) if kernels else None,
            why=partial(tail, self._log, 1),
        )

    def _refusal(self, why: str) -> DeviceError:
        """Of a GPU that this TensorRT-RTX does not list; compiling once more would not help."""
        return DeviceError(
            f"{self._library.title} refuses this GPU",
            why=f"compute capability {self._unsupported}: {why}",
            where=self.title,
            fix="engines: [onnxruntime-cuda, onnxruntime], or TensorRT: pip install tensorrt",
        )

    def _names(self, mode: str) -> Sequence[str]:
        trt: api.Trt = self._library.trt
        wanted = trt.TensorIOMode.INPUT if mode == "INPUT" else trt.TensorIOMode.OUTPUT
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        return [name for name in names if self._engine.get_tensor_mode(name) == wanted]

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._engine.get_tensor_shape(name))


def _runtime(library: api.Library, core: int | None, title: str, *, host_code: bool) -> api.Runtime:
    """A runtime that can open an engine of ``core``. It must outlive the engine."""
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
