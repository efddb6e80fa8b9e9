"""Energy counters of x86 processors (RAPL): https://docs.kernel.org/power/powercap/powercap.html.

Since Linux 5.10 only root may read them. ``psys`` is the whole platform; without it the packages count, never their
parts (``core``, ``uncore``, ``dram``), which are inside or, for DRAM, not on every processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgert.board.host import read_text
from edgert.budget.meter.file import NO_TIME, children, read_number, told, why_not
from edgert.budget.meter.reading import Reading, measured, unavailable
from edgert.clock import Clock

_MOST_W = 5000.0


@dataclass(slots=True)
class _Counter:
    path: Path
    range_uj: float
    last_uj: float | None = None
    last_ns: int = 0


class Rapl:
    """A meter of ``power.package-0`` … or ``power.psys``: watts since it was last read."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root, self._clock = root, clock
        self._counters = dict(_counters(root))
        self.read()  # where counting begins

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what is counted; empty on a machine without."""
        return tuple(f"power.{name}" for name in self._counters)

    def read(self) -> Mapping[str, Reading]:
        """See :meth:`edgert.budget.meter.reading.Meter.read`."""
        return {f"power.{name}": self._watts(counter) for name, counter in self._counters.items()}

    def _watts(self, counter: _Counter) -> Reading:
        source = told(counter.path, self._root)
        before_uj, before_ns = counter.last_uj, counter.last_ns
        try:
            counter.last_uj = read_number(str(counter.path), 0.0)
        except (OSError, ValueError) as error:
            counter.last_uj = None
            return unavailable("W", source, why_not(error))
        counter.last_ns = self._clock.now_ns()
        if before_uj is None or counter.last_ns <= before_ns:
            return unavailable("W", source, NO_TIME)
        spent_uj = counter.last_uj - before_uj
        spent_uj += counter.range_uj if spent_uj < 0 else 0.0  # it wrapped around
        watts = spent_uj * 1e3 / (counter.last_ns - before_ns)
        if not 0.0 <= watts <= _MOST_W:
            return unavailable("W", source, f"says {watts:g} W, which cannot be")
        return measured(watts, "W", source)


def _counters(root: Path) -> list[tuple[str, _Counter]]:
    folders = [folder for folder in children(root / "sys/class/powercap") if _is_zone(folder.name)]
    found = [(read_text(folder / "name"), folder) for folder in folders]
    whole = [pair for pair in found if pair[0] == "psys"]
    packages = [pair for pair in found if pair[0].startswith("package")]
    return [(name, _Counter(folder / "energy_uj", _range_uj(folder))) for name, folder in whole or packages]


def _is_zone(name: str) -> bool:
    """``intel-rapl:0``, not its parts ``intel-rapl:0:0``; and not ``intel-rapl-mmio:0``, the same package again."""
    return name.startswith("intel-rapl:") and name.count(":") == 1


def _range_uj(folder: Path) -> float:
    text = read_text(folder / "max_energy_range_uj")
    return float(text) if text.isdigit() else 0.0
