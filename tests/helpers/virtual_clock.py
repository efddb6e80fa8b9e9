"""A clock that tests move."""

import threading


class VirtualClock:
    """A clock for tests: waiting costs nothing and moves time forward by exactly what was asked."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._now_ns += round(seconds * 1e9)
        return event.is_set()
