"""``edgert plan`` as a user types it."""

import json
from pathlib import Path

from tests.helpers.command import in_process


def test_the_demo_on_one_board(tmp_path: Path) -> None:
    arguments = ("--board", "orin-nx-16gb", "--mode", "15w")
    done = in_process("plan", "hello", *arguments, "--objective", "throughput", "--json", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "keeps up with 30 frames a second" in done.stdout and "not measured" in done.stdout
    board = json.loads((tmp_path / "plan.json").read_text())["boards"][0]
    assert {row["placement"] for row in board["rows"]} == {"gpu", "dla", "mixed"}
    on_dla = "--set", "models.parts.placement={replicate: {gpu: 1, dla0: 1}}", "--report", "plan.html"
    assert in_process("plan", "hello", *arguments, *on_dla, cwd=tmp_path).returncode == 0
    assert "<svg" in (tmp_path / "plan.html").read_text()


def test_a_budget_that_nothing_keeps_is_exit_1_with_advice(tmp_path: Path) -> None:
    done = in_process("plan", "hello", "--board", "orin-nano-4gb", "--set", "budgets.power=1W", cwd=tmp_path)
    assert done.returncode == 1
    assert "closest" in done.stdout and "power:" in done.stdout


def test_mistakes_name_what_is_near(tmp_path: Path) -> None:
    board = in_process("plan", "hello", "--board", "orin-nx", cwd=tmp_path)
    assert board.returncode == 1 and "orin-nx-" in board.stderr
    mode = in_process("plan", "hello", "--board", "orin-nx-16gb", "--mode", "20W", cwd=tmp_path)
    assert mode.returncode == 1 and "15W" in mode.stderr
    objective = in_process("plan", "hello", "--board", "orin-nx-16gb", "--objective", "speed", cwd=tmp_path)
    assert objective.returncode == 1 and "throughput, latency, energy" in objective.stderr
    none = in_process("plan", "hello", cwd=tmp_path)
    assert none.returncode == 1 and "cannot plan without a board" in none.stderr


def test_kernels_that_a_cpu_starts_take_longer_than_a_graph(tmp_path: Path) -> None:
    p50_ms = {}
    for launch in ("graph", "kernels"):
        options = ("--board", "orin-nx-16gb", "--mode", "15W", "--launch", launch, "--json", "p.json")
        assert in_process("plan", "hello", *options, cwd=tmp_path).returncode == 0
        rows = json.loads((tmp_path / "p.json").read_text())["boards"][0]["rows"]
        p50_ms[launch] = next(row["p50_ms"] for row in rows if row["placement"] == "gpu")
    assert p50_ms["kernels"] > p50_ms["graph"]
    unknown = in_process("plan", "hello", "--board", "orin-nx-16gb", "--launch", "kernel", cwd=tmp_path)
    assert unknown.returncode == 1 and "did you mean 'kernels'" in unknown.stderr
