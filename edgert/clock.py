"""Real or virtual time, in nanoseconds."""

import threading
import time
from datetime import datetime, timezone
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    """A real or simulated clock."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds since an arbitrary origin."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until ``event`` is set, but no longer than ``seconds``; return whether it is set."""


class RealClock:
    """The machine's monotonic clock."""

    now_ns = staticmethod(time.monotonic_ns)  # directly, because threads call it several times per frame

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)


REAL = RealClock()


class NotedClock(RealClock):
    """The machine's monotonic clock, with an offset to the time of day that can be recorded.

    Attributes:
        offset_ns: nanoseconds to add to the monotonic time for the time since the epoch.
    """

    def __init__(self) -> None:
        self.offset_ns = time.time_ns() - time.monotonic_ns()

    def look(self) -> None:
        """Update the offset if the machine's time of day was set, by more than its jitter."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        if abs(offset_ns - self.offset_ns) > _SET_NS:
            self.offset_ns = offset_ns


_SET_NS = 1_000_000


def time_of_day_ns(timestamp_ns: int, clock: Clock = REAL) -> int:
    """Convert a clock's time to nanoseconds since the epoch.

    It uses the clock's ``offset_ns``, which a recorded clock has, or else this machine's time of day.
    """
    offset_ns: int | None = getattr(clock, "offset_ns", None)
    if offset_ns is not None:
        return timestamp_ns + offset_ns
    return time.time_ns() - (clock.now_ns() - timestamp_ns)


def rfc3339(time_ns: int) -> str:
    """Format a time like ``2026-01-31T12:00:00.000000Z``."""
    seconds, rest_ns = divmod(time_ns, 10**9)
    return f"{_second(seconds)}.{rest_ns // 1000:06d}Z"


@lru_cache(maxsize=64)  # every frame of a second has the same
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
