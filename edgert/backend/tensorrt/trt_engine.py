"""Serialized engines opened for running."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, Shapes, Tensor, checked_profile, closed_error, share_first_dimension
from edgert.backend.gpu import OnHost, Refinement
from edgert.backend.tensorrt import library as api
from edgert.backend.tensorrt.engine_cache import CacheEntry, KernelCache
from edgert.backend.tensorrt.execution_context import Context, dtype_of
from edgert.backend.tensorrt.log import shared_logger, tail
from edgert.backend.tensorrt.plugin import can_plug, register_operators
from edgert.backend.tensorrt.sessions import Queue, TrtSession
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import CudaDevice, Stream
from edgert.units import format_bytes

# A deserialized plan: what execution contexts are made of.

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
                + self._device.describe_free_memory(),
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


MAX_LOADABLES = 16
"""Most programs that one DLA core holds: NVIDIA's page on DLA layer restrictions."""


class TrtEngine:
    """A deserialized engine, with an execution context for each session and batch size.

    See :class:`~edgert.backend.gpu.GpuEngine`.

    Args:
        plan: of a build.
        library: the TensorRT that built it, or a later one for a version-compatible engine.
        device: the GPU.
        queue: takes the work of all sessions; by default there are several. Engines of one DLA core must share one.
        profiles: name → input shapes, one per optimization profile of the engine, in order.
        scales: int8 input → the value of one step, where callers have real numbers.
        dla_core: the DLA core it was built for; None for none.
        loadables: DLA programs in it (:attr:`~edgert.backend.tensorrt.engine_layers.EngineFacts.loadables`).
        resident: DLA programs of other engines on that core.
        host_code: whether the plan's code for the processor may be run; version-compatible ones contain a runtime.
        cache_entry: where kernels are cached that TensorRT-RTX compiles when the engine first runs.
        others: (profile, rows) → a plan of the same model for these alone, and its cache entry; rows 0 are those of its
            only plan. Then ``plan`` is for the first profile and its number of rows, and other batches run as the next
            larger. TensorRT-RTX needs one for every profile but the first.
        title: for messages.

    Raises:
        DeviceError: the core would hold too many programs, is missing or refused; or there is no memory; or
            TensorRT-RTX refuses a GPU that it does not list.
        UnopenedError: TensorRT refuses the plan, as it does for one of another TensorRT or GPU.
        BuildError: TensorRT-RTX would have to choose between profiles of one plan.
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
        cache_entry: CacheEntry | None = None,
        others: Mapping[tuple[str, int], tuple[bytes, CacheEntry | None]] = MappingProxyType({}),
        title: str = "engine",
    ) -> None:
        if loadables + resident > MAX_LOADABLES:  # afterwards it would only fail when it runs
            raise DeviceError(
                f"{loadables} DLA programs do not fit on dla{dla_core if dla_core is not None else ''}",
                why=f"a core holds {MAX_LOADABLES}, and {resident} of other engines are there",
                where=title,
                fix="place fewer, longer regions on the DLA, or move a model to the other core",
            )
        self._profiles = profiles or {DEFAULT_PROFILE: {}}
        self.profiles = tuple(self._profiles)
        if library.kind == "rtx" and not {*self.profiles[1:]} <= {name for name, _ in others}:
            raise BuildError(
                f"{library.title} runs one profile of an engine",
                why=f"1.4 ends the whole process when another is chosen, and this model has {', '.join(self.profiles)}",
                where=title,
                fix="leave one profile, or run the pipeline file itself: each profile then has a plan of its own",
            )
        self.device, self.title, self.loadables = device, title, loadables
        self._queue, self._scales = queue, scales or {}
        self._queues = list[Queue]()
        opened = partial(OpenPlan, library=library, device=device, title=title)
        shared_logger(library.trt)[1].clear()

        def other(content: tuple[bytes, CacheEntry | None]) -> OpenPlan:
            with device:
                return opened(content[0], cache_entry=content[1])

        with ThreadPoolExecutor(len(others) or 1, "edgert-trt") as pool:  # each may take long
            read = pool.map(other, others.values())
            self._plan = opened(plan, dla_core=dla_core, host_code=host_code, cache_entry=cache_entry)
            self._others = dict(zip(others, read, strict=True))
        self.refine = self._refine if self._others else None  # else all sizes are of the plan that is open
        self.refinements: list[Refinement] = []
        self._is_open = True
        self._sessions: list[TrtSession] = []
        self.recordable = loadables == 0
        """Whether runs may be recorded as CUDA graphs: not with DLA layers (TensorRT issue 3524)."""
        declared, given = list(self._plan.shapes("INPUT").values()), self._plan.shapes("OUTPUT")
        is_open = bool(declared) and all(shape and shape[0] < 0 for shape in declared)
        of_rows = [(rows, one.shapes("OUTPUT")) for (_, rows), one in self._others.items() if rows]
        self.dynamic_batch = is_open or bool(of_rows)
        self.batched = share_first_dimension(declared, list(given.values()))
        if of_rows:
            self.batched = tuple(all(shapes[name][:1] == (rows,) for rows, shapes in of_rows) for name in given)
        first = self._opened(self.profiles[0])  # tensors of the first profile are as a session of it has them
        self._spare = [first]
        taken = first.inputs_on_gpu.items()
        self.inputs = tuple(Tensor(name, one.shape, "float32" if one.scale else one.dtype) for name, one in taken)
        self.outputs = tuple(Tensor(one.name, one.shape, self._plan.dtype(one.name)) for one in first.outputs_on_gpu)
        self.outputs_known = True
        core = self._plan.dla_core if loadables else None
        info = {"backend": "tensorrt", "version": library.version, "dla_core": core, "loadables": loadables}
        if self._plan.unsupported:
            info["unsupported"] = self._plan.unsupported
        self.info: Mapping[str, Any] = MappingProxyType(info)

    def session(self, profile: str | None = None, on_host: OnHost = "all", queue_index: int = 0) -> TrtSession:
        """Return a new set of bound tensors with an execution context.

        All tensors are the host's, too, where a DLA uses them. Raises ModelError for an unknown profile or an output
        whose size depends on the data, and DeviceError without memory.
        """
        if not self._is_open:
            raise closed_error(self.title)
        name = checked_profile(profile, self.profiles, self.title)
        is_first = not queue_index and name == self.profiles[0]
        spare = self._spare.pop() if self._spare and is_first else None  # that of the beginning
        if spare is not None:
            spare.place(self._touched(on_host))
        made = spare or self._opened(name, on_host, queue_index)
        if on_host == "all":  # a caller on the host has no thread that opens them meanwhile
            try:
                with self.device.recording, made.exclusive:
                    for rows in made.sizes:
                        made.open(rows)
            except BaseException:  # too little memory for one of them
                self._sessions.remove(made)
                made.close()
                raise
        return made

    def _touched(self, on_host: OnHost) -> OnHost:
        """Return which tensors the host touches: all where a DLA runs, whose tensors are shared with the host."""
        return "all" if self.loadables else on_host

    def _queue_of(self, queue_index: int) -> Queue:
        """Return a queue. Contexts of different streams may run at the same time; a DLA core has one job at a time."""
        if self._queue is not None:
            return self._queue
        while len(self._queues) <= queue_index:
            self._queues.append(Queue(self.device.stream(), threading.RLock()))
        return self._queues[queue_index]

    def _opened(self, name: str, on_host: OnHost = "none", queue_index: int = 0) -> TrtSession:
        shapes, queue = self._profiles[name], self._queue_of(queue_index)
        own = sorted(rows for profile, rows in self._others if profile == name and rows)
        sizes = own if name == self.profiles[0] else own[:-1]  # without all of them

        with queue.exclusive:  # nobody records meanwhile, and would get what that puts on the stream
            made = TrtSession(
                partial(self._open_context, name, queue.stream),
                self.device,
                queue,
                shapes=shapes,
                scales=self._scales,
                dynamic=self.dynamic_batch,
                sizes=sizes,
                batched=self.batched,
                recordable=self.recordable,
                title=self.title,
                of_profile=name,
                on_host=self._touched(on_host),
            )
        self._sessions.append(made)
        return made

    def _refine(
        self, sizes: Sequence[int], record: Callable[[int], object], profile: str | None = None
    ) -> Refinement | None:
        """Open contexts for some batch sizes in a thread, while others run.

        Finished ones are among the ``renewed`` of a session, which records them. See
        :meth:`~edgert.backend.ort.cuda.OrtCudaEngine.refine`.
        """
        if not sizes:
            return None
        sessions = [one for one in self._sessions if one.of_profile == (profile or self.profiles[0])]
        made = Refinement(partial(self._open_sizes, sessions, sizes), "contexts for fewer rows", self.title)
        self.refinements.append(made)
        return made

    def _open_sizes(self, sessions: Sequence[TrtSession], sizes: Sequence[int], canceled: threading.Event) -> str:
        for rows in sizes:
            for one in sessions:
                if not canceled.is_set():
                    with self.device.recording:  # who records would get what opening one puts on the stream
                        one.open(rows)
            for one in sessions:  # all at once, as one that runs uses the same cache of kernels
                one.renewed.add(rows)
        return f"contexts for {', '.join(map(str, sizes))} rows are open"

    @property
    def context_bytes(self) -> int:
        """GPU memory of one execution context for intermediate tensors, without inputs and outputs."""
        return self._plan.context_bytes

    def close(self) -> None:
        """Free the memory of all sessions, then the engine's."""
        for one in self.refinements:
            one.close()
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        self._spare.clear()
        self._is_open = False
        with self.device:
            for plan in (self._plan, *self._others.values()):
                plan.close()

    def _open_context(self, name: str, stream: Stream, shapes: Shapes) -> Context:
        rows = next((shape[0] for shape in shapes.values() if shape), 0)
        plan = self._others.get((name, rows)) or self._others.get((name, 0)) or self._plan
        return plan.context(0 if self._others else self.profiles.index(name), shapes, stream)
