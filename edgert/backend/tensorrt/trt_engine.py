"""Serialized engines opened for running."""

import re
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import Any

from edgert.backend.base import DEFAULT_PROFILE, Shapes, Tensor, checked_profile, closed_error, share_first_dimension
from edgert.backend.gpu import OnHost, Refinement
from edgert.backend.tensorrt import engine_cache, execution_context, library as api, log, plugin
from edgert.backend.tensorrt.sessions import Queue, TrtSession
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import CudaDevice, Stream
from edgert.units import format_bytes

_CAPABILITY = re.compile(r"compute capabilit|\bSM ?\d", re.IGNORECASE)
"""Words in errors of TensorRT-RTX 1.4 and 1.7 about a compute capability that they do not support."""


class UnopenedError(DeviceError):
    """Plan that TensorRT cannot open, as it is damaged or of another TensorRT or GPU. Compiling it here helps."""


class OpenPlan:
    """A deserialized plan, of which execution contexts are created, and its runtime.

    ``host_code`` is whether the plan's CPU code may be run. Raises DeviceError: the DLA core cannot be used; or memory
    is too small; or TensorRT-RTX does not support the GPU. Raises UnopenedError: TensorRT cannot open the plan, such as
    one of another TensorRT or GPU.
    """

    def __init__(
        self,
        plan: bytes,
        library: api.Library,
        device: CudaDevice,
        *,
        dla_core: int | None = None,
        host_code: bool = False,
        cache_entry: engine_cache.CacheEntry | None = None,
        title: str = "engine",
    ) -> None:
        self._library, self._device, self._title = library, device, title
        self.unsupported = api.why_unsupported(library, "{}.{}".format(*device.traits.compute))
        self._log = log.shared_logger(library.trt)[1]
        self._runtime: api.Runtime = _runtime(library, dla_core, title, host_code=host_code)
        self._engine: api.ICudaEngine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            why = log.tail(self._log) or "it logged no reason"
            if self.unsupported and _CAPABILITY.search(why):
                raise self._refusal(why)
            raise (DeviceError if "memory" in why else UnopenedError)(
                f"{library.title} cannot open this engine",
                why=why,
                where=title,
                fix="build it here: an engine only runs on the TensorRT and the kind of GPU that it was built for",
            )
        is_rtx = library.kind == "rtx"
        self._kernels = engine_cache.KernelCache(library, self._engine, cache_entry, title) if is_rtx else None

    @property
    def dla_core(self) -> int:
        """Number of the DLA core that the runtime uses."""
        return int(self._runtime.DLA_core)

    @property
    def context_bytes(self) -> int:
        """GPU memory of one execution context for intermediate tensors, without inputs and outputs."""
        if hasattr(self._engine, "device_memory_size_v2"):
            return int(self._engine.device_memory_size_v2)
        return int(self._engine.device_memory_size) if hasattr(self._engine, "device_memory_size") else 0

    def shapes(self, mode: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of ``INPUT`` or ``OUTPUT`` tensors by name, in order; an open dimension is negative."""
        trt: api.Trt = self._library.trt
        wanted = trt.TensorIOMode.INPUT if mode == "INPUT" else trt.TensorIOMode.OUTPUT
        names = [str(self._engine.get_tensor_name(index)) for index in range(self._engine.num_io_tensors)]
        ours = [name for name in names if self._engine.get_tensor_mode(name) == wanted]
        return {name: tuple(self._engine.get_tensor_shape(name)) for name in ours}

    def context(self, index: int, shapes: Shapes, stream: Stream) -> execution_context.Context:
        """Return a new execution context for input shapes within an optimization profile, on a stream.

        Raises DeviceError if TensorRT cannot create it, and ModelError as :class:`Context` does.
        """
        kernels = self._kernels
        created: api.IExecutionContext = kernels.context() if kernels else self._engine.create_execution_context()
        if created is None:
            why = log.tail(self._log)
            if self.unsupported and (not why or _CAPABILITY.search(why)):
                raise self._refusal(why or "it created no execution context")
            raise DeviceError(
                "TensorRT created no execution context: the GPU has too little memory",
                why=f"planned: {format_bytes(self.context_bytes)}, beside weights, inputs and outputs; actual: "
                + self._device.describe_free_memory(),
                where=self._title,
                fix="use a smaller batch or input size, or fewer models; or end other programs that use the GPU",
            )
        context = execution_context.Context(
            self._library.trt,
            self._engine,
            created,
            stream,
            index=index,
            shapes=shapes,
            title=self._title,
            on_first_run=partial(kernels.cache_after_first_run, index, shapes) if kernels else None,
            last_error=partial(log.tail, self._log, 1),
        )
        if kernels is not None:
            kernels.cache_after_opening()
        return context

    def close(self) -> None:
        """Free the engine, then the runtime. Its contexts must be freed before."""
        self._kernels = None
        self._engine = None
        self._runtime = None

    def _refusal(self, why: str) -> DeviceError:
        """Return the error for a GPU that this TensorRT-RTX does not support; another build would not help."""
        return DeviceError(
            f"{self._library.title} does not support this GPU",
            why=f"compute capability {self.unsupported}: {why}",
            where=self._title,
            fix="use engines: [onnxruntime-cuda, onnxruntime], or TensorRT: pip install tensorrt",
        )


def _runtime(library: api.Library, core: int | None, title: str, *, host_code: bool) -> api.Runtime:
    """Return a runtime that opens engines for a DLA core, or for none. It must outlive the engine."""
    trt: api.Trt = library.trt
    if plugin.supports_plugins(library):
        plugin.register_operators(trt)
    runtime: api.Runtime = trt.Runtime(log.shared_logger(trt)[0])
    if host_code:
        runtime.engine_host_code_allowed = True
    cores = runtime.num_DLA_cores if core is not None else 0
    if core is not None and core < cores:
        runtime.DLA_core = core  # before an engine is opened; TensorRT silently replaces a missing core
    if core is not None and (core >= cores or runtime.DLA_core != core):
        raise DeviceError(
            f"dla{core} cannot be used",
            why=f"TensorRT sees {cores} DLA cores" if core >= cores else f"it chose core {runtime.DLA_core} instead",
            where=title,
            fix="edgert doctor lists the DLA cores",
        )
    return runtime


MAX_LOADABLES = 16
"""Maximum number of programs on one DLA core: NVIDIA's page on DLA layer restrictions."""


class TrtEngine:
    """A deserialized engine, with an execution context for each session and batch size.

    See :class:`~edgert.backend.gpu.GpuEngine`.

    Args:
        library: TensorRT that built the engine, or a later one for a version-compatible engine.
        scales: value of one step by int8 input, for inputs whose arrays on the host have real numbers.
        loadables: number of its DLA programs (:attr:`~edgert.backend.tensorrt.engine_layers.EngineFacts.loadables`).
        resident: number of DLA programs of other engines on that core.
        host_code: whether the plan's CPU code may be run; version-compatible engines contain a runtime.
        others: further plans of the model and their cache entries, by profile and number of rows; 0 rows for a plan
            with all rows of its profile. With them, ``plan`` is for the first profile and all its rows, and each batch
            runs in the next larger plan. TensorRT-RTX needs a plan for every profile.

    Attributes:
        recordable: whether runs may be recorded as CUDA graphs, as they may without DLA layers (TensorRT issue 3524).

    Raises:
        DeviceError: the DLA core cannot be used, or would have too many programs; or there is too little memory; or
            TensorRT-RTX does not support the GPU.
        UnopenedError: TensorRT cannot open the plan, such as one of another TensorRT or GPU.
        BuildError: a plan of TensorRT-RTX has several profiles.
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
        cache_entry: engine_cache.CacheEntry | None = None,
        others: Mapping[tuple[str, int], tuple[bytes, engine_cache.CacheEntry | None]] = MappingProxyType({}),
        title: str = "engine",
    ) -> None:
        if loadables + resident > MAX_LOADABLES:  # otherwise only its runs would fail
            raise DeviceError(
                f"{loadables} DLA programs do not fit on dla{dla_core if dla_core is not None else ''}",
                why=f"a core holds {MAX_LOADABLES}, and has {resident} of other engines",
                where=title,
                fix="place fewer, longer regions on the DLA, or move a model to the other core",
            )
        self._profiles = profiles or {DEFAULT_PROFILE: {}}
        self.profiles = tuple(self._profiles)
        if library.kind == "rtx" and not {*self.profiles[1:]} <= {name for name, _ in others}:
            raise BuildError(
                f"{library.title} runs one profile of an engine",
                why=f"1.4 ends the process when another is chosen, and this model has {', '.join(self.profiles)}",
                where=title,
                fix="leave one profile, or run the pipeline file itself: each profile then has a plan of its own",
            )
        self.device, self.title, self.loadables = device, title, loadables
        self._queue, self._scales = queue, scales or {}
        self._queues = list[Queue]()
        open_plan = partial(OpenPlan, library=library, device=device, title=title)
        log.shared_logger(library.trt)[1].clear()

        def open_other(content: tuple[bytes, engine_cache.CacheEntry | None]) -> OpenPlan:
            with device:
                return open_plan(content[0], cache_entry=content[1])

        with ThreadPoolExecutor(len(others) or 1, "edgert-trt") as pool:  # opening a plan may take seconds
            opened = pool.map(open_other, others.values())
            self._plan = open_plan(plan, dla_core=dla_core, host_code=host_code, cache_entry=cache_entry)
            self._others = dict(zip(others, opened, strict=True))
        self.refine = self._refine if self._others else None  # a single plan has all sizes
        self.refinements: list[Refinement] = []
        self.is_open = True
        self._sessions: list[TrtSession] = []
        self.recordable = loadables == 0
        inputs, outputs = list(self._plan.shapes("INPUT").values()), self._plan.shapes("OUTPUT")
        has_open_batch = bool(inputs) and all(shape and shape[0] < 0 for shape in inputs)
        of_rows = [(rows, one.shapes("OUTPUT")) for (_, rows), one in self._others.items() if rows]
        self.dynamic_batch = has_open_batch or bool(of_rows)
        self.batched = share_first_dimension(inputs, list(outputs.values()))
        if of_rows:
            self.batched = tuple(all(shapes[name][:1] == (rows,) for rows, shapes in of_rows) for name in outputs)
        self._first: execution_context.Context | None = None  # of the first profile, until a session takes it
        try:
            self.inputs, self.outputs = self._open_first()
        except BaseException:
            self.close()
            raise
        self.outputs_known = True
        core = self._plan.dla_core if loadables else None
        info = {"backend": "tensorrt", "version": library.version, "dla_core": core, "loadables": loadables}
        if self._plan.unsupported:
            info["unsupported"] = self._plan.unsupported
        self.info: Mapping[str, Any] = MappingProxyType(info)

    def _open_first(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Open a context of the first profile; return its inputs and outputs."""
        queue = self._queue_of(0)
        with self.device, queue.exclusive:
            first = self._open_context(self.profiles[0], queue.stream, self._profiles[self.profiles[0]])
        self._first, inputs, outputs = first, list[Tensor](), list[Tensor]()
        for name, layout in first.layouts.items():
            is_scaled = self._scales.get(name) and layout.dtype == "int8"
            tensor = Tensor(name, layout.shape, "float32" if is_scaled else layout.dtype)
            (inputs if name in first.inputs else outputs).append(tensor)
        return tuple(inputs), tuple(outputs)

    def session(self, profile: str | None = None, on_host: OnHost = "all", queue_index: int = 0) -> TrtSession:
        """Return a new set of bound tensors with an execution context.

        All tensors of an engine on a DLA have host memory. Raises ModelError for an unknown profile or an output whose
        size depends on the data, and DeviceError if there is too little memory.
        """
        if not self.is_open:
            raise closed_error(self.title)
        name = checked_profile(profile, self.profiles, self.title)
        session = self._create_session(name, on_host, queue_index)
        if on_host == "all":  # callers on the host do not refine the engine, which would open these contexts
            try:
                with self.device.recording, session.exclusive:
                    for rows in session.sizes:
                        session.open(rows)
            except BaseException:  # too little memory for one of them
                self._sessions.remove(session)
                session.close()
                raise
        return session

    def _queue_of(self, queue_index: int) -> Queue:
        """Return a queue. Work of different queues may run at the same time; a DLA core has one job at a time."""
        if self._queue is not None:
            return self._queue
        while len(self._queues) <= queue_index:
            self._queues.append(Queue(self.device.stream(), threading.RLock()))
        return self._queues[queue_index]

    def _create_session(self, name: str, on_host: OnHost, queue_index: int) -> TrtSession:
        queue = self._queue_of(queue_index)
        sizes = sorted(rows for profile, rows in self._others if profile == name and rows)
        if name != self.profiles[0]:
            sizes = sizes[:-1]  # without the maximum, which for the first profile is not among the others
        with queue.exclusive:  # a recording would include the work that opening a context enqueues
            session = TrtSession(
                partial(self._open_context, name, queue.stream),
                self.device,
                queue,
                shapes=self._profiles[name],
                scales=self._scales,
                dynamic=self.dynamic_batch,
                sizes=sizes,
                batched=self.batched,
                recordable=self.recordable,
                title=self.title,
                profile_name=name,
                on_host="all" if self.loadables else on_host,  # a DLA's tensors are shared with the host
            )
        self._sessions.append(session)
        return session

    def _refine(self, sizes: Sequence[int], profile: str | None = None) -> Refinement | None:
        """Open contexts for some batch sizes in a thread, while others run.

        Opened sizes are added to ``renewed`` of the sessions, whose user then records them.
        """
        if not sizes:
            return None
        sessions = [one for one in self._sessions if one.profile_name == (profile or self.profiles[0])]
        refinement = Refinement(partial(self._open_sizes, sessions, sizes), "contexts for fewer rows", self.title)
        self.refinements.append(refinement)
        return refinement

    def _open_sizes(self, sessions: Sequence[TrtSession], sizes: Sequence[int], canceled: threading.Event) -> str:
        for rows in sizes:
            for session in sessions:
                if not canceled.is_set():
                    with self.device.recording:  # a recording would include the work that opening a context enqueues
                        session.open(rows)
            for session in sessions:  # after all are open, as a running session uses the same cache of kernels
                session.renewed.add(rows)
        return f"contexts for {', '.join(map(str, sizes))} rows are open"

    @property
    def context_bytes(self) -> int:
        """GPU memory of one execution context for intermediate tensors, without inputs and outputs."""
        return self._plan.context_bytes

    def close(self) -> None:
        """Free the memory of all sessions, then the engine's."""
        for refinement in self.refinements:
            refinement.close()
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        self._first = None
        self.is_open = False
        with self.device:
            for plan in (self._plan, *self._others.values()):
                plan.close()

    def _open_context(self, name: str, stream: Stream, shapes: Shapes) -> execution_context.Context:
        if (first := self._first) is not None and first.is_for(shapes, stream):
            self._first = None
            return first
        rows = next((shape[0] for shape in shapes.values() if shape), 0)
        plan = self._others.get((name, rows)) or self._others.get((name, 0)) or self._plan
        return plan.context(0 if self._others else self.profiles.index(name), shapes, stream)
