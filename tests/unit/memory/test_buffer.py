"""Aligned arrays, leases and pools, and what is counted of them."""

import gc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edgert.errors import StageError
from edgert.memory import ALIGN_BYTES, TYPICAL_BUFFERS, Counter, Counts, Lease, Pool, aligned_empty, lend
from tests.helpers.threads import in_threads


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (1, 3, 33, 17)])
def test_aligned_arrays(shape: tuple[int, ...], dtype: str) -> None:
    array = aligned_empty(shape, dtype)
    assert (array.shape, array.dtype, array.ctypes.data % ALIGN_BYTES) == (shape, np.dtype(dtype), 0)
    assert array.flags.c_contiguous and array.flags.writeable


def test_an_empty_array_is_fine() -> None:
    assert aligned_empty((0, 4), "float32").shape == (0, 4)


class TestLease:
    def test_gives_back_with_the_last_release(self) -> None:
        given_back: list[int] = []
        lease = Lease(lambda: given_back.append(1), Counter()).retain(2)
        lease.release()
        lease.release()
        assert lease.alive and not given_back
        lease.release()
        assert not lease.alive and given_back == [1]

    def test_a_release_too_many_is_an_error_and_gives_nothing_back_again(self) -> None:
        given_back: list[int] = []
        lease = Lease(lambda: given_back.append(1), Counter())
        lease.release()
        with pytest.raises(StageError, match="a lease was released twice"):
            lease.release()
        with pytest.raises(StageError, match="a lease was used after its release"):
            lease.retain()
        assert given_back == [1] and not lease.alive

    def test_many_threads_give_back_once(self) -> None:
        given_back: list[int] = []
        lease = Lease(lambda: given_back.append(1), Counter())

        def hold() -> None:
            for _ in range(500):
                lease.retain()
                lease.release()

        in_threads(hold)
        assert not given_back
        lease.release()
        assert given_back == [1]

    def test_lent_memory_is_let_go_with_the_last_release(self) -> None:
        class Owner:
            gone = False

            def __del__(self) -> None:
                Owner.gone = True

        lease = lend(Owner(), Counter())
        gc.collect()
        assert not Owner.gone
        lease.release()
        gc.collect()
        assert Owner.gone


class TestPool:
    def test_buffers_are_of_the_size_aligned_and_different(self) -> None:
        pool = Pool(1000, Counter(), count=3)
        leased = [pool.acquire() for _ in range(5)]  # it grows
        buffers = [item[0] for item in leased if item]
        assert len(buffers) == pool.count == 5
        assert all(b.shape == (1000,) and b.dtype == np.uint8 and b.ctypes.data % ALIGN_BYTES == 0 for b in buffers)
        assert all(b.flags.writeable for b in buffers)
        assert not any(np.shares_memory(a, b) for a in buffers for b in buffers if a is not b)

    def test_at_steady_state_nothing_is_allocated(self) -> None:
        counter = Counter()
        pool = Pool(64, counter, count=1)
        for _ in range(1000):
            leased = pool.acquire()
            assert leased is not None
            leased[0].reshape(8, 8)[2:4] = 7
            leased[1].release()
            del leased
        assert (counter.read().allocations, counter.read().escaped) == (1, 0)

    @pytest.mark.parametrize(
        "view",
        [
            lambda buffer: buffer,
            lambda buffer: buffer[10:20],
            lambda buffer: buffer.reshape(8, 8)[:, ::2].T,
            lambda buffer: buffer.view(np.float32)[None],
            lambda buffer: np.lib.stride_tricks.as_strided(buffer, (4, 4), (8, 1)),
            lambda buffer: np.asarray(memoryview(buffer)),
            lambda buffer: np.from_dlpack(buffer),
            lambda buffer: [buffer[1:]],
        ],
    )
    def test_what_somebody_still_looks_at_is_not_lent_again(self, view: object) -> None:
        counter = Counter()
        pool = Pool(64, counter, count=1)
        leased = pool.acquire()
        assert leased is not None
        buffer, lease = leased
        buffer[:] = 7
        kept = view(buffer)  # type: ignore[operator]
        before = np.array(kept)
        del buffer, leased
        lease.release()
        del lease
        for _ in range(3):
            again = pool.acquire()
            assert again is not None
            again[0][:] = 99
            again[1].release()
            del again
        assert (np.array(kept) == before).all()
        assert counter.read().allocations == 2

    @pytest.mark.parametrize(("most", "escaped", "allocations"), [(None, 3, TYPICAL_BUFFERS + 3), (5, 0, 5)])
    def test_who_keeps_every_array_gets_new_memory_up_to_a_limit(
        self, most: int | None, escaped: int, allocations: int
    ) -> None:
        counter, kept = Counter(), list[np.ndarray]()
        pool = Pool(64, counter, most=most)
        for _ in range(TYPICAL_BUFFERS + 3):
            if (leased := pool.acquire()) is not None:
                kept.append(leased[0])
                leased[1].release()
        assert len({array.ctypes.data for array in kept}) == len(kept) == allocations
        assert (counter.read().allocations, counter.read().escaped) == (allocations, escaped)

    def test_threads_share_it(self) -> None:
        pool, seen, wrong = Pool(64, Counter()), set[int](), list[int]()

        def work() -> None:
            for _ in range(100):
                leased = pool.acquire()
                assert leased is not None
                place = leased[0].ctypes.data
                if place in seen:
                    wrong.append(place)
                seen.add(place)
                seen.discard(place)
                lease = leased[1]
                del leased
                lease.release()

        in_threads(work)
        assert not wrong and pool.counter.read().escaped == 0

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.integers(0, 2), max_size=60))
    def test_whatever_order_no_two_holders_share_a_buffer(self, steps: list[int]) -> None:
        pool = Pool(64, Counter(), count=3, most=9)
        leases: list[tuple[np.ndarray, Lease]] = []
        kept: list[np.ndarray] = []
        for number, step in enumerate(steps):
            if step == 0 and (leased := pool.acquire()) is not None:
                leased[0][:] = number
                leases.append(leased)
                del leased
            elif step == 1 and leases:
                leases.pop(0)[1].release()
            elif step == 2 and leases:
                buffer, lease = leases.pop()
                kept.append(buffer[::2])
                lease.release()
                del buffer, lease
        live = [buffer for buffer, _ in leases] + kept
        assert all(len(set(buffer.tolist())) == 1 for buffer in live)
        addresses = [buffer.ctypes.data for buffer in live]
        assert len(set(addresses)) == len(addresses)


def test_the_counter_adds_up_over_threads() -> None:
    counter = Counter()

    def count() -> None:
        for _ in range(300):
            counter.copied(10)
            counter.allocated()
            counter.escaped()

    in_threads(count, 3)
    read = counter.read()
    assert (read.copies, read.bytes_copied, read.allocations, read.escaped) == (900, 9000, 900, 900)


def test_takes_from_another_only_what_it_counts_from_now_on() -> None:
    counter, gpu = Counter(), Counter()
    gpu.copied(1000)
    counter.copied(1)
    counter.include(gpu)
    assert counter.read() == Counts(1, 1)
    gpu.copied(20)
    gpu.allocated()
    assert counter.read() == Counts(2, 21, 1) and gpu.read() == Counts(2, 1020, 1)
