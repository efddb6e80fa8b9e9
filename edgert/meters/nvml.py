"""NVIDIA's management library: GPUs of workstations, and Thor; only this module uses ``pynvml`` (nvidia-ml-py, BSD-3).

Functions: https://docs.nvidia.com/deploy/nvml-api/. On Orin the library is a stub that answers nearly nothing, and on
Thor some functions are missing: each value is read by itself.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from edgert.meters.reading import Reading, measured, unavailable

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
"""Values of a device: name here, unit, name of the function after nvmlDeviceGet, conversion of its result to a number
in the unit, and the function's further arguments."""


class Nvml:
    """Meter of every GPU.

    It reads ``power.gpu``, ``gpu.load``, ``gpu.clock``, ``temperature.gpu``, ``memory.gpu``, ``throttle.gpu``; of the
    second ``power.gpu1`` and so on.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        library.nvmlInit()
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        names = [library.nvmlDeviceGetName(handle) for handle in handles]  # bytes, in early releases of pynvml
        self._gpus = {
            f"gpu{index or ''}": handle for index, handle in enumerate(handles) if _STUB not in str(names[index])
        }

    def read(self) -> Mapping[str, Reading]:
        """Read every value of every GPU; see :meth:`edgert.meters.reading.Meter.read`."""
        found = {}
        for gpu, handle in self._gpus.items():
            for name, unit, about, number, arguments in _QUESTIONS:
                source = f"NVML nvmlDeviceGet{about}"
                try:
                    answer = getattr(self._library, f"nvmlDeviceGet{about}")(handle, *arguments)
                    found[name.format(gpu)] = measured(number(answer), unit, source)
                except (self._library.NVMLError, AttributeError, TypeError, ValueError) as error:
                    # TypeError and ValueError: pynvml returns None or a marker for values that a board lacks
                    found[name.format(gpu)] = unavailable(unit, source, str(error))
        return found


def find_nvml(root: Path, load: Callable[[], Any] = lambda: import_module("pynvml")) -> Nvml | str:
    """Return the meter, or why there is none; empty where the files under ``root`` show no NVIDIA driver."""
    if not (root / "proc/driver/nvidia/version").is_file():
        return ""
    try:
        library = load()
    except ImportError:
        return f"reading the NVIDIA driver needs nvidia-ml-py: {_FIX}"
    try:
        return Nvml(library)
    except library.NVMLError as error:
        return f"NVML: {error}"
