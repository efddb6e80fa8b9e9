"""Whoever reads what is printed goes away, a disk is full, or the run fails: the work and its numbers are kept."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import numpy as np
import pytest

from edgert import cli

FILE = """
schema: 1
name: counted
stages:
  cam: {source: "synthetic:noise", size: 64x48, fps: 15, limit: 90}
  bad: {python: "own:Stage", from: cam}
  out: {sink: jsonl, path: out.jsonl, from: bad}
"""
OWN = """
class Stage:
    def __call__(self, result):
        if result.frame.index == LAST:
            raise ValueError("no such thing")
        return result
"""


def edgert(*arguments: str, cwd: Path, **more: object) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "edgert", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": root},
        text=True,
        check=False,
        timeout=60,
        **more,
    )


@pytest.mark.parametrize("arguments", [("boards",), ("--help",)])
def test_a_full_disk_behind_standard_output_is_an_error(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = edgert(*arguments, cwd=tmp_path, stdout=full, stderr=PIPE)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["error: cannot write to standard output: No space left on device"]


def test_no_reader_of_progress_stops_a_run(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(FILE)
    (tmp_path / "own.py").write_text(OWN.replace("LAST", "-1"))
    command = [sys.executable, "-m", "edgert", "run", "p.yaml", "--plain", "--json", "summary.json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=PIPE, stderr=STDOUT, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60.0) in (0, 1)  # the summary for people reached nobody
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 90
    assert json.loads((tmp_path / "summary.json").read_text())["frames_out"] == 90


def test_a_run_that_fails_writes_its_summary(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(FILE)
    (tmp_path / "own.py").write_text(OWN.replace("LAST", "20"))
    done = edgert("run", "p.yaml", "--json", "summary.json", cwd=tmp_path, capture_output=True)
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "summary.json").read_text())
    assert "no such thing" in done.stderr
    assert found["frames_out"] <= 20
    assert "no such thing" in found["error"]["what"] + found["error"]["why"]
    assert "out" in done.stdout  # the table of stages


def test_too_little_memory_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def app() -> None:
        np.empty(1 << 60, np.uint8)

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "bug" not in said
    assert said.startswith("error: not enough memory\n  why:   Unable to allocate 1.00 EiB")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RuntimeError("can't start new thread"),
            "the system cannot start more threads\n  why:   can't start new thread",
        ),
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), "no temporary file can be written"),
    ],
)
def test_too_few_threads_and_a_full_disk_are_no_bugs(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "bug" not in said
    assert said.startswith(f"error: {message}\n  ") and "  fix: " in said


def test_any_other_runtime_error_is_a_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def app() -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 70 and "This is a bug in edgert" in capsys.readouterr().err
