"""Memory of machine, container and process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from edgert.board.cgroup import memory_file
from edgert.board.host import read_text
from edgert.budget.meter.file import read_small, told, why_not
from edgert.budget.meter.process import rss_bytes
from edgert.budget.meter.reading import Reading, measured, unavailable

_MEMINFO = "proc/meminfo"
_FIELDS = {"memory.total": "MemTotal", "memory.available": "MemAvailable", "memory.nvmap": "NvMapMemUsed"}
_LINE = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
_FILES = {
    "memory.limit": ("memory.max", "memory.limit_in_bytes"),
    "memory.used": ("memory.current", "memory.usage_in_bytes"),
}
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes "no limit" as the largest multiple of a page


class Memory:
    """A meter of bytes: ``memory.total``, ``.available``, ``.nvmap`` (what GPU and DLA map on a Jetson), ``.rss`` (this
    process), ``.limit`` and ``.used`` (the container)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._has_nvmap = "NvMapMemUsed" in read_text(root / _MEMINFO)
        self._cgroup = {name: path for name in _FILES if (path := memory_file(root, *_FILES[name])) is not None}

    def read(self) -> Mapping[str, Reading]:
        """See :meth:`edgert.budget.meter.reading.Meter.read`."""
        found = {name: reading for name, reading in self._meminfo().items() if self._has_nvmap or "nvmap" not in name}
        found["memory.rss"] = measured(float(rss_bytes(self._root)), "B", "/proc/self/statm")
        return {**found, **{name: _bytes(path, self._root) for name, path in self._cgroup.items()}}

    def _meminfo(self) -> dict[str, Reading]:
        source = f"/{_MEMINFO}"
        try:
            lines = dict(_LINE.findall(read_small(str(self._root / _MEMINFO))))
        except OSError as error:
            return {name: unavailable("B", source, why_not(error)) for name in _FIELDS}
        return {
            name: measured(int(lines[field]) * 1024.0, "B", f"{source} {field}")  # its kB are KiB, proc(5)
            if field in lines
            else unavailable("B", f"{source} {field}", "no such line")
            for name, field in _FIELDS.items()
        }


def _bytes(path: Path, root: Path) -> Reading:
    source = told(path, root)
    try:
        text = read_small(str(path)).strip()
    except OSError as error:
        return unavailable("B", source, why_not(error))
    if text == "max" or (text.isdigit() and int(text) >= _NO_LIMIT_BYTES):
        return unavailable("B", source, "no limit")
    if not text.isdigit():
        return unavailable("B", source, f"says {text[:40]!r}, which is no number")
    return measured(float(text), "B", source)
