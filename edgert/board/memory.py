"""Memory of this machine, and of the container around this process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgert.board.host import read_text

_LINE = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """Memory as the kernel counts it; a Jetson's GPU and DLA use the same.

    Attributes:
        total_bytes: what the kernel manages, 0 when unknown.
        available_bytes: what can be had without swapping, 0 when unknown.
        limit_bytes: the container's limit; None without one.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None


def system_memory(root: Path = Path("/")) -> SystemMemory:
    """Reads ``/proc/meminfo`` (its kB are KiB, proc(5)) and the cgroup's limit (v2 and v1)."""
    lines = {name: int(count) * 1024 for name, count in _LINE.findall(read_text(root / "proc/meminfo"))}
    total_bytes = lines.get("MemTotal", 0)
    return SystemMemory(total_bytes, lines.get("MemAvailable", 0), _limit(root / "sys/fs/cgroup", total_bytes))


def free_bytes(root: Path = Path("/")) -> int:
    """What this process may have of the memory that is available now; 0 when unknown."""
    memory = system_memory(root)
    return min(filter(None, (memory.available_bytes, memory.limit_bytes)), default=0)


def _limit(cgroup: Path, total_bytes: int) -> int | None:
    text = read_text(cgroup / "memory.max") or read_text(cgroup / "memory/memory.limit_in_bytes")
    limit_bytes = int(text) if text.isdigit() else total_bytes  # "max": no limit
    return limit_bytes if limit_bytes < total_bytes else None  # v1 writes "no limit" as a huge number
