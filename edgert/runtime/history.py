"""When a thread let its last results go, and how long it had worked for each."""

from __future__ import annotations

import numpy as np

from edgert.spread import SLOT_MS, Scatter, scatter_of

KEPT = 8192
"""Results; two numbers each."""
WINDOW_NS = 60_000_000_000
"""What is told of at most, up to the end of a run."""


class History:
    """Constant memory however long it runs. One writer, any readers."""

    __slots__ = ("_at_ns", "_count", "_worked_ns")

    def __init__(self) -> None:
        self._at_ns, self._worked_ns = np.zeros(KEPT, np.int64), np.zeros(KEPT, np.int64)
        self._count = 0

    def add(self, at_ns: int, worked_ns: int) -> None:
        """One more; the oldest goes."""
        place = self._count % KEPT
        self._at_ns[place], self._worked_ns[place] = at_ns, worked_ns
        self._count += 1

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From when to when something is kept; None where nothing ever was."""
        if not self._count:
            return None
        newest = (self._count - 1) % KEPT
        oldest = self._count % KEPT if self._count > KEPT else 0
        return int(self._at_ns[oldest]), int(self._at_ns[newest])

    def scatter(self, start_ns: int, end_ns: int) -> Scatter:
        """How work scattered between two moments, slot after slot from the first."""
        kept = min(self._count, KEPT)
        at_ns, worked_ns = self._at_ns[:kept].copy(), self._worked_ns[:kept].copy()
        chosen = (at_ns >= start_ns) & (at_ns <= end_ns)
        slots = int((end_ns - start_ns) / 1e6 // SLOT_MS) + 1
        return scatter_of((at_ns[chosen] - start_ns) / 1e6, worked_ns[chosen] / 1e6, slots)
