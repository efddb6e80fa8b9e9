"""CUDA graphs, with a driver that writes down what it is asked."""

import ctypes
import gc
import os
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgert.errors import DeviceError, StageError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Graph, driver
from edgert.memory.cuda.device import capture
from edgert.memory.cuda.driver import copy_up, load_driver, with_python_lock
from tests.helpers.cuda_double import CudaDouble

TEXTS = {1: b"invalid argument", 700: b"an illegal memory access was encountered"}


class Library:
    """libcuda: recordings are numbers from 100, what is made of them 1000 more; nodes are numbers, too."""

    def __init__(self, kinds: tuple[int, ...] = (0, 0)) -> None:
        self.kinds, self.calls, self.fails = kinds, list[str](), dict[str, int]()
        self._recorded = 100

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *arguments: self._called(name, *arguments)

    def _called(self, name: str, *arguments: Any) -> int:
        if name == "cuGetErrorString":
            arguments[1]._obj.value = TEXTS[arguments[0]]
            return 0
        self.calls.append(name)
        if name in self.fails:
            return self.fails[name]
        answer = getattr(self, f"_{name}", None)
        if answer:
            answer(*arguments)
        return 0

    def _cuStreamEndCapture(self, stream: Any, graph: Any) -> None:
        self._recorded += 1
        graph._obj.value = self._recorded

    def _cuGraphInstantiateWithFlags(self, ready: Any, graph: Any, flags: Any) -> None:
        ready._obj.value = graph.value + 1000

    def _cuGraphGetNodes(self, graph: Any, found: Any, count: Any) -> None:
        count._obj.value = len(self.kinds)
        for index in range(len(self.kinds) if found else 0):
            found[index] = index + 1

    def _cuGraphNodeGetType(self, node: Any, kind: Any) -> None:
        kind._obj.value = self.kinds[node.value - 1]


class Rig:
    def __init__(self, library: Library) -> None:
        self.gpu, self.library = CudaDouble(), library
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.stream = self.device.stream()

    def graph(self, enqueue: Any = lambda: None) -> Graph:
        return capture(self.device, self.stream, enqueue, self.library)


def test_is_recorded_once_launched_as_often_as_called_and_given_back() -> None:
    rig, done = Rig(Library()), list[int]()
    graph = rig.graph(lambda: done.append(1))
    graph()
    graph()
    assert done == [1]
    assert rig.library.calls[:2] == ["cuStreamBeginCapture_v2", "cuStreamEndCapture"]
    assert rig.library.calls.count("cuGraphLaunch") == 2
    del graph
    assert rig.library.calls[-2:] == ["cuGraphExecDestroy", "cuGraphDestroy"]
    assert not rig.gpu.stack


def test_work_that_calls_back_is_refused_and_its_recording_given_back() -> None:
    rig = Rig(Library(kinds=(0, 3)))
    with pytest.raises(DeviceError, match="this work cannot be a CUDA graph") as caught:
        rig.graph()
    assert "contains a host callback" in caught.value.why and rig.library.calls[-1] == "cuGraphDestroy"


def test_an_error_while_recording_ends_the_recording() -> None:
    rig = Rig(Library())

    def fail() -> None:
        raise StageError("no frame")

    with pytest.raises(StageError, match="no frame"):
        rig.graph(fail)
    assert rig.library.calls == ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphDestroy"]
    assert not rig.gpu.stack


def test_what_fails_is_named() -> None:
    rig = Rig(Library())
    rig.library.fails["cuGraphInstantiateWithFlags"] = 1
    with pytest.raises(DeviceError, match="cuGraphInstantiateWithFlags failed") as caught:
        rig.graph()
    assert caught.value.why == "invalid argument" and rig.library.calls[-1] == "cuGraphDestroy"


def test_a_gpu_that_is_lost_is_told_when_a_graph_is_launched_and_its_graphs_go_quietly(
    recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    rig = Rig(Library())
    graph = rig.graph()
    rig.library.fails.update(cuGraphLaunch=700, cuGraphExecDestroy=700)
    with pytest.raises(DeviceError, match="cuGraphLaunch: the GPU is lost to this process") as caught:
        graph()
    assert "dmesg" in caught.value.fix
    del graph, caught
    assert not recwarn.list and not capsys.readouterr().err


def test_there_is_no_driver() -> None:
    with pytest.raises(DeviceError, match="there is no CUDA driver"):
        load_driver("libcuda-of-nobody.so")


@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_does_not_run_in_a_recording(is_on: bool) -> None:
    rig, seen = Rig(Library()), list[bool]()
    (gc.enable if is_on else gc.disable)()
    try:
        rig.graph(lambda: seen.append(gc.isenabled()))
        assert seen == [False] and gc.isenabled() is is_on
    finally:
        gc.enable()


def test_short_calls_keep_pythons_lock_where_the_library_is_one() -> None:
    library = ctypes.CDLL(None)
    kept = with_python_lock(library)
    assert isinstance(kept, ctypes.PyDLL) and kept._handle == library._handle and kept.getpid() == os.getpid()
    double = Library()
    assert with_python_lock(double) is double


class Copies(Library):
    """libcuda that copies."""

    def cuMemcpyHtoDAsync_v2(self, address: Any, start: Any, nbytes: Any, stream: Any) -> int:
        self.calls.append(f"{address} {nbytes} {stream}")
        self.copied = ctypes.string_at(start, nbytes)
        return self.fails.get("copy", 0)


def test_an_array_goes_up_past_pycuda_and_through_a_stand_in_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library, gpu = Copies(), CudaDouble()
    monkeypatch.setattr(driver, "load_driver", lambda: library)
    copy, stream = copy_up(ModuleType("pycuda.driver")), SimpleNamespace(handle=7)
    copy(4096, np.arange(5, dtype=np.uint8), stream)
    assert library.calls == ["4096 5 7"] and library.copied == bytes(range(5))
    library.fails["copy"] = 700
    with pytest.raises(DeviceError, match="cuMemcpyHtoDAsync: the GPU is lost to this process"):
        copy(4096, np.arange(5, dtype=np.uint8), stream)
    assert copy_up(gpu) == gpu.memcpy_htod_async


def test_who_waits_for_all_of_a_gpu_waits_until_nothing_is_recorded_there() -> None:
    """In another thread, such as one that frees memory, by another object for the same GPU."""
    gpu = CudaDouble()
    device, other = CudaDevice(gpu, 0, Counter()), CudaDevice(gpu, 0, Counter())
    waiting = list[bool]()
    threads = [threading.Thread(target=wait) for wait in (other.drain, other.synchronize)]

    def enqueue() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(0.2)
            waiting.append(thread.is_alive())

    capture(device, device.stream(), enqueue, Library())
    for thread in threads:
        thread.join(10)
    assert waiting == [True, True] and not any(thread.is_alive() for thread in threads)
