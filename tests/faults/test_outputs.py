"""The reader of standard output goes away, a disk is full, or the run fails: the work and its numbers are kept."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, STDOUT
from unittest.mock import Mock, patch

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


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (lambda: np.empty(1 << 60, np.uint8), "not enough memory\n  why:   Unable to allocate 1.00 EiB"),
        (Mock(side_effect=RuntimeError("can't start new thread")), "the system cannot start more threads\n  why:   "),
        (Mock(side_effect=FileNotFoundError(2, "No usable temporary directory found in /tmp")), "no temporary file"),
        (Mock(side_effect=RuntimeError("something else")), ""),
    ],
)
def test_a_system_that_has_too_little_left_is_no_bug(
    fails: Callable[[], object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch.object(cli, "app", fails), pytest.raises(SystemExit) as ended:
        cli.main()
    errors = capsys.readouterr().err
    assert ended.value.code == (1 if said else 70) and errors.startswith(f"error: {said}") == bool(said), errors
    assert ("This is a bug in edgert" in errors, "fix: " in errors) == (not said, bool(said)), errors
