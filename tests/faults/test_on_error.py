"""A stage that fails in a run: the others go on, it is opened again, and the exit code says how it ended."""

import contextlib
import json
import re
import subprocess
import sys
import weakref
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import numpy as np
import pytest

from edgert import Pipeline
from edgert.errors import StageError
from tests.faults.test_outputs import edgert
from tests.helpers.growth import no_collector

FILE = """
schema: 1
name: troubled
stages:
  cam: {source: "synthetic:noise", size: 64x48, fps: 200, limit: 200, realtime: true}
  kept: {sink: jsonl, path: kept.jsonl, from: cam, drop: never}
  bad: {BAD, from: cam, drop: never}
"""
OWN = """
made = 0
class Fails:
    def __init__(self, last):
        global made
        made += 1
        self.number, self.last = made, last
    def __call__(self, result):
        if self.number < self.last:
            raise OSError("the server is gone")
"""


@pytest.mark.parametrize(
    ("bad", "code", "said"),
    [
        ("sink: jsonl, path: /dev/full", 1, "down at the end: cannot write /dev/full: No space left on device"),
        ("sink: jsonl, path: /dev/full, on_error: drop", 1, "it is closed for good"),
        ("python: 'own:Fails', args: {last: 2}, on_error: restart", 0, "works again"),
        ("python: 'own:Fails', args: {last: 99}, on_error: log", 0, "bad: failed 200 times"),
        ("python: 'own:Fails', args: {last: 99}", 1, "own.py:10 in __call__"),
    ],
)
def test_who_goes_on_and_how_it_ends(bad: str, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(FILE.replace("BAD", bad))
    (tmp_path / "own.py").write_text(OWN)
    done = edgert("run", "p.yaml", "--plain", "--json", "s.json", cwd=tmp_path, stdout=PIPE, stderr=STDOUT)
    assert done.returncode == code and said in re.sub(r"\s+", " ", done.stdout), done.stdout
    lines = (tmp_path / "kept.jsonl").read_text().splitlines()
    summary = json.loads((tmp_path / "s.json").read_text())
    if "on_error" not in bad and "python" in bad:
        assert "own.py:10 in __call__" in summary["error"]["why"]
        return
    assert [json.loads(line)["frame"] for line in lines] == list(range(200))
    stage = summary["stages"]["bad"]
    assert stage["errors"] >= 1 and stage["dropped"] >= 1 and bool(stage["failing"]) == bool(code)
    assert stage["results_in"] + stage["dropped"] == 200


def test_a_reader_of_the_log_may_go_away_while_something_is_logged(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(FILE.replace("BAD", "python: 'own:Fails', args: {last: 99}, on_error: log"))
    slow = "import time; time.sleep(0.002)\n        if result.frame.index > 50:"
    late = OWN.replace("if self.number < self.last:", slow)
    (tmp_path / "own.py").write_text(late)
    command = [sys.executable, "-m", "edgert", "run", "p.yaml", "--plain", "--json", "s.json"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=PIPE, stdout=subprocess.DEVNULL) as run:
        assert run.stderr is not None and run.stderr.readline()
        run.stderr.close()
        assert run.wait(60) == 0
    stages = json.loads((tmp_path / "s.json").read_text())["stages"]
    assert stages["bad"]["errors"] == 149 and stages["kept"]["results_in"] == 200


@pytest.mark.parametrize("how", ["started", "called", "closing"])
def test_a_pipeline_that_ended_by_an_error_is_freed_at_once(how: str, tmp_path: Path) -> None:
    """And not when Python's garbage collector comes by, which holds a GPU's memory until then."""
    source = "api" if how != "started" else "'synthetic:noise', size: 64x48, limit: 9"
    (tmp_path / "p.yaml").write_text(
        f"stages:\n  cam: {{source: {source}}}\n  bad: {{python: 'gone_by_itself:{how.title()}', from: cam}}\n"
    )
    (tmp_path / "gone_by_itself.py").write_text(
        "class Started:\n  def __call__(self, result):\n    raise OSError('gone')\nclass Called(Started): pass\n"
        "class Closing:\n  def __call__(self, result):\n    pass\n  def close(self):\n    raise OSError('gone')\n"
    )

    def fails() -> weakref.ref[Any]:
        with contextlib.suppress(StageError), Pipeline(tmp_path / "p.yaml") as pipeline:
            seen.append(weakref.ref(pipeline))
            stages.append(weakref.ref(pipeline._assembly.task("bad").stage))
            if how == "started":
                pipeline.run()
            pipeline(np.zeros((48, 64, 3), np.uint8))
        with pytest.raises(StageError, match="OSError: gone"):
            pipeline.close()
        return seen[-1]

    seen, stages = list[weakref.ref[Any]](), list[weakref.ref[Any]]()
    with no_collector():
        assert fails()() is None and stages[0]() is None
