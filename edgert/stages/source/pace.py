"""Time within a stream: positions that never run backwards, frames given out at their own speed, even decimation."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from edgert.clock import Clock

JUMP_NS = 10_000_000_000
"""A stream clock that moves this far from one frame to the next was set anew; no camera waits that long."""
LATE_NS = 1_000_000_000
"""A paced stream this late gives up catching up: the machine slept, or what follows is too slow for it."""


class MediaClock:
    """Turns a stream's own times into positions that start at 0 and never run backwards.

    A new connection, a loop, or a jump of the camera's clock starts a new stretch. Live streams bridge the gap by the
    time that really passed; files go on one period after the last frame.

    Args:
        live: whether gaps are bridged by the wall clock.
        period_ns: assumed distance of frames where nothing better is known.
    """

    def __init__(self, live: bool, period_ns: int = 0) -> None:
        self._live, self._period_ns = live, period_ns
        self._last: tuple[int, int | None, int] | None = None
        self._shift_ns = 0
        self._is_new = True

    def restart(self, period_ns: int | None = None) -> None:
        """The next frame begins a new stretch: another connection, or the file from its start."""
        self._is_new = True
        self._period_ns = self._period_ns if period_ns is None else period_ns

    def at(self, media_ns: int | None, now_ns: int) -> int:
        """Position of a frame whose stream says ``media_ns`` (None: it does not say), seen at ``now_ns``."""
        position = self._position(media_ns, now_ns)
        self._is_new = False
        self._last = (position, media_ns, now_ns)
        return position

    def _position(self, media_ns: int | None, now_ns: int) -> int:
        if self._last is None:
            self._shift_ns = -(media_ns or 0)
            return 0
        last_ns, last_media_ns, last_now_ns = self._last
        passed_ns = max(now_ns - last_now_ns, 0) if self._live else self._period_ns
        if media_ns is None:
            return last_ns + passed_ns
        jumped = last_media_ns is None or not -self._period_ns <= media_ns - last_media_ns < JUMP_NS
        if self._is_new or (self._live and jumped):
            self._shift_ns = last_ns + passed_ns - media_ns
        return max(media_ns + self._shift_ns, last_ns)


class Pacer:
    """Waits until a position in the stream is due by the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start_ns: int | None = None

    def wait(self, media_ns: int, stop: threading.Event) -> bool:
        """Blocks until ``media_ns`` is due or ``stop`` is set; returns whether to go on."""
        now_ns = self._clock.now_ns()
        if self._start_ns is None or now_ns - self._start_ns - media_ns > LATE_NS:
            self._start_ns = now_ns - media_ns
        left_ns = self._start_ns + media_ns - now_ns
        if left_ns <= 0:
            return not stop.is_set()
        return not self._clock.wait(stop, left_ns / 1e9)


@dataclass(slots=True)
class Thinner:
    """Keeps frames evenly so that ``fps`` remain each second; everything when there are fewer, or fps is None."""

    fps: float | None
    _slot: int = -1

    def keeps(self, media_ns: int) -> bool:
        """Whether the frame at this position stays."""
        if self.fps is None:
            return True
        # Positions are rounded to whole ticks, so a frame may lie a hair before its slot.
        slot = int(media_ns * self.fps / 1e9 + 1e-3)
        if slot <= self._slot:
            return False
        self._slot = slot
        return True
