"""Lines that ``tegrastats`` prints, of every release from JetPack 4 to 7.

Fields: TegrastatsUtility.html of NVIDIA's Jetson Linux Developer Guide, https://docs.nvidia.com/jetson/archives/r36.4.4/.
Releases differ: JetPack 4 gives watts without a unit, 5 knows ``-256C`` and rails called NC, 6 puts clocks of several
GPCs in brackets and a date in front, 7.2 adds peaks, Thor leaves out the GPU's load, and without root GPU and EMC are
missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgert.budget.meter.rail import POWER, total
from edgert.budget.meter.reading import Reading, measured, unavailable

_DATE = re.compile(r"^(\d\d-\d\d-\d{4} \d\d:\d\d:\d\d)")
_RAM = re.compile(r"\bRAM (\d+)/(\d+)MB \(lfb (\d+)x(\d+)([kM])B\)")
_SWAP = re.compile(r"\bSWAP (\d+)/(\d+)MB")
_CPU = re.compile(r"\bCPU \[([^\]]*)\]")
_CORE = re.compile(r"(\d+)%(?:@(\d+))?")
_CLOCK = re.compile(r"\b(\w+?)(?:_FREQ)? (?:(\d+)%)?@(?:\[([\d,]+)\]|(\d+))(?=\s|$)")
_OFF = re.compile(r"\b(\w+?)(?:_FREQ)? off\b")
_PLAIN = re.compile(r"\b(VIC_FREQ|APE|NVENC|NVDEC|NVJPG|NVDLA\d?) (\d+)(?=\s|$)")
_ZONE = re.compile(r"\b([A-Za-z]\w*)@(-?[\d.]+)C(?:/(-?[\d.]+)C)?")
_RAIL = re.compile(r"\b([A-Z][A-Z0-9_]*) (\d+)(?:mW)?/(\d+)(?:mW)?(?:/(\d+)(?:mW)?)?(?=\s|$)")
_NO_RAILS = frozenset(("RAM", "SWAP", "IRAM", "NC"))
_MIB = 1 << 20
_OFF_C = -256.0
_SOURCE = "tegrastats"


@dataclass(frozen=True, slots=True)
class Core:
    """One CPU core that is on: load, and its clock where the line tells it."""

    load_percent: float
    mhz: float | None


@dataclass(frozen=True, slots=True)
class Engine:
    """GPU, EMC or another block: load and clocks as far as the line tells them; no clocks: it is off."""

    load_percent: float | None
    mhz: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RailLine:
    """A rail's watts: now, averaged since tegrastats began, and, from JetPack 7.2, the peak."""

    watts: float
    average_w: float
    peak_w: float | None


@dataclass(frozen=True, slots=True)
class Tegrastats:
    """One line. What it does not say is None or missing.

    Attributes:
        date: as printed, ``04-19-2026 01:31:10``; empty before JetPack 6.
        ram_used_bytes, ram_total_bytes, ram_largest_free_bytes: MB of the line are MiB.
        cores: None is a core that is off.
        engines: ``GR3D`` (GPU), ``EMC``, ``NVDLA0`` … without ``_FREQ``.
        temperatures_c: zone → degrees, in the line's spelling; None is a sensor that is off.
        rails: name → watts; of several channels called NC none.
    """

    date: str = ""
    ram_used_bytes: int | None = None
    ram_total_bytes: int | None = None
    ram_largest_free_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_total_bytes: int | None = None
    cores: tuple[Core | None, ...] = ()
    engines: Mapping[str, Engine] = field(default_factory=dict)
    temperatures_c: Mapping[str, float | None] = field(default_factory=dict)
    rails: Mapping[str, RailLine] = field(default_factory=dict)


def parse_tegrastats(line: str) -> Tegrastats:
    """What a line says; of a line that is none of tegrastats, nothing. Never raises."""
    ram, swap, date = _RAM.search(line), _SWAP.search(line), _DATE.match(line)
    return Tegrastats(
        date=date[1] if date else "",
        ram_used_bytes=int(ram[1]) * _MIB if ram else None,
        ram_total_bytes=int(ram[2]) * _MIB if ram else None,
        ram_largest_free_bytes=_free(ram) if ram else None,
        swap_used_bytes=int(swap[1]) * _MIB if swap else None,
        swap_total_bytes=int(swap[2]) * _MIB if swap else None,
        cores=_cores(line),
        engines=_engines(line),
        temperatures_c={name: _degrees(text) for name, text, _ in _ZONE.findall(line)},
        rails={rail[1]: _rail(rail) for rail in _RAIL.finditer(line) if rail[1] not in _NO_RAILS},
    )


def readings(line: Tegrastats) -> dict[str, Reading]:
    """A line under the names that meters use, as far as it says something."""
    rails = {name: measured(rail.watts, "W", _SOURCE) for name, rail in line.rails.items()}
    found = {f"{POWER}.{name}": reading for name, reading in rails.items()}
    if rails:
        found[POWER] = total(rails)
    for name, degrees in line.temperatures_c.items():
        off = unavailable("C", _SOURCE, "switched off")
        found[f"temperature.{name.lower()}"] = off if degrees is None else measured(degrees, "C", _SOURCE)
    for name, engine in (("gpu", line.engines.get("GR3D")), ("emc", line.engines.get("EMC"))):
        if engine is not None and engine.load_percent is not None:
            found[f"{name}.load"] = measured(engine.load_percent, "%", _SOURCE)
        if engine is not None and engine.mhz:
            found[f"{name}.clock"] = measured(max(engine.mhz) * 1e6, "Hz", _SOURCE)
    if line.ram_total_bytes is not None:
        found["memory.total"] = measured(float(line.ram_total_bytes), "B", _SOURCE)
    return found


def _free(ram: re.Match[str]) -> int:
    return int(ram[3]) * int(ram[4]) * (1024 if ram[5] == "k" else _MIB)


def _cores(line: str) -> tuple[Core | None, ...]:
    match = _CPU.search(line)
    found = (_CORE.match(text.strip()) for text in match[1].split(",")) if match else ()
    return tuple(core and Core(float(core[1]), float(core[2]) if core[2] else None) for core in found)


def _engines(line: str) -> dict[str, Engine]:
    """Clocks in brackets come first: a plain ``name value`` pattern would match half of them."""
    outside = _CPU.sub("", line)
    found = {name: Engine(None, ()) for name in _OFF.findall(outside)}
    found |= {name.removesuffix("_FREQ"): Engine(None, (float(mhz),)) for name, mhz in _PLAIN.findall(outside)}
    for name, load, several, one in _CLOCK.findall(outside):
        clocks = tuple(float(mhz) for mhz in (several or one).split(",") if mhz)
        found[name] = Engine(float(load) if load else None, clocks)
    return found


def _degrees(text: str) -> float | None:
    try:
        degrees = float(text)
    except ValueError:  # several points
        return None
    return None if degrees == _OFF_C else degrees


def _rail(match: re.Match[str]) -> RailLine:
    return RailLine(int(match[2]) / 1e3, int(match[3]) / 1e3, int(match[4]) / 1e3 if match[4] else None)
