"""Steps of a power budget, and the modeled power of a board without a sensor."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgert.assemble.governing import Cost, power_model, rules_of
from edgert.assemble.run_settings import PowerStep, PowerSteps, pareto_optimal, run_settings, with_clock_steps
from edgert.budget.control import PowerControl
from edgert.budget.governor import Governor
from edgert.budget.rules import Setting
from edgert.config.pipeline_file import BudgetConfig
from edgert.meters.all import Meters
from tests.helpers.sysfs import plant, write
from tests.helpers.virtual_clock import VirtualClock

CONF = "< POWER_MODEL ID=0 NAME=MAXN >\nGPU MAX_FREQ -1\n< POWER_MODEL ID=2 NAME=15W >\nGPU MAX_FREQ 408000000\n"
CAP = "sys/class/devfreq/17000000.gpu/max_freq"
FOUND = PowerStep("", 14.0, 5.0, 2.0, 20.0)
CAPPED = PowerStep("GPU at 612 MHz", 11.0, 5.0, 1.3, 30.0, gpu_hz=612_000_000)
LOWER = PowerStep("power mode 15W", 7.0, 4.0, 0.5, 60.0, mode="15W")
STEPS = (FOUND, CAPPED, LOWER)
COSTS = [Cost({"door": 30.0}, None, 12.0)]


def test_steps_are_taken_one_at_a_time_and_restored(tmp_path: Path) -> None:
    plant(tmp_path, "orin-nx-jp6")
    write(tmp_path, "etc/nvpmodel.conf", CONF)
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0000")
    asked = []

    def tool(command: Sequence[str]) -> str:
        asked.append(command[-1])
        write(tmp_path, "var/lib/nvpmodel/status", f"pmode:{int(command[-1]):04d}")
        return ""

    with PowerControl(allow=True, root=tmp_path, run=tool) as control:
        steps = PowerSteps(STEPS, control)
        found = []
        for step in (FOUND, CAPPED, CAPPED, LOWER, CAPPED, FOUND, LOWER):
            steps.take(step)
            found.append((int((tmp_path / CAP).read_text()), len(control.changes)))
    most, capped = 918_000_000, 612_000_000
    assert found == [(most, 0), (capped, 1), (capped, 1), (most, 1), (capped, 1), (most, 0), (most, 1)]
    assert asked == ["2", "0", "2", "0"]
    assert not (tmp_path / "var/lib/edgert/power.json").exists()


def test_power_of_a_step_goes_with_the_frames_that_it_sustains() -> None:
    assert [FOUND.drawn_w(share) for share in (1.0, 0.5, 0.0)] == pytest.approx([14.0, 9.5, 5.0])
    assert [LOWER.drawn_w(share) for share in (1.0, 0.5, 0.25)] == pytest.approx([7.0, 7.0, 5.5])
    assert LOWER.sustained(0.25) == 1.0
    assert LOWER.drawn_w(1.0, 0.25) == pytest.approx(4.0 + 6.0 * 0.25)


@pytest.mark.parametrize(
    ("cap_w", "name"), [(15.0, "all frames"), (12.0, "all frames, GPU at 612 MHz"), (7.5, "all frames, power mode 15W")]
)
def test_clocks_come_before_fewer_frames(cap_w: float, name: str) -> None:
    found = with_clock_steps(run_settings(("door",)), STEPS)
    budgets = BudgetConfig.model_validate({"power": f"{cap_w}W", "when_exceeded": "degrade"})
    rules = rules_of(budgets, found, COSTS)
    kept = tuple(found[index] for index in pareto_optimal(rules.settings))
    rules = rules_of(budgets, kept, COSTS)
    assert rules.settings[Governor(rules).start().index].name == name


def test_only_what_nothing_beats_is_worth_a_look_and_the_first_in_any_case() -> None:
    settings = [Setting(name, power_w, hz) for name, power_w, hz in _SETTINGS]
    assert [settings[index].name for index in pareto_optimal(settings)] == ["first", "best", "frugal"]


_SETTINGS = (
    ("first", 20.0, 30.0),
    ("best", 15.0, 30.0),
    ("worse", 16.0, 25.0),
    ("same", 15.0, 30.0),
    ("frugal", 5.0, 9),
)


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
