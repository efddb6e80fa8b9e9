"""How many of a source's frames go on, evenly: what a governor turns down when a budget is exceeded."""

from __future__ import annotations

import threading

from edgert.clock import Clock
from edgert.runtime.allowance import Allowance

_SLOWNESS = 0.1  # of learning how fast a file goes by itself, per frame
_FIRST = 8  # frames of a file that go as fast as they can, whatever the share, to learn from
_LOOK_S = 0.1  # at a closed gate


class Gate:
    """Lets a part of a live source's frames through, or slows a file down to that part of its own speed.

    A camera's frames that stay behind are lost, evenly; a file's frames all come, later. Asked by the source's thread
    alone; :attr:`share` may be set by any.

    Args:
        live: whether frames that nobody takes are lost.

    Attributes:
        share: of the frames, 0 to 1; 0 closes the gate.
        allowance: of CPU time, that frames which have their turn have to wait for; None: as much as they take.
        held_back: frames that did not go on.
    """

    def __init__(self, live: bool, clock: Clock) -> None:
        self.share = 1.0
        self.allowance: Allowance | None = None
        self.held_back = 0
        self._live, self._clock = live, clock
        self._credit = 1.0
        self._last_ns: int | None = None
        self._own_s, self._learnt = 0.0, 0  # between two frames of a file that only the pipeline slows down

    def passes(self, stop: threading.Event) -> bool:
        """Whether the next frame goes on. Of a file always, when it is its turn, unless ``stop`` is set before."""
        if self._live:
            return self._has_turn()
        now_ns = self._clock.now_ns()
        passed_s = 0.0 if self._last_ns is None else (now_ns - self._last_ns) / 1e9
        if self.share >= 1.0 or self._learnt < _FIRST:
            self._own_s += (passed_s - self._own_s) * (_SLOWNESS if self._learnt > 1 else 1.0)
            self._learnt += 1
        elif not self._waited(passed_s, stop):
            self.held_back += 1
            return False
        if self.allowance is not None and not self.allowance.waits(stop, passed_s):
            self.held_back += 1
            return False
        self._last_ns = self._clock.now_ns()
        return True

    def _has_turn(self) -> bool:
        self._credit += self.share
        has_turn = self._credit >= 1.0
        if has_turn:
            self._credit = min(self._credit - 1.0, 1.0)
            has_turn = self.allowance is None or self.allowance.grants(id(self))
        self.held_back += not has_turn
        return has_turn

    def _waited(self, passed_s: float, stop: threading.Event) -> bool:
        """Waits for the turn of a file's frame; false when told to stop."""
        while self.share <= 0.0:
            if self._clock.wait(stop, _LOOK_S):
                return False
        left_s = self._own_s / self.share - passed_s
        return left_s <= 0 or not self._clock.wait(stop, left_s)
