"""One suite for host and GPU pools, and what only streams bring."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgert.errors import StageError
from edgert.memory import Counter, Pool
from edgert.memory.cuda import CudaDevice, DevicePool, open_device
from tests.helpers.cuda_double import CudaDouble

Make = Callable[[int, int, Counter], Any]


def gpu_pool(nbytes: int, count: int, counter: Counter) -> DevicePool:
    return DevicePool(open_device(driver=CudaDouble()), nbytes, count, counter)


@pytest.fixture(params=[Pool, gpu_pool], ids=["host", "gpu"])
def make(request: pytest.FixtureRequest) -> Make:
    pool: Make = request.param
    return pool


def address(buffer: Any) -> int:
    return int(buffer.ctypes.data if isinstance(buffer, np.ndarray) else buffer.address)


class TestAnyPool:
    def test_buffers_are_of_the_size_aligned_and_different(self, make: Make) -> None:
        leased = [pool.acquire(0) for pool in [make(1000, 3, Counter())] for _ in range(4)]
        buffers = [item[0] for item in leased[:3]]
        places = sorted(map(address, buffers))
        assert leased[3] is None
        assert all(b.shape == (1000,) and b.dtype == np.uint8 and b.nbytes == 1000 for b in buffers)
        assert all(place % 64 == 0 for place in places) and all(np.diff(places) >= 1000)

    def test_a_buffer_comes_back_and_nothing_is_allocated_again(self, make: Make) -> None:
        counter = Counter()
        pool, places = make(64, 1, counter), set()
        for _ in range(50):
            buffer, lease = pool.acquire(0)
            places.add(address(buffer))
            del buffer
            lease.release()
        assert len(places) == 1 and counter.read().allocations == 1 and counter.read().escaped == 0

    def test_the_last_of_several_holders_gives_back(self, make: Make) -> None:
        pool = make(64, 1, Counter())
        buffer, lease = pool.acquire(0)
        del buffer
        lease.retain()
        lease.release()
        assert lease.alive and pool.acquire(0) is None
        lease.release()
        assert not lease.alive and pool.acquire(0) is not None
        with pytest.raises(StageError, match="a lease was released twice"):
            lease.release()

    def test_a_buffer_that_is_still_looked_at_is_not_lent_again(self, make: Make) -> None:
        counter = Counter()
        pool = make(64, 1, counter)
        buffer, lease = pool.acquire(0)
        part = buffer[3:9]
        where = address(buffer)
        del buffer
        lease.release()
        gc.collect()
        again, _ = pool.acquire(0)
        assert abs(address(again) - where) >= 64 and counter.read().escaped == 1 and len(part) == 6

    def test_acquire_waits_for_a_release(self, make: Make) -> None:
        pool = make(64, 1, Counter())
        buffer, lease = pool.acquire(0)
        del buffer
        assert pool.acquire(0.01) is None
        timer = threading.Timer(0.02, lease.release)
        timer.start()
        assert pool.acquire(10.0) is not None
        timer.join()

    def test_threads_share_it(self, make: Make) -> None:
        pool, seen, wrong = make(64, 3, Counter()), set(), []

        def work() -> None:
            for _ in range(100):
                buffer, lease = pool.acquire(10.0)
                place = address(buffer)
                if place in seen:
                    wrong.append(place)
                seen.add(place)
                seen.discard(place)
                del buffer
                lease.release()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and pool.counter.read().escaped == 0


@pytest.fixture
def gpu() -> CudaDouble:
    return CudaDouble()


@pytest.fixture
def device(gpu: CudaDouble) -> CudaDevice:
    return open_device(driver=gpu)


def leased(pool: DevicePool, timeout_s: float | None = 0) -> Any:
    found = pool.acquire(timeout_s)
    assert found is not None
    return found


def release_after(pool: DevicePool, *streams: Any) -> None:
    _, lease = leased(pool)
    for stream in streams:
        lease.after(stream)
    lease.release()


class TestStreams:
    def test_a_lease_lasts_until_the_stream_has_passed(self, gpu: CudaDouble, device: CudaDevice) -> None:
        pool, stream = DevicePool(device, 64, 1, Counter()), device.stream()
        gpu.paused = True
        release_after(pool, stream)
        assert pool.acquire(0) is None
        gpu.run_all()
        assert pool.acquire(0) is not None

    def test_of_every_stream_that_uses_it(self, gpu: CudaDouble, device: CudaDevice) -> None:
        pool, streams = DevicePool(device, 64, 1, Counter()), [device.stream() for _ in range(3)]
        gpu.paused = True
        release_after(pool, *streams)
        for one in gpu.streams:
            assert pool.acquire(0) is None
            one.run()
        assert pool.acquire(0) is not None

    def test_acquire_waits_for_the_gpu_when_it_may_wait(self, gpu: CudaDouble, device: CudaDevice) -> None:
        pool, stream = DevicePool(device, 64, 1, Counter()), device.stream()
        gpu.paused = True
        release_after(pool, stream)
        _, again = leased(pool, 5.0)
        assert not stream.raw.work
        again.release()

    def test_a_buffer_that_is_ready_is_lent_before_one_that_is_not(self, gpu: CudaDouble, device: CudaDevice) -> None:
        pool, stream = DevicePool(device, 64, 2, Counter()), device.stream()
        (busy, first), (ready, second) = leased(pool), leased(pool)
        where = ready.address
        del busy, ready
        gpu.paused = True
        first.after(stream)
        first.release()
        second.release()
        assert leased(pool, None)[0].address == where and stream.raw.work

    def test_a_view_says_so_when_it_is_used_after_the_release(self, device: CudaDevice) -> None:
        view, lease = leased(DevicePool(device, 64, 1, Counter()))
        part = view.as_type("float16", (4, 8))[1:3, 2:]
        lease.release()
        for use in (lambda: view.address, lambda: part.__cuda_array_interface__, lambda: view.__dlpack__()):
            with pytest.raises(StageError, match="used after its release"):
                use()

    def test_closing_frees_everything_also_what_escaped(self, gpu: CudaDouble, device: CudaDevice) -> None:
        pool = DevicePool(device, 64, 2, Counter())
        kept, lease = leased(pool)
        lease.release()
        leased(pool)[1].release()
        leased(pool)[1].release()
        pool.close()
        assert gpu.allocations == [] and device.live_bytes == 0 and device.leaked == 0 and kept.nbytes == 64
