"""Power sensors that JetPack 5 and later show through hwmon: INA3221 (three rails) and INA238 (one).

Found by what their files say, not by path: numbers of hwmon devices change from boot to boot. Files and units:
https://docs.kernel.org/hwmon/ina3221.html and https://docs.kernel.org/hwmon/ina238.html. An INA3221 has no file of
power: it is volts times amperes, both averaged by the chip over some 0.4 s as Jetsons set it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgert.board.host import read_text
from edgert.budget.meter.file import children, file_gauge, read_number, told, why_not
from edgert.budget.meter.rail import MOST_W, Rail
from edgert.budget.meter.reading import Gauge, Reading, measured, unavailable

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
            return unavailable("W", self.source, why_not(error))
        return measured(millivolts * milliamperes * 1e-6, "W", self.source)


def hwmon_rails(root: Path) -> tuple[Rail, ...]:
    """Every rail of every INA3221 and INA238, in the order of their I2C addresses."""
    return tuple(sorted(_rails(root), key=lambda rail: rail.device))


def over_current(root: Path) -> dict[str, Gauge]:
    """Alarms of the rails' over-current limits, by ``VDD_IN.max``; crossing them throttles clocks whatever the
    temperature. Empty where no sensor has any."""
    return dict(_alarms(root))


def _rails(root: Path) -> Iterator[Rail]:
    for folder in _sensors(root, "ina3221"):
        for channel in _CHANNELS:
            name = read_text(folder / f"in{channel}_label")
            if name and not _is_not_connected(name):
                paths = (folder / f"in{channel}_input", folder / f"curr{channel}_input")
                source = f"{told(paths[0], root)} x {paths[1].name}"
                yield Rail(name, _device(folder), ProductGauge(str(paths[0]), str(paths[1]), source))
    for folder in _sensors(root, "ina238"):
        name = read_text(folder / "label") or read_text(folder / "device/label") or "VIN"
        yield Rail(name, _device(folder), file_gauge(folder / "power1_input", root, "W", 1e-6, 0.0, MOST_W))


def _alarms(root: Path) -> Iterator[tuple[str, Gauge]]:
    for folder in _sensors(root, "ina3221"):
        for path in sorted(file for pattern in _ALARMS for file in folder.glob(pattern)):
            channel, kind = path.name.removeprefix("curr").split("_")[:2]
            rail = read_text(folder / f"in{channel}_label") or f"sum@{_device(folder)}"
            if not _is_not_connected(rail):
                yield f"{rail}.{kind}", file_gauge(path, root, "", high=1.0)


def _sensors(root: Path, name: str) -> Iterator[Path]:
    folders = children(root / "sys/class/hwmon")
    return (folder for folder in folders if read_text(folder / "name") == name)


def _device(folder: Path) -> str:
    """The sensor's place on the bus, ``1-0040``; the hwmon's own name where it is not told."""
    device = folder / "device"
    name = device.resolve().name if device.exists() else ""
    return name or folder.name


def _is_not_connected(name: str) -> bool:
    return "NC" in name.split("_") or name.startswith("NC")
