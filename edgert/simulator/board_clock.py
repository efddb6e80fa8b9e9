"""The clock of an emulated board for threads of this machine: it stops while any of them works.

Real threads take the place of those in :mod:`edgert.simulator.threads`: each waits for results, and lets the board's
time pass for its work. When all of them wait, simulated time advances to the next moment at which one continues. They
continue one at a time, in the order of simulated threads. So the speed and load of this machine affect no figure: a
machine that is slower than the board only takes longer.
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
"""Most lateness of this machine that is made up for by running faster than real time."""
_POLL_S = 0.05  # between two looks at whether to stop
_STUCK_S = 0.5  # of a pipeline that was stopped: threads that work for longer are not waited for


class _Waiter:
    """A thread that waits.

    Attributes:
        is_inside: whether time stops when it continues.
        is_due: its event has happened; ``has_turn``: it may continue.
    """

    __slots__ = ("has_turn", "is_due", "is_inside", "turn")

    def __init__(self, lock: threading.RLock) -> None:
        self.turn = threading.Condition(lock)
        self.is_inside = self.is_due = self.has_turn = False


class BoardClock:
    """An emulated board's clock; see :class:`edgert.clock.Clock`.

    Threads that :meth:`enter` are inside until they :meth:`leave`: time stops while they work. So are threads that wait
    for a time, until they are stopped. Time passes while other threads work, such as one that reads a camera.

    Args:
        pace: real seconds for one of the board's, at least; 0: as fast as this machine can, for pipelines without
            outside input.
    """

    def __init__(self, pace: float = 1.0) -> None:
        self.timeline = Timeline()
        self._pace = pace
        self._origin_ns = time.monotonic_ns()
        self.lock = threading.RLock()
        self._idle = threading.Condition(self.lock)  # nobody inside works
        self._inside, self._away = set[int](), set[int]()
        self._working = self._expected = self._entered = 0
        self._due: deque[_Waiter] = deque()  # those whose turn comes next
        self._gate: list[tuple[int, _Waiter]] = []
        self._stop: threading.Event | None = None
        self._anchor = 0.0, 0.0  # a real time in seconds, and the board's then in milliseconds
        self._began_s = self._ended_s = 0.0

    def now_ns(self) -> int:
        """Return the board's time, with the origin of this machine's clock."""
        if not self._working:
            with self.lock:
                self._catch_up()
        return self._origin_ns + round(1e6 * self.timeline.now_ms)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep, but wake early when ``event`` is set; returns whether it is set."""
        with self.lock:
            self._join()
            waiter = self._waiting()
            self._wake_in(waiter, seconds)
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
        """Real seconds that one of the board's took; at least 1."""
        if not self._began_s or not self.timeline.now_ms:
            return 1.0
        return max(1.0, ((self._ended_s or time.monotonic()) - self._began_s) / self.seconds)

    # Threads, and what they do.

    def expect(self, count: int) -> None:
        """Time begins when as many have entered."""
        self._expected = count

    def enter(self) -> None:
        """Stop time while this thread works, from now on. Counts each call, also of a thread inside."""
        with self.lock:
            self._join()
            self._entered += 1
            if self._entered == self._expected:
                self._begin()

    def enter_as(self, number: int, stop: threading.Event) -> bool:
        """Enter as a source: wait until all have, and then for its turn among others; return whether to continue.

        Args:
            number: its place among the sources.
            stop: set when it need not begin, and later when others are to end.
        """
        with self.lock:
            self._stop = stop
            self._join()
            waiter = self._waiting()
            self._gate.append((number, waiter))
            self._entered += 1
            self._rest_of(waiter)
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
        """End one of the threads that entered, called in it; after the last of them time stops."""
        with self.lock:
            self._entered -= 1
            self._ended_s = 0.0 if self._entered else time.monotonic()
            self.leave()
            self._idle.notify()

    @contextmanager
    def takes(self, begin: Callable[[Callback], object]) -> Iterator[None]:
        """Let the block take as long as the work that ``begin`` starts, regardless of its time here.

        Args:
            begin: starts it, at this moment of :attr:`timeline`; gets the function to call at its end.
        """
        with self.lock:
            self._catch_up()
            waiter = self._waiting()
            begin(partial(self._wake, waiter))
            self._rest_of(waiter)
        try:
            yield
        finally:
            with self.lock:
                self._continue(waiter)

    def new_queue(self) -> queue.SimpleQueue[Any]:
        """Return a queue whose readers wait by this clock."""
        return _Queue(self)

    # Within the lock.

    def _join(self) -> None:
        ident = threading.get_ident()
        if ident not in self._inside and ident not in self._away:
            self._inside.add(ident)
            self._working += 1

    def _begin(self) -> None:
        """Start the sources in their order, after all threads entered and those that entered last wait."""
        self._began_s = time.monotonic()
        self._anchor = self._began_s, self.timeline.now_ms
        for _, waiter in sorted(self._gate, key=lambda one: one[0]):
            self._wake(waiter)
        if not self._working:
            self._turn()
        threading.Thread(target=self._move, name="edgert:board-clock", daemon=True).start()

    def _waiting(self) -> _Waiter:
        return _Waiter(self.lock)

    def _wake(self, waiter: _Waiter) -> None:
        """Let a thread continue when it is its turn; one outside at once."""
        if waiter.is_due:
            return
        waiter.is_due = True
        if waiter.is_inside:
            self._due.append(waiter)
        else:
            waiter.has_turn = True
            waiter.turn.notify()

    def _wake_in(self, waiter: _Waiter, seconds: float) -> None:
        self._catch_up()
        self.timeline.call_at(self.timeline.now_ms + 1e3 * max(seconds, 0.0), partial(self._wake, waiter))

    def _rest_of(self, waiter: _Waiter) -> None:
        """Mark its thread as waiting, or as working on what is not needed before it continues."""
        ident = threading.get_ident()
        if ident in self._inside:
            waiter.is_inside = True
            self._inside.discard(ident)
            self._away.add(ident)
            self._rest()
        else:
            self._idle.notify()  # what is due next may be its own

    def _continue(self, waiter: _Waiter, event: threading.Event | None = None) -> None:
        """Wait until it is due, or the event is set, and then for its turn."""
        if not waiter.is_inside:
            self._rest_of(waiter)
        while not waiter.has_turn:
            waiter.turn.wait(None if event is None else _POLL_S)
            if event is not None and event.is_set():
                self._wake(waiter)
                if not self._working:
                    self._turn()
        if waiter.is_inside:
            ident = threading.get_ident()
            self._away.discard(ident)
            self._inside.add(ident)

    def _rest(self) -> None:
        """Count a thread inside as no longer working."""
        self._working -= 1
        if not self._working:
            self._turn()

    def _turn(self) -> None:
        """Continue the next due thread; without one, advance time."""
        if self._due:
            waiter = self._due.popleft()
            waiter.has_turn = True
            self._working += 1
            waiter.turn.notify()
        else:
            self._idle.notify()

    def _catch_up(self) -> None:
        """Set the time to the real one, at most the next due event, while no thread inside works."""
        next_ms = self.timeline.next_ms
        if self._working or not self._pace or not self._began_s or self._ended_s or next_ms is None:
            return
        real_s, board_ms = self._anchor
        until_ms = min(board_ms + 1e3 * (time.monotonic() - real_s) / self._pace, next_ms)
        if self.timeline.now_ms < until_ms < next_ms:
            self.timeline.run(until_ms)

    def _move(self) -> None:
        """Advance time; the body of a thread."""
        with self.lock:
            while self._entered:
                if self._working:
                    was_idle = self._idle.wait(_STUCK_S)
                    if was_idle or self._stop is None or not self._stop.is_set():
                        continue
                if self._due:
                    self._turn()
                    continue
                next_ms = self.timeline.next_ms
                left_s = None if next_ms is None else self._left_s(next_ms)
                if left_s is None or left_s > 0:
                    self._idle.wait(left_s)
                    continue
                self.timeline.step()
                self._idle.wait(0.0)  # threads from outside get the lock, too, however much there is to play

    def _left_s(self, next_ms: float) -> float:
        """Return real seconds until the board has that time."""
        if not self._pace:
            return 0.0
        real_s, board_ms = self._anchor
        now_s, due_s = time.monotonic(), real_s + (next_ms - board_ms) / 1e3 * self._pace
        if now_s - due_s > _SLACK_S:
            self._anchor = now_s - _SLACK_S, next_ms
        return due_s - now_s


class _Queue(queue.SimpleQueue[T]):
    """Queue whose ``get`` waits by a board's clock."""

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
                clock._wake(self._waiters.popleft())
                if not clock._working:  # it comes from outside
                    clock._turn()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Return the oldest item; wait for one up to ``timeout`` of the board's seconds. Raises queue.Empty."""
        clock = self._clock
        with clock.lock:
            if self.empty() and block and (timeout is None or timeout > 0):
                waiter = clock._waiting()
                self._waiters.append(waiter)
                if timeout is not None:
                    clock._wake_in(waiter, timeout)
                clock._continue(waiter)
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            return super().get_nowait()
