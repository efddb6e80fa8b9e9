"""Power rails, and which of them are the module's whole power.

Names of rails per module: NVIDIA's Jetson Linux Developer Guide, Platform Power and Performance. Rails that another
one feeds are listed and not added: ``VDD_IN`` and ``VIN`` hold all the others, and on AGX Orin ``VDDQ_VDD2_1V8AO`` is
believed to be fed from ``VIN_SYS_5V0``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgert.budget.meter.reading import Gauge, Reading, measured, unavailable

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
