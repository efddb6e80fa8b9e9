"""Waiting for a condition, with a bound."""

import time
from collections.abc import Callable

_STEP_S = 0.002


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> float:
    """Return the seconds until ``condition()``, asked every few milliseconds, is true; fail after ``timeout_s``."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"not so after {timeout_s:g} s"
        time.sleep(_STEP_S)
    return time.monotonic() - began
