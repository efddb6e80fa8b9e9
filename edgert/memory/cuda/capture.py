"""CUDA graphs: work recorded once, launched as one. PyCUDA has none, so the driver is called directly.

Functions and constants are those of cuda.h: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from edgert.errors import DeviceError
from edgert.memory.cuda.driver import call, is_lost, load_driver
from edgert.memory.cuda.gpu_context import Context
from edgert.memory.cuda.nvrtc import Kernel, Launch
from edgert.memory.cuda.stream import Stream

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on allocating
_HOST_NODE = 3  # CU_GRAPH_NODE_TYPE_HOST


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, the longer form of CUDA 12; older drivers use its beginning."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class GraphDriver:
    """The graph functions of a loaded driver library."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._get_kernel, self._set_kernel = map(
            self._newest, ("cuGraphKernelNodeGetParams", "cuGraphExecKernelNodeSetParams")
        )

    @classmethod
    def load(cls, library: str = "libcuda.so.1") -> GraphDriver:
        """Raises DeviceError where there is no driver."""
        return cls(load_driver(library))

    def begin(self, stream: int) -> None:
        """Starts recording."""
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_THREAD_LOCAL))

    def end(self, stream: int) -> int:
        """Ends recording; the graph."""
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        return graph.value or 0

    def instantiate(self, graph: int) -> int:
        """An executable graph."""
        ready = ctypes.c_void_p()
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), ctypes.c_void_p(graph), ctypes.c_ulonglong(0))
        return ready.value or 0

    def nodes(self, graph: int) -> list[int]:
        """All nodes of a recording."""
        return self._listed("cuGraphGetNodes", graph)

    def first(self, graph: int) -> int:
        """The node that a recording starts with. Raises DeviceError unless there is exactly one."""
        roots = self._listed("cuGraphGetRootNodes", graph)
        if len(roots) != 1:
            raise DeviceError("this work cannot be changed in a CUDA graph", why=f"it starts with {len(roots)} nodes")
        return roots[0]

    def is_host(self, node: int) -> bool:
        """Whether a node calls back into this process."""
        kind = ctypes.c_int()
        self._call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        return kind.value == _HOST_NODE

    def kernel(self, node: int) -> _KernelNode:
        """What a kernel's node launches."""
        node_parameters = _KernelNode()
        self._call(self._get_kernel, ctypes.c_void_p(node), ctypes.byref(node_parameters))
        return node_parameters

    def relaunch(self, ready: int, node: int, function: int, launch: Launch) -> None:
        """From now on, a kernel's node launches another function, or with another grid and argument."""
        argument = ctypes.create_string_buffer(launch.argument, len(launch.argument))
        node_parameters = _KernelNode(function=function, grid=launch.grid, block=launch.block)
        node_parameters.parameters = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        self._call(self._set_kernel, ctypes.c_void_p(ready), ctypes.c_void_p(node), ctypes.byref(node_parameters))

    def launch(self, ready: int, stream: int) -> None:
        """Puts the whole graph on a stream."""
        self._call("cuGraphLaunch", ctypes.c_void_p(ready), ctypes.c_void_p(stream))

    def destroy(self, ready: int) -> None:
        """Gives an executable graph back."""
        self._call("cuGraphExecDestroy", ctypes.c_void_p(ready))

    def forget(self, graph: int) -> None:
        """Gives a recording back."""
        self._call("cuGraphDestroy", ctypes.c_void_p(graph))

    def _listed(self, name: str, graph: int) -> list[int]:
        count = ctypes.c_size_t()
        self._call(name, ctypes.c_void_p(graph), None, ctypes.byref(count))
        found = (ctypes.c_void_p * count.value)()
        self._call(name, ctypes.c_void_p(graph), found, ctypes.byref(count))
        return [node or 0 for node in found]

    def _newest(self, name: str) -> str:
        return f"{name}_v2" if hasattr(self._library, f"{name}_v2") else name

    def _call(self, name: str, *arguments: Any) -> None:
        call(self._library, name, *arguments)


class Graph:
    """Work that was recorded; calling it launches it on its stream."""

    _functions: ClassVar[WeakKeyDictionary[Kernel, int]] = WeakKeyDictionary()

    def __init__(self, device: Context, driver: GraphDriver, recorded: int, stream: Stream) -> None:
        self._device, self._driver, self._recorded, self._stream = device, driver, recorded, stream
        self._ready = driver.instantiate(recorded)
        self._first: int | None = None

    def __call__(self) -> None:
        with self._device:
            self._driver.launch(self._ready, self._stream.handle)

    def start_with(self, launch: Launch) -> None:
        """Replaces the first kernel's launch from the next run on; runs under way are not affected.

        Raises DeviceError when the graph does not start with one kernel.
        """
        with self._device:
            if self._first is None:
                self._first = self._driver.first(self._recorded)
            self._driver.relaunch(self._ready, self._first, self._function(launch), launch)

    def _function(self, launch: Launch) -> int:
        """The driver's handle of a kernel, which PyCUDA does not expose: read off a recording of its launch."""
        if launch.kernel not in self._functions:
            stream = Stream(self._device)
            recorded = _recorded(self._driver, stream, lambda: launch.enqueue(stream))
            self._functions[launch.kernel] = self._driver.kernel(self._driver.first(recorded)).function
            self._driver.forget(recorded)
        return self._functions[launch.kernel]

    def __del__(self) -> None:
        if self._device.is_open and hasattr(self, "_ready"):
            with self._device:
                self._destroy()

    def _destroy(self) -> None:
        try:
            self._driver.destroy(self._ready)
            self._driver.forget(self._recorded)
        except DeviceError as error:
            if not is_lost(error.why):  # else it is gone with the context
                raise


def capture(device: Context, stream: Stream, enqueue: Callable[[], None], driver: GraphDriver) -> Graph:
    """Records ``enqueue`` on the stream. An exception in it ends the recording and goes on. Raises DeviceError."""
    with device:
        recorded = _recorded(driver, stream, enqueue)
        try:
            if any(driver.is_host(node) for node in driver.nodes(recorded)):
                raise DeviceError(
                    "this work cannot be a CUDA graph",
                    why="it calls back into the host, for memory that is given back once and would be every time",
                )
            return Graph(device, driver, recorded, stream)
        except DeviceError:
            driver.forget(recorded)
            raise


def _recorded(driver: GraphDriver, stream: Stream, enqueue: Callable[[], None]) -> int:
    """What was put on the stream; nothing stays behind when that fails."""
    driver.begin(stream.handle)
    try:
        enqueue()
    except BaseException:
        if broken := driver.end(stream.handle):
            driver.forget(broken)
        raise
    return driver.end(stream.handle)
