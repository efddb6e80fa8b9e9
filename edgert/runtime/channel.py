"""Bounded channels between stages, which can be closed from either end.

An :class:`Inlet` is the consumer's end of one or more edges; each edge has its own bound and drop policy
(:class:`edgert.policy.BoundedQueue`), so a flood on one never displaces frames of another. Threads wait on
``queue.SimpleQueue``, whose put and get run in C and hold no Python-level lock. Waking a thread costs more than all
else here, so it is done once for many results where these become a batch.
"""

import queue
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from edgert.policy import BoundedQueue, Drop
from edgert.runtime.frame import has_pixels
from edgert.runtime.metrics import Losses
from edgert.runtime.passing import Together, parts, size_of, without_pixels
from edgert.runtime.records import Result


class Arrivals:
    """What has come to a consumer, on any of its edges, and who waits for whom; shared by both ends.

    Attributes:
        ready: an edge that has a result, or the complement of one that was closed.
        batches: whether results are taken several at a time: who waits for room is woken when there is room for
            several, and by :meth:`give_room`, when all are taken, and not while they are.
        bell: wakes the consumer.
    """

    def __init__(self) -> None:
        self.ready, self.batches = deque[int](), False
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_awaited, self._enough = False, 1
        self._owed: list[queue.SimpleQueue[None]] = []

    def announce(self, edge: int, results: int = 1) -> None:
        """A producer: there is one more on an edge, of so many results; or, of its complement, no more."""
        self.ready.append(edge)
        if len(self.ready) >= self._enough or edge < 0 or results > 1:
            self.ring()

    def ring(self) -> None:
        """A producer: whoever waits goes on with what is there."""
        if self._is_awaited:
            self._is_awaited = False
            self.bell.put(None)

    def owe(self, room: queue.SimpleQueue[None]) -> None:
        """The consumer: a producer that waits there has room now."""
        self._owed.append(room)
        if not self.batches:
            self.give_room()

    def give_room(self) -> None:
        """The consumer: wakes producers that have room now."""
        while self._owed:
            self._owed.pop().put(None)

    def wait(self, timeout_s: float | None, enough: int) -> None:
        """The consumer: until there is something. See :meth:`Inlet.get`."""
        ready, bell = self.ready, self.bell
        self.give_room()
        while not bell.empty():  # of somebody who rang late
            bell.get()
        self._enough = enough
        try:
            while True:
                self._is_awaited = True
                if len(ready) >= enough:  # since that was noted
                    return
                bell.get(timeout=timeout_s)
                if ready:
                    return
        except queue.Empty:
            if not ready:
                raise
        finally:
            self._is_awaited = False


class Channel(BoundedQueue[Result]):
    """One edge: a queue between two threads. A result that is dropped releases its frame.

    Args:
        capacity: results that may wait.
        drop: when full, lose the ``oldest`` waiting result, the ``newest`` (the one being put), or ``never``:
            then :meth:`put` blocks.

    Attributes:
        is_bare: whether frames go through without their pixels, which nobody behind reads.
        together: whether the consumer takes several results as one :class:`~edgert.runtime.passing.Together`.
        losses: what was dropped, by stream and cause.
        work: works on a result at once, in the producer's thread, where the consumer has none, and says whether it
            did; else, and with None, results wait.
    """

    __slots__ = (
        "_abandoned",
        "_arrivals",
        "_edge",
        "_is_awaited",
        "_room",
        "is_bare",
        "losses",
        "low",
        "together",
        "work",
    )

    work: Callable[[Result], bool] | None

    def __init__(self, capacity: int, drop: Drop, arrivals: Arrivals, edge: int) -> None:
        super().__init__(capacity, drop)
        self.is_bare, self.work, self.together = False, None, False
        self.losses: Losses = {}
        self._arrivals, self._edge, self._abandoned, self._is_awaited = arrivals, edge, False, False
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes a producer that waits for some

    def put(self, result: Result) -> None:
        """Takes over a result together with one hold on its lease; blocks only when full and ``drop: never``, or while
        the consumer works in this thread."""
        if self.is_bare and has_pixels(result.frame):
            bare = without_pixels(result)
            result.frame.lease.release()
            result = bare
        count = size_of(result)
        if self.work is not None and not self._abandoned and self.work(result):
            self.count += count
            return
        if self.waits and len(self.items) >= self.capacity // count:
            self.has_room(results=count)
        if self._abandoned:
            self.count += count
            self.lose(result)
            return
        if self.waits:
            self.count += count
            self.items.append(result)
        else:
            self.count += count - 1
            if self.offer(result) != "added":
                return
        self._announce(count)

    def wait_in(self, room: queue.SimpleQueue[None]) -> None:
        """See :meth:`Inlet.wait_in`."""
        self._room = room

    def has_room(self, timeout_s: float | None = None, results: int = 1) -> bool:
        """Whether the producer, who asks, may put a result without waiting for room; waits for that.

        Args:
            timeout_s: longest wait.
            results: that it is made of, as are those that wait; one is taken however many it has.
        """
        items, capacity = self.items, max(self.capacity // results, 1) if self.together else self.capacity
        while self.waits and len(items) >= capacity and self.work is None and not self._abandoned:
            self._is_awaited = True
            if len(items) < capacity:  # meanwhile; the consumer may have missed who waits
                break
            self._arrivals.ring()  # there is no more before it has taken some
            try:
                self._room.get(timeout=timeout_s)
            except queue.Empty:
                self._is_awaited = False
                return len(items) < capacity
        self._is_awaited = False
        return True

    def be_passed_by(self, is_so: bool) -> None:
        """Whether a producer that would wait for room drops the oldest instead, as the consumer hangs."""
        self.waits = self.drop == "never" and not is_so
        if is_so:
            self._room.put(None)  # wakes a blocked producer

    def _announce(self, results: int) -> None:
        self._arrivals.announce(self._edge, results)
        if self._abandoned:  # meanwhile: what was just put may have been too late to be dropped with the rest
            self._drain()

    def close(self) -> None:
        """The producer is done. Results already in the channel are still delivered."""
        self._arrivals.announce(~self._edge)

    def abandon(self) -> None:
        """The consumer is done: what waits is dropped, and the producer never blocks again."""
        self._abandoned = True
        self._room.put(None)  # wakes a blocked producer
        self._drain()

    def is_next_together(self) -> bool:
        """Whether what :meth:`take` gives is several results; asked by the consumer."""
        try:
            return isinstance(self.items[0], Together)
        except IndexError:  # all was dropped
            return False

    def take(self) -> Result | None:
        """The oldest result, after the inlet saw this edge become ready; None if the channel was abandoned."""
        try:
            result = self.items.popleft()
        except IndexError:
            return None
        if self._is_awaited and (not self._arrivals.batches or len(self.items) < self.capacity / 2):
            self._is_awaited = False
            self._arrivals.owe(self._room)
        return result

    def lose(self, result: Result) -> None:
        """Counts it and gives its hold back."""
        for one in parts(result):
            self.dropped += 1
            key = one.frame.stream, "end" if self._abandoned else "queue"
            self.losses[key] = self.losses.get(key, 0) + 1
        result.frame.lease.release()

    def _drain(self) -> None:
        while (result := self.pop()) is not None:
            self.lose(result)


class Inlet:
    """Everything one stage listens to. Iterating yields ``(edge, result)`` until all edges are closed."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self._closed = 0
        self.channels: list[Channel] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come that was not taken."""
        return not self.arrivals.ready

    def connect(self, capacity: int, drop: Drop) -> Channel:
        """A new edge into this inlet."""
        channel = Channel(capacity, drop, self.arrivals, len(self.channels))
        self.channels.append(channel)
        return channel

    def get(self, timeout_s: float | None = None, enough: int = 1) -> tuple[int, Result] | None:
        """The next ``(edge, result)``, with one hold on its lease; None once all edges are closed and empty.

        Args:
            timeout_s: longest wait.
            enough: where nothing is there, waits for so many, as far as each queue takes them, until a producer waits
                for room, or for ``timeout_s``.

        Raises:
            queue.Empty: nothing came within ``timeout_s``.
        """
        ready = self.arrivals.ready
        if enough > 1:  # a producer that has begun to wait for room has brought so many
            enough = min(enough, *[channel.capacity for channel in self.channels])
        while self._closed < len(self.channels):
            try:
                edge = ready.popleft()
            except IndexError:
                self.arrivals.wait(timeout_s, enough)
                continue
            if edge < 0:
                self._closed += 1
            elif (result := self.channels[edge].take()) is not None:
                return edge, result
        return None

    def more(self, most: int) -> list[Result]:
        """What else is there already, in order, up to those that came as one; each with one hold on its lease."""
        ready, channels, found = self.arrivals.ready, self.channels, list[Result]()
        while len(found) < most and ready and (edge := ready[0]) >= 0 and not channels[edge].is_next_together():
            ready.popleft()
            if (result := channels[edge].take()) is not None:
                found.append(result)
        return found

    def __iter__(self) -> Iterator[tuple[int, Result]]:
        return iter(self.get, None)

    def wait_in(self, make: Callable[[], queue.SimpleQueue[Any]]) -> None:
        """From now on, before anything has come, threads wait in queues of that kind: by another clock."""
        self.arrivals.bell = make()
        for channel in self.channels:
            channel.wait_in(make())

    def direct(self, work: Callable[[Result], bool] | None) -> None:
        """From now on, what is put is worked on at once, by its producer's thread, where ``work`` does so and says
        True; None: it waits for its consumer.

        With work before anything has come; without by the thread that puts, or when all is abandoned.
        """
        for channel in self.channels:
            channel.work = work

    def be_passed_by(self, is_so: bool) -> None:
        """See :meth:`Channel.be_passed_by`."""
        for channel in self.channels:
            channel.be_passed_by(is_so)

    def abandon(self) -> None:
        """Drops what waits and lets every producer run free; iteration ends when they have closed."""
        for channel in self.channels:
            channel.abandon()
