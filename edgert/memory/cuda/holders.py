"""Which processes hold memory of a GPU, where NVIDIA's management library shows it.

Functions and structs are those of nvml.h: https://docs.nvidia.com/deploy/nvml-api/. The library comes with the driver;
on a Jetson it is missing, or answers nothing, and in a container it shows the container's processes at most.
"""

import ctypes
import os
from dataclasses import dataclass
from typing import Any

from edgert.units import format_bytes

_LIBRARY = "libnvidia-ml.so.1"
_MOST, _SHOWN = 64, 4
_UNKNOWN = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE, of 64 bits


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and its memory on a GPU; 0 where that is not shown."""

    pid: int
    name: str
    used_bytes: int

    def __str__(self) -> str:
        size = f" {format_bytes(self.used_bytes)}" if self.used_bytes else ""
        return f"{self.name} (process {self.pid}){size}"


def others_on(bus_id: str, library: Any = None) -> tuple[Holder, ...]:
    """Other processes that compute on a GPU, those that hold most first; none where nobody can tell.

    Args:
        bus_id: of the GPU, ``0000:01:00.0``.
        library: NVML's; that of this machine by default.
    """
    try:
        nvml = library or ctypes.CDLL(_LIBRARY)
        if nvml.nvmlInit_v2():
            return ()
    except OSError:
        return ()
    try:
        device, count = ctypes.c_void_p(), ctypes.c_uint(_MOST)
        found = (_Process * _MOST)()
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(device)):
            return ()
        if nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found):
            return ()
        others = [one for one in found[: count.value] if one.pid != os.getpid()]
        holders = [Holder(one.pid, _name(nvml, one.pid), _bytes(one.used_bytes)) for one in others]
        return tuple(sorted(holders, key=lambda one: -one.used_bytes))
    except AttributeError:  # a library older than a function
        return ()
    finally:
        nvml.nvmlShutdown()


def described(holders: tuple[Holder, ...]) -> str:
    """What other processes hold, for an error; empty for none."""
    if not holders:
        return ""
    more = f" and {len(holders) - _SHOWN} more" if len(holders) > _SHOWN else ""
    return f"other processes hold memory there: {', '.join(map(str, holders[:_SHOWN]))}{more}"


def _name(nvml: Any, pid: int) -> str:
    name = ctypes.create_string_buffer(256)
    failed = nvml.nvmlSystemGetProcessName(ctypes.c_uint(pid), name, ctypes.c_uint(len(name)))
    path = "" if failed else name.value.decode(errors="replace").split(" ")[0]
    return path.rpartition("/")[2] or "one"


def _bytes(used: int) -> int:
    return 0 if used == _UNKNOWN else used
