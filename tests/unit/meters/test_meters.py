from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgert.meters import Reading, modeled
from edgert.meters.all import Meters
from tests.helpers.sysfs import hwmon, plant, write
from tests.helpers.virtual_clock import VirtualClock


def no_nvml(root: Path) -> str:
    return ""


def model() -> Reading:
    return modeled(7.0, "W", "cost model")


def meters(root: Path, clock: VirtualClock | None = None, with_model: bool = False) -> Meters:
    return Meters(root, clock or VirtualClock(), model if with_model else None, no_nvml)


def later(clock: VirtualClock, seconds: float) -> None:
    clock._now_ns += round(seconds * 1e9)


def rail(root: Path, number: int, *rails: tuple[str, int, int]) -> str:
    folder = hwmon(root, number, "ina3221")
    for channel, (name, millivolts, milliamperes) in enumerate(rails, 1):
        write(root, f"{folder}/in{channel}_label", name)
        write(root, f"{folder}/in{channel}_input", millivolts)
        write(root, f"{folder}/curr{channel}_input", milliamperes)
    return folder


def test_an_unknown_layout_is_listed_and_not_summed(tmp_path: Path) -> None:
    rail(tmp_path, 0, ("VDD_FOO", 5000, 1000), ("VDD_BAR", 5000, 200))
    sample = meters(tmp_path).sample()
    assert (sample["power.VDD_FOO"].value, sample["power.VDD_BAR"].value) == (5.0, 1.0)
    assert sample.power.value is None
    assert "VDD_FOO" in sample.power.why


def test_a_sum_with_a_rail_missing_is_no_sum(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    (tmp_path / "sys/class/hwmon/hwmon3/curr2_input").unlink()
    sample = meters(tmp_path).sample()
    assert sample.power.kind == "unavailable"
    assert "VDD_CPU_CV" in sample.power.why
    assert sample["power.VDD_GPU_SOC"].value == pytest.approx(3.2)


def test_thor_without_its_total_is_not_three_rails(tmp_path: Path) -> None:
    plant(tmp_path, "thor")
    shutil.rmtree(tmp_path / "sys/class/hwmon/hwmon3")
    assert meters(tmp_path).sample().power.kind == "unavailable"


def test_two_sensors_that_claim_one_rail_are_not_believed(tmp_path: Path) -> None:
    for number in (0, 1):
        rail(tmp_path, number, ("VDD_IN", 5000, 1000))
    sample = meters(tmp_path).sample()
    assert sample.power.kind == "unavailable"
    assert {"power.VDD_IN@hwmon0", "power.VDD_IN@hwmon1"} <= set(sample.readings)


def test_a_gated_rail_honestly_draws_nothing(tmp_path: Path) -> None:
    rail(tmp_path, 0, ("VDD_IN", 5000, 0))
    assert meters(tmp_path).sample().power.value == 0.0


@pytest.mark.parametrize(("file", "text"), [("in1_input", "900000"), ("curr1_input", "-9999999"), ("curr1_input", "x")])
def test_what_no_sensor_can_say_is_not_believed(tmp_path: Path, file: str, text: str) -> None:
    folder = rail(tmp_path, 0, ("VDD_IN", 5000, 1000))
    write(tmp_path, f"{folder}/{file}", text)
    sample = meters(tmp_path).sample()
    assert sample.power.kind == "unavailable"
    assert "reads" in sample.power.why


def test_a_meter_that_vanishes_is_replaced_by_the_model_and_both_are_told(tmp_path: Path) -> None:
    plant(tmp_path, "orin-nx-jp6")
    clock = VirtualClock()
    watch = meters(tmp_path, clock, with_model=True)
    assert watch.sample().power.kind == "measured"
    shutil.rmtree(tmp_path / "sys/class/hwmon/hwmon3")
    later(clock, 0.5)
    gone = watch.sample()
    assert (gone.power.kind, gone.power.value) == ("modeled", 7.0)
    assert any("modeled from now on" in note for note in gone.notes)
    later(clock, 0.5)
    assert watch.sample().notes == ()


def test_a_sensor_that_comes_back_under_another_number_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "orin-nx-jp6")
    clock = VirtualClock()
    watch = meters(tmp_path, clock, with_model=True)
    watch.sample()
    (tmp_path / "sys/class/hwmon/hwmon3").rename(tmp_path / "sys/class/hwmon/hwmon9")
    later(clock, 0.5)
    assert watch.sample().power.kind == "modeled"
    later(clock, 5.0)
    back = watch.sample()
    assert (back.power.kind, back.power.value) == ("measured", pytest.approx(5.3))
    assert any("power: now" in note for note in back.notes)


def test_over_current_and_heat_are_seen(tmp_path: Path) -> None:
    plant(tmp_path, "orin-nx-jp6")
    write(tmp_path, "sys/class/hwmon/hwmon3/curr1_crit_alarm", 1)
    write(tmp_path, "sys/class/thermal/cooling_device1/cur_state", 2)
    sample = meters(tmp_path).sample()
    assert (sample["throttle.current"].value, sample["throttle.heat"].value) == (1.0, 1.0)
    assert sample["temperature.margin"].value == pytest.approx(99.0 - 53.1)


def test_a_zone_that_is_off_is_no_error_and_no_temperature(tmp_path: Path) -> None:
    plant(tmp_path, "orin-nx-jp5")
    sample = meters(tmp_path).sample()
    assert (sample["temperature.cv0"].kind, sample["temperature.cv0"].why) == ("unavailable", "switched off")


def test_an_empty_machine_says_that_everything_is_unavailable(tmp_path: Path) -> None:
    sample = meters(tmp_path).sample()
    assert sample.power.kind == sample["gpu.load"].kind == sample["memory.total"].kind == "unavailable"
    assert '"kind"' in str(sample.to_json()).replace("'", '"')


def test_the_power_mode_follows_its_file(tmp_path: Path) -> None:
    write(tmp_path, "etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=2 NAME=15W >")
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0002")
    watch = meters(tmp_path)
    assert watch.sample().mode == "15W"
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0000")
    assert watch.sample().mode == "MAXN"


def test_the_containers_limit_and_use(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/box")
    write(tmp_path, "sys/fs/cgroup/box/memory.max", 2**30)
    write(tmp_path, "sys/fs/cgroup/box/memory.current", 2**20)
    sample = meters(tmp_path).sample()
    assert (sample["memory.limit"].value, sample["memory.used"].value) == (2**30, 2**20)
    write(tmp_path, "sys/fs/cgroup/box/memory.max", "max")
    assert meters(tmp_path).sample()["memory.limit"].why == "no limit"
