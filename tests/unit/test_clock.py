import threading

from edgert.clock import REAL
from tests.helpers.virtual_clock import VirtualClock


def test_virtual_time_stands_still_by_itself() -> None:
    clock = VirtualClock(start_ns=7)
    assert [clock.now_ns(), clock.now_ns()] == [7, 7]


def test_waiting_moves_virtual_time_by_exactly_what_was_asked() -> None:
    clock = VirtualClock()
    assert clock.wait(threading.Event(), 0.1) is False
    assert clock.now_ns() == 100_000_000


def test_waiting_tells_whether_the_event_is_set() -> None:
    event = threading.Event()
    event.set()
    assert VirtualClock().wait(event, 5) is True
    assert REAL.wait(event, 5) is True


def test_real_time_does_not_run_backwards() -> None:
    times = [REAL.now_ns() for _ in range(1000)]
    assert times == sorted(times)


def test_real_waiting_ends_in_time() -> None:
    assert REAL.wait(threading.Event(), 0.0) is False
