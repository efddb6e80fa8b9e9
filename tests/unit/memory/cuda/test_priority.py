"""Streams that go first, with a driver that answers as NVIDIA's does."""

import ctypes
from typing import Any

import pytest

from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, stream as stream_module
from edgert.memory.cuda.stream import raise_priority
from tests.helpers.cuda_double import CudaDouble


class Driver:
    """libcuda, whose streams have priorities from 0, the lowest, to ``greatest``."""

    def __init__(self, greatest: int = -5, *, obeys: bool = True, fails: int = 0) -> None:
        self.greatest, self.obeys, self.fails = greatest, obeys, fails
        self.priorities: dict[int, int] = {}

    def cuCtxGetStreamPriorityRange(self, least: Any, greatest: Any) -> int:
        least._obj.value, greatest._obj.value = 0, self.greatest
        return 0

    def cuStreamSetAttribute(self, stream: Any, attribute: Any, value: Any) -> int:
        assert attribute.value == 8 and len(value._obj) == 64
        if self.obeys and not self.fails:
            self.priorities[stream.value] = ctypes.c_int.from_buffer(value._obj).value
        return self.fails

    def cuStreamGetPriority(self, stream: Any, priority: Any) -> int:
        priority._obj.value = self.priorities.get(stream.value, 0)
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = {1: b"invalid argument", 700: b"an illegal memory access was encountered"}[code]
        return 0


def test_a_stream_gets_the_highest_priority_and_others_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, gpu = Driver(), CudaDouble()
    monkeypatch.setattr(stream_module, "load_driver", lambda: driver)
    device = CudaDevice(gpu, 0, Counter())
    first, other = device.stream(), device.stream()
    first.raise_priority()
    assert driver.priorities == {first.handle: -5} and other.handle != first.handle
    assert not gpu.stack  # the context was current meanwhile, and is no longer


def test_a_gpu_without_priorities() -> None:
    with pytest.raises(DeviceError, match="this GPU has no stream priorities"):
        raise_priority(1, Driver(greatest=0))


def test_a_driver_that_does_not_take_it_is_found_out() -> None:
    with pytest.raises(DeviceError, match="does not change the priority of a stream") as caught:
        raise_priority(1, Driver(obeys=False))
    assert caught.value.why == "-5 was requested, and the stream has 0" and "CUDA 12" in caught.value.fix


def test_a_driver_that_refuses_is_named() -> None:
    with pytest.raises(DeviceError, match="cuStreamSetAttribute failed") as caught:
        raise_priority(1, Driver(fails=1))
    assert caught.value.why == "invalid argument"


def test_a_driver_that_has_no_such_function() -> None:
    with pytest.raises(DeviceError, match="the CUDA driver has no cuCtxGetStreamPriorityRange") as caught:
        raise_priority(1, object())
    assert caught.value.fix == "update the driver"


def test_a_gpu_that_is_lost_is_told_as_that() -> None:
    with pytest.raises(DeviceError, match="cuStreamSetAttribute: the GPU is lost to this process"):
        raise_priority(1, Driver(fails=700))
