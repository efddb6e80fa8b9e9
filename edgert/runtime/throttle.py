"""Limits per frame that keep a pipeline within its budgets: source rates, CPU time, and queue pressure.

A governor sees a mean over two seconds and chooses among a few settings. The cost of a frame may change by half within
a second, with CPU clocks and other load. So the token bucket here decides for each frame: the frame passes while the
CPU time used is at most the time earned. Any two seconds then exceed the budget only by the frames in flight.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgert.clock import Clock
from edgert.policy import BoundedQueue, RateLimiter

MARGIN = 0.03
"""Part of the budget reserved for frames that are in flight when the bucket is empty."""
_MAX_SAVED_S, _MAX_DEBT_S = 0.05, 2.0
"""Maximum credit and debt of the bucket, in seconds of the budget. A small credit prevents bursts; debt is limited to
the period over which a budget is averaged."""
_GONE_NS = 1_000_000_000  # a stream without a request for so long has no priority
_SHORTEST_S = 0.002


@dataclass(slots=True)
class _Stream:
    """Requests of a source: the number refused in a row, and the time of the last one."""

    refused: int = 0
    requested_ns: int = 0


class CpuTokenBucket:
    """Token bucket of the process's CPU time, filled as time passes and shared by all sources. Thread-safe.

    Args:
        cores: budget in CPU seconds per second.
        clock: clock by which the bucket is filled.
        process_ns: function that returns the CPU time of the process, in nanoseconds.
    """

    def __init__(self, cores: float, clock: Clock, process_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._cores, self._clock, self._process_ns = cores * (1 - MARGIN), clock, process_ns
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._balance_s = _MAX_SAVED_S * self._cores
        self._last: tuple[int, int] | None = None  # time and CPU time, counted from the first frame on
        self._requested, self._granted = 0, 0.0

    def grants(self, stream: int) -> bool:
        """Return whether a live source's next frame passes. The source that was refused most often has priority.

        Args:
            stream: number that identifies the source.
        """
        with self._lock:
            now_ns = self._update_balance()
            own = self._streams.setdefault(stream, _Stream())
            own.requested_ns = now_ns
            is_after_another = any(  # another stream was refused more often and still requests frames
                other.refused > own.refused and now_ns - other.requested_ns < _GONE_NS
                for other in self._streams.values()
            )
            is_granted = self._balance_s > 0 and not is_after_another
            own.refused = 0 if is_granted else own.refused + 1
            self._requested += 1
            self._granted += is_granted
        return is_granted

    def wait_for_grant(self, stop: threading.Event, own_s: float) -> bool:
        """Wait until a file's next frame may pass; return False if ``stop`` is set first.

        Args:
            stop: event that ends the wait.
            own_s: seconds since the previous frame.
        """
        waited_s = 0.0
        while True:
            with self._lock:
                self._update_balance()
                if self._balance_s > 0:
                    self._requested += 1
                    self._granted += own_s / (own_s + waited_s) if waited_s else 1.0
                    return True
                left_s = max(-self._balance_s / self._cores, _SHORTEST_S)
            if self._clock.wait(stop, left_s):
                return False
            waited_s += left_s

    def share(self) -> float:
        """Return the fraction of frames that passed since the last call; 1 if there were none."""
        with self._lock:
            share = self._granted / self._requested if self._requested else 1.0
            self._requested, self._granted = 0, 0.0
        return share

    def _update_balance(self) -> int:
        """Add the time earned to the balance and subtract the CPU time used; return the current time."""
        now_ns, process_ns = self._clock.now_ns(), self._process_ns()
        last_ns, last_process_ns = self._last or (now_ns, process_ns)
        earned_s, spent_s = self._cores * (now_ns - last_ns) / 1e9, (process_ns - last_process_ns) / 1e9
        balance_s = self._balance_s + earned_s - spent_s
        self._balance_s = min(max(balance_s, -_MAX_DEBT_S * self._cores), _MAX_SAVED_S * self._cores)
        self._last = now_ns, process_ns
        return now_ns


_POLL_S = 0.1  # between two looks at a paused source, or at a share of 0


class SourceRateLimiter(RateLimiter):
    """Limiter that passes a share of a live source's frames, or reads a file at that share of its speed.

    Called only by the source's thread; any thread may set :attr:`share`.

    Args:
        live: whether frames that are not read in time are lost.

    Attributes:
        bucket: bucket of CPU time from which each frame needs a token; None: CPU time is not limited.
        paused: whether the source is paused. Frames of a live source are then dropped, frames of a file wait.
        throttled: number of frames that did not pass.
    """

    def __init__(self, live: bool, clock: Clock) -> None:
        super().__init__()
        self.bucket: CpuTokenBucket | None = None
        self.throttled, self.paused = 0, False
        self._live, self._clock = live, clock
        self._last_ns: int | None = None

    def passes(self, stop: threading.Event) -> bool:
        """Return whether the next frame passes. For a file, wait for its turn; return False if ``stop`` is set."""
        if self.paused and (self._live or not self.wait(stop)):
            return False
        if self._live:
            is_passed = self.has_turn() and (self.bucket is None or self.bucket.grants(id(self)))
            self.throttled += not is_passed
            return is_passed
        passed_s = 0.0 if self._last_ns is None else (self._clock.now_ns() - self._last_ns) / 1e9
        while (pause_s := self.pause(passed_s)) == math.inf and not self._clock.wait(stop, _POLL_S):
            pass
        is_stopped = pause_s == math.inf or (pause_s > 0 and self._clock.wait(stop, pause_s))
        if is_stopped or (self.bucket is not None and not self.bucket.wait_for_grant(stop, passed_s)):
            self.throttled += 1
            return False
        self._last_ns = self._clock.now_ns()
        return True

    def wait(self, stop: threading.Event, timeout_s: float | None = None) -> bool:
        """Wait while the source is paused; return whether it was resumed within ``timeout_s``."""
        until_ns = None if timeout_s is None else self._clock.now_ns() + round(timeout_s * 1e9)
        while self.paused:
            if self._clock.wait(stop, _POLL_S) or (until_ns is not None and self._clock.now_ns() >= until_ns):
                return False
        return True


class QueuePressure:
    """Load signal from queue lengths and drops: whether frames arrive faster than the pipeline processes them.

    For one thread; other threads may use the channels.

    Args:
        channels: channels of live frames.
    """

    def __init__(self, channels: Sequence[BoundedQueue[Any]]) -> None:
        self._channels = tuple(channels)
        self._dropped = 0

    def look(self) -> tuple[float | None, int]:
        """Return the fill level of the fullest channel (0–1; None without channels), and the drops since last time."""
        stats = [channel.stats() for channel in self._channels]
        dropped = sum(one.dropped for one in stats)
        lost, self._dropped = dropped - self._dropped, dropped
        return max((min(1.0, one.waiting / one.capacity) for one in stats), default=None), lost
