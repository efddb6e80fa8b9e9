"""Probe of the system clock, which gives results their time of day: whether and how well a program synchronizes it."""

import ctypes
from dataclasses import dataclass
from pathlib import Path

from edgert.diagnosis.probe import Evidence, Finding

_DAEMONS = {
    "chronyd": "NTP",
    "ntpd": "NTP",
    "systemd-timesyn": "NTP",  # the kernel cuts names to 15 characters
    "phc2sys": "PTP",
    "ptp4l": "PTP",
    "timemaster": "NTP and PTP",
}
_FIX = "sudo timedatectl set-ntp true, or sudo apt install chrony; for PTP: sudo apt install linuxptp"
_UNSYNCHRONIZED = 5
_LONGS = 32


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The kernel's report on its clock (adjtimex(2)): whether a program sets it, and its estimated error."""

    is_set: bool
    error_ms: float


def kernel_clock() -> KernelClock | None:
    """Return the kernel's report on its clock; None where it gives none."""
    timex = (ctypes.c_long * _LONGS)()  # room for a struct timex: modes, offset, freq, maxerror, …
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    return None if state < 0 else KernelClock(state != _UNSYNCHRONIZED, timex[3] / 1e3)


def time_of_day(evidence: Evidence) -> Finding:
    """Report whether NTP or PTP synchronizes the clock, by which programs, how precisely, and PTP hardware clocks."""
    return clock_finding(kernel_clock(), _running_daemons(evidence.root), _ptp_clocks(evidence.root))


def clock_finding(clock: KernelClock | None, daemons: dict[str, str], hardware: list[str]) -> Finding:
    """Return the finding on a clock, given running programs → their protocols, and the PTP clocks of adapters."""
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


def _running_daemons(root: Path) -> dict[str, str]:
    names = set[str]()
    for file in root.glob("proc/[0-9]*/comm"):
        try:
            names.add(file.read_text().strip())
        except OSError:  # the process has ended
            continue
    return {name: kind for name, kind in _DAEMONS.items() if name in names}


def _ptp_clocks(root: Path) -> list[str]:
    found = sorted(root.glob("sys/class/ptp/ptp*/clock_name"))
    return [f"{file.parent.name} {file.read_text().strip()}".strip() for file in found]
