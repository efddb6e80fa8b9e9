"""What this process uses, as the operating system counts it."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_rss_bytes(root: Path = Path("/")) -> int:
    """The most physical memory this process ever held (proc(5): status, VmHWM).

    Where the system does not tell, getrusage(2): that one also remembers the parent's size from before the exec.
    """
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def rss_bytes(root: Path = Path("/")) -> int:
    """Physical memory this process holds now; its peak where the system does not tell (proc(5): statm, field 2)."""
    try:
        pages = int((root / "proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return peak_rss_bytes(root)
    return pages * resource.getpagesize()
