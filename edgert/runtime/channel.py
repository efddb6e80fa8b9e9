"""Bounded channels between stages, which can be closed from either end.

An :class:`Inlet` is the consumer's end of one or more edges. Each edge has its own bound and drop policy
(:class:`edgert.policy.BoundedQueue`), so a flood on one never displaces frames of another. Threads wait on
``queue.SimpleQueue``, whose put and get run in C without a Python lock.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from edgert.policy import BoundedQueue, Drop
from edgert.runtime.decisions import TaskJournal
from edgert.runtime.frame import has_pixels
from edgert.runtime.metrics import Losses
from edgert.runtime.records import Result, without_pixels
from edgert.tracing import TaskTrace


class Channel(BoundedQueue[Result]):
    """One edge: a queue between two threads. A dropped result releases its frame.

    Args:
        capacity: maximum number of waiting results.
        drop: what a full queue loses: the ``oldest`` waiting result, the ``newest`` (the one being put), or ``never``
            any; :meth:`put` then blocks.
        inlet: input of the consumer.
        number: number of the edge in its inlet.

    Attributes:
        without_pixels: whether frames pass without their pixels, because no later stage reads them.
        losses: dropped results by stream and cause.
        room: queue that wakes a producer waiting for room.
        handler: function that processes results at once in the producer's thread; None: they wait for the consumer's
            thread.
    """

    __slots__ = ("_abandoned", "_inlet", "_is_awaited", "_is_closed", "handler", "losses", "number", "room",
                 "without_pixels")  # fmt: skip

    handler: Callable[[Sequence[Result]], None] | None

    def __init__(self, capacity: int, drop: Drop, inlet: Inlet, number: int) -> None:
        super().__init__(capacity, drop)
        self.without_pixels, self.handler, self.number = False, None, number
        self.losses: Losses = Counter()
        self._inlet, self._abandoned, self._is_awaited, self._is_closed = inlet, False, False, False
        self.room = inlet.new_queue()

    def put(self, result: Result) -> None:
        """Take over a result together with one hold on its lease.

        Blocks only while the channel is full with ``drop: never``, or while the consumer works in this thread.
        """
        if self.without_pixels and has_pixels(result.frame):
            result = self._strip_pixels(result)
        if self.handler is not None and not self._abandoned:
            self.count += 1
            self.handler((result,))
            return
        if self.waits and len(self.items) >= self.capacity:
            self.has_room()
        if self._abandoned:
            self.count += 1
            self.lose(result)
        else:
            if (trace := self._inlet.trace) is not None:
                trace.put(result.frame, self.number)
            if self.waits:
                self.count += 1
                self.items.append(result)
                self._announce()
            elif self.offer(result) == "added":
                self._announce()

    def put_all(self, results: Sequence[Result]) -> None:
        """Take over several results as :meth:`put` does. A consumer in this thread receives them in one call."""
        if self.handler is None or self._abandoned:
            for result in results:
                self.put(result)
            return
        if self.without_pixels:
            results = [self._strip_pixels(one) if has_pixels(one.frame) else one for one in results]
        self.count += len(results)
        self.handler(results)

    def has_room(self, timeout_s: float | None = None) -> bool:
        """Wait until :meth:`put` would not block, at most ``timeout_s``; return whether it would not.

        Called by the producer.
        """
        items, trace, began_ns = self.items, self._inlet.trace, 0
        while self.waits and len(items) >= self.capacity and self.handler is None and not self._abandoned:
            self._is_awaited = True
            if len(items) < self.capacity:  # room came meanwhile; the consumer may not have seen that someone waits
                break
            if trace is not None:
                began_ns = began_ns or trace.now_ns()
            try:
                self.room.get(timeout=timeout_s)
            except queue.Empty:
                break
        self._is_awaited = False
        if trace is not None and began_ns:
            trace.room(began_ns)
        return not self.waits or len(items) < self.capacity or self.handler is not None or self._abandoned

    def bypass(self, is_on: bool) -> None:
        """Set whether the producer drops the oldest result instead of waiting for room, as the consumer hangs."""
        self.waits = self.drop == "never" and not is_on
        if is_on:
            self.room.put(None)  # wakes a blocked producer

    def close(self) -> None:
        """End the producer's side. Results already in the channel are still delivered."""
        self._is_closed = True
        self._inlet.announce(self)

    def abandon(self) -> None:
        """End the consumer's side: drop waiting results, and never block the producer again."""
        self._abandoned = True
        self.room.put(None)  # wakes a blocked producer
        self._drain()

    def take(self) -> Result | None:
        """Remove and return the oldest result, or None. Called for an edge that the inlet lists as ready."""
        try:
            result = self.items.popleft()
        except IndexError:
            if self._is_closed:
                self._inlet.mark_ended(self)
            return None
        if self._is_awaited:
            self._is_awaited = False
            self._inlet.rooms.append(self.room)
            if not self._inlet.is_slow_to_give_room:
                self._inlet.give_room()
        return result

    def lose(self, result: Result) -> None:
        """Count a result as lost, and release its frame."""
        self.dropped += 1
        cause = "end" if self._abandoned else "queue"
        if self._inlet.journal is not None:
            self._inlet.journal.drop(result.frame, cause)
        if (trace := self._inlet.trace) is not None:
            trace.drop(result.frame, cause)
        self.losses[result.frame.stream, cause] += 1
        result.frame.lease.release()

    @staticmethod
    def _strip_pixels(result: Result) -> Result:
        bare = without_pixels(result)
        result.frame.lease.release()
        return bare

    def _announce(self) -> None:
        self._inlet.announce(self)
        if self._abandoned:  # abandoned meanwhile: the drain may have missed the new result
            self._drain()

    def _drain(self) -> None:
        while (result := self.pop()) is not None:
            self.lose(result)


class Inlet:
    """Input of one stage: all edges that it listens to.

    Changes to the stage also arrive here (:meth:`announce`), so that its thread applies them between two results.

    Attributes:
        channels: edges in order of their numbers. A new edge reuses the number of a removed one.
        ready: edges that have a result or were closed, and changes, in order of arrival.
        is_kept_open: whether the consumer waits for a new edge while it has none.
        rooms: queues of the producers to wake because there is room now.
        journal: journal of lost results; None: they are not recorded.
        trace: trace of arriving, waiting and lost results; None: they are not recorded.
        is_slow_to_give_room: whether producers are woken only after the consumer has begun its work. A producer woken
            earlier would take Python's lock and delay the next batch of a GPU.
        new_queue: function that makes the queues in which threads wait.
    """

    def __init__(self) -> None:
        self.channels: list[Channel] = []
        self.ready = deque[Channel | Change]()
        self.is_kept_open = self.is_slow_to_give_room = False
        self.rooms = list[queue.SimpleQueue[Any]]()
        self.journal: TaskJournal | None = None
        self.trace: TaskTrace | None = None
        self.new_queue: Callable[[], queue.SimpleQueue[Any]] = queue.SimpleQueue
        self._open = set[int]()  # edges that have not ended
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_awaited = False

    def connect(self, capacity: int, drop: Drop, place: int | None = None) -> Channel:
        """Return a new edge into this inlet; with ``place``, under the number of a removed one."""
        number = len(self.channels) if place is None else place
        channel = Channel(capacity, drop, self, number)
        if number == len(self.channels):
            self.channels.append(channel)
        else:
            self.channels[number] = channel
        self._open.add(number)
        self.is_kept_open = False
        return channel

    def remove(self, number: int) -> None:
        """Remove an edge and drop its waiting results. Called in the consumer's thread, which continues."""
        self._open.discard(number)
        self.is_kept_open = not self._open
        self.channels[number].abandon()

    def mark_ended(self, channel: Channel) -> None:
        """Mark an edge as closed and empty. Called by the consumer."""
        if self.channels[channel.number] is channel:
            self._open.discard(channel.number)

    def finish(self) -> None:
        """End the input when all edges have ended, instead of waiting for a new one."""
        self.is_kept_open = False
        self.ring()

    def give_room(self) -> None:
        """Wake all producers listed in :attr:`rooms`."""
        while self.rooms:
            self.rooms.pop().put(None)

    def apply(self) -> None:
        """Apply waiting changes. Called in the thread of a source, which has no edges."""
        with suppress(IndexError):
            while True:
                self.ready.popleft().take()

    def announce(self, edge: Channel | Change) -> None:
        """Queue a ready edge or a change for the consumer's thread, and wake the consumer if it waits."""
        self.ready.append(edge)
        self.ring()

    def ring(self) -> None:
        """Wake the consumer if it waits."""
        if self._is_awaited:
            self._is_awaited = False
            self._bell.put(None)

    def get(self, timeout_s: float | None = None) -> tuple[int, Result] | None:
        """Return the next ``(edge, result)``, with one hold on its lease; None once all edges are closed and empty.

        Raises:
            queue.Empty: nothing came within ``timeout_s``.
        """
        ready = self.ready
        while True:
            if not ready:
                if not (self._open or self.is_kept_open):
                    return None
                self._wait(timeout_s)
                continue
            edge = ready.popleft()
            if (result := edge.take()) is not None:
                return edge.number, result

    def take_more(self, most: int) -> list[Result]:
        """Return up to ``most`` results that already wait, in order, each with one hold on its lease."""
        ready = self.ready
        found: list[Result] = []  # faster than list[Result]()
        while len(found) < most and ready and isinstance(ready[0], Channel):
            if (result := ready.popleft().take()) is not None:
                found.append(result)
        return found

    def use_queues(self, make: Callable[[], queue.SimpleQueue[Any]]) -> None:
        """Replace the queues in which threads wait, for another clock. Call it before the first result."""
        self._bell, self.new_queue = make(), make
        for channel in self.channels:
            channel.room = make()

    def set_handler(self, handler: Callable[[Sequence[Result]], None] | None) -> None:
        """Set the function that processes results in the producer's thread; None: they wait for the consumer."""
        for channel in self.channels:
            channel.handler = handler

    def bypass(self, is_on: bool) -> None:
        """Do :meth:`Channel.bypass` for all edges."""
        for channel in self.channels:
            channel.bypass(is_on)

    def abandon(self) -> None:
        """Drop waiting results and never block a producer again; the input ends when all producers have closed."""
        for channel in self.channels:
            channel.abandon()
        self.finish()

    def _wait(self, timeout_s: float | None) -> None:
        """Wait until an edge is ready or all have ended. Raises queue.Empty after ``timeout_s``."""
        self.give_room()
        bell = self._bell
        while not bell.empty():  # remove what a late ring has left
            bell.get()
        self._is_awaited = True
        try:
            if not self.ready and (self._open or self.is_kept_open):  # checked again now that _is_awaited is set
                bell.get(timeout=timeout_s)
        finally:
            self._is_awaited = False


class Change:
    """A change that one thread asks another to make; see :meth:`Inlet.announce`. It is applied once or never.

    Args:
        apply: function that makes the change, called in the thread that takes it from its inlet.
    """

    number = -1

    def __init__(self, apply: Callable[[], None]) -> None:
        self._apply, self._done = apply, threading.Event()
        self._token = deque([None])  # the thread that pops it decides whether the change is applied
        self._error: BaseException | None = None

    def take(self) -> None:
        """Apply the change. Called by the thread that takes it from its inlet."""
        if not self._claim():
            return
        try:
            self._apply()
        except BaseException as error:  # noqa: BLE001 - wait() raises it
            self._error = error
        finally:
            self._done.set()

    def wait(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the change is applied, and raise its error; return False if it never will be applied.

        Args:
            is_over: function that returns whether the other thread has ended.
            timeout_s: time after which the change is withdrawn.
        """
        left_s = timeout_s
        while not self._done.wait(_POLL_S):
            left_s -= _POLL_S
            if (left_s <= 0 or is_over()) and self._claim():
                return False
        if self._error is not None:
            raise self._error
        return True

    def _claim(self) -> bool:
        with suppress(IndexError):
            self._token.pop()
            return True
        return False


_POLL_S = 0.02
