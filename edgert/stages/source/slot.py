"""A place for one thing, handed from one thread to another."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    """Holds one item at a time; closing it lets both sides go."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._item: T | None = None
        self._is_closed = False

    def put(self, item: T) -> bool:
        """Waits until the slot is empty. Returns whether the item was put; false once the slot is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is None or self._is_closed)
            if self._is_closed:
                return False
            self._item = item
            self._changed.notify_all()
            return True

    def take(self, timeout_s: float) -> T | None:
        """The item, or None when none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._item is not None or self._is_closed, timeout_s)
            item, self._item = self._item, None
            self._changed.notify_all()
            return item

    def close(self) -> T | None:
        """Nothing can be put any more; returns what nobody took."""
        with self._changed:
            self._is_closed = True
            item, self._item = self._item, None
            self._changed.notify_all()
            return item
