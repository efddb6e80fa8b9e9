"""NVIDIA's management library: GPUs of workstations, and Thor. The door to ``pynvml`` (package nvidia-ml-py, BSD-3).

Functions: https://docs.nvidia.com/deploy/nvml-api/. On Orin the library is a stub that answers nearly nothing, and on
Thor some functions are missing: each value stands alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from edgert.meters.reading import Reading, measured, unavailable

THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""nvml.h, nvmlClocksEventReason…: power cap, hardware slowdown, software and hardware thermal, power brake."""
_STUB = "nvgpu"
_FIX = "pip install nvidia-ml-py"


@dataclass(frozen=True, slots=True)
class _Question:
    """A value of one device: its name here, unit, function, and how the answer becomes a number in ``unit``."""

    name: str
    unit: str
    function: str
    number: Callable[[Any], float]
    arguments: tuple[int, ...] = ()


_QUESTIONS = (
    _Question("power.{}", "W", "nvmlDeviceGetPowerUsage", lambda milliwatts: milliwatts / 1e3),
    _Question("{}.load", "%", "nvmlDeviceGetUtilizationRates", lambda rates: float(rates.gpu)),
    _Question("{}.clock", "Hz", "nvmlDeviceGetClockInfo", lambda mhz: mhz * 1e6, (1,)),  # NVML_CLOCK_SM
    _Question("temperature.{}", "C", "nvmlDeviceGetTemperature", float, (0,)),  # NVML_TEMPERATURE_GPU
    _Question("memory.{}", "B", "nvmlDeviceGetMemoryInfo", lambda memory: float(memory.used)),
    _Question(
        "throttle.{}", "", "nvmlDeviceGetCurrentClocksThrottleReasons", lambda bits: float(bool(bits & THROTTLED))
    ),
)


class Nvml:
    """A meter of every GPU: ``power.gpu``, ``gpu.load``, ``gpu.clock``, ``temperature.gpu``, ``memory.gpu``,
    ``throttle.gpu``; of the second ``power.gpu1`` and so on."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvmlInit()
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        names = [library.nvmlDeviceGetName(handle) for handle in handles]  # bytes, in early releases of pynvml
        self._gpus = {
            f"gpu{index or ''}": handle for index, handle in enumerate(handles) if _STUB not in str(names[index])
        }

    @property
    def gpus(self) -> tuple[str, ...]:
        """``gpu``, ``gpu1`` …; empty where there is none that answers."""
        return tuple(self._gpus)

    def read(self) -> Mapping[str, Reading]:
        """See :meth:`edgert.meters.reading.Meter.read`."""
        return {
            question.name.format(gpu): self._ask(question, handle)
            for gpu, handle in self._gpus.items()
            for question in _QUESTIONS
        }

    def _ask(self, question: _Question, handle: Any) -> Reading:
        source = f"NVML {question.function}"
        try:
            answer = getattr(self._library, question.function)(handle, *question.arguments)
            return measured(question.number(answer), question.unit, source)
        except (self._library.NVMLError, AttributeError, TypeError, ValueError) as error:
            # TypeError and ValueError: pynvml gives None or a marker for what a board leaves out
            return unavailable(question.unit, source, str(error))


def find_nvml(root: Path, load: Callable[[], Any] = lambda: import_module("pynvml")) -> Nvml | str:
    """The meter, or why there is none; empty where this machine has no NVIDIA driver to ask.

    Args:
        root: where the driver's files are looked for.
        load: gives the library.
    """
    if not (root / "proc/driver/nvidia/version").is_file():
        return ""
    try:
        library = load()
    except ImportError:
        return f"the NVIDIA driver can only be asked through nvidia-ml-py: {_FIX}"
    try:
        return Nvml(library)
    except library.NVMLError as error:
        return f"NVML: {error}"
