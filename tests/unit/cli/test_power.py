from __future__ import annotations

from pathlib import Path

import pytest

from edgert.budget.control import PowerControl
from edgert.cli.memory_plan import show_power_steps
from edgert.cli.run_here import warn_of_settings_left
from edgert.errors import BudgetError
from tests.unit.planner.test_power_steps import machine, pipeline

CAP = "sys/class/devfreq/17000000.gpu/max_freq"


def test_what_a_crash_left_is_said_at_the_next_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = machine(tmp_path)
    warn_of_settings_left(root)
    assert capsys.readouterr().err == ""
    PowerControl(allow=True, root=root).cap_gpu(612_000_000)
    warn_of_settings_left(root)
    said = capsys.readouterr().err
    assert f"a crashed run left: /{CAP}: 918000000 -> 612000000" in said and "--allow-power-control" in said
    (root / "var/lib/edgert/power.json").write_text("{")
    warn_of_settings_left(root)
    assert "power.json: " in capsys.readouterr().err


def test_a_dry_run_tells_every_change_and_makes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = machine(tmp_path, mode=0)
    told = show_power_steps(pipeline(tmp_path), root, is_placed=False)
    assert [one["name"] for one in told] == ["as it is now", "GPU at 612 MHz", "power mode 25W"]
    assert [one["changes"] for one in told] == [[], [f"/{CAP}: 918000000 -> 612000000"], ["mode: MAXN -> 25W"]]
    said = capsys.readouterr().out
    assert "power: GPU at 612 MHz: " in said and "W predicted, mode: MAXN -> 25W" in said
    assert (root / CAP).read_text().strip() == "918000000"
    assert not (root / "var/lib/edgert").exists()


def test_a_dry_run_without_a_budget_to_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="no power budget to control"):
        show_power_steps(pipeline(tmp_path, "{latency: 9ms}"), machine(tmp_path), is_placed=False)
