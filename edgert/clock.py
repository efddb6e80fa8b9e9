"""Time, real or virtual. Nanoseconds everywhere; only this module and tests choose which clock runs."""

import threading
import time
from datetime import datetime, timezone
from functools import lru_cache
from typing import Protocol


class Clock(Protocol):
    """Clock interface of edgert, real or simulated."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds since an arbitrary origin."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Sleep, but wake early when ``event`` is set; returns whether it is set."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    now_ns = staticmethod(time.monotonic_ns)  # without a call in between: threads ask several times per frame

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)


REAL = RealClock()


def time_of_day_ns(timestamp_ns: int, clock: Clock = REAL) -> int:
    """Convert a clock's time to nanoseconds of the epoch, by the present setting of this machine's clock."""
    return time.time_ns() - (clock.now_ns() - timestamp_ns)


def rfc3339(time_ns: int) -> str:
    """Format a time like ``2026-01-31T12:00:00.000000Z``."""
    seconds, rest_ns = divmod(time_ns, 10**9)
    return f"{_second(seconds)}.{rest_ns // 1000:06d}Z"


@lru_cache(maxsize=64)  # every frame of a second has the same
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
