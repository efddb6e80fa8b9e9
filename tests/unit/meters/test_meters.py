"""Meters of a machine and of boards: power, energy, the process."""

import math
import resource
import shutil
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from edgert.meters import Reading, measured, modeled, peak_rss_bytes, rss_bytes, unavailable
from edgert.meters.all import Meters
from edgert.meters.energy import SENSOR_AVERAGE_S, Energy
from edgert.meters.reading import Gauge
from tests.helpers.sysfs import GPU_HZ, TREES, hwmon, plant, write
from tests.helpers.virtual_clock import VirtualClock


def no_nvml(root: Path) -> dict[str, Gauge]:
    return {}


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


def proc(root: Path, **files: str) -> Path:
    folder = root / "proc/self"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return root


def test_the_peak_is_the_systems_high_water_mark(tmp_path: Path) -> None:
    assert peak_rss_bytes(proc(tmp_path, status="Name:\tx\nVmPeak:\t9 kB\nVmHWM:\t  2048 kB\n")) == 2 * 2**20


@pytest.mark.parametrize("status", ["", "VmHWM:\tmany kB\n", "VmRSS:\t5 kB\n"])
def test_without_one_the_peak_is_what_getrusage_says(tmp_path: Path, status: str) -> None:
    known = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert known <= peak_rss_bytes(proc(tmp_path, status=status)) <= known * 2


def test_the_memory_held_now_is_counted_in_pages(tmp_path: Path) -> None:
    assert rss_bytes(proc(tmp_path, statm="900 30 5 1 0 9 0\n")) == 30 * resource.getpagesize()


@pytest.mark.parametrize("statm", ["", "900", "900 x"])
def test_without_it_the_peak_must_do(tmp_path: Path, statm: str) -> None:
    root = proc(tmp_path, statm=statm, status="VmHWM:\t2048 kB\n")
    assert rss_bytes(root) == peak_rss_bytes(root) == 2 * 2**20


def test_this_process_holds_something_and_never_more_than_its_peak() -> None:
    assert 0 < rss_bytes() <= peak_rss_bytes() * 1.05


S = 1_000_000_000


def test_joules_are_the_area_under_the_samples() -> None:
    energy = Energy()
    for second, watts in enumerate((10.0, 20.0, 20.0)):
        energy.add(second * S, measured(watts, "W", "x"))
    assert (energy.joules, energy.average_w, energy.recent_w(1.0)) == (35.0, 17.5, 20.0)
    assert energy.recent_w(1.5) == pytest.approx((20.0 + 7.5) / 1.5)


def test_time_without_a_sensor_is_missing_and_not_zero_watts() -> None:
    energy = Energy()
    for second, watts in enumerate((10.0, None, 10.0, 10.0)):
        energy.add(second * S, unavailable("W", "x", "gone") if watts is None else measured(watts, "W", "x"))
    assert (energy.joules, energy.covered_s, energy.missing_s, energy.average_w) == (10.0, 1.0, 2.0, 10.0)


def test_modeled_time_is_told_apart() -> None:
    energy = Energy()
    energy.add(0, measured(10.0, "W", "x"))
    energy.add(S, modeled(10.0, "W", "y"))
    assert (energy.modeled_s, energy.joules) == (1.0, 10.0)


def test_a_long_pause_is_not_guessed_and_time_that_stands_still_is_ignored() -> None:
    energy = Energy()
    for at in (0, 0, 60 * S):
        energy.add(at, measured(10.0, "W", "x"))
    assert (energy.joules, energy.missing_s, energy.recent_w(1.0), energy.average_w) == (0.0, 60.0, None, None)


@given(st.floats(0.3, 4.0), st.floats(0.0, math.tau))
def test_half_second_samples_of_an_averaging_sensor_give_the_energy_of_a_swinging_load(hz: float, phase: float) -> None:
    """A load between 5 and 15 W; the sensor says its mean over the last 0.43 s."""

    def spent_j(at_s: float) -> float:
        return 10.0 * at_s - 5.0 / (math.tau * hz) * math.cos(math.tau * hz * at_s + phase)

    energy = Energy()
    for look in range(121):
        at_s = look / 2
        watts = (spent_j(at_s) - spent_j(at_s - SENSOR_AVERAGE_S)) / SENSOR_AVERAGE_S
        energy.add(round(at_s * S), measured(watts, "W", "x"))
    assert energy.joules == pytest.approx(spent_j(60.0) - spent_j(0.0), rel=0.16)
    assert energy.covered_s == 60.0
