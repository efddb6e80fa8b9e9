"""Memory of this machine, and of the container or service around this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgert.board.cgroup import memory_file
from edgert.board.host import read_text

_LINE = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """Memory as the kernel counts it; a Jetson's GPU and DLA use the same.

    Attributes:
        total_bytes: what the kernel manages, 0 when unknown.
        available_bytes: what can be had without swapping, 0 when unknown.
        limit_bytes: that of the container or service; None without one.
        swap_bytes: how much more may lie on a disk, or compressed.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    swap_bytes: int = 0

    @property
    def most_bytes(self) -> int:
        """What a process may hold at the very most, all swap included; 0 when unknown."""
        return min(self.total_bytes, self.limit_bytes or self.total_bytes) + self.swap_bytes


def system_memory(root: Path = Path("/")) -> SystemMemory:
    """Reads ``/proc/meminfo`` (its kB are KiB, proc(5)) and the limits of this process's cgroup (v2 and v1)."""
    lines = {name: int(count) * 1024 for name, count in _LINE.findall(read_text(root / "proc/meminfo"))}
    total_bytes, swap_bytes = lines.get("MemTotal", 0), lines.get("SwapTotal", 0)
    limit_bytes = _limit(root, "memory.max", "memory.limit_in_bytes", total_bytes)
    swap_limit_bytes = _limit(root, "memory.swap.max", "", swap_bytes)
    return SystemMemory(
        total_bytes,
        lines.get("MemAvailable", 0),
        limit_bytes,
        swap_bytes if swap_limit_bytes is None else swap_limit_bytes,
    )


def free_bytes(root: Path = Path("/")) -> int:
    """What this process may have of the memory that is available now; 0 when unknown."""
    memory = system_memory(root)
    return min(filter(None, (memory.available_bytes, memory.limit_bytes)), default=0)


def _limit(root: Path, v2: str, v1: str, whole_bytes: int) -> int | None:
    """Below what there is as a whole; None without such a limit."""
    path = memory_file(root, v2, v1)
    text = read_text(path) if path is not None else ""
    limit_bytes = int(text) if text.isdigit() else whole_bytes  # "max": no limit
    return limit_bytes if limit_bytes < whole_bytes else None  # v1 writes "no limit" as a huge number
