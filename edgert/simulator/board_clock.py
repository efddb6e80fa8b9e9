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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from edgert.placement.schedule import Callback, Timeline

T = TypeVar("T")
_SLACK_S = 0.05
"""Maximum delay of this machine that it may catch up by running faster than real time."""
_POLL_S = 0.05  # interval of checks for a stop
_STUCK_S = 0.5  # after a stop, a thread that works for longer no longer holds up the time


class _Waiter:
    """Thread that waits.

    Attributes:
        is_inside: whether time stops while the thread works.
        is_due: whether its event has happened.
        has_turn: whether it may continue.
    """

    __slots__ = ("has_turn", "is_due", "is_inside", "turn")

    def __init__(self, lock: threading.RLock) -> None:
        self.turn = threading.Condition(lock)
        self.is_inside = self.is_due = self.has_turn = False


class BoardClock:
    """Clock of an emulated board, an :class:`edgert.clock.Clock`.

    Threads that :meth:`enter` are inside until they :meth:`leave`: time stops while they work. Threads that wait for a
    time are inside until they are stopped. Time passes while other threads work, such as one that reads a camera.

    Args:
        pace: minimum real seconds for one second of the board; 0 runs as fast as this machine can, for pipelines
            without live input.
    """

    def __init__(self, pace: float = 1.0) -> None:
        self.timeline = Timeline()
        self._pace = pace
        self._origin_ns = time.monotonic_ns()
        self.lock = threading.RLock()
        self._idle = threading.Condition(self.lock)  # notified when no thread inside works
        self._inside, self._away = set[int](), set[int]()
        self._working = self._expected = self._entered = 0
        self._due: deque[_Waiter] = deque()  # threads that are due, the next one first
        self._gate: list[tuple[int, _Waiter]] = []
        self._stop: threading.Event | None = None
        self._anchor = 0.0, 0.0  # real time in seconds, and the board's time at that moment in milliseconds
        self._began_s = self._ended_s = 0.0

    def now_ns(self) -> int:
        """Return the board's time, from the origin of this machine's clock."""
        if not self._working:
            with self.lock:
                self._catch_up()
        return self._origin_ns + round(1e6 * self.timeline.now_ms)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep until ``event`` is set or the time is over; return whether the event is set."""
        with self.lock:
            self._join()
            waiter = self._new_waiter()
            self._mark_due_in(waiter, seconds)
            self._continue(waiter, event)
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

    def expect(self, count: int) -> None:
        """Start time when ``count`` threads have entered."""
        self._expected = count

    def enter(self) -> None:
        """Stop time while this thread works, from now on; every call counts, even in a thread that is inside."""
        with self.lock:
            self._join()
            self._entered += 1
            if self._entered == self._expected:
                self._begin()

    def enter_as(self, number: int, stop: threading.Event) -> bool:
        """Enter as a source, wait until all threads have entered and for its turn; return whether to continue.

        Args:
            number: position among the sources.
            stop: event that is set when the pipeline stops.
        """
        with self.lock:
            self._stop = stop
            self._join()
            waiter = self._new_waiter()
            self._gate.append((number, waiter))
            self._entered += 1
            self._rest_for(waiter)
            if self._entered == self._expected:
                self._begin()
            self._continue(waiter, stop)
        return not stop.is_set()

    def leave(self) -> None:
        """Let time pass while this thread works, from now on."""
        with self.lock:
            ident = threading.get_ident()
            if ident in self._inside:
                self._inside.discard(ident)
                self._rest()

    def close(self) -> None:
        """End the calling thread, which has entered; after the last one time stops."""
        with self.lock:
            self._entered -= 1
            self._ended_s = 0.0 if self._entered else time.monotonic()
            self.leave()
            self._idle.notify()

    @contextmanager
    def takes(self, begin: Callable[[Callback], object]) -> Iterator[None]:
        """Let the block take as long as the work that ``begin`` starts, regardless of its real time.

        Args:
            begin: function that starts the work at this moment of :attr:`timeline` and calls its argument at the end.
        """
        with self.lock:
            self._catch_up()
            waiter = self._new_waiter()
            begin(partial(self._mark_due, waiter))
            self._rest_for(waiter)
        try:
            yield
        finally:
            with self.lock:
                self._continue(waiter)

    def new_queue(self) -> queue.SimpleQueue[Any]:
        """Return a queue whose readers wait in the board's time."""
        return _Queue(self)

    # The methods below run with the lock held.

    def _join(self) -> None:
        ident = threading.get_ident()
        if ident not in self._inside and ident not in self._away:
            self._inside.add(ident)
            self._working += 1

    def _begin(self) -> None:
        """Start the sources in their order, after all threads have entered."""
        self._began_s = time.monotonic()
        self._anchor = self._began_s, self.timeline.now_ms
        for _, waiter in sorted(self._gate, key=lambda one: one[0]):
            self._mark_due(waiter)
        if not self._working:
            self._give_turn()
        threading.Thread(target=self._advance, name="edgert:board-clock", daemon=True).start()

    def _new_waiter(self) -> _Waiter:
        return _Waiter(self.lock)

    def _mark_due(self, waiter: _Waiter) -> None:
        if waiter.is_due:
            return
        waiter.is_due = True
        if waiter.is_inside:
            self._due.append(waiter)
        else:
            waiter.has_turn = True
            waiter.turn.notify()

    def _mark_due_in(self, waiter: _Waiter, seconds: float) -> None:
        self._catch_up()
        self.timeline.call_at(self.timeline.now_ms + 1e3 * max(seconds, 0.0), partial(self._mark_due, waiter))

    def _rest_for(self, waiter: _Waiter) -> None:
        """Mark the calling thread as waiting, or as working on something that time need not wait for."""
        ident = threading.get_ident()
        if ident in self._inside:
            waiter.is_inside = True
            self._inside.discard(ident)
            self._away.add(ident)
            self._rest()
        else:
            self._idle.notify()  # the next event may be its own

    def _continue(self, waiter: _Waiter, event: threading.Event | None = None) -> None:
        """Wait until the thread is due or the event is set, then for its turn."""
        if not waiter.is_inside:
            self._rest_for(waiter)
        while not waiter.has_turn:
            waiter.turn.wait(None if event is None else _POLL_S)
            if event is not None and event.is_set():
                self._mark_due(waiter)
                if not self._working:
                    self._give_turn()
        if waiter.is_inside:
            ident = threading.get_ident()
            self._away.discard(ident)
            self._inside.add(ident)

    def _rest(self) -> None:
        """Count a thread inside as no longer working."""
        self._working -= 1
        if not self._working:
            self._give_turn()

    def _give_turn(self) -> None:
        """Continue the next due thread; without one, let time advance."""
        if self._due:
            waiter = self._due.popleft()
            waiter.has_turn = True
            self._working += 1
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

    def _advance(self) -> None:
        """Advance time, as the body of a thread."""
        with self.lock:
            while self._entered:
                if self._working:
                    was_idle = self._idle.wait(_STUCK_S)
                    if was_idle or self._stop is None or not self._stop.is_set():
                        continue
                if self._due:
                    self._give_turn()
                    continue
                next_ms = self.timeline.next_ms
                left_s = None if next_ms is None else self._left_s(next_ms)
                if left_s is None or left_s > 0:
                    self._idle.wait(left_s)
                    continue
                self.timeline.step()
                self._idle.wait(0.0)  # gives threads from outside a chance to get the lock

    def _left_s(self, next_ms: float) -> float:
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
        self._waiters: deque[_Waiter] = deque()

    def put(self, item: T, block: bool = True, timeout: float | None = None) -> None:
        """Add an item."""
        clock = self._clock
        with clock.lock:
            super().put(item)
            if self._waiters:
                clock._catch_up()
                clock._mark_due(self._waiters.popleft())
                if not clock._working:  # put by a thread from outside
                    clock._give_turn()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Return the oldest item; wait for one up to ``timeout`` seconds of the board, then raise queue.Empty."""
        clock = self._clock
        with clock.lock:
            if self.empty() and block and (timeout is None or timeout > 0):
                waiter = clock._new_waiter()
                self._waiters.append(waiter)
                if timeout is not None:
                    clock._mark_due_in(waiter, timeout)
                clock._continue(waiter)
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            return super().get_nowait()
