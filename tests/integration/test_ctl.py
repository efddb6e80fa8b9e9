"""``edgert ctl`` beside a run: shown, changed, saved, and an error where there is no such run."""

import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgert.control import client
from tests.helpers.command import in_process, start
from tests.helpers.waiting import wait_until

TEXT = """\
name: belt
stages:
  belt: {source: "synthetic:noise", size: 64x48, realtime: true, fps: 30}
  draw: {draw: [boxes], from: belt}
  out: {sink: "null", from: draw}
"""


def alone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have only runs of this folder be found: other tests run pipelines at the same time."""
    monkeypatch.setattr(client, "socket_folders", lambda: (folder / "edgert",))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    alone(monkeypatch, tmp_path)
    (tmp_path / "belt.yaml").write_text(TEXT)
    process = start("run", "belt.yaml", "--quiet", cwd=tmp_path)
    try:
        wait_until(lambda: (tmp_path / "edgert" / "belt.sock").exists(), 30)
        yield tmp_path
    finally:
        os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert list((tmp_path / "edgert").iterdir()) == []


def test_a_run_is_shown_changed_and_saved(folder: Path) -> None:
    def ctl(*words: str) -> str:
        ended = in_process("ctl", *words, cwd=folder)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    assert "belt: running" in ctl() and "'stages.draw.draw=[\"boxes\"]'" in ctl("--name", "belt", "show")
    assert ctl("set", "stages.draw.draw=[stats]") == 'stages.draw.draw: ["boxes"] -> ["stats"]\n'
    assert ctl("set", "budgets.latency=1500ms") == "budgets.latency: none -> 1.5s\n"
    assert ctl("set", "budgets.memory=1.5GiB") == "budgets.memory: none -> 1536MiB\n"
    keys = [shlex.split(line)[0] for line in ctl("show").partition("live keys\n")[2].splitlines()]
    assert "budgets.latency=1.5s" in keys and "budgets.memory=1536MiB" in keys
    for key in keys:  # each line can be typed as it is
        was, _, now = ctl("set", key).removesuffix("\n").partition(": ")[2].partition(" -> ")
        assert was == now, key
    assert ctl("set", "budgets.latency=") == "budgets.latency: 1.5s -> none\n" and ctl("set", "budgets.memory=")
    assert ctl("pause", "belt") == "belt: paused\n" and ctl("resume", "belt") == "belt: running\n"
    assert ctl("add", "yard", "synthetic:noise") == "yard added to draw\n"
    shown = json.loads(ctl("show", "--json", "-"))
    assert [*shown["sources"]] == ["belt", "yard"] and shown["live"]["stages.draw.draw"] == ["stats"]
    assert ctl("remove", "belt") == "belt removed from draw\n"
    assert ctl("save") == (
        f"saved {folder / 'belt.live.yaml'}: stages.belt, stages.draw.draw, stages.draw.from, stages.yard\n"
    )
    assert (folder / "belt.yaml").read_text() == TEXT and "yard" in (folder / "belt.live.yaml").read_text()
    plan = ctl("apply", "belt.yaml").splitlines()
    by_name = ctl("apply", "belt.yaml", "--name", "belt").splitlines()[-1]
    assert "edgert ctl apply belt.yaml --name=belt --plan " in by_name  # as it is typed where several run
    assert "adds  stages.belt" in plan and "removes  stages.yard" in plan
    assert 'restarts the stage  stages.draw.draw: ["stats"] -> ["boxes"]' in plan
    words = plan[-1].partition("edgert ctl ")[2].split()
    assert ctl(*words).endswith("applied\n") and ctl("apply", "belt.yaml") == "nothing differs\n"
    (folder / "other.yaml").write_text(TEXT.replace("from: belt}", "from: belt, queue: 9}"))
    refused = in_process("ctl", "apply", "other.yaml", cwd=folder)
    assert refused.returncode == 1 and "needs a restart  stages.draw.queue: its queue" in refused.stdout
    for refused_words, what in (
        (words, "is stale"),
        (("apply", "none.yaml"), "cannot read none.yaml"),
        (("apply", "belt.yaml", "--paln", "x"), "did you mean 'plan'"),
        (("remove", "yard"), "unknown source 'yard'"),
        (("remove", "belt"), "'belt' is the last source"),
        (("pause", "blt"), "did you mean 'belt'"),
        (("set", "stages.draw.width=3"), "expected 16 or more"),
        (("set", "stages.draw.width"), "edgert ctl set stages.draw.width=VALUE"),
        (("set", "width"), "set takes KEY=VALUE, not 'width'"),
        (("set", "stages.draw.queue=3"), "live in stages.draw: stages.draw.draw, stages.draw.width"),
        (("set", "watchdog=3s"), "edgert ctl show lists the live keys"),
        (("move", "yard"), "edgert ctl has no verb 'move'"),
        (("show", "--name", "blt"), "no pipeline 'blt' is running; did you mean 'belt'"),
    ):
        ended = in_process("ctl", *refused_words, cwd=folder)
        assert ended.returncode == 1 and what in ended.stderr, ended.stderr


def test_without_a_run_that_is_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgert.timeline.trace_file.os.access", lambda *_: False)  # in a folder that is read-only
    alone(monkeypatch, tmp_path)
    ended = in_process("ctl", "show", cwd=tmp_path, env={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert ended.returncode == 1 and "no pipeline is running" in ended.stderr
