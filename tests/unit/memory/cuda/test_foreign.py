"""Arrays of other libraries, taken where they are, behind the stream that writes them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgert.errors import DeviceError, StageError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice
from edgert.memory.cuda.foreign import is_on_gpu, view_of, wait_for_stream
from tests.helpers.cuda_double import CudaDouble
from tests.helpers.errors import Exactly, raises
from tests.helpers.foreign_gpu import LEGACY, CaiArray, Driver, Tensor


class Rig:
    def __init__(self) -> None:
        self.gpu = CudaDouble()
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.driver, self.stream = Driver(self.gpu), self.device.stream()

    def tensor(self, shape: tuple[int, ...] = (4, 6, 3), **options: Any) -> Tensor:
        return Tensor(self.device, np.arange(np.prod(shape), dtype=np.uint8).reshape(shape), self.driver, **options)

    def view(self, owner: Any) -> Any:
        return view_of(owner, self.stream, Counter(), self.driver)


def test_by_dlpack_the_producer_makes_our_stream_wait_and_gets_it_back() -> None:
    rig, done = Rig(), list[int]()
    tensor = rig.tensor()
    rig.gpu.paused = True
    rig.driver.pending[LEGACY].append(lambda: done.append(1))
    view = rig.view(tensor)
    assert tensor.asked == [rig.stream.handle] and not done  # nobody waited
    assert (view.address, view.shape, view.strides) == (tensor.block.address, (4, 6, 3), (18, 3, 1))
    assert view.stream is rig.stream and rig.driver.made == 0
    rig.stream.synchronize()
    assert done
    view.lease.release()
    assert tensor.given_back


@pytest.mark.parametrize(
    ("version", "changed", "waited"),
    [(3, {"stream": 0x77}, [0x77]), (3, {"stream": 1}, [1]), (3, {"stream": None}, []), (3, {}, []), (2, {}, [LEGACY])],
)
def test_by_the_array_interface_our_stream_waits_for_the_one_it_names(
    version: int, changed: dict[str, Any], waited: list[int]
) -> None:
    rig, done = Rig(), list[int]()
    tensor = rig.tensor()
    for stream in (0x77, LEGACY):
        rig.driver.pending.setdefault(stream, []).append(lambda: done.append(1))
    rig.gpu.paused = True
    view = rig.view(CaiArray(tensor, version, **changed))
    assert [foreign for _, foreign in rig.driver.waits] == waited and not done
    assert rig.driver.made == rig.driver.destroyed == len(waited)
    rig.stream.synchronize()
    assert len(done) == len(waited) and view.address == tensor.block.address and not rig.gpu.stack


def test_the_owner_lives_as_long_as_the_lease() -> None:
    rig = Rig()
    alive: list[str] = []

    class Owned(CaiArray):
        def __del__(self) -> None:
            alive.append("gone")

    view = rig.view(Owned(rig.tensor(), stream=None))
    assert not alive
    view.lease.release()
    assert alive == ["gone"]


def test_what_is_on_a_gpu() -> None:
    rig = Rig()
    assert is_on_gpu(rig.tensor()) and is_on_gpu(CaiArray(rig.tensor()))
    assert not any(map(is_on_gpu, (np.zeros(3), [1, 2], "text", object())))


def test_another_gpu() -> None:
    rig = Rig()
    with pytest.raises(DeviceError, match="a tensor on GPU 3") as caught:
        rig.view(rig.tensor(ordinal=3))
    assert "on GPU 0" in caught.value.why and caught.value.fix == (
        "call tensor.to('cuda:0') first, or start the program with CUDA_VISIBLE_DEVICES=3"
    )
    tensor = rig.tensor()
    rig.driver.elsewhere[tensor.block.address] = 1
    with pytest.raises(DeviceError, match="a tensor on GPU 1"):
        rig.view(CaiArray(tensor))


def test_memory_that_was_released() -> None:
    rig = Rig()
    tensor = rig.tensor()
    array, address = CaiArray(tensor), tensor.block.address
    tensor.block.release()
    with raises(DeviceError, f"there is no GPU memory at {address:#x}", why="it was released"):
        rig.view(array)
    with pytest.raises(DeviceError, match="was released"):
        rig.view(Nothing(rig))


class Nothing:
    """A tensor whose storage was taken away, which PyTorch gives the address 0."""

    def __init__(self, rig: Rig) -> None:
        self._tensor = rig.tensor()
        self._tensor.view = type(self._tensor.view)(0, (2, 2), (2, 1), np.dtype(np.uint8), self._tensor.view.lease, 0)
        self.__dlpack_device__, self.__dlpack__ = self._tensor.__dlpack_device__, self._tensor.__dlpack__


def test_streams_that_cannot_be_waited_for() -> None:
    rig = Rig()
    tensor = rig.tensor(stream=0x55)
    with raises(DeviceError, "the stream 0x0 of a tensor cannot be waited for", why="either of two default streams"):
        rig.view(CaiArray(tensor, stream=0))
    with pytest.raises(DeviceError, match="the stream 0x99 of a tensor cannot be waited for") as caught:
        rig.view(CaiArray(tensor, stream=0x99))
    assert "invalid resource handle" in caught.value.why and rig.driver.destroyed == rig.driver.made
    rig.driver.recording.add(0x55)
    with raises(DeviceError, "cannot be waited for", why="recording a CUDA graph", fix=True):
        wait_for_stream(rig.stream, 0x55, rig.driver)
    with pytest.raises(DeviceError, match="cannot be waited for") as caught:
        rig.view(tensor)
    assert "recording a CUDA graph" in caught.value.why and tensor.given_back


def test_a_producer_that_refuses_is_named_with_its_reason() -> None:
    class Refuses:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, *, stream: int) -> Any:
            raise BufferError("it requires gradients")

    with raises(DeviceError, "Refuses cannot be read in place", why=Exactly("it requires gradients")):
        Rig().view(Refuses())


def test_memory_of_ours_is_waited_for_by_the_stream_and_not_by_the_host() -> None:
    rig, done = Rig(), list[int]()
    writer = rig.device.stream()
    rig.driver.pending[writer.handle] = [lambda: done.append(1)]
    ours = replace(rig.tensor().view, stream=writer)
    rig.gpu.paused = True
    view = rig.view(ours)
    assert [foreign for _, foreign in rig.driver.waits] == [writer.handle] and not done
    rig.stream.synchronize()
    assert done and view.address == ours.address
    ours.lease.release()
    with pytest.raises(StageError, match="used after its release"):
        rig.view(ours)
