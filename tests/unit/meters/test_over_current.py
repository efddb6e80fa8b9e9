"""Over-current events, with the counts that a user published of an Orin Nano 8GB in MAXN_SUPER after an hour."""

from pathlib import Path

import pytest

from edgert.diagnosis import machine
from edgert.meters.all import Meters
from edgert.meters.over_current import OverCurrent, difference, listed
from tests.helpers.sysfs import over_current, plant, write
from tests.helpers.virtual_clock import VirtualClock
from tests.unit.diagnosis.evidence import evidence

AFTER_AN_HOUR = (0, 15, 27_390)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    plant(tmp_path, "orin-nano")
    over_current(tmp_path, 1, *AFTER_AN_HOUR)
    write(tmp_path, "proc/uptime", "3605.12 20000.00")
    return tmp_path


def meters(root: Path) -> Meters:
    return Meters(root, VirtualClock(), nvml=lambda root: {})


def test_a_sample_has_the_events_since_the_one_before(board: Path) -> None:
    watch = meters(board)
    over_current(board, 1, 0, 15, 27_398)
    first, second = watch.sample(), watch.sample()
    assert (first["throttle.current"].value, second["throttle.current"].value) == (8.0, 0.0)
    assert "oc3 (instantaneous power) 8" in first["throttle.current"].why
    assert second["throttle.events"].value == 27_413
    assert second["throttle.events"].why == "since boot: oc2 (average power) 15, oc3 (instantaneous power) 27398"


def test_alarms_of_the_moment_count_too(board: Path) -> None:
    watch = meters(board)
    write(board, "sys/class/hwmon/hwmon3/curr1_crit_alarm", 1)
    over_current(board, 1, 2, 15, 27_390)
    assert watch.sample()["throttle.current"].value == 3.0


def test_a_counter_that_starts_anew_is_no_negative_count() -> None:
    assert difference({"oc1": 3, "oc3": 9}, {"oc1": 5, "oc3": 4}) == {"oc1": 3, "oc3": 5}
    assert difference({"oc2": 7}, {}) == {"oc2": 0}
    assert listed({"oc1": 0, "oc6": 2}) == "oc6 2"


def test_counters_that_cannot_be_read_keep_the_rest(board: Path) -> None:
    write(board, "sys/class/hwmon/hwmon1/oc2_event_cnt", "not a number")
    assert OverCurrent(board).since_boot() == {"oc1": 0, "oc3": 27_390}
    watch = meters(board)
    for path in (board / "sys/class/hwmon/hwmon1").glob("oc*_event_cnt"):
        path.unlink()
    assert watch.sample()["throttle.current"].value == 0.0


def test_a_machine_without_the_driver_has_no_events(tmp_path: Path) -> None:
    plant(tmp_path, "orin-nx-jp5")
    sample = meters(tmp_path).sample()
    assert "throttle.events" not in sample.readings and sample["throttle.current"].value == 0.0
    assert OverCurrent(tmp_path).since_start() == {}


def test_doctor_says_how_often_since_boot(board: Path) -> None:
    found = machine.over_current(evidence(board))
    assert found.state == "optional"
    assert "in the 1.0 h since boot: oc2 (average power) 15, oc3 (instantaneous power) 27390 events" in found.detail
    assert "power mode" in found.fix
    over_current(board, 1, 0, 0, 0)
    assert machine.over_current(evidence(board)).state == "yes"


@pytest.mark.parametrize(("name", "detail"), [("orin-nano", "soctherm_oc"), ("", "not a Jetson")])
def test_doctor_without_the_driver(tmp_path: Path, name: str, detail: str) -> None:
    if name:
        plant(tmp_path, name)
    found = machine.over_current(evidence(tmp_path))
    assert found.state == "optional" and detail in found.detail
