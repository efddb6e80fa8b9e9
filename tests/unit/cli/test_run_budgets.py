"""Budgets of ``edgert run`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command import in_process

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
    told = json.loads((tmp_path / "run.json").read_text())["budgets"]
    if told["governor"]["notes"]:  # a machine without a power sensor
        assert "budgets.power is not watched" in " ".join(done.stdout.split())
    assert told["governor"]["setting"] == "all frames"


def test_power_control_without_a_power_budget_or_a_board_is_refused(tmp_path: Path) -> None:
    none = in_process(*FILE, "--allow-power-control", cwd=tmp_path)
    assert none.returncode == 1
    assert (
        "no power budget to control" in none.stderr and "budgets: {power: 15W, when_exceeded: degrade}" in none.stderr
    )
    sets = ("--set", "budgets.power=15W", "--set", "budgets.when_exceeded=degrade")
    here = in_process(*FILE, *sets, "--allow-power-control", cwd=tmp_path)
    assert here.returncode == 1
    assert "cannot control the power of this machine" in here.stderr and "it is host" in here.stderr
    away = in_process(*FILE, *sets, "--allow-power-control", "--as", "orin-nx-16gb", cwd=tmp_path)
    assert away.returncode == 2
    assert not (tmp_path / "out").exists()


def test_a_dry_run_knows_of_power_control_and_refuses_another_board(tmp_path: Path) -> None:
    power = in_process(*FILE, "--dry-run", "--allow-power-control", cwd=tmp_path)
    assert power.returncode == 1 and "no power budget to control" in power.stderr
    away = in_process(*FILE, "--dry-run", "--as", "orin-nx-16gb", cwd=tmp_path)
    assert away.returncode == 2 and "edgert plan --board plans" in " ".join(away.stderr.split())


@pytest.mark.timing
def test_an_emulated_board_says_what_it_keeps_and_how_slow_this_machine_was(tmp_path: Path) -> None:
    sets = ("--set", "stages.belt.limit=40", "--set", "budgets.latency=40ms", "--mode", "15W")
    done = in_process(*FILE, *sets, "--as", "orin-nx-16gb", "-q", "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "run.json").read_text())
    figures = found["figures"]
    assert found["verdict"] == figures["verdict"] == "kept" and found["words"].startswith("kept, ")
    assert figures["p99_ms"] == found["latency_ms"]["p99"] < 40 and figures["fps"] == found["fps"]
    assert found["frames_out"] == 40 and found["seconds"] < 1.4  # of the board
    told = " ".join(done.stderr.split())
    assert " W, " in told and "to spare" in told
    assert ("this machine cannot emulate" in told) == (found["slower"] > 1.05)
    alone = in_process(*FILE, "--profile", "run.json", cwd=tmp_path)
    assert alone.returncode == 2 and "it goes with --as" in alone.stderr


@pytest.mark.timing
def test_the_duration_of_an_emulation_is_the_boards(tmp_path: Path) -> None:
    done = in_process(*FILE, "--as", "orin-nx-16gb", "--duration", "1", "-q", "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 0.9 < json.loads((tmp_path / "run.json").read_text())["seconds"] < 2.5
