"""Processes that hold GPU memory, as NVIDIA's management library lists them.

Functions and structs are those of nvml.h: https://docs.nvidia.com/deploy/nvml-api/. The library comes with the driver.
On a Jetson it is missing or lists nothing, and in a container it lists at most the container's processes.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from edgert.units import format_bytes

T = TypeVar("T")
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
    """A process and its memory on a GPU, which is 0 if unknown."""

    pid: int
    name: str
    used_bytes: int

    def __str__(self) -> str:
        size = f" {format_bytes(self.used_bytes)}" if self.used_bytes else ""
        return f"{self.name} (process {self.pid}){size}"


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def others_on(bus_id: str, library: Any = None) -> tuple[Holder, ...]:
    """Return the other processes that compute on a GPU, sorted by falling memory; none if NVML lists none.

    Args:
        bus_id: PCI bus id of the GPU, such as ``0000:01:00.0``.
        library: library of NVML; by default that of this machine.
    """

    def ask(nvml: Any, device: ctypes.c_void_p) -> tuple[Holder, ...]:
        count, found = ctypes.c_uint(_MOST), (_Process * _MOST)()
        if nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found):
            return ()
        others = [one for one in found[: count.value] if one.pid != os.getpid()]
        holders = [Holder(one.pid, _name(nvml, one.pid), _bytes(one.used_bytes)) for one in others]
        return tuple(sorted(holders, key=lambda one: -one.used_bytes))

    return _answer(ask, bus_id, library) or ()


def free_on(bus_id: str, library: Any = None) -> int | None:
    """Return the free bytes of a GPU's memory, without a CUDA context; None if NVML does not know.

    Arguments are those of :func:`others_on`.
    """

    def ask(nvml: Any, device: ctypes.c_void_p) -> int | None:
        memory = _Memory()
        return None if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) else int(memory.free)

    return _answer(ask, bus_id, library)


def _answer(ask: Callable[[Any, ctypes.c_void_p], T], bus_id: str, library: Any) -> T | None:
    """Return NVML's answer about a GPU; None without NVML, that GPU, or a function that ``ask`` calls."""
    try:
        nvml = library or ctypes.CDLL(_LIBRARY)
        if nvml.nvmlInit_v2():
            return None
    except OSError:
        return None
    try:
        device = ctypes.c_void_p()
        is_unknown = nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(device))
        return None if is_unknown else ask(nvml, device)
    except AttributeError:  # a library older than a function
        return None
    finally:
        nvml.nvmlShutdown()


def describe_holders(holders: tuple[Holder, ...]) -> str:
    """Return text on the memory that other processes hold; empty without processes."""
    if not holders:
        return ""
    more = f" and {len(holders) - _SHOWN} more" if len(holders) > _SHOWN else ""
    return f"other processes hold memory there: {', '.join(map(str, holders[:_SHOWN]))}{more}"


def _name(nvml: Any, pid: int) -> str:
    name = ctypes.create_string_buffer(256)
    failed = nvml.nvmlSystemGetProcessName(ctypes.c_uint(pid), name, ctypes.c_uint(len(name)))
    path = "" if failed else name.value.decode(errors="replace").split(" ")[0]
    return path.rpartition("/")[2] or "unnamed"


def _bytes(used: int) -> int:
    return 0 if used == _UNKNOWN else used
