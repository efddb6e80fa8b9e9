"""The probe of the clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgert.diagnosis import time_of_day
from edgert.diagnosis.time_of_day import KernelClock, finding, kernel_clock
from tests.unit.diagnosis.evidence import evidence


@pytest.mark.parametrize(
    ("clock", "daemons", "state", "said"),
    [
        (KernelClock(True, 1.25), {"chronyd": "NTP"}, "yes", "synchronized by NTP (chronyd), to 1.25 ms at worst"),
        (KernelClock(True, 0.5), {}, "yes", "by the host of this container"),
        (KernelClock(False, 16000.0), {}, "optional", "not synchronized, and no program keeps it"),
        (KernelClock(False, 16.0), {"ptp4l": "PTP"}, "optional", "though PTP (ptp4l) runs: it has no answer yet"),
        (None, {"ntpd": "NTP"}, "optional", "the kernel does not say whether it is right; NTP (ntpd) runs"),
    ],
)
def test_who_keeps_the_clock(clock: KernelClock | None, daemons: dict[str, str], state: str, said: str) -> None:
    found = finding(clock, daemons, [])
    assert found.name == "clock" and found.state == state and said in found.detail
    assert ("timedatectl" in found.fix) == (clock is not None and not clock.is_set)


def test_daemons_and_hardware_clocks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_of_day, "kernel_clock", lambda: KernelClock(True, 0.01))
    for file, text in {
        "proc/7/comm": "phc2sys\n",
        "proc/8/comm": "bash\n",
        "sys/class/ptp/ptp0/clock_name": "mgbe0\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    found = time_of_day.time_of_day(evidence(tmp_path))
    assert found.detail == "synchronized by PTP (phc2sys), to 0.01 ms at worst; PTP hardware clocks: ptp0 mgbe0"


def test_the_kernel_is_asked() -> None:
    clock = kernel_clock()
    assert clock is None or clock.error_ms >= 0
