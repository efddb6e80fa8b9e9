"""How many of a source's frames go on, evenly: what a governor turns down when a budget is exceeded."""

from __future__ import annotations

import math
import threading

from edgert.clock import Clock
from edgert.policy import RateLimiter
from edgert.runtime.allowance import Allowance

_LOOK_S = 0.1  # at a closed gate


class Gate(RateLimiter):
    """Lets a part of a live source's frames through, or slows a file down to that part of its own speed.

    Asked by the source's thread alone; :attr:`share` may be set by any.

    Args:
        live: whether frames that nobody takes are lost.

    Attributes:
        allowance: of CPU time, that frames which have their turn have to wait for; None: as much as they take.
        held_back: frames that did not go on.
    """

    def __init__(self, live: bool, clock: Clock) -> None:
        super().__init__()
        self.allowance: Allowance | None = None
        self.held_back = 0
        self._live, self._clock = live, clock
        self._last_ns: int | None = None

    def passes(self, stop: threading.Event) -> bool:
        """Whether the next frame goes on. Of a file always, when it is its turn, unless ``stop`` is set before."""
        if self._live:
            is_passed = self.has_turn() and (self.allowance is None or self.allowance.grants(id(self)))
        else:
            is_passed = self._waits(stop)
        self.held_back += not is_passed
        return is_passed

    def _waits(self, stop: threading.Event) -> bool:
        """Waits for the turn of a file's frame; false when told to stop."""
        passed_s = 0.0 if self._last_ns is None else (self._clock.now_ns() - self._last_ns) / 1e9
        while (pause_s := self.pause(passed_s)) == math.inf:
            if self._clock.wait(stop, _LOOK_S):
                return False
        if pause_s > 0 and self._clock.wait(stop, pause_s):
            return False
        if self.allowance is not None and not self.allowance.waits(stop, passed_s):
            return False
        self._last_ns = self._clock.now_ns()
        return True
