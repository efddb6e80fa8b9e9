"""Power rails, and which of them are the module's whole power.

Names of rails per module: NVIDIA's Jetson Linux Developer Guide, Platform Power and Performance. Rails that another
one feeds are listed and not added: ``VDD_IN`` and ``VIN`` hold all the others, and on AGX Orin ``VDDQ_VDD2_1V8AO`` is
believed to be fed from ``VIN_SYS_5V0``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgert.board.host import read_text
from edgert.meters.reading import (
    Gauge,
    Reading,
    children,
    failure_of,
    file_gauge,
    measured,
    read_number,
    shown_path,
    unavailable,
)

LAYOUTS: tuple[tuple[str, ...], ...] = (
    ("VIN",),  # Thor: INA238
    ("VDD_IN",),  # Orin NX and Nano, Xavier NX, TX2
    ("POM_5V_IN",),  # Nano
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),  # AGX Xavier
)
"""Rails that sum to a module's power; the first that is there counts."""
POWER = "power"
MOST_W = 1000.0
"""More than any Jetson's rail can carry: what reads more is broken."""


@dataclass(frozen=True, slots=True)
class Rail:
    """A rail: its name, the sensor that knows it, and its watts."""

    name: str
    device: str
    gauge: Gauge


def layout_of(names: Iterable[str]) -> tuple[str, ...]:
    """The rails that sum to the module's power; empty where that is not known."""
    present = set(names)
    return next((layout for layout in LAYOUTS if present.issuperset(layout)), ())


def total(rails: Mapping[str, Reading], twice: Iterable[str] = ()) -> Reading:
    """The module's watts from those of its rails.

    Args:
        rails: name → watts.
        twice: names that several sensors claim, which therefore cannot be trusted in a sum.

    Returns:
        Unavailable where the layout is unknown, or one of its rails cannot be read: a part would pass for the whole.
    """
    layout = layout_of(rails)
    if not layout:
        return unavailable("W", "power rails", f"unknown rail layout ({', '.join(rails)}): listed, not summed")
    doubled = sorted(set(twice).intersection(layout))
    if doubled:
        return unavailable("W", "power rails", f"two sensors call a rail {doubled[0]}")
    values = [rails[name].value for name in layout]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        name = layout[values.index(None)]
        return unavailable("W", rails[name].source, f"rail {name}: {rails[name].why}")
    source = " + ".join(layout)
    return measured(sum(known), "W", source, _left_out(rails, layout))


def _left_out(rails: Mapping[str, Reading], layout: Sequence[str]) -> str:
    others = [name for name in rails if name not in layout]
    return f"holds {', '.join(others)}, which are not added" if others else ""


class Rails:
    """All rails of a machine as a meter: ``power.NAME`` each, and ``power``, the whole module."""

    def __init__(self, rails: Sequence[Rail]) -> None:
        names = [rail.name for rail in rails]
        self._twice = frozenset(name for name in names if names.count(name) > 1)
        self._gauges = {self._key(rail): rail.gauge for rail in rails}

    def read(self) -> Mapping[str, Reading]:
        """Reads every rail once; the sum is of these same readings."""
        rails = {key: gauge() for key, gauge in self._gauges.items()}
        plain = {key.partition("@")[0]: reading for key, reading in rails.items()}
        return {POWER: total(plain, self._twice), **{f"{POWER}.{key}": reading for key, reading in rails.items()}}

    def _key(self, rail: Rail) -> str:
        return f"{rail.name}@{rail.device}" if rail.name in self._twice else rail.name


# Power sensors that JetPack 5 and later show through hwmon: INA3221 (three rails) and INA238 (one).
#
# Found by what their files say, not by path: numbers of hwmon devices change from boot to boot. Files and units:
# https://docs.kernel.org/hwmon/ina3221.html and https://docs.kernel.org/hwmon/ina238.html. An INA3221 has no file
# of power: it is volts times amperes, both averaged by the chip over some 0.4 s as Jetsons set it up.

_CHANNELS = (1, 2, 3)
_MOST_MV = 26_000.0  # the widest bus that the INA3221's data sheet (TI SBOS576) allows
_MOST_MA = 200_000.0  # 163.8 mV, its full scale, across the smallest shunts of Jetsons
_ALARMS = ("curr*_max_alarm", "curr*_crit_alarm")


@dataclass(frozen=True, slots=True)
class ProductGauge:
    """Watts of one INA3221 channel, from its two files."""

    volts: str
    amperes: str
    source: str

    def __call__(self) -> Reading:
        try:
            millivolts = read_number(self.volts, 0.0, _MOST_MV)
            milliamperes = read_number(self.amperes, -_MOST_MA, _MOST_MA)
        except (OSError, ValueError) as error:
            return unavailable("W", self.source, failure_of(error))
        return measured(millivolts * milliamperes * 1e-6, "W", self.source)


def hwmon_rails(root: Path) -> tuple[Rail, ...]:
    """Every rail of every INA3221 and INA238, in the order of their I2C addresses."""
    return tuple(sorted(_rails(root), key=lambda rail: rail.device))


def over_current(root: Path) -> dict[str, Gauge]:
    """Alarms of the rails' over-current limits, by ``VDD_IN.max``; crossing them throttles clocks whatever the
    temperature. Empty where no sensor has any."""
    found = dict[str, Gauge]()
    for folder in _sensors(root, "ina3221"):
        for path in sorted(file for pattern in _ALARMS for file in folder.glob(pattern)):
            channel, kind = path.name.removeprefix("curr").split("_")[:2]
            rail = read_text(folder / f"in{channel}_label") or f"sum@{_device(folder)}"
            if not _is_not_connected(rail):
                found[f"{rail}.{kind}"] = file_gauge(path, root, "", high=1.0)
    return found


def _rails(root: Path) -> Iterator[Rail]:
    for folder in _sensors(root, "ina3221"):
        for channel in _CHANNELS:
            name = read_text(folder / f"in{channel}_label")
            if name and not _is_not_connected(name):
                paths = (folder / f"in{channel}_input", folder / f"curr{channel}_input")
                source = f"{shown_path(paths[0], root)} x {paths[1].name}"
                yield Rail(name, _device(folder), ProductGauge(str(paths[0]), str(paths[1]), source))
    for folder in _sensors(root, "ina238"):
        name = read_text(folder / "label") or read_text(folder / "device/label") or "VIN"
        yield Rail(name, _device(folder), file_gauge(folder / "power1_input", root, "W", 1e-6, 0.0, MOST_W))


def _sensors(root: Path, name: str) -> Iterator[Path]:
    folders = children(root / "sys/class/hwmon")
    return (folder for folder in folders if read_text(folder / "name") == name)


def _device(folder: Path) -> str:
    """The sensor's place on the bus, ``1-0040``; the hwmon's own name where there is none."""
    device = folder / "device"
    name = device.resolve().name if device.exists() else ""
    return name or folder.name


def _is_not_connected(name: str) -> bool:
    return "NC" in name.split("_") or name.startswith("NC")


# Power rails of JetPack 4, whose driver shows the INA3221 through iio: ``rail_name_N``, ``in_powerN_input`` in mW.

_IIO_CHANNELS = (0, 1, 2)


def iio_rails(root: Path) -> tuple[Rail, ...]:
    """Every rail of every sensor, in the order of their I2C addresses."""
    found = list[Rail]()
    for device in children(root / "sys/bus/i2c/drivers/ina3221x"):
        for folder in sorted(device.glob("iio:device*")):
            for channel in _IIO_CHANNELS:
                name = read_text(folder / f"rail_name_{channel}")
                if name and not name.startswith("NC"):
                    gauge = file_gauge(folder / f"in_power{channel}_input", root, "W", 1e-3, 0.0, MOST_W)
                    found.append(Rail(name, device.name, gauge))
    return tuple(found)
