from dataclasses import replace
from pathlib import Path

import pytest

from edgert.budget.control import PowerControl
from edgert.config import PipelineFile, load_pipeline
from edgert.errors import BudgetError, DeviceError
from edgert.planner.simulation import levels_here, power_steps
from tests.helpers.errors import Exactly, raises
from tests.helpers.small_pipeline import TEXT, small_pipeline
from tests.helpers.sysfs import plant, write

CONF = """
< PARAM TYPE=FILE NAME=TPC_POWER_GATING >
TPC_PG_MASK /sys/devices/gpu.0/tpc_pg_mask
< POWER_MODEL ID=0 NAME=MAXN >
TPC_POWER_GATING TPC_PG_MASK 0
< POWER_MODEL ID=1 NAME=10W >
TPC_POWER_GATING TPC_PG_MASK 240
< POWER_MODEL ID=2 NAME=15W >
TPC_POWER_GATING TPC_PG_MASK 240
< POWER_MODEL ID=3 NAME=25W >
TPC_POWER_GATING TPC_PG_MASK 0
< PM_CONFIG DEFAULT=3 >
"""
KEEP = "{power: 9W, when_exceeded: degrade}"


def machine(folder: Path, mode: int = 3) -> Path:
    root = folder / "root"
    plant(root, "orin-nx-jp6")
    write(root, "etc/nvpmodel.conf", CONF)
    write(root, "var/lib/nvpmodel/status", f"pmode:{mode:04d}")
    return root


def pipeline(folder: Path, budgets: str = KEEP) -> PipelineFile:
    return load_pipeline(small_pipeline(folder, f"budgets: {budgets}\n{TEXT}"))


def test_the_board_as_it_is_then_slower_clocks_then_lower_modes_that_take_no_reboot(tmp_path: Path) -> None:
    root = machine(tmp_path, mode=0)
    steps = power_steps(pipeline(tmp_path), PowerControl(allow=True, root=root), root=root).steps
    assert [step.name for step in steps] == ["", "GPU at 612 MHz", "power mode 25W"]
    assert [(step.mode, step.gpu_hz) for step in steps] == [("", 0), ("", 612_000_000), ("25W", 0)]
    here, capped, lower = steps
    assert capped.headroom / here.headroom == pytest.approx(612 / 918)
    assert capped.power_w < here.power_w
    assert lower.headroom < here.headroom
    assert all(0 < step.idle_w <= step.power_w for step in steps)


def test_a_board_is_planned_with_every_model_that_may_take_another_s_place(tmp_path: Path) -> None:
    root, file = machine(tmp_path), pipeline(tmp_path)
    assert levels_here(file, root) == ()
    models = file.config.models
    (name,) = models
    other = models[name].model_copy(update={"placement": "gpu"})
    both = {name: models[name].model_copy(update={"degrade_to": "other"}), "other": other}
    varied = replace(file, config=file.config.model_copy(update={"models": both}))
    steps = levels_here(varied, root)
    assert len(steps) == 2 and all(0 < step.idle_w <= step.power_w for step in steps)
    assert levels_here(varied, tmp_path / "elsewhere") == ()
    both["other"] = other.model_copy(update={"placement": "cpu0"})
    assert levels_here(replace(file, config=file.config.model_copy(update={"models": both})), root) == ()


def test_modes_above_the_one_it_was_found_in_are_left_to_its_owner(tmp_path: Path) -> None:
    root = machine(tmp_path, mode=3)
    names = [s.name for s in power_steps(pipeline(tmp_path), PowerControl(allow=True, root=root), root=root).steps]
    assert names == ["", "GPU at 306 MHz"]


@pytest.mark.parametrize("budgets", ["{power: 9W}", "{cpu: 0.5, when_exceeded: degrade}", "{}"])
def test_without_a_power_budget_to_keep_there_is_nothing_to_control(tmp_path: Path, budgets: str) -> None:
    root = machine(tmp_path)
    with raises(BudgetError, "no power budget to control", where="small.yaml:1 budgets", fix="when_exceeded: degrade"):
        power_steps(pipeline(tmp_path, budgets), PowerControl(allow=True, root=root), root=root)


def test_another_machine_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="cannot control the power of this machine") as caught:
        power_steps(pipeline(tmp_path), PowerControl(allow=True, root=tmp_path), root=tmp_path)
    assert caught.value.why == "there is no plan for host in power mode unknown"
    assert "leave it out here" in caught.value.fix


def test_a_journal_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    root = machine(tmp_path)
    write(root, "var/lib/edgert", "a file where the folder should be")
    with raises(DeviceError, r"cannot write .*power\.json", fix=Exactly("run as root")):
        power_steps(pipeline(tmp_path), PowerControl(allow=True, root=root), root=root)
