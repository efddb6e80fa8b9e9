"""All meters of a machine, found once and read together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from edgert.board.host import read_text
from edgert.board.nvpmodel import current_mode
from edgert.budget.meter.clock import cpu_gauges, dla_gauges, emc_gauges, gpu_gauges
from edgert.budget.meter.file import GONE, NO_TIME, SWITCHED_OFF, is_jetson
from edgert.budget.meter.hwmon import hwmon_rails
from edgert.budget.meter.iio import iio_rails
from edgert.budget.meter.load import CpuLoad
from edgert.budget.meter.memory import Memory
from edgert.budget.meter.nvml import Nvml, find_nvml
from edgert.budget.meter.rail import POWER, Rails
from edgert.budget.meter.rapl import Rapl
from edgert.budget.meter.reading import Gauges, Meter, Reading, measured, unavailable
from edgert.budget.meter.sample import Sample, complete
from edgert.budget.meter.thermal import Thermal
from edgert.clock import REAL, Clock
from edgert.errors import DeviceError

_LOG = logging.getLogger(__name__)
_SEARCH_EVERY_NS = 5_000_000_000  # for meters that vanished: a driver that comes back has another number
_STATUS = "var/lib/nvpmodel/status"

Model = Callable[[], Reading]
"""Gives watts where no meter does; its readings are ``modelled``."""


class Meters:
    """The meters of a machine. Needs no rights; reading takes about a millisecond. Not for several threads at once.

    Args:
        root: where the files of a running Linux are.
        clock: of samples and of watts from energy counters.
        model: stands in for ``power`` where no sensor gives it, from the start or from when one vanishes.
        nvml: finds NVIDIA's management library, or says why not.
    """

    def __init__(
        self,
        root: str | Path = "/",
        clock: Clock = REAL,
        model: Model | None = None,
        nvml: Callable[[Path], Nvml | str] = find_nvml,
    ) -> None:
        self._root, self._clock, self._model, self._nvml = Path(root), clock, model, nvml
        self._has_rails = False
        self._meters, self._searched_ns = self._find(), clock.now_ns()
        self._before: Mapping[str, Reading] = {}
        self._known: dict[str, Reading] = {}
        self._status, self._mode = "", ""

    def sample(self) -> Sample:
        """Reads everything once. Does not raise: what cannot be read is ``unavailable`` and says why."""
        at_ns = self._clock.now_ns()
        readings = self._read()
        if any(map(_is_lost, self._absent(readings))) and at_ns - self._searched_ns >= _SEARCH_EVERY_NS:
            self._meters, self._searched_ns = self._find(), at_ns
            readings = self._read()
        self._known |= {name: reading for name, reading in readings.items() if reading.is_known}
        readings = self._with_model(complete(readings))
        notes = tuple(_changes(self._before, readings))
        for note in notes:
            _LOG.warning("meter: %s", note)
        self._before = readings
        return Sample(at_ns, readings, self._current_mode(), notes)

    def _find(self) -> list[Meter]:
        root = self._root
        gauges = {**gpu_gauges(root), **dla_gauges(root), **cpu_gauges(root)}
        if is_jetson(root):
            gauges |= emc_gauges(root)
        meters: list[Meter] = [CpuLoad(root, self._clock), Memory(root), Thermal(root), Gauges(gauges)]
        rails = hwmon_rails(root) + iio_rails(root)
        if rails:
            self._has_rails = True  # from now on a part never passes for the module, even if they vanish
            meters.append(Rails(rails))
        rapl = Rapl(root, self._clock)
        if rapl.names:
            meters.append(rapl)
        nvml = self._nvml(root)
        meters.append(nvml if isinstance(nvml, Nvml) else Gauges(_silent_gpu(nvml)))
        return meters

    def _read(self) -> dict[str, Reading]:
        """What all meters say; of a name that two give, the first that is known."""
        found: dict[str, Reading] = {}
        for meter in self._meters:
            for name, reading in meter.read().items():
                if name not in found or not found[name].is_known:
                    found[name] = reading
        if not self._has_rails:
            found |= _parts(found)
        for name, last in self._known.items():  # a device that is gone leaves no file to fail on
            found.setdefault(name, unavailable(last.unit, last.source, GONE))
        return found

    def _absent(self, readings: Mapping[str, Reading]) -> list[Reading]:
        """Readings of what was measured once and is not now."""
        return [readings[name] for name in self._known if not readings[name].is_known]

    def _with_model(self, readings: dict[str, Reading]) -> dict[str, Reading]:
        if readings[POWER].is_known or self._model is None:
            return readings
        return {**readings, POWER: self._model()}

    def _current_mode(self) -> str:
        status = read_text(self._root / _STATUS)
        if status != self._status:
            self._status = status
            try:
                self._mode = current_mode(self._root)
            except DeviceError as error:
                _LOG.warning("power mode unknown: %s", error.what)
                self._mode = ""
        return self._mode


def _parts(found: Mapping[str, Reading]) -> dict[str, Reading]:
    """Power of a machine without a sensor for all of it: its GPUs and processor packages, as far as they tell."""
    parts = {name: reading for name, reading in found.items() if name.startswith(f"{POWER}.")}
    known = {name: reading.value for name, reading in parts.items() if reading.value is not None}
    if not parts:
        return {}
    if not known:
        first = next(iter(parts.values()))
        return {POWER: unavailable("W", first.source, first.why)}
    names = " + ".join(name.partition(".")[2] for name in known)
    return {POWER: measured(sum(known.values()), "W", names, "of these parts only, not of the whole machine")}


def _silent_gpu(why: str) -> dict[str, Callable[[], Reading]]:
    """A GPU whose driver is here and cannot be asked."""
    return {f"{POWER}.gpu": lambda: unavailable("W", "NVML", why)} if why else {}


def _is_lost(reading: Reading) -> bool:
    return reading.kind == "unavailable" and reading.why not in (SWITCHED_OFF, NO_TIME)


def _changes(before: Mapping[str, Reading], now: Mapping[str, Reading]) -> list[str]:
    """What to say of readings that became known, unknown or of another source."""
    return [text for name in before if name in now and (text := _change(name, before[name], now[name]))]


def _change(name: str, before: Reading, now: Reading) -> str:
    if before.kind == now.kind and (before.source == now.source or name != POWER):
        return ""
    if now.kind == "unavailable":
        return f"{name}: lost ({now.why})" if _is_lost(now) else ""
    if now.kind == "modelled":
        return f"{name}: not measured any more ({before.source}); modelled from now on ({now.source})"
    if before.kind == "unavailable":
        return f"{name}: measured again ({now.source})" if _is_lost(before) else ""
    return f"{name}: now {now.source}, before {before.source}"
