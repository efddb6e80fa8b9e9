"""Cores and memory of this machine as the kernel describes them, their limits, and threads pinned to cores."""

import math
import os
import platform
import re
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgert.errors import DeviceError, raised_as


def core_count(root: Path = Path("/")) -> int:
    """Return the number of cores this process may use, at least 1, from its affinity and its cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = core_quota(root)
    return max(1, min(cores, math.ceil(quota))) if quota else cores


def core_quota(root: Path = Path("/")) -> float | None:
    """Return the CPU limit of the container in cores (``docker run --cpus``); None without a limit."""
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
    """Return the text of a small system file, without the NUL that ends device-tree files; empty if unreadable."""
    try:
        return path.read_text(errors="replace").strip("\0 \n\t")
    except OSError:
        return ""


def share_cores(cores: int, engines: int) -> int:
    """Return the number of CPU threads for each of several engines that run at the same time."""
    return max(1, cores // max(1, engines))


# Files of this process's control group, in which a container or a service manager sets limits.

_V2, _V1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


def memory_file(root: Path, v2: str, v1: str) -> Path | None:
    """Return the file of this process's control group, or of the root group as in containers; None if there is none.

    Its name in version 2 of control groups is tried first, then that in version 1.
    """
    entries = (line.split(":", 2) for line in read_text(root / "proc/self/cgroup").splitlines())
    groups = {entry[1]: entry[2].lstrip("/") for entry in entries if len(entry) == 3}
    places = [root / _V2 / groups.get("", "") / v2, root / _V2 / v2]
    places += [root / _V1 / groups.get("memory", "") / v1, root / _V1 / v1]
    return next((path for path in places if path.is_file()), None)


_LINE = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """Memory as the kernel counts it, 0 if unknown; a Jetson's GPU and DLA share it.

    ``available_bytes`` can be allocated without swapping. ``limit_bytes`` is the container's or service's; None
    without.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    swap_bytes: int = 0

    @property
    def most_bytes(self) -> int:
        """Maximum memory of a process, including swap; 0 if unknown."""
        return min(self.total_bytes, self.limit_bytes or self.total_bytes) + self.swap_bytes


def system_memory(root: Path = Path("/")) -> SystemMemory:
    """Return the memory from ``/proc/meminfo`` (its kB are KiB, proc(5)) and this process's cgroup (v2 and v1)."""
    lines = {name: int(count) * 1024 for name, count in _LINE.findall(read_text(root / "proc/meminfo"))}
    total_bytes, swap_bytes = lines.get("MemTotal", 0), lines.get("SwapTotal", 0)

    def limit(v2: str, v1: str, whole_bytes: int) -> int | None:
        """Return a limit if it is below ``whole_bytes``; no limit is "max" in v2 and a huge number in v1."""
        path = memory_file(root, v2, v1)
        text = read_text(path) if path is not None else ""
        return int(text) if text.isdigit() and int(text) < whole_bytes else None

    limit_bytes = limit("memory.max", "memory.limit_in_bytes", total_bytes)
    swap_limit_bytes = limit("memory.swap.max", "", swap_bytes)
    most_swap_bytes = swap_bytes if swap_limit_bytes is None else swap_limit_bytes
    return SystemMemory(total_bytes, lines.get("MemAvailable", 0), limit_bytes, most_swap_bytes)


def swap_areas(root: Path = Path("/")) -> dict[str, int]:
    """Return swap area → bytes from ``/proc/swaps`` (proc(5)), such as ``/dev/zram0`` or ``/swapfile``."""
    lines = (line.split() for line in read_text(root / "proc/swaps").splitlines()[1:])
    return {line[0]: int(line[2]) * 1024 for line in lines if len(line) == 5 and line[2].isdigit()}


def free_bytes(root: Path = Path("/")) -> int:
    """Return the available memory that this process may use; 0 if unknown."""
    memory = system_memory(root)
    return min(filter(None, (memory.available_bytes, memory.limit_bytes, _left_bytes(root))), default=0)


def _left_bytes(root: Path) -> int:
    """Return the bytes that this process may still allocate under ``ulimit -d``, at least 1; 0 without a limit.

    The kernel limits VmData of proc(5) by RLIMIT_DATA of setrlimit(2).
    """
    most_bytes = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if most_bytes == resource.RLIM_INFINITY:
        return 0
    own = _DATA.search(read_text(root / "proc/self/status"))
    return max(most_bytes - (int(own[1]) * 1024 if own else 0), 1)


_DATA = re.compile(r"^VmData:\s+(\d+) kB", re.MULTILINE)


_FIELD = re.compile(r"^([\w ]+?)\s*:\s*(.*)$", re.MULTILINE)
_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x4e", "0x003"): "Denver 2",
    ("0x4e", "0x004"): "Carmel",
}
"""(Implementer, part number) of Arm's MIDR_EL1 → name, from Linux, arch/arm64/include/asm/cputype.h."""


def cpu_name(root: Path = Path("/")) -> str:
    """Return the CPU's name, such as ``"Cortex-A78AE"``; the architecture if the kernel has no name."""
    fields = _FIELD.findall(read_text(root / "proc/cpuinfo"))
    makers, parts, names = (
        [value for name, value in fields if name == key] for key in ("CPU implementer", "CPU part", "model name")
    )
    arms = dict.fromkeys(_PARTS[pair] for pair in zip(makers, parts, strict=False) if pair in _PARTS)
    return " + ".join(arms) or (names[0] if names else platform.machine())


def saturates_bytes(root: Path = Path("/")) -> bool:
    """Return whether this is an x86 processor without VNNI, where sums of INT8 products saturate.

    It adds pairs of products of uint8 and int8 in 16 bits (Intel's manual, VPMADDUBSW).
    """
    fields = _FIELD.findall(read_text(root / "proc/cpuinfo"))
    flags: set[str] = {flag for key, value in fields if key == "flags" for flag in value.split()}
    return bool(flags) and not {"avx512_vnni", "avx_vnni"} & flags


def online_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that are on; a Jetson's power mode turns some off."""
    return _listed(root / "sys/devices/system/cpu/online") or os.cpu_count() or 1


def present_cores(root: Path = Path("/")) -> int:
    """Return the number of cores, including those that are off."""
    return _listed(root / "sys/devices/system/cpu/present") or online_cores(root)


def _listed(path: Path) -> int:
    """Return the count of numbers in a file with a list like ``0-3,6``; 0 if it cannot be read."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", read_text(path))
    return sum(int(last or first) - int(first) + 1 for first, last in spans)


def core_accelerators(root: Path = Path("/")) -> Mapping[str, int]:
    """Return accelerator → kernel's core number, for each core that this process may use.

    Accelerators are ``cpu0``, ``cpu1`` and so on, so that a pipeline file works on every machine with enough cores. The
    result is empty where threads cannot be pinned, as on macOS.
    """
    if not hasattr(os, "sched_getaffinity"):
        return {}
    cores = sorted(os.sched_getaffinity(os.getpid()))  # of the main thread, as the calling thread may be pinned
    quota = core_quota(root)
    granted = max(1, math.ceil(quota)) if quota else len(cores)
    return {f"cpu{number}": core for number, core in enumerate(cores[:granted])}


def pin(core: int) -> frozenset[int]:
    """Pin the calling thread to a core and return its previous cores for :func:`unpin`.

    Threads that it starts afterwards inherit this. Raise DeviceError if the core is off or does not exist.
    """
    before = frozenset(os.sched_getaffinity(0))
    fix = "start again, as the core was turned off or taken from this process"
    with raised_as(DeviceError, f"cannot pin a thread to core {core}", fix=fix):
        os.sched_setaffinity(0, {core})  # 0 is the calling thread, sched_setaffinity(2)
    return before


def unpin(cores: frozenset[int]) -> None:
    """Allow the calling thread to run on these cores again."""
    os.sched_setaffinity(0, cores)


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin the calling thread to one core during the block; raise DeviceError as :func:`pin` does."""
    before = pin(core)
    try:
        yield
    finally:
        unpin(before)
