"""Bounded channels between stages, which can be closed from either end.

An :class:`Inlet` is the consumer's end of one or more edges; each edge has its own bound and drop policy
(:class:`edgert.policy.BoundedQueue`), so a flood on one never displaces frames of another. Threads wait on
``queue.SimpleQueue``, whose put and get run in C and hold no Python-level lock.
"""

import queue
from collections.abc import Callable, Iterator
from typing import Any

from edgert.clock import REAL
from edgert.policy import BoundedQueue, Drop
from edgert.runtime.metrics import LatencyHistogram
from edgert.runtime.records import Result

_now_ns = REAL.now_ns
Ready = tuple[int, int]
"""An edge that has a result, or the complement of one that was closed; and when it was reported, nanoseconds."""


class Channel(BoundedQueue[Result]):
    """One edge: a queue between two threads. A result that is dropped releases its frame.

    Args:
        capacity: results that may wait.
        drop: when full, lose the ``oldest`` waiting result, the ``newest`` (the one being put), or ``never``:
            then :meth:`put` blocks.

    Attributes:
        is_bare: whether frames go through without their pixels, which nobody behind reads.
        only: the sources whose frames pass; None for all.
        work: works on a result at once, in the producer's thread, where the consumer has none; None: results wait.
    """

    __slots__ = ("_abandoned", "_edge", "_ready", "_room", "is_bare", "only", "work")

    only: frozenset[str] | None
    work: Callable[[Result], None] | None

    def __init__(self, capacity: int, drop: Drop, ready: queue.SimpleQueue[Ready], edge: int) -> None:
        super().__init__(capacity, drop)
        self.is_bare, self.only, self.work = False, None, None
        self._ready, self._edge, self._abandoned = ready, edge, False
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # as many as have room, where a producer waits for it
        for _ in range(capacity if self.waits else 0):
            self._room.put(None)

    def put(self, result: Result) -> None:
        """Takes over a result together with one hold on its lease; blocks only when full and ``drop: never``, or while
        the consumer works in this thread."""
        if self.only is not None and result.frame.stream not in self.only:
            result.frame.lease.release()
            return
        if self.is_bare and not result.frame.is_let_go:
            bare = result.let_go()
            result.frame.lease.release()
            result = bare
        if self.work is not None and not self._abandoned:
            self.count += 1
            self.work(result)
            return
        if self.waits:
            self._room.get()
        if self._abandoned:
            if self.waits:
                self._room.put(None)
            self.count += 1
            self.lose(result)
            return
        if self.waits:  # there is room, or it would not have got this far
            self.count += 1
            self.items.append(result)
        elif self.offer(result) != "added":
            return
        self._announce()

    def wait_in(self, ready: queue.SimpleQueue[Ready], room: queue.SimpleQueue[None]) -> None:
        """See :meth:`Inlet.wait_in`."""
        while not self._room.empty():
            room.put(self._room.get())
        self._ready, self._room = ready, room

    def has_room(self, timeout_s: float | None = None) -> bool:
        """Whether the producer, who asks, may put a result without waiting for room; waits for that."""
        if self.waits and self.work is None and self._room.empty():
            try:
                self._room.put(self._room.get(timeout=timeout_s))
            except queue.Empty:
                return False
        return True

    def _announce(self) -> None:
        self._ready.put((self._edge, _now_ns()))
        if self._abandoned:  # meanwhile: what was just put may have been too late to be dropped with the rest
            self._drain()

    def close(self) -> None:
        """The producer is done. Results already in the channel are still delivered."""
        self._ready.put((~self._edge, _now_ns()))

    def abandon(self) -> None:
        """The consumer is done: what waits is dropped, and the producer never blocks again."""
        self._abandoned = True
        self._room.put(None)  # wakes a blocked producer; each put passes it on to the next
        self._drain()

    def take(self) -> Result | None:
        """The oldest result, after the inlet saw this edge become ready; None if the channel was abandoned."""
        try:
            result = self.items.popleft()
        except IndexError:
            return None
        if self.waits:
            self._room.put(None)
        return result

    def lose(self, result: Result) -> None:
        """Counts it and gives its hold back."""
        self.dropped += 1
        result.frame.lease.release()

    def _drain(self) -> None:
        while (result := self.pop()) is not None:
            self.lose(result)


class Inlet:
    """Everything one stage listens to. Iterating yields ``(edge, result)`` until all edges are closed.

    Attributes:
        wakeup: delay between the arrival of something that the thread waited for, and its wake-up; by this machine's
            clock.
    """

    def __init__(self) -> None:
        self.wakeup = LatencyHistogram()
        self._ready: queue.SimpleQueue[Ready] = queue.SimpleQueue()
        self._closed = 0
        self.channels: list[Channel] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come that was not taken."""
        return self._ready.empty()

    def connect(self, capacity: int, drop: Drop) -> Channel:
        """A new edge into this inlet."""
        channel = Channel(capacity, drop, self._ready, len(self.channels))
        self.channels.append(channel)
        return channel

    def get(self, timeout_s: float | None = None) -> tuple[int, Result] | None:
        """The next ``(edge, result)``, with one hold on its lease; None once all edges are closed and empty.

        Raises:
            queue.Empty: nothing came within ``timeout_s``.
        """
        ready = self._ready
        while self._closed < len(self.channels):
            try:
                edge, _ = ready.get_nowait()
            except queue.Empty:
                edge, ready_ns = ready.get(timeout=timeout_s)
                self.wakeup.add(_now_ns() - ready_ns)
            if edge < 0:
                self._closed += 1
            elif (result := self.channels[edge].take()) is not None:
                return edge, result
        return None

    def __iter__(self) -> Iterator[tuple[int, Result]]:
        return iter(self.get, None)

    def wait_in(self, make: Callable[[], queue.SimpleQueue[Any]]) -> None:
        """From now on, before anything has come, threads wait in queues of that kind: by another clock."""
        self._ready = make()
        for channel in self.channels:
            channel.wait_in(self._ready, make())

    def direct(self, work: Callable[[Result], None]) -> None:
        """From now on, before anything has come: what is put is worked on at once, by its producer's thread."""
        for channel in self.channels:
            channel.work = work

    def abandon(self) -> None:
        """Drops what waits and lets every producer run free; iteration ends when they have closed."""
        for channel in self.channels:
            channel.abandon()
