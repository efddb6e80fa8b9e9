"""Streams that go first, with a driver that answers as NVIDIA's does."""

import ctypes
from typing import Any

import pytest

from edgert.errors import DeviceError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, stream as stream_module
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


@pytest.mark.parametrize(
    ("driver", "what", "why"),
    [
        (Driver(greatest=0), "this GPU has no stream priorities", "all its streams have 0"),
        (Driver(obeys=False), "does not change the priority of a stream", "-5 was requested, and the stream has 0"),
        (Driver(fails=1), "cuStreamSetAttribute failed", "invalid argument"),
        (object(), "the CUDA driver has no cuCtxGetStreamPriorityRange", "it is older than this function"),
        (Driver(fails=700), "cuStreamSetAttribute: the GPU is lost to this process", "an illegal memory access"),
    ],
)
def test_why_a_stream_cannot_go_first(monkeypatch: pytest.MonkeyPatch, driver: Any, what: str, why: str) -> None:
    monkeypatch.setattr(stream_module, "load_driver", lambda: driver)
    with pytest.raises(DeviceError, match=what) as caught:
        CudaDevice(CudaDouble(), 0, Counter()).stream().raise_priority()
    assert caught.value.why.startswith(why)
