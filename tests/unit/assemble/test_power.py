import shutil
from pathlib import Path

import pytest

from edgert.assemble.governing import power_model
from edgert.meters.all import Meters
from tests.helpers.sysfs import plant
from tests.helpers.virtual_clock import VirtualClock


def test_a_board_without_its_sensor_has_modeled_power_that_grows_with_the_gpus_load(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    model = power_model(VirtualClock(), tmp_path)
    assert model is not None
    (load,) = [path for path in tmp_path.rglob("load") if path.read_text().strip().isdigit()][:1]
    load.write_text("0")
    idle = model()
    load.write_text("1000")
    busy = model()
    assert (idle.kind, idle.unit, idle.source) == ("modeled", "W", "cost model of agx-orin-64gb")
    assert idle.value is not None and busy.value is not None and 0 < idle.value < busy.value
    assert busy.why == "without CPU cores"


@pytest.mark.timing
def test_modeled_power_grows_with_the_processors_load(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    stat = tmp_path / "proc/stat"
    stat.parent.mkdir(exist_ok=True)
    stat.write_text("cpu  100 0 100 800 0 0 0 0 0 0\n")
    model = power_model(VirtualClock(), tmp_path)
    assert model is not None
    stat.write_text("cpu  100 0 100 1800 0 0 0 0 0 0\n")
    calm = model()
    stat.write_text("cpu  900 0 300 1800 0 0 0 0 0 0\n")
    busy = model()
    assert calm.why == busy.why == ""
    assert calm.value is not None and busy.value is not None and busy.value > calm.value + 1


def test_meters_fall_back_on_it_and_a_workstation_has_none(tmp_path: Path) -> None:
    plant(tmp_path, "agx-orin-jp6")
    for folder in tmp_path.rglob("hwmon*"):
        if folder.is_dir() and any(folder.glob("**/curr*_input")):
            shutil.rmtree(folder, ignore_errors=True)
    clock = VirtualClock()
    assert Meters(tmp_path, clock, power_model(clock, tmp_path)).sample().power.kind == "modeled"
    assert power_model(VirtualClock(), tmp_path / "empty") is None
