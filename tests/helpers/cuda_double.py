"""A stand-in for PyCUDA's driver module whose GPU is this process's memory, and whose streams stop when told to.

It is strict where the real one is: work without a current context, or in that of another GPU, a context popped in
another thread, memory freed twice or used after that, and more memory than there is, are errors.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np


class CudaError(Exception): ...


class _Allocation:
    def __init__(self, gpu: CudaDouble, nbytes: int, align: int = 256) -> None:
        self._gpu, self.nbytes = gpu, nbytes
        raw = np.full(nbytes + align, 0xAB, np.uint8)
        start = -raw.ctypes.data % align
        self.bytes: Any = raw[start : start + nbytes]
        self._address = int(self.bytes.ctypes.data)
        self.ordinal = gpu.current
        gpu.allocations.append(self)

    def __int__(self) -> int:
        return self._address

    def get_device_pointer(self) -> int:
        return self._address

    def free(self) -> None:
        self._gpu.check()
        self._gpu.fail("free")
        if self not in self._gpu.allocations:
            raise CudaError("cuMemFree failed: invalid argument")
        self._gpu.allocations.remove(self)


class _Context:
    def __init__(self, gpu: CudaDouble, ordinal: int = 0) -> None:
        self._gpu, self.ordinal, self.handle = gpu, ordinal, 0xC0DE + ordinal

    def push(self) -> None:
        self._gpu.stack.append(self)
        self._gpu.pushes += 1

    def pop(self) -> None:
        if not self._gpu.stack:
            raise CudaError("cuCtxPopCurrent failed: invalid device context")
        self._gpu.stack.pop()

    def detach(self) -> None:
        self._gpu.detached = True

    def synchronize(self) -> None:
        self._gpu.run_all()


class _Other(_Context):
    def __init__(self, gpu: CudaDouble, ordinal: int) -> None:
        super().__init__(gpu, ordinal)
        gpu.more_contexts += 1

    def detach(self) -> None:
        self._gpu.more_contexts -= 1


class _Stream:
    def __init__(self, gpu: CudaDouble, flags: int) -> None:
        gpu.check()
        assert flags == 1, "streams must not wait for the default stream"
        self._gpu, self.work, self.ordinal = gpu, [], gpu.current
        gpu.streams.append(self)
        self.handle = 0x1000 + len(gpu.streams)

    work: list[Callable[[], None]]

    def put(self, work: Callable[[], None]) -> None:
        if self._gpu.current != self.ordinal:
            raise CudaError("invalid resource handle: it is another GPU's")
        with self._gpu.turn:
            self.work.append(work)
            if not self._gpu.paused:
                self.run()

    def run(self) -> None:
        with self._gpu.turn:  # several threads may wait for one stream
            while self.work:
                self.work.pop(0)()

    def synchronize(self) -> None:
        self._gpu.check()
        self._gpu.fail("stream")
        self.run()

    def wait_for_event(self, event: _Event) -> None:
        self.put(event.synchronize)


_PATIENCE = 20
"""Number of queries of an event after which paused work goes on, as the caller sleeps in between."""


class _Event:
    def __init__(self, gpu: CudaDouble, flags: int) -> None:
        gpu.check()
        self._gpu, self._passed, self._stream, self.flags = gpu, True, None, flags
        self._looks = 0

    _stream: _Stream | None

    def record(self, stream: _Stream) -> None:
        self._passed, self._stream, self._looks = False, stream, 0
        stream.put(self._pass)

    def _pass(self) -> None:
        self._passed, self.at_ms = True, time.perf_counter() * 1e3

    def query(self) -> bool:
        self._gpu.check()
        self._gpu.fail("event")
        self._looks += 1
        if self._looks > _PATIENCE and not self._passed and self._stream is not None:
            self._stream.run()
        return self._passed

    def synchronize(self) -> None:
        self._gpu.check()
        self._gpu.fail("event")
        if not self._passed and self._stream is not None:
            self._stream.run()

    def time_since(self, earlier: _Event) -> float:
        return self.at_ms - earlier.at_ms


class CudaDouble:
    """The module. ``paused`` keeps work waiting on streams; ``broken`` makes what it names fail."""

    Error = CudaError
    event_flags = SimpleNamespace(DEFAULT=0, BLOCKING_SYNC=1, DISABLE_TIMING=2)
    host_alloc_flags = SimpleNamespace(DEVICEMAP=2)
    device_attribute = SimpleNamespace(INTEGRATED=18, CAN_MAP_HOST_MEMORY=19)
    CONTEXT_BYTES = 2**20

    def __init__(
        self,
        integrated: bool = False,
        compute: tuple[int, int] = (8, 7),
        memory_bytes: int = 2**30,
        driver_version: int = 13000,
        count: int = 1,
    ) -> None:
        self.integrated, self.compute, self.memory_bytes = integrated, compute, memory_bytes
        self.driver_version, self.count = driver_version, count
        self.allocations: list[_Allocation] = []
        self.streams: list[_Stream] = []
        self.paused, self.detached, self.pushes, self.more_contexts = False, False, 0, 0
        self.broken: dict[str, str] = {}
        self.mapped: dict[int, int] = {}
        """Memory of others that this GPU sees, too: address and bytes."""
        self.launches: list[tuple[Any, ...]] = []
        self.unloaded: list[bool] = []
        """For every module that is gone, whether a context was current then; PyCUDA leaves it in memory otherwise."""
        self._local, self.turn = threading.local(), threading.RLock()
        self.Device = _device_class(self)

    @property
    def stack(self) -> list[_Context]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        return self._local.stack

    @property
    def current(self) -> int:
        """Number of the GPU whose context is current in this thread."""
        self.check()
        return self.stack[-1].ordinal if self.stack else 0

    def check(self) -> None:
        if not self.stack:
            raise CudaError("invalid device context: none is current in this thread")

    def fail(self, name: str) -> None:
        if name in self.broken:
            raise CudaError(self.broken[name])

    def run_all(self) -> None:
        for stream in self.streams:
            stream.run()

    def init(self) -> None:
        self.fail("init")

    def get_version(self) -> tuple[int, int, int]:
        return 13, 0, 0

    def get_driver_version(self) -> int:
        return self.driver_version

    def mem_get_info(self) -> tuple[int, int]:
        mine = [one.nbytes for one in self.allocations if one.ordinal == self.current]
        used = sum(mine) + self.more_contexts * self.CONTEXT_BYTES
        return self.memory_bytes - used, self.memory_bytes

    def mem_alloc(self, nbytes: int) -> _Allocation:
        self.check()
        if nbytes > self.mem_get_info()[0]:
            raise CudaError("cuMemAlloc failed: out of memory")
        return _Allocation(self, nbytes)

    def pagelocked_empty(self, shape: int, dtype: Any, mem_flags: int = 0) -> Any:
        self.check()
        memory = _Allocation(self, shape)

        class Pinned(np.ndarray):  # type: ignore[type-arg]
            base = memory  # type: ignore[assignment]

        return memory.bytes.view(Pinned)

    def memset_d8_async(self, address: int, value: int, nbytes: int, stream: _Stream) -> None:
        stream.put(lambda: ctypes.memset(self._inside(address, nbytes), value, nbytes) and None)

    def memcpy_htod(self, address: int, source: Any) -> None:
        self.check()
        ctypes.memmove(self._inside(address, source.nbytes), source.ctypes.data, source.nbytes)

    def memcpy_dtoh(self, out: Any, address: int) -> None:
        self.check()
        ctypes.memmove(out.ctypes.data, self._inside(address, out.nbytes), out.nbytes)

    def memcpy_htod_async(self, address: int, source: Any, stream: _Stream) -> None:
        stream.put(
            lambda: ctypes.memmove(self._inside(address, source.nbytes), source.ctypes.data, source.nbytes) and None
        )

    def memcpy_dtoh_async(self, out: Any, address: int, stream: _Stream) -> None:
        stream.put(lambda: ctypes.memmove(out.ctypes.data, self._inside(address, out.nbytes), out.nbytes) and None)

    def Memcpy2D(self) -> _Memcpy2D:
        return _Memcpy2D(self)

    def Stream(self, flags: int = 0) -> _Stream:
        return _Stream(self, flags)

    def Event(self, flags: int = 0) -> _Event:
        return _Event(self, flags)

    def module_from_buffer(self, binary: bytes) -> Any:
        self.check()
        self.fail("module")
        return _Module(self)

    def _inside(self, address: int, nbytes: int) -> int:
        for start, length in (*((int(one), one.nbytes) for one in self.allocations), *self.mapped.items()):
            if start <= address and address + nbytes <= start + length:
                return address
        raise CudaError("an illegal memory access was encountered")


class _Memcpy2D:
    src_pitch = dst_pitch = width_in_bytes = height = _source = _target = 0

    def __init__(self, gpu: CudaDouble) -> None:
        self._gpu = gpu

    def set_src_device(self, address: int) -> None:
        self._source = address

    def set_dst_device(self, address: int) -> None:
        self._target = address

    def __call__(self, stream: _Stream) -> None:
        stream.put(self._copy)

    def _copy(self) -> None:
        for row in range(self.height):
            source, target = self._source + row * self.src_pitch, self._target + row * self.dst_pitch
            to, of = (self._gpu._inside(address, self.width_in_bytes) for address in (target, source))
            ctypes.memmove(to, of, self.width_in_bytes)


class _Module:
    """Unloaded when it and the last of its functions are collected, by whatever thread comes first."""

    def __init__(self, gpu: CudaDouble) -> None:
        self._gpu = gpu

    def get_function(self, name: str) -> _Function:
        return _Function(self._gpu, self, name)

    def __del__(self) -> None:
        self._gpu.unloaded.append(bool(self._gpu.stack))


class _Function:
    num_regs, local_size_bytes = 32, 0

    def __init__(self, gpu: CudaDouble, module: _Module, name: str) -> None:
        if name == "missing":
            raise CudaError("cuModuleGetFunction failed: named symbol not found")
        self._gpu, self._module, self._name = gpu, module, name

    def prepared_async_call(self, grid: Any, block: Any, stream: _Stream, argument: bytes) -> None:
        self._gpu.check()
        self._gpu.fail("launch")
        self._gpu.launches.append((self._name, grid, block, stream.handle, argument))


def _device_class(gpu: CudaDouble) -> Any:
    class Device:
        def __init__(self, ordinal: int) -> None:
            self._ordinal, self._attributes = ordinal, {18: int(gpu.integrated), 19: 1}

        @staticmethod
        def count() -> int:
            return gpu.count

        def name(self) -> str:
            return "double"

        def pci_bus_id(self) -> str:
            return f"0000:0{self._ordinal}:00.0"

        def get_attribute(self, which: int) -> int:
            return self._attributes[which]

        def compute_capability(self) -> tuple[int, int]:
            return gpu.compute

        def retain_primary_context(self) -> _Context:
            return _Context(gpu, self._ordinal)

        def make_context(self) -> _Context:
            gpu.fail("context")
            made = _Other(gpu, self._ordinal)
            made.push()
            return made

    return Device
