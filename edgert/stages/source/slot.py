"""A place for one thing, handed from one thread to another."""

from __future__ import annotations

import queue
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """Holds one item at a time, for one thread that puts and one that takes; the taker may close it.

    Built on ``queue.SimpleQueue``, whose put and get run in C: a condition variable takes several times as long.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._room.put(None)
        self._closed = threading.Event()

    def put(self, item: T) -> bool:
        """Waits until the slot is empty. Returns whether the item is the taker's now; false once the slot is closed."""
        self._room.get()
        if not self._closed.is_set():
            self._items.put(item)
            # Closed just now: either close() found the item, or it is here and nobody will come for it.
            if not self._closed.is_set() or self._left() is None:
                return True
        self._room.put(None)
        return False

    def take(self, timeout_s: float) -> T | None:
        """The item, or None when none came in time."""
        try:
            item = self._items.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._room.put(None)
        return item

    def close(self) -> T | None:
        """Nothing can be put any more, and a waiting producer goes on; returns what nobody took."""
        self._closed.set()
        left = self._left()
        self._room.put(None)
        return left

    def _left(self) -> T | None:
        try:
            return self._items.get_nowait()
        except queue.Empty:
            return None
