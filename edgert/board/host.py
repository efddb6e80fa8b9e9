"""This machine: how many cores a process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def core_count(root: Path = Path("/")) -> int:
    """Cores this process may keep busy: its affinity, cut by a container's CPU quota (cgroup v2 and v1), at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root / "sys/fs/cgroup")
    return max(1, min(cores, math.ceil(quota))) if quota else cores


def _quota(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota, period = _read(cgroup / "cpu/cpu.cfs_quota_us"), _read(cgroup / "cpu/cpu.cfs_period_us")
    if not quota.lstrip("-").isdigit() or not period.isdigit() or int(quota) <= 0:
        return None  # "max" or -1: no limit
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def share_cores(cores: int, engines: int) -> int:
    """CPU threads for each of ``engines`` that run at the same time."""
    return max(1, cores // max(1, engines))
