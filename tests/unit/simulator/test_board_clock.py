"""The clock of an emulated board stands still while threads work, and moves on when all of them wait."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from edgert.placement.segment_engines import Step
from edgert.runtime import Frame
from edgert.runtime.stage import SourceStats
from edgert.simulator.board_clock import BoardClock
from edgert.simulator.paced_stages import PacedSource
from edgert.simulator.play import Platform
from tests.helpers.stages import result
from tests.helpers.virtual_clock import VirtualClock

NEVER = threading.Event()


def run(clock: BoardClock, *bodies: Callable[[], object]) -> None:
    """Each in a thread inside, until all have ended."""

    def inside(body: Callable[[], object]) -> None:
        clock.enter()
        try:
            body()
        finally:
            clock.close()

    clock.expect(len(bodies))
    threads = [threading.Thread(target=inside, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_what_is_done_here_takes_no_time_of_the_board() -> None:
    clock, seen = BoardClock(Platform(), pace=0.0), list[float]()

    def body() -> None:
        for _ in range(3):
            time.sleep(0.02)
            clock.wait(NEVER, 100.0)
            seen.append(clock.seconds)

    began = clock.now_ns()
    run(clock, body)
    assert seen == [100.0, 200.0, 300.0] and clock.now_ns() - began == 300_000_000_000


def test_threads_go_on_one_at_a_time_in_the_order_of_the_boards_time() -> None:
    clock, seen, working = BoardClock(Platform(), pace=0.0), list[float](), list[int]()

    def waits(seconds: float) -> Callable[[], None]:
        def body() -> None:
            for _ in range(20):
                clock.wait(NEVER, seconds)
                working.append(1)
                assert len(working) == 1
                seen.append(clock.seconds)
                working.clear()

        return body

    run(clock, waits(0.3), waits(0.5), waits(0.7))
    assert len(seen) == 60 and seen == sorted(seen)


def test_a_queue_wakes_its_reader_and_times_out_by_the_boards_time() -> None:
    clock = BoardClock(Platform(), pace=0.0)
    items: queue.SimpleQueue[int] = clock.new_queue()
    seen = list[tuple[int | None, float]]()

    def reads() -> None:
        seen.append((items.get(), clock.seconds))
        with pytest.raises(queue.Empty):
            items.get(timeout=5.0)
        seen.append((None, clock.seconds))
        with pytest.raises(queue.Empty):
            items.get_nowait()

    def writes() -> None:
        clock.wait(NEVER, 2.0)
        items.put(7)

    run(clock, reads, writes)
    assert seen == [(7, 2.0), (None, 7.0)]


def test_real_work_hides_behind_what_it_takes_on_the_board() -> None:
    clock = BoardClock(Platform(cores=("cpu0",)), pace=0.0)

    def works() -> None:
        for _ in range(2):
            with clock.takes((Step("gpu", 30.0), Step("cpu", 10.0))):
                time.sleep(0.01)

    run(clock, works, works)
    assert clock.seconds == pytest.approx(0.130)  # the GPU for four times 30 ms, and the last one's core
    assert clock.used()["gpu"].busy_ms == pytest.approx(120.0) and clock.used()["cpu"].busy_ms == pytest.approx(40.0)


@pytest.mark.timing
def test_the_board_is_never_faster_than_real_time_and_slower_where_this_machine_is() -> None:
    clock = BoardClock(Platform())

    def body() -> None:
        for _ in range(10):
            clock.wait(NEVER, 0.02)

    began = time.monotonic()
    run(clock, body)
    assert time.monotonic() - began > 0.14 and clock.slowdown >= 1.0
    slow = BoardClock(Platform())

    def works() -> None:
        for _ in range(10):
            time.sleep(0.03)
            slow.wait(NEVER, 0.01)

    run(slow, works)
    assert slow.slowdown > 2.5 and slow.seconds == pytest.approx(0.1)


def test_who_waits_is_told_to_stop_however_long_others_work() -> None:
    clock, stop, seen = BoardClock(Platform(), pace=0.0), threading.Event(), list[bool]()

    def source() -> None:
        clock.enter(stop)
        seen.append(clock.wait(stop, 1e9))
        clock.close()

    def stuck() -> None:
        clock.enter()
        clock.wait(NEVER, 1.0)
        stop.wait(5)
        time.sleep(4.0)
        clock.close()

    clock.expect(2)
    threads = [threading.Thread(target=one, daemon=True) for one in (source, stuck)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    stop.set()
    threads[0].join(3.5)
    assert seen == [True] and threads[1].is_alive()
    threads[1].join(5)


def test_a_source_whose_pipeline_never_begins_is_told_to_stop() -> None:
    clock, stop = BoardClock(Platform()), threading.Event()
    clock.expect(2)  # one of them never opens
    found = list[bool]()
    source = lambda: (clock.enter(stop), found.append(clock.wait(stop, 0.0)))  # noqa: E731
    thread = threading.Thread(target=source, daemon=True)
    thread.start()
    stop.set()
    thread.join(2)
    assert found == [True]


class Camera:
    """Gives so many frames, ten milliseconds of the board's time apart."""

    live = True

    def __init__(self, clock: VirtualClock, count: int) -> None:
        self._clock, self._count = clock, count

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        for index in range(self._count):
            self._clock.wait(stop, 0.01)
            yield result(index).frame

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None:
        """Nothing."""


class Outside(VirtualClock):
    """By which nothing but the camera goes."""

    def enter(self, stop: threading.Event) -> None:
        """Nothing."""

    def leave(self) -> None:
        """Nothing."""

    def takes(self, steps: object) -> AbstractContextManager[None]:
        return nullcontext()


def test_of_a_camera_come_as_many_frames_as_the_board_has_time_for() -> None:
    """It gives fifty a second, and the board's time goes half as fast: every second one."""
    outside: Any = Outside(start_ns=10**12)
    source = PacedSource(Camera(outside, 50), (), outside, 0, 1e9 / 50)
    found = [frame.index for frame in source.frames(threading.Event())]
    assert 25 <= len(found) <= 27 and max(found) >= 48
    as_fast = PacedSource(Camera(outside, 50), (), outside, 0, 1e9 / 100)
    assert len(list(as_fast.frames(threading.Event()))) == 50


def test_a_thread_from_outside_is_heard_however_much_there_is_to_play() -> None:
    clock, taken = BoardClock(Platform(), pace=0.0), list[int]()
    numbers = clock.new_queue()

    def tick() -> None:  # as a board's power and heat: there is always something next
        clock.timeline.call_at(clock.timeline.now_ms + 1, tick)

    def work() -> None:
        clock.enter()
        taken.extend(numbers.get() for _ in range(20))
        clock.close()

    tick()
    clock.expect(1)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for number in range(20):
        numbers.put(number)
        clock.now_ns()
    thread.join(20)
    assert not thread.is_alive() and taken == list(range(20))
