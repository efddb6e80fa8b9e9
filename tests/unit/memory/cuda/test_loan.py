"""Memory of others goes back when its lease has ended and the GPU has passed."""

import threading

from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, Loans
from tests.helpers.cuda_double import CudaDouble


class Rig:
    def __init__(self) -> None:
        self.gpu = CudaDouble()
        self.device = CudaDevice(self.gpu, 0, Counter())
        self.back: list[int] = []
        self.loans = Loans(self.device, Counter(), self.back.append)
        self.stream = self.device.stream()


def test_nothing_goes_back_before_its_lease_ends_and_the_gpu_has_passed() -> None:
    rig = Rig()
    first, second = rig.loans.lend(1), rig.loans.lend(2)
    rig.gpu.paused = True
    first.after(rig.stream)
    assert (rig.loans.reclaim(), rig.loans.leased) == (0, 2)
    first.release()
    second.release()
    assert rig.loans.reclaim() == 1  # the GPU was never told of the second
    assert (rig.back, rig.loans.leased) == ([2], 1)
    rig.gpu.run_all()
    assert rig.loans.reclaim() == 1
    assert (rig.back, rig.loans.leased) == ([2, 1], 0)


def test_waiting_is_for_the_oldest_and_has_an_end() -> None:
    rig = Rig()
    rig.gpu.paused = True
    lease = rig.loans.lend(1)
    assert rig.loans.reclaim(timeout_s=0.001) == 0
    lease.after(rig.stream)
    threading.Thread(target=lease.release).start()
    assert rig.loans.reclaim(timeout_s=5.0) == 1
    assert rig.back == [1]


def test_every_stream_that_uses_it_must_have_passed() -> None:
    rig = Rig()
    rig.gpu.paused = True
    lease, other = rig.loans.lend(1), rig.device.stream()
    lease.after(rig.stream)
    lease.after(other)
    lease.release()
    with rig.device:
        for stream in (rig.stream, other):
            assert rig.loans.reclaim() == 0
            stream.raw.run()
    assert rig.loans.reclaim() == 1


def test_a_second_holder_keeps_it() -> None:
    rig = Rig()
    lease = rig.loans.lend(1)
    lease.retain()
    lease.release()
    assert rig.loans.reclaim() == 0
    lease.release()
    assert rig.loans.reclaim() == 1


def test_after_the_end_whoever_ends_the_lease_gives_back() -> None:
    rig = Rig()
    rig.gpu.paused = True
    early, late = rig.loans.lend(1), rig.loans.lend(2)
    early.after(rig.stream)
    early.release()
    rig.loans.close()
    assert (rig.back, rig.loans.leased) == ([1], 1)
    late.after(rig.stream)
    late.release()
    assert (rig.back, rig.loans.leased) == ([1, 2], 0)
