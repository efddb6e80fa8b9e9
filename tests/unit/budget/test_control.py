import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgert.budget.control import Change, PowerControl, run_nvpmodel
from edgert.errors import BudgetError, DeviceError
from tests.helpers.errors import Exactly, raises
from tests.helpers.sysfs import plant, write

CONF = """
< PARAM TYPE=FILE NAME=TPC_POWER_GATING >
TPC_PG_MASK /sys/devices/gpu.0/tpc_pg_mask
< POWER_MODEL ID=0 NAME=MAXN >
TPC_POWER_GATING TPC_PG_MASK 0
# < POWER_MODEL ID=9 NAME=OLD >
GPU MAX_FREQ -1
< POWER_MODEL ID=2 NAME=25W >
TPC_POWER_GATING TPC_PG_MASK 0
GPU MAX_FREQ 408000000
< POWER_MODEL ID=3 NAME=10W >
TPC_POWER_GATING TPC_PG_MASK 240
< PM_CONFIG DEFAULT=2 >
"""
CAP = "/sys/class/devfreq/17000000.gpu/max_freq"


class Tool:
    """Stands for nvpmodel: notes what it is asked and does it."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, list[tuple[str, ...]]()

    def __call__(self, command: Sequence[str]) -> str:
        self.asked.append(tuple(command))
        write(self.root, "var/lib/nvpmodel/status", f"pmode:{int(command[-1]):04d}")
        return ""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    plant(tmp_path, "orin-nx-jp6")
    write(tmp_path, "etc/nvpmodel.conf", CONF)
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0000")
    return tmp_path


def cap(root: Path) -> str:
    return (root / CAP.lstrip("/")).read_text().strip()


def test_nothing_is_changed_without_consent(machine: Path) -> None:
    tool = Tool(machine)
    with PowerControl(root=machine, run=tool) as control:
        for change in (lambda: control.set_mode("25W"), lambda: control.cap_gpu(700_000_000)):
            with raises(BudgetError, "cannot change", fix="--allow-power-control"):
                change()
    assert (tool.asked, cap(machine)) == ([], "918000000")


def test_a_dry_run_tells_and_does_nothing(machine: Path) -> None:
    tool = Tool(machine)
    with PowerControl(dry_run=True, root=machine, run=tool) as control:
        control.set_mode("25W")
        control.cap_gpu(700_000_000)
        assert control.changes == (Change("mode", "MAXN", "25W"), Change(CAP, "918000000", "612000000"))
    assert (tool.asked, cap(machine)) == ([], "918000000")
    assert not (machine / "var/lib/edgert").exists()


def test_changes_are_undone_at_the_end_the_newest_first(machine: Path) -> None:
    tool = Tool(machine)
    with PowerControl(allow=True, root=machine, run=tool) as control:
        control.set_mode("25W")
        control.cap_gpu(700_000_000)
        assert cap(machine) == "612000000"
    assert (tool.asked, cap(machine)) == ([("nvpmodel", "-m", "2"), ("nvpmodel", "-m", "0")], "918000000")
    assert not (machine / "var/lib/edgert/power.json").exists()


def test_an_error_inside_undoes_them_too(machine: Path) -> None:
    with pytest.raises(KeyError), PowerControl(allow=True, root=machine, run=Tool(machine)) as control:
        control.cap_gpu(700_000_000)
        raise KeyError
    assert cap(machine) == "918000000"


def test_what_a_crash_left_is_undone_by_the_next(machine: Path) -> None:
    PowerControl(allow=True, root=machine, run=Tool(machine)).cap_gpu(400_000_000)
    assert cap(machine) == "306000000"
    with PowerControl(allow=True, root=machine, run=Tool(machine)) as control:
        assert cap(machine) == "918000000"
        assert control.changes == ()


def test_what_a_crash_left_can_be_told_without_consent_and_without_changing_it(machine: Path) -> None:
    assert PowerControl(root=machine).left() == ()
    PowerControl(allow=True, root=machine, run=Tool(machine)).cap_gpu(400_000_000)
    assert PowerControl(root=machine).left() == (Change(CAP, "918000000", "306000000"),)
    assert cap(machine) == "306000000" and (machine / "var/lib/edgert/power.json").is_file()


def test_what_a_living_process_changed_is_left_to_it(machine: Path) -> None:
    write(machine, "proc/77/stat", "77 (edgert) " + " ".join(["S"] + ["0"] * 18 + ["4711"]))
    text = {"pid": 77, "birth": "4711", "changes": [{"what": CAP, "before": "1", "after": "2"}]}
    write(machine, "var/lib/edgert/power.json", json.dumps(text))
    with pytest.raises(BudgetError, match="another edgert"):
        PowerControl(allow=True, root=machine, run=Tool(machine)).recover()
    assert PowerControl(root=machine).left() == ()
    write(machine, "proc/77/stat", "77 (cat) " + " ".join(["S"] + ["0"] * 18 + ["9999"]))
    assert PowerControl(allow=True, root=machine, run=Tool(machine)).recover() == (Change(CAP, "1", "2"),)


def test_a_damaged_journal_is_an_error_with_its_place(machine: Path) -> None:
    write(machine, "var/lib/edgert/power.json", "{")
    with pytest.raises(DeviceError, match=r"power\.json"):
        PowerControl(allow=True, root=machine).recover()


def test_a_mode_that_takes_a_reboot_is_refused(machine: Path) -> None:
    tool = Tool(machine)
    with raises(BudgetError, "will not switch to power mode 10W", why="reboot"):
        PowerControl(allow=True, root=machine, run=tool).set_mode("10W")
    assert tool.asked == []


@pytest.mark.parametrize("name", ["OLD", "40W"])
def test_an_unknown_mode_names_the_known(machine: Path, name: str) -> None:
    with raises(BudgetError, why=Exactly("modes: MAXN, 25W, 10W; now MAXN")):
        PowerControl(allow=True, root=machine).set_mode(name)


def test_a_cap_below_the_slowest_step(machine: Path) -> None:
    with raises(BudgetError, why=Exactly("the slowest step is 306000000 Hz")):
        PowerControl(allow=True, root=machine).cap_gpu(1000)


def test_a_tool_that_fails_leaves_nothing_to_undo(machine: Path) -> None:
    def fail(command: Sequence[str]) -> str:
        raise DeviceError("nvpmodel refused the power mode")

    control = PowerControl(allow=True, root=machine, run=fail)
    with pytest.raises(DeviceError):
        control.set_mode("25W")
    assert control.changes == ()
    assert not (machine / "var/lib/edgert/power.json").exists()


def test_nvpmodel_is_answered_no_and_its_refusal_is_told(tmp_path: Path) -> None:
    tool = tmp_path / "nvpmodel"
    tool.write_text(
        '#!/bin/sh\nread answer\necho "REBOOT? $answer"\n[ "$2" = 1 ] && echo "NVPM ERROR: no" >&2\nexit 0\n'
    )
    tool.chmod(0o755)
    assert "REBOOT? NO" in run_nvpmodel((str(tool), "-m", "0"))
    with raises(DeviceError, why=Exactly("NVPM ERROR: no")):
        run_nvpmodel((str(tool), "-m", "1"))
    with pytest.raises(DeviceError, match="cannot run nvpmodel"):
        run_nvpmodel((str(tmp_path / "missing"), "-m", "0"))


def test_on_a_machine_without_power_modes_or_gpu(tmp_path: Path) -> None:
    control = PowerControl(allow=True, root=tmp_path)
    with pytest.raises(BudgetError, match="cannot switch"):
        control.set_mode("25W")
    with pytest.raises(DeviceError, match="cannot cap the GPU clock"):
        control.cap_gpu(10**9)
