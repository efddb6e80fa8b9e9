"""All meters of a machine, found once and read together."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from edgert.board.detect import is_jetson
from edgert.board.host import read_text
from edgert.board.nvpmodel import current_mode
from edgert.clock import REAL, Clock
from edgert.errors import DeviceError
from edgert.meters import rails as sensors
from edgert.meters.clocks import cpu_gauges, dla_gauges, emc_gauges, gpu_gauges
from edgert.meters.energy import rapl_gauges
from edgert.meters.reading import (
    GONE,
    NO_TIME,
    SWITCHED_OFF,
    Gauge,
    Meter,
    Reading,
    measured,
    read_gauges,
    unavailable,
)
from edgert.meters.usage import CpuLoad, memory_gauges

# NVIDIA's management library has the GPUs of workstations and of Thor; only this module uses ``pynvml`` (nvidia-ml-py).
#
# Functions: https://docs.nvidia.com/deploy/nvml-api/. On Orin the library has almost no values, and on Thor some
# functions are missing, so each value is read separately.

THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits nvmlClocksEventReason… of nvml.h: power cap, hardware slowdown, software and hardware thermal, power brake."""
_STUB = "nvgpu"
_FIX = "pip install nvidia-ml-py"


_QUESTIONS: tuple[tuple[str, str, str, Callable[[Any], float], tuple[int, ...]], ...] = (
    ("power.{}", "W", "PowerUsage", lambda milliwatts: milliwatts / 1e3, ()),
    ("{}.load", "%", "UtilizationRates", lambda rates: float(rates.gpu), ()),
    ("{}.clock", "Hz", "ClockInfo", lambda mhz: mhz * 1e6, (1,)),  # NVML_CLOCK_SM
    ("temperature.{}", "C", "Temperature", float, (0,)),  # NVML_TEMPERATURE_GPU
    ("memory.{}", "B", "MemoryInfo", lambda memory: float(memory.used), ()),
    ("throttle.{}", "", "CurrentClocksThrottleReasons", lambda bits: float(bool(bits & THROTTLED)), ()),
)
"""Values of a GPU: name, unit, function without the prefix nvmlDeviceGet, conversion of its result to a number in the
unit, and further arguments of the function."""


def nvml_gauges(library: Any) -> dict[str, Gauge]:
    """Return gauges of all GPUs: ``power.gpu``, ``gpu.load``, ``gpu.clock``, ``temperature.gpu``, ``memory.gpu`` …

    Names of the second GPU are ``power.gpu1`` and so on. Raises the library's error.
    """

    def read(question: int, handle: object) -> Reading:
        _, unit, about, number, arguments = _QUESTIONS[question]
        source = f"NVML nvmlDeviceGet{about}"
        try:
            answer = getattr(library, f"nvmlDeviceGet{about}")(handle, *arguments)
            return measured(number(answer), unit, source)
        except (library.NVMLError, AttributeError, TypeError, ValueError) as error:
            # pynvml returns None or a marker for missing values, which raise TypeError or ValueError
            return unavailable(unit, source, str(error))

    library.nvmlInit()
    gauges: dict[str, Gauge] = {}
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        if _STUB not in str(library.nvmlDeviceGetName(handle)):  # bytes in early releases of pynvml
            names = [one[0].format(f"gpu{index or ''}") for one in _QUESTIONS]
            gauges |= {name: partial(read, number, handle) for number, name in enumerate(names)}
    return gauges


def find_nvml(root: Path, load: Callable[[], Any] = lambda: import_module("pynvml")) -> Mapping[str, Gauge]:
    """Return the gauges of all GPUs; none without an NVIDIA driver, and why one cannot be read as ``power.gpu``."""
    if not (root / "proc/driver/nvidia/version").is_file():
        return {}
    why = ""
    try:
        library = load()
        return nvml_gauges(library)
    except ImportError:
        why = f"the NVIDIA driver can be read only with nvidia-ml-py: {_FIX}"
    except library.NVMLError as error:
        why = f"NVML: {error}"
    return {f"{sensors.POWER}.gpu": lambda: unavailable("W", "NVML", why)}


EXPECTED: Mapping[str, tuple[str, str]] = {
    sensors.POWER: ("W", "INA3221, INA238, NVML, RAPL"),
    "gpu.load": ("%", "gpu.0/load, NVML"),
    "gpu.clock": ("Hz", "/sys/class/devfreq, NVML"),
    "emc.clock": ("Hz", "bpmp in debugfs, bwmgr in devfreq"),
    "emc.load": ("%", "actmon"),
    "dla0.powered": ("", "host1x"),
    sensors.TEMPERATURE: ("C", "/sys/class/thermal"),
    sensors.MARGIN: ("C", "passive trip points of thermal zones"),
    sensors.THROTTLE_HEAT: ("", "cooling devices"),
    sensors.THROTTLE_CURRENT: ("", "alarms of INA3221, events of soctherm_oc"),
    "memory.nvmap": ("B", "NvMapMemUsed in /proc/meminfo"),
}
"""Readings that every sample has, even if unavailable: name → (unit, where it is searched)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Readings of all meters at one moment of their clock, including all of :data:`EXPECTED`.

    ``notes`` are changes since the sample before, such as a meter that vanished or came back.
    """

    at_ns: int
    readings: Mapping[str, Reading]
    mode: str = ""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Reading:
        """Return the reading with a name; it is unavailable if no meter has it."""
        return self.readings.get(name) or unavailable("", name, "no meter here has it")

    @property
    def power(self) -> Reading:
        """Power of the module; on a machine that is not a Jetson, of the parts that can be measured."""
        return self[sensors.POWER]

    def to_json(self) -> dict[str, Any]:
        """Return the sample as JSON values."""
        readings = {name: asdict(reading) for name, reading in self.readings.items()}
        return {"at_ns": self.at_ns, "mode": self.mode, "readings": readings, "notes": list(self.notes)}


_LOG = logging.getLogger(__name__)
_SEARCH_EVERY_NS = 5_000_000_000  # interval of searches for meters that vanished; their paths may change
_STATUS = "var/lib/nvpmodel/status"

Model = Callable[[], Reading]
"""Function that returns modeled watts where no meter has the power."""


class Meters:
    """Meters of a machine, for one thread at a time; they need no rights, and a sample takes about 1 ms.

    ``model`` replaces ``power`` while no sensor has it.
    """

    def __init__(
        self,
        root: str | Path = "/",
        clock: Clock = REAL,
        model: Model | None = None,
        nvml: Callable[[Path], Mapping[str, Gauge]] = find_nvml,
    ) -> None:
        self._root, self._clock, self._model, self._nvml = Path(root), clock, model, nvml
        self._has_rails = False
        self._meters, self._searched_ns = self._find(), clock.now_ns()
        self._before: Mapping[str, Reading] = {}
        self._known: dict[str, Reading] = {}
        self._status, self._mode = "", ""

    def sample(self) -> Sample:
        """Return all readings; never raises, because failures make readings unavailable."""
        at_ns = self._clock.now_ns()
        readings = self._read()
        lost = any(_is_lost(readings[name]) for name in self._known)
        if lost and at_ns - self._searched_ns >= _SEARCH_EVERY_NS:
            self._meters, self._searched_ns = self._find(), at_ns
            readings = self._read()
        self._known |= {name: reading for name, reading in readings.items() if reading.is_known}
        readings |= {name: unavailable(*how, "none here") for name, how in EXPECTED.items() if name not in readings}
        if self._model is not None and not readings[sensors.POWER].is_known:
            readings[sensors.POWER] = self._model()
        changes = [_change(name, before, readings[name]) for name, before in self._before.items() if name in readings]
        notes = tuple(filter(None, changes))
        for note in notes:
            _LOG.warning("meter: %s", note)
        self._before = readings
        return Sample(at_ns, readings, self._current_mode(), notes)

    def _find(self) -> list[Meter]:
        root = self._root
        gauges = {**gpu_gauges(root), **dla_gauges(root), **cpu_gauges(root), **memory_gauges(root)}
        gauges |= rapl_gauges(root, self._clock)
        if is_jetson(root):
            gauges |= emc_gauges(root)
        meters: list[Meter] = [
            CpuLoad(root, self._clock).read,
            sensors.Thermal(root).read,
            partial(read_gauges, gauges),
        ]
        if rails := sensors.hwmon_rails(root) + sensors.iio_rails(root):
            self._has_rails = True  # so that parts never count as the module's power, even if the rails vanish
            meters.append(sensors.rail_meter(rails))
        return [*meters, partial(read_gauges, self._nvml(root))]

    def _read(self) -> dict[str, Reading]:
        """Return the readings of all meters; of meters with the same name the first known value counts."""
        found: dict[str, Reading] = {}
        for meter in self._meters:
            for name, reading in meter().items():
                if name not in found or not found[name].is_known:
                    found[name] = reading
        if not self._has_rails:
            found |= _parts(found)
        for name, last in self._known.items():  # a removed device has no meter any more
            found.setdefault(name, unavailable(last.unit, last.source, GONE))
        return found

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
    """Return the power of a machine without power rails as the sum of its readable GPUs and CPU packages."""
    parts = {name: reading for name, reading in found.items() if name.startswith(f"{sensors.POWER}.")}
    known = {name: reading.value for name, reading in parts.items() if reading.value is not None}
    if not parts:
        return {}
    if not known:
        first = next(iter(parts.values()))
        return {sensors.POWER: unavailable("W", first.source, first.why)}
    names = " + ".join(name.partition(".")[2] for name in known)
    return {sensors.POWER: measured(sum(known.values()), "W", names, "only these parts, not the complete machine")}


def _is_lost(reading: Reading) -> bool:
    return reading.kind == "unavailable" and reading.why not in (SWITCHED_OFF, NO_TIME)


def _change(name: str, before: Reading, now: Reading) -> str:
    """Return a note on a reading whose kind or source changed; empty otherwise."""
    if before.kind == now.kind and (before.source == now.source or name != sensors.POWER):
        return ""
    if now.kind == "unavailable":
        return f"{name}: lost ({now.why})" if _is_lost(now) else ""
    if now.kind == "modeled":
        return f"{name}: not measured any more ({before.source}); modeled from now on ({now.source})"
    if before.kind == "unavailable":
        return f"{name}: measured again ({now.source})" if _is_lost(before) else ""
    return f"{name}: now {now.source}, before {before.source}"
