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

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.copies + other.copies,
            self.bytes_copied + other.bytes_copied,
            self.allocations + other.allocations,
            self.escaped + other.escaped,
        )

    def __neg__(self) -> Counts:
        return Counts(-self.copies, -self.bytes_copied, -self.allocations, -self.escaped)


class Counter:
    """Thread-safe totals for one pipeline. Only ``to_x`` calls and pools write to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()
        self._included: list[tuple[Counter, Counts]] = []

    def include(self, other: Counter) -> None:
        """From now on, readings contain what another counter counts: a GPU's, which engines opened by themselves."""
        self._included.append((other, -other.read()))

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
        return sum((other.read() + before for other, before in self._included), self._counts)

    def _add(self, copies: int = 0, nbytes: int = 0, allocations: int = 0, escaped: int = 0) -> None:
        with self._lock:
            self._counts += Counts(copies, nbytes, allocations, escaped)
