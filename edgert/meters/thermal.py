"""Temperatures, how far they are from throttling, and whether something is throttled now.

Files: https://docs.kernel.org/driver-api/thermal/sysfs-api.html. A zone of a block that is switched off reads -256 C or
cannot be read; both are no error.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgert.board.host import read_text
from edgert.meters import reading
from edgert.meters.rails import over_current

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
    gauge: reading.Gauge
    limit_c: float | None


def zone_degrees(path: str) -> float:
    """Degrees of one zone, of the millidegrees in its file. Raises OSError or ValueError where there are none."""
    degrees = reading.read_number(path) * 1e-3
    if degrees == _OFF_C:
        raise ValueError(reading.SWITCHED_OFF)
    if not _COLDEST_C <= degrees <= _HOTTEST_C:
        raise ValueError(f"it reads {degrees:g} C, which cannot be")
    return degrees


class Thermal:
    """All zones and brakes of a machine as a meter."""

    def __init__(self, root: Path) -> None:
        self._zones = tuple(zones(root))
        folders = [folder for folder in reading.children(root / "sys/class/thermal") if "cooling_device" in folder.name]
        brakes = [folder / "cur_state" for folder in folders if _BRAKE.search(read_text(folder / "type"))]
        self._brakes = [reading.file_gauge(path, root, "", low=float("-inf")) for path in brakes]
        self._alarms = over_current(root)

    def read(self) -> Mapping[str, reading.Reading]:
        """``temperature`` (tj, else the hottest), ``temperature.ZONE``, ``temperature.margin`` and what throttles."""
        degrees = {zone.name: zone.gauge() for zone in self._zones}
        found = {f"{TEMPERATURE}.{name}": one for name, one in degrees.items()}
        if self._zones:
            found[TEMPERATURE] = _hottest(degrees)
            found[MARGIN] = _margin(self._zones, degrees)
        if self._brakes:
            found[THROTTLE_HEAT] = _count([gauge() for gauge in self._brakes], "cooling devices in use")
        if self._alarms:
            alarms = [gauge() for gauge in self._alarms.values()]
            found[THROTTLE_CURRENT] = _count(alarms, "over-current alarms")
        return found


def zones(root: Path) -> Iterator[Zone]:
    """The thermal zones that mean something; of one name, the second is called ``name-2``."""
    seen: dict[str, int] = {}
    for place in ("sys/class/thermal", "sys/devices/virtual/thermal"):
        folders = [folder for folder in reading.children(root / place) if folder.name.startswith("thermal_zone")]
        if folders:
            break
    for folder in sorted(folders, key=lambda folder: (len(folder.name), folder.name)):
        kind = read_text(folder / "type")
        if not kind or kind.lower().startswith(_CONSTANT):
            continue
        name = re.sub(r"[-_]therm(al)?$", "", kind.lower())
        seen[name] = seen.get(name, 0) + 1
        path = folder / "temp"
        degrees = reading.gauge("C", reading.shown_path(path, root), partial(zone_degrees, str(path)))
        trips = [trip for trip in folder.glob("trip_point_*_type") if read_text(trip) == "passive"]
        texts = [read_text(trip.with_name(trip.name.replace("_type", "_temp"))) for trip in trips]
        limits_c = [int(text) / 1e3 for text in texts if text.isascii() and text.isdigit() and int(text) > 0]
        yield Zone(name if seen[name] == 1 else f"{name}-{seen[name]}", degrees, min(limits_c, default=None))


def _hottest(degrees: Mapping[str, reading.Reading]) -> reading.Reading:
    """The junction's temperature, which is the hottest of the chip; without one, the hottest zone."""
    known = {name: one for name, one in degrees.items() if one.value is not None}
    if not known:
        return reading.unavailable("C", "thermal zones", "none of them can be read")
    return known.get("tj") or max(known.values(), key=lambda one: one.value or 0.0)


def _margin(found: tuple[Zone, ...], degrees: Mapping[str, reading.Reading]) -> reading.Reading:
    """Degrees to the nearest passive trip point; negative beyond it."""
    spare = [
        (zone.limit_c - value, degrees[zone.name].source)
        for zone in found
        if zone.limit_c is not None and (value := degrees[zone.name].value) is not None
    ]
    if not spare:
        return reading.unavailable("C", "thermal zones", "none that can be read has a passive trip point")
    margin_c, source = min(spare)
    return reading.measured(margin_c, "C", source)


def _count(readings: list[reading.Reading], of: str) -> reading.Reading:
    known = [one.value for one in readings if one.value is not None]
    if not known:
        return reading.unavailable("", readings[0].source, readings[0].why)
    return reading.measured(float(sum(value > 0 for value in known)), "", f"{len(known)} {of}")
