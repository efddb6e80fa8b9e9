import ctypes
import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from edgert.errors import DeviceError, StageError
from edgert.memory import Counter, lend
from edgert.memory.cuda import DeviceView, from_cuda_array, from_dlpack, open_device
from tests.helpers.cuda_double import CudaDouble


def view_on(array: Any) -> DeviceView:
    """A view of host memory, which is as good as a GPU's for arithmetic on addresses."""
    return DeviceView(array.ctypes.data, array.shape, array.strides, array.dtype, lend(array, Counter()))


def seen(view: DeviceView) -> Any:
    """The same bytes as NumPy sees them."""
    interface = {**view.__cuda_array_interface__, "version": 3}
    interface.pop("stream")
    holder = type("Holder", (), {"__array_interface__": interface})()
    return np.asarray(holder)


SLICES = st.tuples(st.integers(-7, 7), st.integers(-7, 7))


@given(rows=SLICES, columns=SLICES, index=st.integers(-4, 3))
def test_slices_are_those_of_numpy(rows: tuple[int, int], columns: tuple[int, int], index: int) -> None:
    array = np.arange(6 * 5 * 4, dtype=np.int16).reshape(6, 5, 4)
    for key in (
        (slice(*rows), slice(*columns)),
        (slice(*rows), slice(None), index),
        (slice(1, 5),),
        (2, slice(*columns)),
    ):
        wanted, found = array[key], view_on(array)[key]
        assert found.shape == wanted.shape and found.nbytes == wanted.nbytes
        if wanted.size:
            assert (seen(found) == wanted).all()


def test_only_steps_of_one_and_places_inside() -> None:
    view = view_on(np.zeros((4, 4), np.uint8))
    for key in (slice(None, None, 2), (0, 0, 0), 4, -5):
        with pytest.raises(IndexError):
            view[key]


def test_the_array_interface_tells_strides_only_where_there_are_gaps() -> None:
    view = view_on(np.zeros((4, 6), np.float32))
    assert view.__cuda_array_interface__["strides"] is None and view.contiguous
    assert view[:, 2:4].__cuda_array_interface__["strides"] == (24, 4) and not view[:, 2:4].contiguous
    assert view.__cuda_array_interface__["typestr"] == "<f4" and len(view) == 4 and view.ndim == 2


def test_read_as_another_type() -> None:
    array = np.arange(64, dtype=np.uint8)
    halves = view_on(array).as_type("float16", (4, 8))
    assert (seen(halves).view(np.uint16) == array.view(np.uint16).reshape(4, 8)).all()
    assert view_on(array).reshape(8, 8).shape == (8, 8)
    with pytest.raises(DeviceError, match="64 bytes cannot be read as"):
        view_on(array).as_type("float32", (17,))
    with pytest.raises(DeviceError, match="without gaps"):
        view_on(array).reshape(8, 8)[:, 1:].reshape(56)


def test_a_view_says_so_when_it_is_used_after_the_release() -> None:
    view = view_on(np.zeros(64, np.uint8))
    part = view.as_type("float16", (4, 8))[1:3, 2:]
    view.lease.release()
    for use in (lambda: view.address, lambda: part.__cuda_array_interface__, lambda: view.__dlpack__()):
        with pytest.raises(StageError, match="used after its release"):
            use()


def test_the_stream_that_wrote_it_is_told() -> None:
    stream = open_device(driver=CudaDouble()).stream()
    view = view_on(np.zeros(8, np.uint8))
    assert view.__cuda_array_interface__["stream"] is None
    assert replace(view, stream=stream)[2:].__cuda_array_interface__["stream"] == stream.handle


class TestDlpack:
    @pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "float32", "int64", "bool", "complex64"])
    def test_comes_back_as_it_went(self, dtype: str) -> None:
        array = np.zeros((5, 6, 7), dtype)
        view = view_on(array)[1:, :, 2:5]
        back = from_dlpack(view, Counter())
        assert (back.address, back.shape, back.strides, back.dtype) == (
            view.address,
            view.shape,
            view.strides,
            array.dtype,
        )
        assert view.__dlpack_device__() == (2, 0)

    def test_holds_the_lease_until_the_consumer_lets_go(self) -> None:
        view = view_on(np.zeros(8, np.uint8))
        back = from_dlpack(view, Counter())
        view.lease.release()
        assert view.lease.alive and back.lease.alive
        back.lease.release()
        assert not view.lease.alive

    def test_a_capsule_that_nobody_took_is_given_back(self) -> None:
        view = view_on(np.zeros(8, np.uint8))
        capsule = view.__dlpack__()
        view.lease.release()
        assert view.lease.alive
        del capsule
        gc.collect()
        assert not view.lease.alive

    def test_waits_for_the_writer_unless_told_not_to(self) -> None:
        gpu = CudaDouble()
        stream = open_device(driver=gpu).stream()
        view, done = replace(view_on(np.zeros(8, np.uint8)), stream=stream), []
        gpu.paused = True
        gpu.Device(0).retain_primary_context().push()
        stream.raw.put(lambda: done.append(1))
        capsules = [view.__dlpack__(stream=-1)]
        assert not done
        capsules.append(view.__dlpack__(stream=1))
        assert done and len(capsules) == 2

    def test_a_capsule_serves_once(self) -> None:
        view = view_on(np.zeros(8, np.uint8))
        capsule = view.__dlpack__()
        owner = type(
            "Owner", (), {"__dlpack__": lambda self, stream: capsule, "__dlpack_device__": lambda self: (2, 0)}
        )()
        from_dlpack(owner, Counter())
        with pytest.raises(DeviceError, match="used twice"):
            from_dlpack(owner, Counter())

    def test_host_memory_is_refused(self) -> None:
        with pytest.raises(DeviceError, match="not on a GPU"):
            from_dlpack(np.zeros(4), Counter())


def test_another_librarys_array() -> None:
    array = np.zeros((3, 4), np.float32)
    interface = {"shape": (3, 4), "typestr": "<f4", "data": (array.ctypes.data, False), "version": 3}
    owner = type("Owner", (), {"__cuda_array_interface__": interface})()
    view = from_cuda_array(owner, Counter())
    assert (view.shape, view.strides, view.address) == ((3, 4), (16, 4), array.ctypes.data)
    with pytest.raises(DeviceError, match="ndarray is no array on a GPU"):
        from_cuda_array(array, Counter())
    assert ctypes.c_float.from_address(view.address).value == 0
