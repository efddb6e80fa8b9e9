"""Counting what should not happen: copies of pixels and allocations on the hot path."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """A reading of a :class:`Counter`."""

    copies: int = 0
    bytes_copied: int = 0
    allocations: int = 0
    escaped: int = 0


class Counter:
    """Thread-safe totals for one pipeline. Only ``to_x`` calls and pools write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def copied(self, nbytes: int) -> None:
        """One copy of ``nbytes`` bytes of pixels or tensor data was made."""
        self._add(copies=1, nbytes=nbytes)

    def allocated(self) -> None:
        """One buffer was allocated from the operating system."""
        self._add(allocations=1)

    def escaped(self) -> None:
        """One buffer left its pool for good because somebody still holds an array onto it."""
        self._add(escaped=1)

    def read(self) -> Counts:
        """The totals so far."""
        return self._counts

    def _add(self, copies: int = 0, nbytes: int = 0, allocations: int = 0, escaped: int = 0) -> None:
        with self._lock:
            old = self._counts
            self._counts = Counts(
                old.copies + copies,
                old.bytes_copied + nbytes,
                old.allocations + allocations,
                old.escaped + escaped,
            )
