"""Power rails, the module's power as their sum, temperatures, and throttling.

Names of rails are in NVIDIA's Jetson Linux Developer Guide, Platform Power and Performance. A rail that another rail
feeds is listed but not added: ``VDD_IN`` and ``VIN`` include all others. On AGX Orin ``VIN_SYS_5V0`` is assumed to feed
``VDDQ_VDD2_1V8AO``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgert.board.host import read_text
from edgert.meters import reading
from edgert.meters.over_current import OverCurrent, difference, listed

LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("VIN",),  # Thor: INA238
    ("VDD_IN",),  # Orin NX and Nano, Xavier NX, TX2
    ("POM_5V_IN",),  # Nano
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),  # AGX Xavier
)
"""Sets of rails whose sum is a module's power; the first complete set counts."""
POWER = "power"
MOST_W = 1000.0
"""Upper limit of plausible watts of a rail; a sensor that reads more is broken."""


@dataclass(frozen=True, slots=True)
class Rail:
    """Power rail with its name, its sensor, and a gauge of its watts."""

    name: str
    device: str
    gauge: reading.Gauge


def layout_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the rails whose sum is the module's power; empty if unknown."""
    present = set(names)
    return next((layout for layout in LAYOUTS if present.issuperset(layout)), ())


def total(rails: Mapping[str, reading.Reading], twice: Iterable[str] = ()) -> reading.Reading:
    """Return the module's power as the sum of rails.

    It is unavailable if the layout is unknown, or if one of its rails cannot be read or is in ``twice``, the names that
    several sensors have. Otherwise a part would look like the complete power.
    """
    layout = layout_of(rails)
    if not layout:
        return reading.unavailable("W", "power rails", f"unknown rail layout ({', '.join(rails)}): listed, not summed")
    doubled = sorted(set(twice).intersection(layout))
    if doubled:
        return reading.unavailable("W", "power rails", f"two sensors have a rail named {doubled[0]}")
    values = [rails[name].value for name in layout]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        name = layout[values.index(None)]
        return reading.unavailable("W", rails[name].source, f"rail {name}: {rails[name].why}")
    others = ", ".join(name for name in rails if name not in layout)
    remark = f"includes {others}, which are not added" if others else ""
    return reading.measured(sum(known), "W", " + ".join(layout), remark)


def rail_meter(rails: Sequence[Rail]) -> reading.Meter:
    """Return the meter of ``power.NAME`` for each power rail, and of ``power`` for the module."""
    names = [rail.name for rail in rails]
    twice = frozenset(name for name in names if names.count(name) > 1)
    gauges = {f"{rail.name}@{rail.device}" if rail.name in twice else rail.name: rail.gauge for rail in rails}

    def read() -> Mapping[str, reading.Reading]:
        found = reading.read_gauges(gauges)
        plain = {key.partition("@")[0]: one for key, one in found.items()}
        return {POWER: total(plain, twice), **{f"{POWER}.{key}": one for key, one in found.items()}}

    return read


# Power sensors in hwmon, from JetPack 5 on: INA3221 (three rails) and INA238 (one rail).
#
# They are found by the contents of their files, because numbers of hwmon devices change from boot to boot. Files and
# units: https://docs.kernel.org/hwmon/ina3221.html and https://docs.kernel.org/hwmon/ina238.html. An INA3221 has no
# file of power, which is volts times amperes; the chip averages both over about 0.4 s in Jetsons.

_CHANNELS = (1, 2, 3)
_MOST_MV = 26_000.0  # maximum bus voltage in the INA3221's data sheet (TI SBOS576)
_MOST_MA = 200_000.0  # 163.8 mV, its full scale, across the smallest shunts of Jetsons
_ALARMS = ("curr*_max_alarm", "curr*_crit_alarm")


def _channel_watts(volts: str, amperes: str) -> float:
    return reading.read_number(volts, 0.0, _MOST_MV) * reading.read_number(amperes, -_MOST_MA, _MOST_MA) * 1e-6


def hwmon_rails(root: Path) -> tuple[Rail, ...]:
    """Return the rails of all INA3221 and INA238, in the order of their I2C addresses."""
    found = list[Rail]()
    for folder in _sensors(root, "ina3221"):
        for channel in _CHANNELS:
            name = read_text(folder / f"in{channel}_label")
            if name and not _is_not_connected(name):
                volts, amperes = folder / f"in{channel}_input", folder / f"curr{channel}_input"
                source = f"{reading.shown_path(volts, root)} x {amperes.name}"
                watts = reading.gauge("W", source, partial(_channel_watts, str(volts), str(amperes)))
                found.append(Rail(name, _device(folder), watts))
    for folder in _sensors(root, "ina238"):
        name = read_text(folder / "label") or read_text(folder / "device/label") or "VIN"
        watts = reading.file_gauge(folder / "power1_input", root, "W", 1e-6, 0.0, MOST_W)
        found.append(Rail(name, _device(folder), watts))
    return tuple(sorted(found, key=lambda rail: rail.device))


def alarms(root: Path) -> dict[str, reading.Gauge]:
    """Return gauges of over-current alarms, by names such as ``VDD_IN.max``.

    An alarm means that clocks are throttled, at any temperature.
    """
    found = dict[str, reading.Gauge]()
    for folder in _sensors(root, "ina3221"):
        for path in sorted(file for pattern in _ALARMS for file in folder.glob(pattern)):
            channel, kind = path.name.removeprefix("curr").split("_")[:2]
            rail = read_text(folder / f"in{channel}_label") or f"sum@{_device(folder)}"
            if not _is_not_connected(rail):
                found[f"{rail}.{kind}"] = reading.file_gauge(path, root, "", high=1.0)
    return found


def _sensors(root: Path, name: str) -> Iterator[Path]:
    folders = reading.children(root / "sys/class/hwmon")
    return (folder for folder in folders if read_text(folder / "name") == name)


def _device(folder: Path) -> str:
    """Return the sensor's address on the bus, such as ``1-0040``, or else the name of its folder."""
    device = folder / "device"
    return device.resolve().name if device.exists() else folder.name


def _is_not_connected(name: str) -> bool:
    return "NC" in name.split("_") or name.startswith("NC")


# Power sensors of JetPack 4, whose driver uses iio: ``rail_name_N`` and ``in_powerN_input`` in mW.

_IIO_CHANNELS = (0, 1, 2)


def iio_rails(root: Path) -> tuple[Rail, ...]:
    """Return the rails of all sensors, in the order of their I2C addresses."""
    found = list[Rail]()
    for device in reading.children(root / "sys/bus/i2c/drivers/ina3221x"):
        for folder in sorted(device.glob("iio:device*")):
            for channel in _IIO_CHANNELS:
                name = read_text(folder / f"rail_name_{channel}")
                if name and not name.startswith("NC"):
                    gauge = reading.file_gauge(folder / f"in_power{channel}_input", root, "W", 1e-3, 0.0, MOST_W)
                    found.append(Rail(name, device.name, gauge))
    return tuple(found)


# Temperatures, margins to throttling, and throttling.
#
# Files: https://docs.kernel.org/driver-api/thermal/sysfs-api.html. The zone of a block that is off reads -256 C or
# cannot be read, which is no error.

TEMPERATURE, MARGIN = "temperature", "temperature.margin"
THROTTLE_HEAT, THROTTLE_CURRENT, EVENTS = "throttle.heat", "throttle.current", "throttle.events"
_OFF_C = -256.0
_COLDEST_C, _HOTTEST_C = -60.0, 200.0
_CONSTANT = "pmic"  # on Nano, TX2 and Xavier PMIC-Die always reads 100 C
_BRAKE = re.compile(r"^(cpufreq|devfreq|Processor)|throttle", re.IGNORECASE)
"""Pattern of cooling devices that slow something down, unlike fans and Intel's ``TCC Offset``."""


@dataclass(frozen=True, slots=True)
class Zone:
    """Thermal zone: its type without ``-therm``, such as ``tj``, and the trip point where throttling begins."""

    name: str
    gauge: reading.Gauge
    limit_c: float | None


def zone_degrees(path: str) -> float:
    """Return the temperature of a zone, in degrees, from the millidegrees in its file. Raises OSError, ValueError."""
    degrees = reading.read_number(path) * 1e-3
    if degrees == _OFF_C:
        raise ValueError(reading.SWITCHED_OFF)
    if not _COLDEST_C <= degrees <= _HOTTEST_C:
        raise ValueError(f"it reads {degrees:g} C, which is impossible")
    return degrees


class Thermal:
    """Meter of all temperatures of a machine, and of throttling by heat and over-current."""

    def __init__(self, root: Path) -> None:
        self._zones = tuple(zones(root))
        folders = [folder for folder in reading.children(root / "sys/class/thermal") if "cooling_device" in folder.name]
        brakes = [folder / "cur_state" for folder in folders if _BRAKE.search(read_text(folder / "type"))]
        self._brakes = [reading.file_gauge(path, root, "", low=float("-inf")) for path in brakes]
        self._alarms = alarms(root)
        self._over_current = OverCurrent(root)
        self._events = self._over_current.since_boot()

    def read(self) -> Mapping[str, reading.Reading]:
        """Return ``temperature`` (tj, or the hottest zone), ``temperature.ZONE``, ``.margin``, and throttling."""
        degrees = {zone.name: zone.gauge() for zone in self._zones}
        found = {f"{TEMPERATURE}.{name}": one for name, one in degrees.items()}
        if self._zones:
            known = {name: one for name, one in degrees.items() if one.value is not None}
            hottest = max(known.values(), key=lambda one: one.value or 0.0, default=None)
            none = reading.unavailable("C", "thermal zones", "none of them can be read")
            found[TEMPERATURE] = known.get("tj") or hottest or none  # tj is the junction, the hottest of the chip
            found[MARGIN] = _margin(self._zones, degrees)
        if self._brakes:
            found[THROTTLE_HEAT] = _count([gauge() for gauge in self._brakes], "cooling devices in use")
        if self._alarms:
            found[THROTTLE_CURRENT] = _count([gauge() for gauge in self._alarms.values()], "over-current alarms")
        if self._events:
            found |= self._counted(found.get(THROTTLE_CURRENT))
        return found

    def _counted(self, alarms: reading.Reading | None) -> dict[str, reading.Reading]:
        """Return ``throttle.events`` since boot, and ``throttle.current``: new events and present alarms."""
        before, self._events = self._events, self._over_current.since_boot() or self._events
        source, total = self._over_current.source, self._events
        new, now = difference(total, before), 0.0 if alarms is None else alarms.value or 0.0
        since = f"events since the sample before: {listed(new) or 'none'}"
        remark = f"{now:g} over-current alarms now; {since}" if alarms is not None else since
        boot = listed(total)
        return {
            THROTTLE_CURRENT: reading.measured(now + sum(new.values()), "", source, remark),
            EVENTS: reading.measured(float(sum(total.values())), "", source, f"since boot: {boot}" if boot else ""),
        }


def zones(root: Path) -> Iterator[Zone]:
    """Yield the thermal zones that report a temperature; the second with the same name is called ``name-2``."""
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


def _margin(found: tuple[Zone, ...], degrees: Mapping[str, reading.Reading]) -> reading.Reading:
    """Return the degrees to the nearest passive trip point; negative beyond it."""
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
