"""Energy as the integral of power over monotonic time.

Jetson's power sensors average over about 0.4 s: one sample says little, and samples taken faster repeat. So budgets are
judged by energy over a stretch of time, by the trapezoid rule between samples.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from edgert.budget.meter.reading import Kind, Reading

SENSOR_AVERAGE_S = 0.43
"""What NVIDIA's nvpower.sh sets the INA3221 of Jetsons to: 512 samples in 430 ms."""
_LONGEST_S = 5.0  # between samples; what happened in a longer pause is not known
_KEPT_S = 60.0


@dataclass(slots=True)
class Energy:
    """Joules since the first sample, and watts over the recent past. Not for several threads at once.

    Attributes:
        joules: in all, of the time that samples cover.
        covered_s: that time, and ``modelled_s`` the part of it for which at least one end was modelled.
        missing_s: time between samples that nobody knows about; never counted as 0 W.
    """

    joules: float = 0.0
    covered_s: float = 0.0
    modelled_s: float = 0.0
    missing_s: float = 0.0
    _last: tuple[int, float | None, Kind] | None = None
    _spans: deque[tuple[int, int, float]] = field(default_factory=deque)

    def add(self, at_ns: int, reading: Reading) -> None:
        """Takes the next sample. One that is not later than the one before is ignored."""
        last = self._last
        if last is not None and at_ns <= last[0]:
            return
        self._last = (at_ns, reading.value, reading.kind)
        if last is None:
            return
        span_s = (at_ns - last[0]) / 1e9
        if reading.value is None or last[1] is None or span_s > _LONGEST_S:
            self.missing_s += span_s
            return
        spent_j = (reading.value + last[1]) / 2 * span_s
        self.joules += spent_j
        self.covered_s += span_s
        self.modelled_s += span_s if "modelled" in (reading.kind, last[2]) else 0.0
        self._keep(last[0], at_ns, spent_j)

    @property
    def average_w(self) -> float | None:
        """Watts over all that is covered; None where that is nothing."""
        return self.joules / self.covered_s if self.covered_s else None

    def recent_w(self, window_s: float) -> float | None:
        """Watts over what is covered of the last ``window_s`` (60 at most); None where that is nothing.

        A stretch between samples that begins before the window counts with the part inside it.
        """
        if self._last is None:
            return None
        start_ns = self._last[0] - round(window_s * 1e9)
        joules = seconds = 0.0
        for begin_ns, end_ns, spent_j in reversed(self._spans):
            inside = (end_ns - max(begin_ns, start_ns)) / (end_ns - begin_ns)
            if inside <= 0:
                break
            joules += spent_j * inside
            seconds += (end_ns - begin_ns) * inside / 1e9
        return joules / seconds if seconds else None

    def _keep(self, begin_ns: int, end_ns: int, spent_j: float) -> None:
        self._spans.append((begin_ns, end_ns, spent_j))
        while self._spans[0][1] < end_ns - _KEPT_S * 1e9:
            self._spans.popleft()
