"""A GPU that is this process's memory, with the memory and streams of a real one; what is done is written down."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from edgert.backend.base import Array
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Graph, Stream
from tests.helpers.cuda_double import CudaDouble


class _Driver(CudaDouble):
    def __init__(self, integrated: bool, compute: tuple[int, int]) -> None:
        super().__init__(integrated, compute)
        self.events: list[str] = []

    def memcpy_htod_async(self, address: int, source: Any, stream: Any) -> None:
        self.events.append(f"upload {source.nbytes}")
        super().memcpy_htod_async(address, source, stream)

    def memcpy_dtoh_async(self, out: Any, address: int, stream: Any) -> None:
        self.events.append(f"download {out.nbytes}")
        super().memcpy_dtoh_async(out, address, stream)

    def Event(self, flags: int = 0) -> Any:
        made = super().Event(flags)
        wait = made.synchronize

        def synchronize() -> None:
            self.events.append("wait")
            wait()

        made.synchronize = synchronize  # type: ignore[method-assign]
        return made


class FakeDevice(CudaDevice):
    """See :class:`~edgert.memory.cuda.CudaDevice`; its graphs do what was recorded once more."""

    def __init__(self, integrated: bool = False, compute: tuple[int, int] = (8, 7)) -> None:
        gpu = _Driver(integrated, compute)
        super().__init__(gpu, 0, Counter())
        self.gpu, self.events = gpu, gpu.events

    @property
    def depth(self) -> int:
        return int(getattr(self._local, "depth", 0))

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Graph:
        self.events.append("capture")
        enqueue()
        return FakeGraph(self, enqueue)

    def array(self, address: int, dtype: str, shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = (ctypes.c_uint8 * size).from_address(address)
        made: Array = np.ctypeslib.as_array(memory).view(dtype).reshape(shape)
        return made


class FakeGraph(Graph):
    def __init__(self, device: FakeDevice, enqueue: Callable[[], None]) -> None:
        self._device, self._enqueue = device, enqueue

    def __call__(self) -> None:
        self._device.events.append("launch")  # type: ignore[attr-defined]
        self._enqueue()
