"""RAPL, NVML and CPU time."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgert.meters.all import Meters, find_nvml, nvml_gauges
from edgert.meters.energy import rapl_gauges
from edgert.meters.reading import read_gauges
from edgert.meters.usage import CpuLoad
from tests.helpers.sysfs import plant, write
from tests.helpers.virtual_clock import VirtualClock

ZONE = "sys/class/powercap/intel-rapl:0"


class Failed(Exception):
    pass


def library(name: str = "NVIDIA H200", gpus: int = 1, **answers: Any) -> SimpleNamespace:
    def refuse(*_: object) -> None:
        raise Failed("Not Supported")

    plain: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: gpus,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: name,
        "nvmlDeviceGetPowerUsage": lambda handle: 71_500 + 1000 * handle,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=37, memory=5),
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980}[kind],
        "nvmlDeviceGetTemperature": lambda handle, kind: 41,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=1 << 30),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x1 | 0x20,
        "NVMLError": Failed,
    }
    missing = {key: refuse for key, value in answers.items() if value is None}
    return SimpleNamespace(**{**plain, **answers, **missing})


def rapl(root: Path, **names: str) -> None:
    for zone, name in names.items():
        folder = f"sys/class/powercap/intel-rapl:{zone.removeprefix('z').replace('_', ':')}"
        write(root, f"{folder}/name", name)
        write(root, f"{folder}/energy_uj", 1_000_000)
        write(root, f"{folder}/max_energy_range_uj", 262_143_328_850)


def later(clock: VirtualClock, seconds: float) -> None:
    clock._now_ns += round(seconds * 1e9)


def test_watts_of_a_package_are_joules_over_time_and_its_parts_are_inside(tmp_path: Path) -> None:
    rapl(tmp_path, z0="package-0", z0_0="core")
    clock = VirtualClock()
    gauges = rapl_gauges(tmp_path, clock)
    write(tmp_path, f"{ZONE}/energy_uj", 31_000_000)
    later(clock, 2.0)
    assert {name: reading.value for name, reading in read_gauges(gauges).items()} == {"power.package-0": 15.0}


def test_a_counter_that_wraps_around(tmp_path: Path) -> None:
    rapl(tmp_path, z0="package-0")
    write(tmp_path, f"{ZONE}/energy_uj", 262_143_328_850 - 4_000_000)
    clock = VirtualClock()
    gauges = rapl_gauges(tmp_path, clock)
    write(tmp_path, f"{ZONE}/energy_uj", 6_000_000)
    later(clock, 1.0)
    assert gauges["power.package-0"]().value == pytest.approx(10.0)


def test_the_platform_counts_instead_of_its_packages(tmp_path: Path) -> None:
    rapl(tmp_path, z0="package-0", z1="psys")
    assert list(rapl_gauges(tmp_path, VirtualClock())) == ["power.psys"]


def test_a_workstation_adds_gpus_and_packages_and_says_that_it_is_not_the_whole(tmp_path: Path) -> None:
    rapl(tmp_path, z0="package-0")
    clock = VirtualClock()
    meters = Meters(tmp_path, clock, nvml=lambda root: nvml_gauges(library(gpus=2)))
    write(tmp_path, f"{ZONE}/energy_uj", 31_000_000)
    later(clock, 2.0)
    sample = meters.sample()
    assert sample.power.value == pytest.approx(15.0 + 71.5 + 72.5)
    assert "not the complete machine" in sample.power.why
    assert (sample["gpu.load"].value, sample["gpu.clock"].value, sample["temperature.gpu"].value) == (37, 1.98e9, 41)
    assert (sample["throttle.gpu"].value, sample["power.gpu1"].value) == (1.0, 72.5)
    write(tmp_path, f"{ZONE}/energy_uj", 61_000_000)
    later(clock, 2.0)
    assert meters.sample().power.value == pytest.approx(15.0 + 71.5 + 72.5)


def test_thors_gpu_does_not_pass_for_the_module_when_its_rails_vanish(tmp_path: Path) -> None:
    plant(tmp_path, "thor")
    meters = Meters(tmp_path, VirtualClock(), nvml=lambda root: nvml_gauges(library("NVIDIA Thor")))
    assert meters.sample().power.value == pytest.approx(19.78)
    shutil.rmtree(tmp_path / "sys/class/hwmon")
    sample = meters.sample()
    assert (sample.power.kind, sample["power.gpu"].value) == ("unavailable", 71.5)
    assert "power: lost (rail VIN: not there)" in sample.notes


def test_on_thor_each_value_that_nvml_lacks_stands_alone() -> None:
    gaps = library("NVIDIA Thor", nvmlDeviceGetPowerUsage=None, nvmlDeviceGetMemoryInfo=lambda handle: None)
    readings = read_gauges(nvml_gauges(gaps))
    assert (readings["power.gpu"].kind, readings["power.gpu"].why) == ("unavailable", "Not Supported")
    assert readings["memory.gpu"].kind == "unavailable"
    assert readings["gpu.load"].value == 37


def test_orins_stub_is_no_gpu() -> None:
    assert nvml_gauges(library("Orin (nvgpu)")) == {}


def test_a_driver_without_its_python_package_says_what_to_install(tmp_path: Path) -> None:
    def missing() -> Any:
        raise ImportError("no pynvml")

    assert find_nvml(tmp_path, missing) == {}
    write(tmp_path, "proc/driver/nvidia/version", "NVRM version: 580")
    sample = Meters(tmp_path, VirtualClock(), nvml=lambda root: find_nvml(root, missing)).sample()
    assert "pip install nvidia-ml-py" in sample.power.why


def test_a_library_that_fails_says_why(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", "NVRM version: 580")
    broken = library(nvmlInit=None)
    assert find_nvml(tmp_path, lambda: broken)["power.gpu"]().why == "NVML: Not Supported"


def test_cpu_time_of_process_and_machine(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0")
    clock, busy = VirtualClock(), iter((0, 750_000_000))
    meter = CpuLoad(tmp_path, clock, lambda: next(busy))
    write(tmp_path, "proc/stat", "cpu  150 0 150 780 120 0 0 0 40 0")
    later(clock, 0.5)
    readings = meter.read()
    assert (readings["cpu.process"].value, readings["cpu.load"].value) == (1.5, 50.0)


def test_a_rate_over_no_time_is_no_rate(tmp_path: Path) -> None:
    readings = CpuLoad(tmp_path, VirtualClock(), lambda: 0).read()
    assert {reading.kind for reading in readings.values()} == {"unavailable"}
