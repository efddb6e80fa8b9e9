"""CPU time and memory of the machine, the container and the process."""

import re
import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from edgert.board.host import memory_file, read_text
from edgert.clock import Clock
from edgert.meters import reading

PROCESS, MACHINE = "cpu.process", "cpu.load"
_STAT = "proc/stat"
_IDLE = (3, 4)  # idle and iowait, proc(5); guest time, in the last two fields, is part of user time
_FIELDS = 8


class CpuLoad:
    """Meter of the CPU time since the last reading, or since its creation."""

    def __init__(self, root: Path, clock: Clock, process_ns: Callable[[], int] = time.process_time_ns) -> None:
        self._path, self._clock, self._process_ns = str(root / _STAT), clock, process_ns
        self._last_ns, self._last_process_ns = clock.now_ns(), process_ns()
        self._last_ticks = _ticks(self._path)

    def read(self) -> Mapping[str, reading.Reading]:
        """Read ``cpu.process`` in cores and ``cpu.load`` in percent of all cores."""
        now_ns, process_ns = self._clock.now_ns(), self._process_ns()
        wall_ns, busy_ns = now_ns - self._last_ns, process_ns - self._last_process_ns
        self._last_ns, self._last_process_ns = now_ns, process_ns
        process = reading.unavailable("cores", "process CPU time", reading.NO_TIME)
        if wall_ns > 0:
            process = reading.measured(busy_ns / wall_ns, "cores", process.source)
        return {PROCESS: process, MACHINE: self._machine()}

    def _machine(self) -> reading.Reading:
        before, now = self._last_ticks, _ticks(self._path)
        self._last_ticks = now
        if isinstance(now, str):
            return reading.unavailable("%", f"/{_STAT}", now)
        if isinstance(before, str) or now[1] <= before[1]:
            return reading.unavailable("%", f"/{_STAT}", reading.NO_TIME)
        busy = (now[0] - before[0]) / (now[1] - before[1])
        return reading.measured(100 * min(max(busy, 0.0), 1.0), "%", f"/{_STAT}")


def _ticks(path: str) -> tuple[int, int] | str:
    """Return (busy ticks, all ticks) of all cores, or why they are unknown."""
    try:
        name, *fields = reading.read_small(path).partition("\n")[0].split()
        ticks = [int(field) for field in fields[:_FIELDS]]
    except (OSError, ValueError) as error:
        return reading.failure_of(error)
    if name != "cpu" or len(ticks) < _FIELDS:
        return "the file does not begin with the sum of all cores"
    return sum(ticks) - sum(ticks[field] for field in _IDLE), sum(ticks)


def peak_rss_bytes(root: Path = Path("/")) -> int:
    """Return the peak physical memory of this process (proc(5): status, VmHWM).

    Without such a file it is that of getrusage(2), which includes the parent's size before the exec.
    """
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes(root: Path = Path("/")) -> int:
    """Return the physical memory of this process now (proc(5): statm, field 2); its peak without such a file."""
    try:
        pages = int((root / "proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return peak_rss_bytes(root)
    return pages * resource.getpagesize()


_MEMINFO = "proc/meminfo"
_MEMORY_FIELDS = {"memory.total": "MemTotal", "memory.available": "MemAvailable", "memory.nvmap": "NvMapMemUsed"}
_LINE = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
_FILES = {
    "memory.limit": ("memory.max", "memory.limit_in_bytes"),
    "memory.used": ("memory.current", "memory.usage_in_bytes"),
}
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes "no limit" as the largest multiple of a page


def memory_gauges(root: Path) -> dict[str, reading.Gauge]:
    """Return gauges of memory in bytes.

    They are ``memory.total``, ``.available``, ``.nvmap`` (mapped by GPU and DLA on a Jetson), ``.rss`` (this process),
    ``.limit`` and ``.used`` (the container).
    """
    has_nvmap = "NvMapMemUsed" in read_text(root / _MEMINFO)
    gauges = {"memory.rss": reading.gauge("B", "/proc/self/statm", lambda: float(rss_bytes(root)))}
    for name, field in _MEMORY_FIELDS.items():
        if has_nvmap or "nvmap" not in name:
            bytes_of = partial(_meminfo_bytes, str(root / _MEMINFO), field)
            gauges[name] = reading.gauge("B", f"/{_MEMINFO} {field}", bytes_of)
    for name, files in _FILES.items():
        if (path := memory_file(root, *files)) is not None:
            gauges[name] = reading.gauge("B", reading.shown_path(path, root), partial(_container_bytes, path))
    return gauges


def _meminfo_bytes(path: str, field: str) -> float:
    lines = dict(_LINE.findall(reading.read_small(path)))
    if field not in lines:
        raise ValueError("no such line")
    return int(lines[field]) * 1024.0  # its kB are KiB, proc(5)


def _container_bytes(path: Path) -> float:
    """Return the bytes in a file of a control group. Raises OSError; ValueError: it has "no limit", or no number."""
    text = reading.read_small(str(path)).strip()
    if text == "max" or (text.isdigit() and int(text) >= _NO_LIMIT_BYTES):
        raise ValueError("no limit")
    if not text.isdigit():
        raise ValueError(f"it reads {text[:40]!r}, which is not a number")
    return float(text)
