"""Power rails of JetPack 4, whose driver shows the INA3221 through iio: ``rail_name_N``, ``in_powerN_input`` in mW."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgert.board.host import read_text
from edgert.budget.meter.file import children, file_gauge
from edgert.budget.meter.rail import MOST_W, Rail

_CHANNELS = (0, 1, 2)


def iio_rails(root: Path) -> tuple[Rail, ...]:
    """Every rail of every sensor, in the order of their I2C addresses."""
    return tuple(_rails(root))


def _rails(root: Path) -> Iterator[Rail]:
    for device in children(root / "sys/bus/i2c/drivers/ina3221x"):
        for folder in sorted(device.glob("iio:device*")):
            for channel in _CHANNELS:
                name = read_text(folder / f"rail_name_{channel}")
                if name and not name.startswith("NC"):
                    gauge = file_gauge(folder / f"in_power{channel}_input", root, "W", 1e-3, 0.0, MOST_W)
                    yield Rail(name, device.name, gauge)
