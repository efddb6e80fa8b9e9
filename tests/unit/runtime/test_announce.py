from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgert.runtime import announce as beacon
from edgert.runtime.announce import Beacon, RunningPipeline, running_pipelines
from tests.helpers.command import environment

CHILD = """
import os, sys
from edgert.runtime.announce import Beacon, running_pipelines
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
Beacon(lambda: {"name": "child"}).open()
print("sees", [one.pid for one in running_pipelines()], flush=True)
sys.stdin.read()
"""


def mine() -> list[RunningPipeline]:
    """Pipelines of this process; others may run on the machine."""
    return [one for one in running_pipelines() if one.pid == os.getpid()]


def child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def two() -> Iterator[list[Beacon]]:
    made = [Beacon(lambda name=name: {"name": name, "stats": {"fps": 1.5}}) for name in ("dock", "yard")]
    for one in made:
        one.open()
    yield made
    for one in made:
        one.close()


@pytest.fixture
def squatter() -> Iterator[socket.socket]:
    """Listens under the name of another process's pipeline."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind("\0edgert/pipeline/1-0badcafe")
        server.listen(1)
        yield server


def test_two_pipelines_are_seen_until_they_end(two: list[Beacon]) -> None:
    assert sorted(one.state["name"] for one in mine() if isinstance(one.state, dict)) == ["dock", "yard"]
    assert len({one.key for one in mine()}) == 2
    two[0].close()
    two[0].close()
    assert [one.state for one in mine()] == [{"name": "yard", "stats": {"fps": 1.5}}]


def test_numbers_that_json_does_not_have_are_null() -> None:
    one = Beacon(lambda: {"p99": float("nan")})
    one.open()
    assert [found.state for found in mine()] == [{"p99": None}]
    one.close()


def test_one_that_is_killed_leaves_nothing_behind() -> None:
    process = child()
    assert says(process).startswith("sees")
    assert process.pid in [one.pid for one in running_pipelines()]
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert process.pid not in [one.pid for one in running_pipelines()]


def test_the_process_is_the_one_that_the_kernel_names(squatter: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a number that was given to another process, or a name that lies, is never believed."""
    monkeypatch.setattr(beacon, "_TIMEOUT_S", 0.05)
    assert [(one.pid, one.key, one.state) for one in mine()] == [(os.getpid(), "1-0badcafe", "does not answer")]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_users_pipeline_is_not_seen_and_sees_none(two: list[Beacon]) -> None:
    process = child("65534")
    assert says(process) == f"sees [{process.pid}]\n"  # its own, and not the two
    assert process.pid not in [one.pid for one in running_pipelines()]
    process.kill()
    process.wait(10)


def test_whoever_is_another_user_by_the_kernels_word_is_left_out(
    two: list[Beacon], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 4_000_000_000)
    assert running_pipelines() == ()


def test_a_strange_answer_says_so(squatter: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beacon, "_TIMEOUT_S", 5.0)
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect("\0edgert/pipeline/1-0badcafe")
        connection, _ = squatter.accept()
        connection.sendall(b"[1]")
        connection.close()
        assert beacon._read(asker) == "does not answer like a pipeline of edgert"


def test_a_machine_without_such_sockets_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    one = Beacon(dict)
    with caplog.at_level(logging.INFO, "edgert"):
        one.open()
    one.close()
    assert caplog.messages == ["edgert top will not see this pipeline: only Linux has sockets without a file"]


def test_a_machine_without_a_list_of_sockets_shows_none(tmp_path: Path) -> None:
    assert running_pipelines(tmp_path) == ()


def test_without_a_thread_it_is_not_seen_and_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    caplog.set_level(logging.INFO, logger="edgert")
    one = Beacon(lambda: {"name": "one"})
    monkeypatch.setattr(threading.Thread, "start", refused)
    one.open()
    assert "edgert top will not see this pipeline: can't start new thread" in caplog.text
    one.close()
    monkeypatch.undo()
    assert not mine()
    one.open()
    assert len(mine()) == 1
    one.close()


def test_it_goes_on_once_a_descriptor_is_free_again() -> None:
    one = Beacon(lambda: {"name": "one"})
    one.open()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert one._server is not None
    first, second = (socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2))
    with first, second:
        resource.setrlimit(resource.RLIMIT_NOFILE, (second.fileno() + 1, before[1]))
        try:
            first.connect(one._server.getsockname())
            time.sleep(0.2)  # accept() fails, or the next one does where the kernel took a descriptor beforehand
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        second.settimeout(5)
        second.connect(one._server.getsockname())
        assert b"one" in second.recv(1000)
    one.close()
