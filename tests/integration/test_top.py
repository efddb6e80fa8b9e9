"""``edgert top`` beside pipelines that run: seen with nothing to set up, gone when they are."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import edgert
from edgert.assemble import Environment
from edgert.control.client import RunningPipeline, running_pipelines
from edgert.errors import DeviceError
from edgert.pipeline import pipeline_in
from tests.helpers.command import edgert as run, free_port, start
from tests.helpers.waiting import wait_until

TEXT = """\
name: NAME
budgets: {latency: 10s}
stages:
  belt: {source: "synthetic:noise", size: 64x48, realtime: true, fps: 30}
  out: {sink: "null", from: belt}
"""


def write(folder: Path, name: str, text: str = TEXT) -> str:
    (folder / f"{name}.yaml").write_text(text.replace("NAME", name))
    return f"{name}.yaml"


def found(pid: int) -> list[RunningPipeline]:
    return [one for one in running_pipelines() if one.pid == pid]


def until(pid: int, count: int) -> list[RunningPipeline]:
    """What a process shows, as soon as there are so many pipelines of it."""
    wait_until(lambda: len(found(pid)) == count)
    return found(pid)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    path = write(tmp_path, "other", TEXT.replace("10s", "10s, memory: 4GiB"))
    process = start("run", path, "-q", cwd=tmp_path)
    yield process
    process.kill()
    process.wait(10)


def rows(*arguments: str, cwd: Path) -> list[dict[str, Any]]:
    done = run("top", "--json", "-", "--once", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    shown: list[dict[str, Any]] = json.loads(done.stdout)["pipelines"]
    return shown


def test_two_pipelines_are_seen_and_one_that_is_killed_is_gone(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    assert until(other.pid, 1)
    with edgert.Pipeline(tmp_path / write(tmp_path, "mine")) as pipeline:
        pipeline.start()
        shown = {row["at"]: row for row in rows(cwd=tmp_path)}
        mine, others = shown[f"process {os.getpid()}"], shown[f"process {other.pid}"]
        assert (mine["name"], others["name"]) == ("mine", "other")
        assert others["file"] == str(tmp_path / "other.yaml") and others["stats"]["frames_out"] > 0
        assert others["stats"]["promised"] == {"latency": 10.0, "memory": 4 * 2**30, "when_exceeded": "warn"}
        assert others["stats"]["budgets"]["governor"]["setting"] == "all frames"
        assert others["stats"]["budgets"]["memory"]["fits"]
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        left = {row["at"] for row in rows(cwd=tmp_path)}  # those of tests that run beside this one, too
        assert f"process {os.getpid()}" in left and f"process {other.pid}" not in left
    assert found(os.getpid()) == []


def test_a_stopped_process_is_said_not_to_answer(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    assert until(other.pid, 1)
    other.send_signal(signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(other.pid, os.WUNTRACED)[1]), "until all of its threads stand still"
    (one,) = found(other.pid)
    other.send_signal(signal.SIGCONT)
    assert one.state == "does not answer"


def test_two_pipelines_of_one_process_are_two_until_each_ends(tmp_path: Path) -> None:
    with edgert.Pipeline(tmp_path / write(tmp_path, "one")) as one:
        one.start()
        with edgert.Pipeline(tmp_path / write(tmp_path, "two")) as two:
            assert len(found(os.getpid())) == 1  # it has not begun
            two.start()
            assert len(found(os.getpid())) == 2
        assert [now.state["name"] for now in found(os.getpid()) if not isinstance(now.state, str)] == ["one"]
    assert found(os.getpid()) == []


def test_a_live_page_anywhere_shows_the_same_figures(tmp_path: Path) -> None:
    port = free_port()
    page = TEXT.replace('sink: "null"', f"sink: http, port: {port}")
    url = f"http://127.0.0.1:{port}"
    with edgert.Pipeline(tmp_path / write(tmp_path, "page", page)) as pipeline:
        pipeline.start()
        here = {row["at"]: row for row in rows(cwd=tmp_path)}[f"process {os.getpid()}"]["stats"]
        (board,) = json.loads(run("top", "--json", "-", "--once", url, cwd=tmp_path).stdout)["boards"]
    there = board["stats"]
    assert board["at"] == url and set(here) == set(there)
    assert there["frames_out"] > 0 and there["promised"] == here["promised"]


def test_no_password_is_told(tmp_path: Path) -> None:
    text = TEXT.replace('"synthetic:noise", size: 64x48, realtime: true,', '"rtsp://me:hunter2@127.0.0.1:1/x",')
    path = tmp_path / write(tmp_path, "secret", text)
    with suppress(DeviceError), edgert.Pipeline(path) as pipeline:  # nobody listens there, which may be known by then
        pipeline.start()
        (one,) = found(os.getpid())
    assert not isinstance(one.state, str) and "hunter2" not in json.dumps(one.state)


def test_what_runs_in_the_place_of_a_board_says_so(tmp_path: Path) -> None:
    with pipeline_in(Environment(label="simulated orin-nx-16gb"), tmp_path / write(tmp_path, "as")) as pipeline:
        pipeline.start()
        shown = [row["label"] for row in rows(cwd=tmp_path) if row["at"] == f"process {os.getpid()}"]
    assert shown == ["simulated orin-nx-16gb"]
