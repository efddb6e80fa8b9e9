"""Ctrl-C and SIGTERM as a request to end, not as an exception in the middle of things."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_IMPATIENT = 3


@dataclass(slots=True)
class Signals:
    """How often a signal came."""

    count: int = 0


@contextmanager
def stop_on_signal(stop: Callable[[], None]) -> Iterator[Signals]:
    """Calls ``stop`` on SIGINT and SIGTERM inside the block; the third signal ends the process at once."""
    seen = Signals()

    def on_signal(number: int, frame: FrameType | None) -> None:
        seen.count += 1
        if seen.count >= _IMPATIENT:
            os._exit(128 + number)
        stop()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
