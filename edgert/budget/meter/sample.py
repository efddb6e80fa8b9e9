"""Everything the meters say at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgert.budget.meter.rail import POWER
from edgert.budget.meter.reading import Reading, unavailable
from edgert.budget.meter.thermal import MARGIN, TEMPERATURE, THROTTLE_CURRENT, THROTTLE_HEAT

EXPECTED: Mapping[str, tuple[str, str]] = {
    POWER: ("W", "INA3221, INA238, NVML, RAPL"),
    "gpu.load": ("%", "gpu.0/load, NVML"),
    "gpu.clock": ("Hz", "/sys/class/devfreq, NVML"),
    "emc.clock": ("Hz", "bpmp in debugfs, bwmgr in devfreq"),
    "emc.load": ("%", "actmon"),
    "dla0.powered": ("", "host1x"),
    TEMPERATURE: ("C", "/sys/class/thermal"),
    MARGIN: ("C", "passive trip points of thermal zones"),
    THROTTLE_HEAT: ("", "cooling devices"),
    THROTTLE_CURRENT: ("", "alarms of INA3221"),
    "memory.nvmap": ("B", "NvMapMemUsed in /proc/meminfo"),
}
"""What a sample always has, if only to say that it is not there: name → unit and where it is looked for."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Readings of one moment.

    Attributes:
        at_ns: when reading began, on the meters' clock.
        readings: name → reading, among them all of :data:`EXPECTED`.
        mode: name of the power mode; empty where there is none or it is unknown.
        notes: what changed since the sample before: a meter that vanished or came back, what is used instead.
    """

    at_ns: int
    readings: Mapping[str, Reading]
    mode: str = ""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Reading:
        """The reading of that name; unavailable for one that no meter here gives."""
        found = self.readings.get(name)
        return found if found is not None else unavailable("", name, "no meter here gives it")

    @property
    def power(self) -> Reading:
        """Watts of the module; on a machine that is no Jetson, of what can be measured of it."""
        return self[POWER]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        readings = {name: asdict(reading) for name, reading in self.readings.items()}
        return {"at_ns": self.at_ns, "mode": self.mode, "readings": readings, "notes": list(self.notes)}


def complete(readings: Mapping[str, Reading]) -> dict[str, Reading]:
    """With what is expected and missing as unavailable."""
    absent = {name: unavailable(*told, "none here") for name, told in EXPECTED.items() if name not in readings}
    return {**readings, **absent}
