"""A GPU, which makes its streams, memory and kernels, and CUDA graphs of work recorded on it."""

from __future__ import annotations

import ctypes
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from edgert.errors import DeviceError, StageError
from edgert.memory.buffer import U8, Counter
from edgert.memory.cuda.driver import (
    call,
    cuda_error,
    error_of,
    initialize,
    is_lost,
    load_driver,
    module_loader,
    pycuda_driver,
    with_python_lock,
)
from edgert.memory.cuda.gpu_context import Context, MemoryKind, tensor_kind
from edgert.memory.cuda.holders import describe_holders, free_on, others_on
from edgert.memory.cuda.nvrtc import Module
from edgert.memory.cuda.stream import Event, Stream


class Block(ABC):
    """One piece of memory of ``nbytes`` on ``device``, which its owner releases.

    A block that is garbage-collected without release counts as leaked.
    """

    is_staged: ClassVar[bool] = False
    """Whether uploads and downloads are copies."""

    def __init__(self, device: Context, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        self._address: int | None = None

    @property
    def address(self) -> int:
        """Device address, a multiple of 256. Raises StageError after :meth:`release`.

        TensorRT requires this alignment, and cuMemAlloc guarantees it (CUDA C++ Programming Guide, Device Memory).
        """
        if self._address is None:
            raise StageError("GPU memory was used after its release", why=f"a block of {self.nbytes} bytes was freed")
        return self._address

    @property
    def host(self) -> U8:
        """Memory on the host's side, 1-D. Raises DeviceError for memory of only the GPU."""
        raise DeviceError(
            "the host cannot access this memory of the GPU", fix="device.block() makes memory that both sides access"
        )

    def upload(self, stream: Stream, nbytes: int | None = None) -> None:  # noqa: B027 - most memory has no copies
        """Enqueue the copy of the first ``nbytes``, by default all, to the GPU, if it has separate memory."""

    def download(self, stream: Stream, nbytes: int | None = None) -> None:  # noqa: B027 - as above
        """Enqueue the copy of the first ``nbytes``, by default all, to the host, if the GPU has separate memory."""

    def release(self) -> None:
        """Free the memory. Work that uses it must be done. May be called twice.

        Raises:
            DeviceError: the driver refuses it now, such as while a thread records a CUDA graph; it may be tried again.
        """
        address, self._address = self._address, None
        if address is None:
            return
        try:
            if self.device.is_open:  # else the memory ended with the context
                with self.device:
                    self._free()
        except self.device.driver.Error as error:
            if not is_lost(str(error)):  # else the memory ended with the context
                self._address = address
                raise cuda_error(error, "freeing") from error
        self.device.untrack(self)

    def release_or_defer(self) -> None:
        """Release unused memory without raising an error or waiting for another thread, for finalizers.

        While a thread records a CUDA graph, or opens an engine's context, which may take seconds, the memory is kept.
        The device releases it when it next allocates memory.
        """
        recording = self.device.recording
        if not recording.acquire(blocking=False):
            self.device.defer(self.release)
            return
        try:
            if self.device.is_open:
                self.device.drain()
            self.release()
        except DeviceError:
            self.device.defer(self.release)
        finally:
            recording.release()

    @abstractmethod
    def _free(self) -> None: ...

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None:
            self.release_or_defer()
            self.device.untrack(self, leaked=True)


class DeviceBlock(Block):
    """Memory of only the GPU."""

    def __init__(self, device: Context, nbytes: int) -> None:
        super().__init__(device, nbytes)
        self._memory = device.driver.mem_alloc(nbytes)
        _zero(device, int(self._memory), nbytes)
        self._address = int(self._memory)

    def _free(self) -> None:
        self._memory.free()


class _PinnedBlock(Block):
    """Memory with pinned memory on the host's side."""

    _host: U8 | None = None
    _memory: Any = None

    def _pin(self, flags: int) -> U8:
        """Return zeroed pinned memory.

        PyCUDA frees it on request even if arrays use it, so blocks must be released only after their use.
        """
        host: U8 = self.device.driver.pagelocked_empty(self.nbytes, np.uint8, mem_flags=flags)
        host.fill(0)
        self._host, self._memory = host, host.base
        return host

    @property
    def host(self) -> U8:
        """Memory on the host's side. If it is mapped, the GPU writes there until the stream's work is done."""
        _ = self.address
        if self._host is None:
            return self.device.run(self._pin, 0, doing="allocating pinned memory")
        return self._host

    def _free(self) -> None:
        if self._memory is not None:
            self._memory.free()
        self._host = self._memory = None


class MappedBlock(_PinnedBlock):
    """Pinned host memory that the GPU reads and writes in place, without copies on an integrated GPU."""

    def __init__(self, device: Context, nbytes: int) -> None:
        super().__init__(device, nbytes)
        self._pin(device.driver.host_alloc_flags.DEVICEMAP)
        self._address = int(self._memory.get_device_pointer())


class StagedBlock(_PinnedBlock):
    """Device memory and pinned host memory of one size, with counted copies between them.

    With ``pins_later``, the host memory is allocated on first use: tensors that only the GPU uses never need it.
    """

    is_staged = True

    def __init__(self, device: Context, nbytes: int, *, pins_later: bool = False) -> None:
        super().__init__(device, nbytes)
        self._inner = device.driver.mem_alloc(nbytes)
        try:
            if not pins_later:
                self._pin(0)
        except device.driver.Error:
            self._inner.free()  # here, where the context is current, and not by the garbage collector
            raise
        _zero(device, int(self._inner), nbytes)
        self._address = int(self._inner)

    def upload(self, stream: Stream, nbytes: int | None = None) -> None:
        """Enqueue the copy from host to GPU, counted."""
        host = self.host if self._host is None else self._host
        part = host if nbytes is None else host[:nbytes]
        self.device.run(self.device.copy_up, self.address, part, stream.raw, doing="copying")
        self.device.counter.copied(nbytes or self.nbytes)

    def download(self, stream: Stream, nbytes: int | None = None) -> None:
        """Enqueue the copy from GPU to host, counted."""
        part = self.host[:nbytes]
        self.device.run(self.device.driver.memcpy_dtoh_async, part, self.address, stream.raw, doing="copying")
        self.device.counter.copied(part.nbytes)

    def _free(self) -> None:
        super()._free()
        self._inner.free()


def _zero(device: Context, address: int, nbytes: int) -> None:
    """Fill new memory with zeros, and wait until that is done.

    CUDA's memset returns before it is done, and edgert's streams do not wait for the default stream. Without the wait,
    the zeros could overwrite their data.
    """
    stream = Stream(device)
    device.driver.memset_d8_async(address, 0, nbytes, stream.raw)
    stream.synchronize()


BlockT = TypeVar("BlockT", bound=Block)


class CudaDevice(Context):
    """A GPU with its context, in which it makes streams, events, memory, kernels and graphs."""

    def stream(self) -> Stream:
        """Return a new stream."""
        return Stream(self)

    def event(self, timed: bool = False) -> Event:
        """Return a new event."""
        return Event(self, timed)

    def block(self, nbytes: int, kind: MemoryKind | None = None) -> Block:
        """Return new zeroed memory for host and GPU, by default of the device's kind. Raises DeviceError."""
        if (kind or self.kind) == "mapped":
            return self._allocate(MappedBlock, nbytes)
        return self._allocate(StagedBlock, nbytes)

    def tensor_block(self, nbytes: int, *, for_host: bool = True) -> Block:
        """Return new zeroed memory for a tensor of an engine, of the kind of :func:`tensor_kind`. Raises DeviceError.

        Args:
            nbytes: size of the tensor.
            for_host: whether the host writes or reads the tensor in every run; else its host memory is allocated on
                first use.
        """
        kind = tensor_kind(self.kind, for_host, self.tensors)
        if for_host or kind == "mapped":
            return self.block(nbytes, kind)
        return self._allocate(partial(StagedBlock, pins_later=True), nbytes)

    def device_block(self, nbytes: int) -> DeviceBlock:
        """Return new zeroed memory of only the GPU. Raises DeviceError if there is too little."""
        return self._allocate(DeviceBlock, nbytes)

    def load(self, binary: bytes) -> Module:
        """Load compiled kernels, a cubin or PTX. Raises DeviceError if they are not for this GPU."""
        return self.run(lambda: Module(self, module_loader(self.driver)(binary)), doing="loading kernels")

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Graph:
        """Record the work that ``enqueue`` puts on the stream; return it as a CUDA graph to launch on that stream.

        ``enqueue`` must have run before, must not allocate or wait, and must use no DLA. Raises DeviceError.
        """
        return capture(self, stream, enqueue, load_driver())

    def _allocate(self, make: Callable[[Context, int], BlockT], nbytes: int) -> BlockT:
        if nbytes <= 0:
            raise DeviceError(f"cannot allocate a block of {nbytes} bytes", why="memory has at least one byte")
        self.release_deferred()
        try:
            with self:
                made = make(self, nbytes)
        except self.driver.Error as error:
            free = self.free_bytes()[0]
            others = self.describe_other_holders() if free < nbytes else ""
            raise cuda_error(error, "allocating", free_bytes=free, requested_bytes=nbytes, others=others) from error
        self.counter.allocated()
        self.track(made, nbytes)
        return made


def open_device(ordinal: int = 0, *, counter: Counter | None = None, driver: Any = None) -> CudaDevice:
    """Open the GPU with that number. Tests pass a double of PyCUDA's ``driver``.

    Raises DeviceError if there is no PyCUDA, driver or such GPU, or the driver is too old.
    """
    if driver is None:
        driver = pycuda_driver()
    else:
        initialize(driver)
    count = int(driver.Device.count())
    if not 0 <= ordinal < count:
        raise DeviceError(f"there is no GPU {ordinal}", why=f"this machine has {count}", fix="the first has number 0")
    try:
        return CudaDevice(driver, ordinal, counter)
    except driver.Error as error:
        free, others = None, ""
        with suppress(driver.Error):  # the driver may not even name the GPU
            bus_id = str(driver.Device(ordinal).pci_bus_id())
            free, others = free_on(bus_id), describe_holders(others_on(bus_id))
        raise cuda_error(error, f"opening GPU {ordinal}", free_bytes=free, others=others) from error


# CUDA graphs. PyCUDA has none, so the driver is called directly.
#
# Functions and constants are those of cuda.h: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html.

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may allocate meanwhile
_HOST_NODE = 3  # CU_GRAPH_NODE_TYPE_HOST


class Graph:
    """Recorded work, which a call launches on its stream."""

    def __init__(self, device: Context, library: Any, recorded: int, stream: Stream) -> None:
        self._device, self._library, self._recorded, self._stream = device, library, recorded, stream
        ready, flags = ctypes.c_void_p(), ctypes.c_ulonglong(0)
        call(library, "cuGraphInstantiateWithFlags", ctypes.byref(ready), ctypes.c_void_p(recorded), flags)
        self._ready, self._target = ready, ctypes.c_void_p(stream.handle)
        self._launch = with_python_lock(library).cuGraphLaunch

    def __call__(self) -> None:
        with self._device:
            code = self._launch(self._ready, self._target)
        if code:
            raise error_of(self._library, code, "cuGraphLaunch")

    def __del__(self) -> None:
        if self._device.is_open and hasattr(self, "_ready"):
            with self._device:
                try:
                    call(self._library, "cuGraphExecDestroy", self._ready)
                    _destroy_graph(self._library, self._recorded)
                except DeviceError as error:
                    if not is_lost(error.why):  # else the graph ended with the context
                        raise


def capture(device: Context, stream: Stream, enqueue: Callable[[], None], library: Any) -> Graph:
    """Return the work of ``enqueue`` on the stream as a graph, recorded by the CUDA driver's library.

    An exception in ``enqueue`` ends the recording and propagates. Raises DeviceError.
    """
    with device:
        with device.recording:
            recorded = _record(library, stream, enqueue)
        try:
            for node in _nodes(library, recorded):
                kind = ctypes.c_int()
                call(library, "cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
                if kind.value == _HOST_NODE:
                    raise DeviceError(
                        "this work cannot be a CUDA graph",
                        why="it contains a host callback that frees memory; replaying it would free that memory again",
                    )
            return Graph(device, library, recorded, stream)
        except DeviceError:
            _destroy_graph(library, recorded)
            raise


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable Python's garbage collector within the block, in all threads."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _record(library: Any, stream: Stream, enqueue: Callable[[], None]) -> int:
    """Return the graph of the work that ``enqueue`` puts on the stream. An error ends the recording."""
    handle, graph = ctypes.c_void_p(stream.handle), ctypes.c_void_p()
    # The garbage collector could free GPU memory in a cycle of references, which ends a recording.
    with _no_garbage_collection():
        call(library, "cuStreamBeginCapture_v2", handle, ctypes.c_int(_THREAD_LOCAL))
        try:
            enqueue()
        except BaseException:
            library.cuStreamEndCapture(handle, ctypes.byref(graph))  # its error only repeats this one
            if graph.value:
                _destroy_graph(library, graph.value)
            raise
        call(library, "cuStreamEndCapture", handle, ctypes.byref(graph))
    return graph.value or 0


def _destroy_graph(library: Any, recorded: int) -> None:
    call(library, "cuGraphDestroy", ctypes.c_void_p(recorded))


def _nodes(library: Any, graph: int) -> list[int]:
    count = ctypes.c_size_t()
    call(library, "cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    found = (ctypes.c_void_p * count.value)()
    call(library, "cuGraphGetNodes", ctypes.c_void_p(graph), found, ctypes.byref(count))
    return [node or 0 for node in found]
