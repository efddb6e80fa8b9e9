"""Processes that hold GPU memory, and free memory without a CUDA context, as nvidia-smi lists them.

The program comes with the driver. On a Jetson it is missing or lists nothing, and in a container it lists at most the
container's processes.
"""

import os
import subprocess
from dataclasses import dataclass

from edgert.units import format_bytes

_SHOWN, _LIMIT_S = 4, 10
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and its memory on a GPU, which is 0 if unknown."""

    pid: int
    name: str
    used_bytes: int

    def __str__(self) -> str:
        size = f" {format_bytes(self.used_bytes)}" if self.used_bytes else ""
        return f"{self.name} (process {self.pid}){size}"


def others_on(bus_id: str) -> tuple[Holder, ...]:
    """Return the other processes that compute on a GPU, sorted by falling memory; none if nvidia-smi lists none.

    ``bus_id`` is the PCI bus id of the GPU, such as ``0000:01:00.0``.
    """
    holders = list[Holder]()
    for line in _query(bus_id, "compute-apps=pid,used_memory,name"):
        pid, *rest = [part.strip() for part in line.split(",", 2)]
        if len(rest) == 2 and pid.isdigit() and int(pid) != os.getpid():  # drivers also answer [Not Supported]
            used, path = rest
            name = path.split(" ")[0].rpartition("/")[2]
            holders.append(Holder(int(pid), name if name and path[0] != "[" else "unnamed", _bytes(used)))
    return tuple(sorted(holders, key=lambda one: -one.used_bytes))


def free_on(bus_id: str) -> int | None:
    """Return the free bytes of a GPU's memory, without a CUDA context; None if nvidia-smi does not know."""
    return next((_bytes(line) or None for line in _query(bus_id, "gpu=memory.free")), None)


def describe_holders(holders: tuple[Holder, ...]) -> str:
    """Return text on the memory that other processes hold; empty without processes."""
    if not holders:
        return ""
    more = f" and {len(holders) - _SHOWN} more" if len(holders) > _SHOWN else ""
    return f"other processes hold memory there: {', '.join(map(str, holders[:_SHOWN]))}{more}"


def _query(bus_id: str, what: str) -> list[str]:
    """Return nvidia-smi's lines about a GPU; none without the program, the GPU, or the query."""
    command = ["nvidia-smi", f"--id={bus_id}", f"--query-{what}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]


def _bytes(mebibytes: str) -> int:
    """Return a size in bytes; 0 for one that is not available."""
    return int(mebibytes) * _MIB if mebibytes.strip().isdigit() else 0
