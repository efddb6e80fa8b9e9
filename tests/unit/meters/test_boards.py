from __future__ import annotations

from pathlib import Path

import pytest

from edgert.meters.all import Meters
from tests.helpers.sysfs import GPU_HZ, TREES, plant
from tests.helpers.virtual_clock import VirtualClock


def no_nvml(root: Path) -> str:
    return ""


@pytest.mark.parametrize("name", TREES)
def test_a_boards_power_is_that_of_its_module_and_nothing_is_counted_twice(tmp_path: Path, name: str) -> None:
    tree = plant(tmp_path, name)
    sample = Meters(tmp_path, VirtualClock(), nvml=no_nvml).sample()
    assert sample.power.kind == "measured"
    assert sample.power.value == pytest.approx(tree.watts)
    rails = {rail for sensor in tree.sensors for rail, _, _ in sensor.rails} - {"NC"}
    assert {key for key in sample.readings if key.startswith("power.")} == {f"power.{rail}" for rail in rails}


@pytest.mark.parametrize("name", TREES)
def test_clock_load_heat_and_dla_of_every_board(tmp_path: Path, name: str) -> None:
    tree = plant(tmp_path, name)
    sample = Meters(tmp_path, VirtualClock(), nvml=no_nvml).sample()
    assert sample["gpu.clock"].value == GPU_HZ
    assert sample["gpu.load"].value == (43.1 if tree.load else None)
    assert [sample[f"dla{core}.powered"].value for core in (0, 1)] == ([1.0, 0.0] if tree.dla else [None, None])
    plausible = [degrees for zone, degrees in tree.zones if zone != "PMIC-Die"]
    assert sample["temperature"].value == pytest.approx(max(plausible))
    assert not any("pmic" in key for key in sample.readings)
    assert (sample["throttle.heat"].value, sample["memory.available"].value) == (0.0, 4_000_000 * 1024)
    assert (sample["memory.nvmap"].value == 524288 * 1024) == bool(tree.meminfo)


def test_thors_memory_clock_needs_no_root_and_video_has_its_own(tmp_path: Path) -> None:
    plant(tmp_path, "thor")
    sample = Meters(tmp_path, VirtualClock(), nvml=no_nvml).sample()
    assert (sample["emc.clock"].value, sample["gpu.video_clock"].value) == (2.75e9, 1.692e9)


def test_every_reading_says_where_it_is_from_or_why_it_is_not_there(tmp_path: Path) -> None:
    plant(tmp_path, "orin-nx-jp6")
    sample = Meters(tmp_path, VirtualClock(), nvml=no_nvml).sample()
    assert all(reading.source for reading in sample.readings.values())
    assert all(reading.why for reading in sample.readings.values() if reading.kind == "unavailable")
    assert sample["emc.clock"].value is None
    assert sample["no.such"].kind == "unavailable"
