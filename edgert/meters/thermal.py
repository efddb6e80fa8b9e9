"""Temperatures, how far they are from throttling, and whether something is throttled now.

Files: https://docs.kernel.org/driver-api/thermal/sysfs-api.html. A zone of a block that is switched off reads -256 C or
cannot be read; both are no error.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgert.board.host import read_text
from edgert.meters.rails import over_current
from edgert.meters.reading import SWITCHED_OFF, FileGauge, Gauge, Reading, children, measured, shown_path, unavailable

TEMPERATURE, MARGIN = "temperature", "temperature.margin"
THROTTLE_HEAT, THROTTLE_CURRENT = "throttle.heat", "throttle.current"
_OFF_C = -256.0
_COLDEST_C, _HOTTEST_C = -60.0, 200.0
_CONSTANT = "pmic"  # Nano, TX2 and Xavier report PMIC-Die as 100 C whatever it is
_BRAKE = re.compile(r"^(cpufreq|devfreq|Processor)|throttle", re.IGNORECASE)
"""Cooling devices that slow something down. Fans do not; neither does Intel's ``TCC Offset``."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A thermal zone.

    Attributes:
        name: ``tj``, ``cpu``: its type without ``-therm`` and ``-thermal``, in lower case.
        gauge: its temperature.
        limit_c: where the kernel begins to slow things down for it (its lowest passive trip point); None if nowhere.
    """

    name: str
    gauge: Gauge
    limit_c: float | None


@dataclass(frozen=True, slots=True)
class ZoneGauge:
    """Degrees of one zone; millidegrees in the file."""

    file: FileGauge

    def __call__(self) -> Reading:
        reading = self.file()
        if reading.value == _OFF_C:
            return unavailable("C", reading.source, SWITCHED_OFF)
        if reading.value is not None and not _COLDEST_C <= reading.value <= _HOTTEST_C:
            return unavailable("C", reading.source, f"it reads {reading.value:g} C, which cannot be")
        return reading


class Thermal:
    """All zones and brakes of a machine as a meter."""

    def __init__(self, root: Path) -> None:
        self._zones = tuple(zones(root))
        self._brakes = tuple(_brakes(root))
        self._alarms = over_current(root)

    def read(self) -> Mapping[str, Reading]:
        """``temperature`` (tj, else the hottest), ``temperature.ZONE``, ``temperature.margin`` and what throttles."""
        degrees = {zone.name: zone.gauge() for zone in self._zones}
        found = {f"{TEMPERATURE}.{name}": reading for name, reading in degrees.items()}
        if self._zones:
            found[TEMPERATURE] = _hottest(degrees)
            found[MARGIN] = _margin(self._zones, degrees)
        if self._brakes:
            found[THROTTLE_HEAT] = _count([gauge() for gauge in self._brakes], "cooling devices in use")
        if self._alarms:
            found[THROTTLE_CURRENT] = _count([gauge() for gauge in self._alarms.values()], "over-current alarms")
        return found


def zones(root: Path) -> Iterator[Zone]:
    """The thermal zones that mean something; of one name, the second is called ``name-2``."""
    seen: dict[str, int] = {}
    for folder in _folders(root):
        kind = read_text(folder / "type")
        if not kind or kind.lower().startswith(_CONSTANT):
            continue
        name = re.sub(r"[-_]therm(al)?$", "", kind.lower())
        seen[name] = seen.get(name, 0) + 1
        file = FileGauge(str(folder / "temp"), shown_path(folder / "temp", root), "C", 1e-3)
        yield Zone(name if seen[name] == 1 else f"{name}-{seen[name]}", ZoneGauge(file), _limit_c(folder))


def _folders(root: Path) -> list[Path]:
    for place in ("sys/class/thermal", "sys/devices/virtual/thermal"):
        found = [folder for folder in children(root / place) if folder.name.startswith("thermal_zone")]
        if found:
            return sorted(found, key=lambda folder: (len(folder.name), folder.name))
    return []


def _limit_c(folder: Path) -> float | None:
    trips = [path for path in folder.glob("trip_point_*_type") if read_text(path) == "passive"]
    texts = [read_text(path.with_name(path.name.replace("_type", "_temp"))) for path in trips]
    limits = [int(text) / 1e3 for text in texts if text.isascii() and text.isdigit() and int(text) > 0]
    return min(limits, default=None)


def _hottest(degrees: Mapping[str, Reading]) -> Reading:
    """The junction's temperature, which is the hottest of the chip; without one, the hottest zone."""
    junction = degrees.get("tj")
    if junction is not None and junction.is_known:
        return junction
    known = [reading for reading in degrees.values() if reading.value is not None]
    if not known:
        return unavailable("C", "thermal zones", "none of them can be read")
    return max(known, key=lambda reading: reading.value or 0.0)


def _margin(found: tuple[Zone, ...], degrees: Mapping[str, Reading]) -> Reading:
    """Degrees to the nearest passive trip point; negative beyond it."""
    spare = [
        (zone.limit_c - value, degrees[zone.name].source)
        for zone in found
        if zone.limit_c is not None and (value := degrees[zone.name].value) is not None
    ]
    if not spare:
        return unavailable("C", "thermal zones", "none that can be read has a passive trip point")
    margin_c, source = min(spare)
    return measured(margin_c, "C", source)


def _brakes(root: Path) -> Iterator[Gauge]:
    for folder in children(root / "sys/class/thermal"):
        if folder.name.startswith("cooling_device") and _BRAKE.search(read_text(folder / "type")):
            path = folder / "cur_state"
            yield FileGauge(str(path), shown_path(path, root), "")


def _count(readings: list[Reading], of: str) -> Reading:
    known = [reading.value for reading in readings if reading.value is not None]
    if not known:
        return unavailable("", readings[0].source, readings[0].why)
    return measured(float(sum(value > 0 for value in known)), "", f"{len(known)} {of}")
