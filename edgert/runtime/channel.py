"""Bounded, closable channels between stages.

An :class:`Inlet` is the consumer's end of one or more edges; each edge has its own bound and its own way of being
full, so a flood on one never displaces frames of another. Built on ``queue.SimpleQueue``, whose put and get run in
C and hold no Python-level lock.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from edgert.clock import REAL
from edgert.runtime.metric import LatencyHistogram
from edgert.runtime.record import Result

Drop = Literal["oldest", "newest", "never"]
Told = tuple[int, int]
"""An edge on which something waits, or the complement of one that was closed; and when this was said, nanoseconds."""


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """Totals of one edge: results put in, dropped because it was full, and waiting now."""

    put: int
    dropped: int
    waiting: int
    capacity: int


class Channel:
    """One edge: results of one producer on their way to one consumer, in order.

    Args:
        capacity: results that may wait.
        drop: when full, lose the ``oldest`` waiting result, the ``newest`` (the one being put), or ``never``:
            then :meth:`put` blocks.
    """

    def __init__(self, capacity: int, drop: Drop, ready: queue.SimpleQueue[Told], edge: int) -> None:
        self.capacity, self.drop = capacity, drop
        self._ready, self._edge = ready, edge
        self._items: deque[Result] = deque()
        self._slots: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(capacity):
            self._slots.put(None)
        self._put = self._dropped = 0
        self._abandoned = False

    def put(self, result: Result) -> None:
        """Hands over a result together with one hold on its lease; blocks only when full and ``drop: never``."""
        self._put += 1
        if self.drop == "never":
            self._slots.get()
        else:
            try:
                self._slots.get_nowait()
            except queue.Empty:
                self._displace(result)
                return
        if self._abandoned:
            self._slots.put(None)
            self._lose(result)
            return
        self._append(result)

    def close(self) -> None:
        """The producer is done. Results already in the channel are still delivered."""
        self._ready.put((~self._edge, REAL.now_ns()))

    def abandon(self) -> None:
        """The consumer is done: what waits is dropped, and the producer never blocks again."""
        self._abandoned = True
        self._slots.put(None)  # wakes a blocked producer; each put hands the slot on to the next
        self._drain()

    def take(self) -> Result | None:
        """The oldest result, after the inlet saw this edge become ready; None if the channel was abandoned."""
        result = self._pop()
        if result is not None:
            self._slots.put(None)
        return result

    def stats(self) -> ChannelStats:
        """Totals so far; callable from any thread."""
        return ChannelStats(self._put, self._dropped, len(self._items), self.capacity)

    def _append(self, result: Result) -> None:
        self._items.append(result)
        self._ready.put((self._edge, REAL.now_ns()))
        if self._abandoned:  # meanwhile: what was just put may have been too late to be dropped with the rest
            self._drain()

    def _displace(self, result: Result) -> None:
        if self.drop == "newest" or self._abandoned:
            self._lose(result)
            return
        # Append before taking the oldest away, so that a consumer that was told of an item always finds one.
        self._items.append(result)
        oldest = self._pop()
        if oldest is not None:
            self._lose(oldest)

    def _drain(self) -> None:
        while (result := self._pop()) is not None:
            self._lose(result)

    def _pop(self) -> Result | None:
        """The oldest item. Consumer, producer and whoever abandons may all be here at once: only the pop decides."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def _lose(self, result: Result) -> None:
        self._dropped += 1
        result.frame.lease.release()


class Inlet:
    """Everything one stage listens to. Iterating yields ``(edge, result)`` until all edges are closed.

    Attributes:
        woken: how long after something came it went on, whenever it waited for that; of this machine's clock.
    """

    def __init__(self) -> None:
        self.woken = LatencyHistogram()
        self._ready: queue.SimpleQueue[Told] = queue.SimpleQueue()
        self._closed = 0
        self.channels: list[Channel] = []

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
        while self._closed < len(self.channels):
            edge = self._told(timeout_s)
            if edge < 0:
                self._closed += 1
            elif (result := self.channels[edge].take()) is not None:
                return edge, result
        return None

    def _told(self, timeout_s: float | None) -> int:
        is_waiting = self._ready.empty()
        edge, said_ns = self._ready.get(timeout=timeout_s)
        if is_waiting:
            self.woken.add(REAL.now_ns() - said_ns)
        return edge

    def __iter__(self) -> Iterator[tuple[int, Result]]:
        return iter(self.get, None)

    def abandon(self) -> None:
        """Drops what waits and lets every producer run free; iteration ends when they have closed."""
        for channel in self.channels:
            channel.abandon()
