"""How full queues are and what they lose: whether more comes into a pipeline than it can take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgert.policy import BoundedQueue


class Crowd:
    """Some channels, looked at from time to time. For one thread; the channels may be in use by others.

    Args:
        channels: of live frames.
    """

    def __init__(self, channels: Sequence[BoundedQueue[Any]]) -> None:
        self._channels = tuple(channels)
        self._dropped = 0

    def look(self) -> tuple[float | None, int]:
        """How full the fullest is, 0 to 1, or None without any; and how many results all of them dropped since the
        last look."""
        stats = [channel.stats() for channel in self._channels]
        dropped = sum(one.dropped for one in stats)
        lost, self._dropped = dropped - self._dropped, dropped
        return max((min(1.0, one.waiting / one.capacity) for one in stats), default=None), lost
