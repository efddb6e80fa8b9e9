"""Buffers of host and GPU: filled in place, sent once, and used again when both are done."""

import ctypes
import gc
import threading
from typing import Any

import numpy as np
import pytest

from edgert.errors import DeviceError
from edgert.memory import Counter, Pool
from edgert.memory.cuda import CudaDevice, SharedLease, SharedPool
from tests.helpers.cuda_double import CudaDouble

SIZE = 512


class Rig:
    def __init__(self, integrated: bool = False, count: int = 2) -> None:
        self.gpu = CudaDouble(integrated)
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.pool = SharedPool(self.device, SIZE, count)

    def leased(self) -> tuple[Any, SharedLease]:
        leased = self.pool.acquire()
        assert leased is not None and isinstance(leased[1], SharedLease)
        return leased[0], leased[1]


def bytes_at(address: int, nbytes: int) -> Any:
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)), np.uint8)


def test_what_the_host_wrote_is_on_the_gpu_once_it_was_sent() -> None:
    rig = Rig()
    memory, lease = rig.leased()
    memory[:] = np.arange(SIZE) % 251
    first, second = rig.device.stream(), rig.device.stream()
    assert lease.send(first) is first and lease.send(second) is first
    assert rig.device.counter.read().copies == 1
    part = memory[100:200]
    address, whole = lease.addresses_of((part, memory))
    assert address == whole + 100 != part.ctypes.data
    assert np.array_equal(bytes_at(address, 100), part)


def test_an_integrated_gpu_reads_the_hosts_bytes() -> None:
    rig = Rig(integrated=True)
    memory, lease = rig.leased()
    assert lease.send(rig.device.stream()) is None
    assert lease.addresses_of([memory]) == [memory.ctypes.data] and rig.device.counter.read().copies == 0


def test_a_buffer_is_lent_again_when_its_copy_is_done_and_is_sent_anew() -> None:
    rig = Rig(count=1)
    stream = rig.device.stream()
    memory, lease = rig.leased()
    memory[:] = 1
    rig.gpu.paused = True
    lease.send(stream)
    lease.release()
    address = memory.ctypes.data
    del memory
    again, lease = rig.leased()
    assert not stream.raw.work  # the copy was waited for before anybody may write
    assert again.ctypes.data == address
    again[:] = 2
    lease.send(stream)
    rig.device.synchronize()
    assert set(bytes_at(lease.addresses_of([again])[0], SIZE)) == {2}


def test_one_event_stands_for_all_that_a_kernel_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, made = Rig(count=3), list[int]()
    stream, passing = rig.device.stream(), rig.device.event()
    held = [rig.leased() for _ in range(3)]
    monkeypatch.setattr(rig.gpu, "Event", made.append)
    rig.gpu.paused = True
    for _, lease in held:
        lease.send(stream, is_read=True)
    passing.record(stream)
    for _, lease in held:
        lease.after(stream, passing)
        lease.release()
    del held, lease, _
    again = rig.leased()
    assert again and not stream.raw.work and not made  # it was waited for, and nobody needed an event of his own


def test_an_event_that_is_recorded_again_had_passed() -> None:
    rig = Rig(count=1)
    stream, passing = rig.device.stream(), rig.device.event()
    memory, lease = rig.leased()
    lease.after(stream, passing.record(stream))
    lease.release()
    del memory, lease
    rig.gpu.paused = True
    passing.record(stream)  # for others
    again = rig.leased()
    assert stream.raw.work and again  # what does not read this memory is not waited for


def test_what_somebody_knows_of_an_event_nobody_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(count=1)
    stream, passing = rig.device.stream(), rig.device.event()
    for is_known in (True, False):
        memory, lease = rig.leased()
        lease.after(stream, passing.record(stream))
        lease.release()
        del memory, lease
        if is_known:
            stream.synchronize()
            passing.note_passed()
        waits = list[object]()
        monkeypatch.setattr(passing.raw, "synchronize", lambda waits=waits: waits.append(1))
        rig.leased()[1].release()
        assert bool(waits) is not is_known


def test_an_array_that_somebody_keeps_never_changes_and_its_memory_goes_with_it() -> None:
    rig = Rig(count=1)
    kept, lease = rig.leased()
    kept[:] = 7
    lease.release()
    other, lease = rig.leased()
    other[:] = 8
    assert set(kept) == {7}
    assert rig.device.live_bytes == 2 * SIZE
    lease.release()
    del rig.pool, other, lease
    assert rig.device.live_bytes == SIZE and set(kept) == {7}
    del kept
    gc.collect()
    assert rig.device.live_bytes == 0 and rig.device.leaked == 0


def test_frames_outlive_their_pool_and_then_the_memory_goes_back() -> None:
    rig = Rig()
    memory, lease = rig.leased()
    del rig.pool
    memory[:] = 3
    lease.send(rig.device.stream())
    lease.release()
    assert set(memory) == {3} and rig.device.live_bytes == SIZE
    del memory, lease
    assert rig.device.live_bytes == 0 and rig.device.leaked == 0


def test_memory_of_a_gpu_that_is_lost_or_closed_is_let_go() -> None:
    rig = Rig()
    memory, lease = rig.leased()
    lease.send(rig.device.stream())
    rig.gpu.broken["free"] = "cuMemFree failed: an illegal memory access was encountered"
    del memory, lease, rig.pool
    assert rig.device.live_bytes == 0
    closed = Rig()
    memory, lease = closed.leased()
    del closed.pool, lease
    with pytest.raises(Exception, match="blocks of GPU memory were not released"):
        closed.device.close()
    del memory
    assert closed.device.live_bytes == 0


def test_allocations_are_counted_once_and_too_little_memory_is_an_error() -> None:
    rig = Rig(count=3)
    assert rig.device.counter.read().allocations == 3
    rig.gpu.memory_bytes = 0
    with pytest.raises(DeviceError, match="the GPU has too little memory"):
        SharedPool(rig.device, SIZE, 1)


def test_a_supply_grows_to_what_is_held_and_no_further_than_told() -> None:
    counter = Counter()
    supply = Pool(SIZE, counter, count=2, most=3)
    held = [supply.acquire() for _ in range(3)]
    assert all(held) and supply.acquire() is None and counter.read().allocations == 3
    last = held[0]
    assert last is not None
    last[1].release()
    assert supply.acquire() is None  # somebody still looks at it
    first = held.pop()
    assert first is not None
    first[1].release()
    del first
    assert supply.acquire() is not None and counter.read().allocations == 3


def test_memory_that_the_driver_keeps_during_a_recording_is_released_later() -> None:
    rig = Rig()
    memory, lease = rig.leased()
    del rig.pool, lease
    rig.gpu.broken["free"] = "cuMemFreeHost failed: operation not permitted when stream is capturing"
    del memory  # its finalizer raises nothing
    assert rig.device.live_bytes == SIZE
    rig.gpu.broken.clear()
    other = rig.device.block(SIZE)
    assert rig.device.live_bytes == SIZE and rig.device.leaked == 0
    other.release()
    rig.device.close()


def test_a_frame_that_is_let_go_never_waits_for_a_thread_that_opens_a_context() -> None:
    rig, has_lock, may_end = Rig(), threading.Event(), threading.Event()

    def record() -> None:
        with rig.device.recording:
            has_lock.set()
            may_end.wait(10)

    memory, lease = rig.leased()
    del rig.pool, lease
    thread = threading.Thread(target=record)
    thread.start()
    assert has_lock.wait(10)
    del memory  # in this thread, while the other has the lock
    assert not may_end.is_set() and rig.device.live_bytes == SIZE
    may_end.set()
    thread.join()
    rig.device.close()
    assert rig.device.live_bytes == 0
