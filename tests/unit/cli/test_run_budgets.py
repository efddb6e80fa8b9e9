"""Budgets of ``edgert run`` as a user types them: memory, power, and the plan of a dry run."""

import json
from pathlib import Path

import pytest

from edgert.budget.control import PowerControl
from edgert.budget.footprint import Footprint, Part
from edgert.cli.run_here import show_memory, show_power_steps, warn_of_unrestored_settings
from edgert.errors import BudgetError
from tests.helpers.command import in_process
from tests.unit.planner.test_power_steps import machine, pipeline

FILE = ("run", "hello", "--set", "models.parts.precision=fp32")


def test_a_dry_run_shows_the_memory_plan_and_makes_nothing(tmp_path: Path) -> None:
    done = in_process(*FILE, "--dry-run", "--json", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "predicted peak" in done.stdout and "fits" in done.stdout
    plan = json.loads((tmp_path / "plan.json").read_text())["memory"]
    assert plan["total_bytes"] == sum(part["size_bytes"] for part in plan["parts"])
    assert {"runtime", "weights", "activations", "bindings", "frames", "encoder"} <= {
        part["kind"] for part in plan["parts"]
    }
    assert not (tmp_path / "out").exists()


def test_too_little_memory_is_exit_1_dry_or_not(tmp_path: Path) -> None:
    dry = in_process(*FILE, "--set", "budgets.memory=20MiB", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 1
    assert "does not fit" in dry.stdout and "made smaller: queues half as long" in dry.stdout
    real = in_process(*FILE, "--set", "budgets.memory=20MiB", cwd=tmp_path)
    assert real.returncode == 1
    assert "of memory, the budget has 20.0 MiB" in real.stderr and "budgets: {memory: " in real.stderr
    assert not (tmp_path / "out").exists()


def test_the_summary_tells_of_budgets_that_nothing_here_can_watch(tmp_path: Path) -> None:
    sets = ("--set", "budgets.power=15W", "--set", "stages.belt.limit=30")
    done = in_process(*FILE, *sets, "-q", "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    budgets = json.loads((tmp_path / "run.json").read_text())["budgets"]
    if budgets["governor"]["notes"]:  # a machine without a power sensor
        assert "budgets.power is not watched" in " ".join(done.stdout.split())
    assert budgets["governor"]["setting"] == "all frames"


def test_power_control_without_a_power_budget_or_a_board_is_refused(tmp_path: Path) -> None:
    none = in_process(*FILE, "--allow-power-control", cwd=tmp_path)
    assert none.returncode == 1
    assert (
        "no power budget to control" in none.stderr and "budgets: {power: 15W, when_exceeded: degrade}" in none.stderr
    )
    sets = ("--set", "budgets.power=15W", "--set", "budgets.when_exceeded=degrade")
    here = in_process(*FILE, *sets, "--allow-power-control", cwd=tmp_path)
    assert here.returncode == 1
    assert "cannot control the power of this machine" in here.stderr and "no plan for host" in here.stderr
    away = in_process(*FILE, *sets, "--allow-power-control", "--as", "orin-nx-16gb", cwd=tmp_path)
    assert away.returncode == 2
    assert not (tmp_path / "out").exists()


def test_a_dry_run_knows_of_power_control_and_refuses_another_board(tmp_path: Path) -> None:
    power = in_process(*FILE, "--dry-run", "--allow-power-control", cwd=tmp_path)
    assert power.returncode == 1 and "no power budget to control" in power.stderr
    away = in_process(*FILE, "--dry-run", "--as", "orin-nx-16gb", cwd=tmp_path)
    assert away.returncode == 2 and "edgert plan --board plans" in " ".join(away.stderr.split())


def test_an_emulated_board_says_what_it_keeps_and_how_slow_this_machine_was(tmp_path: Path) -> None:
    sets = ("--set", "stages.belt.limit=40", "--set", "budgets.latency=40ms", "--mode", "15W")
    done = in_process(*FILE, *sets, "--as", "orin-nx-16gb", "-q", "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run.json").read_text())
    figures = found["figures"]
    assert found["verdict"] == figures["verdict"] == "kept" and found["words"].startswith("kept, ")
    assert figures["p99_ms"] == found["latency_ms"]["p99"] < 40 and figures["fps"] == found["fps"]
    assert found["frames_out"] == 40 and found["seconds"] < 1.4  # of the board
    printed = " ".join(done.stderr.split())
    assert " W, " in printed and "to spare" in printed
    assert ("this machine cannot emulate" in printed) == (found["slower"] > 1.05)
    alone = in_process(*FILE, "--profile", "run.json", cwd=tmp_path)
    assert alone.returncode == 2 and "it goes with --as" in alone.stderr


def test_the_duration_of_an_emulation_is_the_boards(tmp_path: Path) -> None:
    done = in_process(*FILE, "--as", "orin-nx-16gb", "--duration", "1", "-q", "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 0.9 < json.loads((tmp_path / "run.json").read_text())["seconds"] < 2.5


MIB = 2**20
PARTS = (Part("process", "cpu", "runtime", 100 * MIB),)


@pytest.mark.parametrize(
    ("budget", "machine", "verdict"),
    [
        (None, 1000, "fits: at least 92.0 MiB of the machine's 1000.0 MiB, swap and all"),
        (None, 90, "does not fit: at least 92.0 MiB of the machine's 90.0 MiB, swap and all"),
        (None, 0, "fits: at least 92.0 MiB"),
        (120, 1000, "fits: 108.0 MiB with 8% to spare for the prediction's error, of the budget's 120.0 MiB"),
        (105, 1000, "does not fit: 108.0 MiB with 8% to spare for the prediction's error, of the budget's 105.0 MiB"),
        (120, 90, "does not fit: at least 92.0 MiB of the machine's 90.0 MiB, swap and all"),
    ],
)
def test_the_verdict_says_whose_limit_it_is(
    budget: int | None, machine: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_bytes = None if budget is None else budget * MIB
    show_memory(Footprint(PARTS, budget_bytes, machine * MIB, ("queues half as long: 1.0 MiB less",), 0.08))
    text = " ".join(capsys.readouterr().out.split())
    assert text.endswith(f"made smaller: queues half as long: 1.0 MiB less {verdict}")


CAP = "sys/class/devfreq/17000000.gpu/max_freq"


def test_what_a_crash_left_is_said_at_the_next_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = machine(tmp_path)
    warn_of_unrestored_settings(root)
    assert capsys.readouterr().err == ""
    PowerControl(allow=True, root=root).cap_gpu(612_000_000)
    warn_of_unrestored_settings(root)
    said = capsys.readouterr().err
    assert f"a crashed run left: /{CAP}: 918000000 -> 612000000" in said and "--allow-power-control" in said
    (root / "var/lib/edgert/power.json").write_text("{")
    warn_of_unrestored_settings(root)
    assert "power.json: " in capsys.readouterr().err


def test_a_dry_run_tells_every_change_and_makes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = machine(tmp_path, mode=0)
    steps = show_power_steps(pipeline(tmp_path), root, is_placed=False)
    assert [one["name"] for one in steps] == ["as it is now", "GPU at 612 MHz", "power mode 25W"]
    assert [one["changes"] for one in steps] == [[], [f"/{CAP}: 918000000 -> 612000000"], ["mode: MAXN -> 25W"]]
    said = capsys.readouterr().out
    assert "power: GPU at 612 MHz: " in said and "W predicted, mode: MAXN -> 25W" in said
    assert (root / CAP).read_text().strip() == "918000000"
    assert not (root / "var/lib/edgert").exists()


def test_a_dry_run_without_a_budget_to_keep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="no power budget to control"):
        show_power_steps(pipeline(tmp_path, "{latency: 9ms}"), machine(tmp_path), is_placed=False)
