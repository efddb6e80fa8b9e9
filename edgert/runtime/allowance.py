"""CPU time that a process may take, earned as time goes by and asked for frame by frame.

A governor sees a mean over two seconds and chooses among a few settings; what a frame costs may change by half from one
second to the next, with the clock of the cores and with what runs beside. The account here is kept frame by frame: a
frame goes on while no more was taken than earned, so that whatever frames cost, no two seconds take more than a budget
allows by more than the frames that were under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from edgert.clock import Clock

SPARE = 0.03
"""Of the budget, for frames that are under way when the account is empty."""
_SAVED_S, _OWED_S = 0.05, 2.0
"""Most that is kept, and owed, in seconds of the budget: what was left over long ago buys no burst, and what was taken
too much counts as long as the mean that a budget is kept over."""
_GONE_NS = 1_000_000_000  # a stream that did not ask for so long is not waited for
_SHORTEST_S = 0.002


@dataclass(slots=True)
class _Stream:
    """A source's turns: how many in a row it was refused, and when it asked."""

    refused: int = 0
    asked_ns: int = 0


class Allowance:
    """An account of CPU time, shared by the gates of all sources; for any thread.

    Args:
        cores: the budget, CPU seconds per second.
        clock: that time goes by on.
        process_ns: CPU time of the process.
    """

    def __init__(self, cores: float, clock: Clock, process_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._cores, self._clock, self._process_ns = cores * (1 - SPARE), clock, process_ns
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}
        self._balance_s = _SAVED_S * self._cores
        self._last: tuple[int, int] | None = None  # time, and CPU time; from the first frame on, not from the start
        self._asked, self._granted = 0, 0.0

    def grants(self, stream: int) -> bool:
        """Whether a live source's next frame goes on; between several, the one that was refused more often is first.

        Args:
            stream: tells sources apart.
        """
        with self._lock:
            now_ns = self._settled_ns()
            own = self._streams.setdefault(stream, _Stream())
            own.asked_ns = now_ns
            is_granted = self._balance_s > 0 and not self._is_behind(own)
            own.refused = 0 if is_granted else own.refused + 1
            self._count(float(is_granted))
        return is_granted

    def waits(self, stop: threading.Event, own_s: float) -> bool:
        """Waits until a file's next frame may go on; false when told to stop.

        Args:
            own_s: what went by since the one before.
        """
        waited_s = 0.0
        while (left_s := self._left_s()) > 0:
            if self._clock.wait(stop, left_s):
                return False
            waited_s += left_s
        with self._lock:
            self._count(own_s / (own_s + waited_s) if waited_s else 1.0)
        return True

    def share(self) -> float:
        """Of the frames that were there since this was last asked, the part that went on; 1 if there were none."""
        with self._lock:
            share = self._granted / self._asked if self._asked else 1.0
            self._asked, self._granted = 0, 0.0
        return share

    def _count(self, granted: float) -> None:
        self._asked += 1
        self._granted += granted

    def _left_s(self) -> float:
        """Until the account is no longer empty."""
        with self._lock:
            self._settled_ns()
            return max(-self._balance_s / self._cores, _SHORTEST_S) if self._balance_s <= 0 else 0.0

    def _is_behind(self, own: _Stream) -> bool:
        """Whether another was refused more often, and still asks."""
        return any(
            other.refused > own.refused and own.asked_ns - other.asked_ns < _GONE_NS for other in self._streams.values()
        )

    def _settled_ns(self) -> int:
        """Adds what was earned and takes off what was spent; the time."""
        now_ns, process_ns = self._clock.now_ns(), self._process_ns()
        last_ns, last_process_ns = self._last or (now_ns, process_ns)
        earned_s, spent_s = self._cores * (now_ns - last_ns) / 1e9, (process_ns - last_process_ns) / 1e9
        balance_s = self._balance_s + earned_s - spent_s
        self._balance_s = min(max(balance_s, -_OWED_S * self._cores), _SAVED_S * self._cores)
        self._last = now_ns, process_ns
        return now_ns
