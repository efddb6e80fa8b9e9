"""CPU time: of this process in cores, of the machine in percent. On a machine without a power sensor, cores stand in
for watts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from edgert.budget.meter.file import NO_TIME, read_small, why_not
from edgert.budget.meter.reading import Reading, measured, unavailable
from edgert.clock import Clock

PROCESS, MACHINE = "cpu.process", "cpu.load"
_STAT = "proc/stat"
_IDLE = (3, 4)  # idle and iowait, proc(5); guest time, the last two fields, is counted in user time already
_FIELDS = 8


class CpuLoad:
    """A meter of what happened since it was last read; the first time, since it was made."""

    def __init__(self, root: Path, clock: Clock, process_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._path, self._clock, self._process_ns = str(root / _STAT), clock, process_ns
        self._last_ns, self._last_process_ns = clock.now_ns(), process_ns()
        self._last_ticks = _ticks(self._path)

    def read(self) -> Mapping[str, Reading]:
        """``cpu.process`` in cores and ``cpu.load`` in percent of all cores."""
        return {PROCESS: self._process(), MACHINE: self._machine()}

    def _process(self) -> Reading:
        now_ns, process_ns = self._clock.now_ns(), self._process_ns()
        wall_ns, busy_ns = now_ns - self._last_ns, process_ns - self._last_process_ns
        self._last_ns, self._last_process_ns = now_ns, process_ns
        if wall_ns <= 0:
            return unavailable("cores", "process CPU time", NO_TIME)
        return measured(busy_ns / wall_ns, "cores", "process CPU time")

    def _machine(self) -> Reading:
        before, now = self._last_ticks, _ticks(self._path)
        self._last_ticks = now
        if isinstance(now, str):
            return unavailable("%", f"/{_STAT}", now)
        if isinstance(before, str) or now[1] <= before[1]:
            return unavailable("%", f"/{_STAT}", NO_TIME)
        busy = (now[0] - before[0]) / (now[1] - before[1])
        return measured(100 * min(max(busy, 0.0), 1.0), "%", f"/{_STAT}")


def _ticks(path: str) -> tuple[int, int] | str:
    """Busy and all ticks of all cores, or why they are unknown."""
    try:
        name, *fields = read_small(path).partition("\n")[0].split()
        ticks = [int(field) for field in fields[:_FIELDS]]
    except (OSError, ValueError) as error:
        return why_not(error)
    if name != "cpu" or len(ticks) < _FIELDS:
        return "does not begin with the sum of all cores"
    return sum(ticks) - sum(ticks[field] for field in _IDLE), sum(ticks)
