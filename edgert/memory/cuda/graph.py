"""CUDA graphs: work recorded once, launched as one. PyCUDA has none, so the driver is asked itself.

Functions and constants are those of cuda.h: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgert.errors import DeviceError

if TYPE_CHECKING:
    from edgert.memory.cuda.device import CudaDevice
    from edgert.memory.cuda.stream import Stream

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on allocating


class GraphDriver:
    """The graph functions of a loaded driver library."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def load(cls, library: str = "libcuda.so.1") -> GraphDriver:
        """Raises DeviceError where there is no driver."""
        try:
            return cls(ctypes.CDLL(library))
        except OSError as error:
            raise DeviceError("there is no CUDA driver", why=str(error)) from error

    def begin(self, stream: int) -> None:
        """Starts recording."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_THREAD_LOCAL))

    def end(self, stream: int) -> int:
        """Ends recording; the graph."""
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return graph.value or 0

    def instantiate(self, graph: int) -> int:
        """An executable graph; the recording is dropped."""
        ready = ctypes.c_void_p()
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), ctypes.c_void_p(graph), ctypes.c_ulonglong(0))
        self._call("cuGraphDestroy", ctypes.c_void_p(graph))
        return ready.value or 0

    def launch(self, ready: int, stream: int) -> None:
        """Puts the whole graph on a stream."""
        self._call("cuGraphLaunch", ctypes.c_void_p(ready), ctypes.c_void_p(stream))

    def destroy(self, ready: int) -> None:
        """Gives an executable graph back."""
        self._call("cuGraphExecDestroy", ctypes.c_void_p(ready))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            why = text.value.decode() if text.value else f"CUDA error {code}"
            raise DeviceError(f"{name} failed", why=why, fix="cuda_graph: false runs without CUDA graphs")


class Graph:
    """Work that was recorded; calling it launches it on its stream."""

    def __init__(self, device: CudaDevice, driver: GraphDriver, ready: int, stream: Stream) -> None:
        self._device, self._driver, self._ready, self._stream = device, driver, ready, stream

    def __call__(self) -> None:
        with self._device:
            self._driver.launch(self._ready, self._stream.handle)

    def __del__(self) -> None:
        if self._device.is_open:
            with self._device:
                self._driver.destroy(self._ready)


def capture(device: CudaDevice, stream: Stream, enqueue: Callable[[], None], driver: GraphDriver) -> Graph:
    """Records ``enqueue`` on the stream. An exception in it ends the recording and goes on. Raises DeviceError."""
    with device:
        driver.begin(stream.handle)
        try:
            enqueue()
        finally:
            graph = driver.end(stream.handle)
        return Graph(device, driver, driver.instantiate(graph), stream)
