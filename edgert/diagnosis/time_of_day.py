"""Probe of the clock by which results have their time of day: is it set by the network, by whom, how well."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from edgert.diagnosis.probe import Evidence, Finding

_DAEMONS = {
    "chronyd": "NTP",
    "ntpd": "NTP",
    "systemd-timesyn": "NTP",  # as far as the kernel keeps a name
    "phc2sys": "PTP",
    "ptp4l": "PTP",
    "timemaster": "NTP and PTP",
}
_FIX = "sudo timedatectl set-ntp true, or sudo apt install chrony; for PTP: sudo apt install linuxptp"
_UNSYNCHRONIZED = 5
_LONGS = 32


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The kernel's report on its clock (adjtimex(2)).

    Attributes:
        is_set: whether a program synchronizes it.
        error_ms: largest error, by that program's estimate; without a program it grows.
    """

    is_set: bool
    error_ms: float


def kernel_clock() -> KernelClock | None:
    """Return this machine's clock; None where the kernel does not report it."""
    timex = (ctypes.c_long * _LONGS)()  # a struct timex: modes, offset, freq, maxerror, …, and more room than it takes
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    return None if state < 0 else KernelClock(state != _UNSYNCHRONIZED, timex[3] / 1e3)


def time_of_day(evidence: Evidence) -> Finding:
    """Report NTP's and PTP's state: which programs keep the clock, their precision, and hardware clocks for PTP."""
    return finding(kernel_clock(), _daemons(evidence.root), _hardware(evidence.root))


def finding(clock: KernelClock | None, daemons: dict[str, str], hardware: list[str]) -> Finding:
    """Return the finding on a clock.

    Args:
        clock: the kernel's report.
        daemons: running programs that keep clocks, and their protocols.
        hardware: clocks of network adapters, for PTP.
    """
    by = ", ".join(f"{kind} ({name})" for name, kind in daemons.items())
    more = f"; PTP hardware clocks: {', '.join(hardware)}" if hardware else ""
    if clock is None:
        return Finding("clock", "optional", f"the kernel does not say whether it is right{by and f'; {by} runs'}{more}")
    if not clock.is_set:
        why = f"though {by} runs: it has no answer yet" if by else "and no program keeps it"
        detail = f"not synchronized, {why}; results have its time of day, right or wrong{more}"
        return Finding("clock", "optional", detail, _FIX)
    who = f"by {by}" if by else "by the host of this container, or a program that edgert does not know"
    return Finding("clock", "yes", f"synchronized {who}, to {clock.error_ms:.3g} ms at worst{more}")


def _daemons(root: Path) -> dict[str, str]:
    names = set[str]()
    for file in root.glob("proc/[0-9]*/comm"):
        try:
            names.add(file.read_text().strip())
        except OSError:  # it has ended meanwhile
            continue
    return {name: kind for name, kind in _DAEMONS.items() if name in names}


def _hardware(root: Path) -> list[str]:
    found = sorted(root.glob("sys/class/ptp/ptp*/clock_name"))
    return [f"{file.parent.name} {file.read_text().strip()}".strip() for file in found]
