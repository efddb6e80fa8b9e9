"""This machine: how many cores a process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def core_count(root: Path = Path("/")) -> int:
    """Cores this process may keep busy: its affinity, cut by a container's CPU quota (cgroup v2 and v1), at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_quota(root)
    return max(1, min(cores, math.ceil(quota))) if quota else cores


def core_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the container grants (``docker run --cpus``); None without a limit."""
    cgroup = root / "sys/fs/cgroup"
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        quota, period = read_text(cgroup / "cpu/cpu.cfs_quota_us"), read_text(cgroup / "cpu/cpu.cfs_period_us")
    try:
        granted, of = int(quota), int(period)
    except ValueError:  # "max"
        return None
    return granted / of if granted > 0 and of > 0 else None  # -1: no limit


def read_text(path: Path) -> str:
    """What a small system file says, stripped of the NUL that device trees end with; empty when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip("\0 \n\t")
    except OSError:
        return ""


def share_cores(cores: int, engines: int) -> int:
    """CPU threads for each of ``engines`` that run at the same time."""
    return max(1, cores // max(1, engines))
