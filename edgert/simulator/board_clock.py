"""Clock of an emulated board for threads of this machine, which stops while any of them works.

Real threads replace those of :mod:`edgert.simulator.threads`: each waits for results, and lets the board's time pass
for its work. When all threads wait, simulated time advances to the next event that continues one. They continue one at
a time, in the order of simulated threads. So the speed and load of this machine do not affect the figures: a slower
machine only takes longer.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from edgert.placement.schedule import AcceleratorUse, Timeline
from edgert.placement.segment_engines import Step
from edgert.simulator.hardware import TICK_MS
from edgert.simulator.play import Machine, Platform

T = TypeVar("T")
_SLACK_S = 0.05
"""Maximum delay of this machine that it may catch up by running faster than real time."""
_POLL_S = 0.05  # interval of checks for a stop
_STUCK_S = 0.5  # after a stop, a thread that works for longer no longer holds up the time


class _Waiter:
    """Thread that waits.

    Attributes:
        is_due: whether its event has happened.
        has_turn: whether it may continue.
    """

    __slots__ = ("has_turn", "is_due", "thread", "turn")

    def __init__(self, lock: threading.RLock) -> None:
        self.thread, self.turn = threading.get_ident(), threading.Condition(lock)
        self.is_due = self.has_turn = False


class BoardClock:
    """Clock of an emulated board, an :class:`edgert.clock.Clock`, and the hardware whose work takes its time.

    Threads that :meth:`enter` are inside until they :meth:`leave`: time stops while they work. Threads that wait for a
    time are inside until they are stopped. Time passes while other threads work, such as one that reads a camera.

    Args:
        platform: hardware of the board.
        pace: minimum real seconds for one second of the board; 0 runs as fast as this machine can, for pipelines
            without live input.

    Attributes:
        thermal: power and temperature of the board; None if unknown.
    """

    def __init__(self, platform: Platform, pace: float = 1.0) -> None:
        self.timeline = Timeline()
        self._machine = Machine(self.timeline, platform)
        self.thermal = self._machine.thermal
        self._pace = pace
        self._origin_ns = time.monotonic_ns()
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)  # notified when no thread inside works
        self._inside, self._working = set[int](), set[int]()
        self._expected = self._entered = 0
        self._due: deque[_Waiter] = deque()  # threads inside that are due, the next one first
        self._stop: threading.Event | None = None
        self._anchor = 0.0, 0.0  # real time in seconds, and the board's time at that moment in milliseconds
        self._began_s = self._ended_s = 0.0
        self._next_tick()

    def now_ns(self) -> int:
        """Return the board's time, from the origin of this machine's clock."""
        if not self._working:
            with self._lock:
                self._catch_up()
        return self._origin_ns + round(1e6 * self.timeline.now_ms)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep until ``event`` is set or the time is over; return whether the event is set."""
        with self._lock:
            self._join()
            self._await_turn(self._new_waiter(seconds), event)
            if event.is_set():
                self.leave()
        return event.is_set()

    @property
    def seconds(self) -> float:
        """Elapsed board time in seconds."""
        return self.timeline.now_ms / 1e3

    @property
    def slowdown(self) -> float:
        """Real seconds per second of the board; at least 1."""
        if not self._began_s or not self.timeline.now_ms:
            return 1.0
        return max(1.0, ((self._ended_s or time.monotonic()) - self._began_s) / self.seconds)

    def used(self) -> Mapping[str, AcceleratorUse]:
        """Return copies of each accelerator's work so far."""
        with self._lock:
            return {name: replace(use) for name, use in self._machine.used().items()}

    def expect(self, count: int) -> None:
        """Start time when ``count`` threads have entered."""
        self._expected = count

    def enter(self, stop: threading.Event | None = None) -> None:
        """Stop time while this thread works, from now on; every call counts, even in a thread that is inside.

        Args:
            stop: event that is set when the pipeline stops.
        """
        with self._lock:
            self._stop = stop or self._stop
            self._join()
            self._entered += 1
            if self._entered == self._expected and not self._began_s:
                self._began_s = time.monotonic()
                self._anchor = self._began_s, self.timeline.now_ms
                threading.Thread(target=self._advance, name="edgert:board-clock", daemon=True).start()

    def leave(self) -> None:
        """Let time pass while this thread works, from now on."""
        with self._lock:
            thread = threading.get_ident()
            self._inside.discard(thread)
            self._rest(thread)

    def close(self) -> None:
        """End the calling thread, which has entered; after the last one time stops."""
        with self._lock:
            self._entered -= 1
            self._ended_s = 0.0 if self._entered else time.monotonic()
            self.leave()

    @contextmanager
    def takes(self, steps: Sequence[Step]) -> Iterator[None]:
        """Let the block take as long as these steps on the board, one after the other, whatever it takes here."""
        with self._lock:
            waiter = self._new_waiter()
            self._machine.perform(steps, partial(self._mark_due, waiter))
            self._rest(waiter.thread)
        try:
            yield
        finally:
            with self._lock:
                self._await_turn(waiter)

    def new_queue(self) -> queue.SimpleQueue[Any]:
        """Return a queue with one reader, which waits in the board's time."""
        return _Queue(self)

    # The methods below run with the lock held.

    def _join(self) -> None:
        thread = threading.get_ident()
        if thread not in self._inside:
            self._inside.add(thread)
            self._working.add(thread)

    def _new_waiter(self, seconds: float | None = None) -> _Waiter:
        """Return the calling thread as a waiter from now on, which is due after ``seconds``."""
        self._catch_up()
        waiter = _Waiter(self._lock)
        if seconds is not None:
            due_ms = self.timeline.now_ms + 1e3 * max(seconds, 0.0)
            self.timeline.call_at(due_ms, partial(self._mark_due, waiter))
        return waiter

    def _mark_due(self, waiter: _Waiter) -> None:
        if waiter.is_due:
            return
        waiter.is_due = True
        if waiter.thread in self._inside:
            self._due.append(waiter)
            self._pass_turn()
        else:
            waiter.has_turn = True
            waiter.turn.notify()

    def _await_turn(self, waiter: _Waiter, event: threading.Event | None = None) -> None:
        """Wait until the calling thread is due or the event is set, then for its turn."""
        if not waiter.has_turn:
            self._rest(waiter.thread)
        while not waiter.has_turn:
            waiter.turn.wait(None if event is None else _POLL_S)
            if event is not None and event.is_set():
                self._mark_due(waiter)

    def _rest(self, thread: int) -> None:
        """Count a thread as not working."""
        self._working.discard(thread)
        self._pass_turn()

    def _pass_turn(self) -> None:
        """Continue the next due thread if no thread inside works; without one, let time advance."""
        if self._working:
            return
        if self._due:
            waiter = self._due.popleft()
            waiter.has_turn = True
            self._working.add(waiter.thread)
            waiter.turn.notify()
        else:
            self._idle.notify()

    def _catch_up(self) -> None:
        """Advance time to the real time, but not beyond the next event, if no thread inside works."""
        next_ms = self.timeline.next_ms
        if self._working or not self._pace or not self._began_s or self._ended_s or next_ms is None:
            return
        real_s, board_ms = self._anchor
        until_ms = min(board_ms + 1e3 * (time.monotonic() - real_s) / self._pace, next_ms)
        if self.timeline.now_ms < until_ms < next_ms:
            self.timeline.run(until_ms)

    def _next_tick(self) -> None:
        self.timeline.call_at(self.timeline.now_ms + TICK_MS, self._tick)

    def _tick(self) -> None:
        self._machine.tick(self._machine.used())
        self._next_tick()

    def _advance(self) -> None:
        """Advance time, as the body of a thread."""
        with self._lock:
            while self._entered:
                if self._working:
                    if not self._idle.wait(_STUCK_S) and self._stop is not None and self._stop.is_set():
                        self._working.clear()
                        self._pass_turn()
                elif (left_s := self._left_s()) > 0:
                    self._idle.wait(left_s)
                else:
                    self.timeline.step()
                    self._idle.wait(0.0)  # gives threads from outside a chance to get the lock

    def _left_s(self) -> float:
        """Return the real seconds until the next event; 0 or less if it is due."""
        next_ms = self.timeline.next_ms
        assert next_ms is not None  # there is always another tick
        if not self._pace:
            return 0.0
        real_s, board_ms = self._anchor
        now_s, due_s = time.monotonic(), real_s + (next_ms - board_ms) / 1e3 * self._pace
        if now_s - due_s > _SLACK_S:
            self._anchor = now_s - _SLACK_S, next_ms
        return due_s - now_s


class _Queue(queue.SimpleQueue[T]):
    """Queue whose ``get`` waits in a board's time."""

    def __init__(self, clock: BoardClock) -> None:
        super().__init__()
        self._clock = clock
        self._reader: _Waiter | None = None

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Add an item."""
        clock = self._clock
        with clock._lock:
            super().put(item)
            if self._reader is not None:
                clock._catch_up()
                clock._mark_due(self._reader)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Return the oldest item; wait for one up to ``timeout`` seconds of the board, then raise queue.Empty."""
        clock = self._clock
        with clock._lock:
            if self.empty() and block and (timeout is None or timeout > 0):
                self._reader = clock._new_waiter(timeout)
                clock._await_turn(self._reader)
                self._reader = None
            return super().get_nowait()
