"""Tests of several processes on one GPU: who shares it, and who has it alone. No GPU is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.gpu_lock import GpuLock
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[3]
PATIENCE_S, MOMENT_S = 20.0, 0.3


class Taker(threading.Thread):
    """Takes the GPU when it can, and gives it back when it is told to."""

    def __init__(self, folder: Path, alone: bool) -> None:
        super().__init__(daemon=True)
        self._lock, self._alone = GpuLock(folder), alone
        self.has, self.let_go = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with self._lock.held(self._alone):
            self.has.set()
            self.let_go.wait(PATIENCE_S)

    def end(self) -> None:
        self.let_go.set()
        self.join(PATIENCE_S)


def test_many_share_it_and_one_has_it_alone(tmp_path: Path) -> None:
    one, two = (Taker(tmp_path, alone=False) for _ in range(2))
    assert one.has.wait(PATIENCE_S) and two.has.wait(PATIENCE_S)
    alone = Taker(tmp_path, alone=True)
    one.end()
    assert not alone.has.wait(MOMENT_S)
    two.end()
    assert alone.has.wait(PATIENCE_S)
    others = [Taker(tmp_path, alone=each) for each in (False, True)]
    assert not others[0].has.wait(MOMENT_S) and not others[1].has.is_set()
    alone.end()
    for other in others:  # in either order: none waits for one that lets go later
        other.let_go.set()
    assert all(other.has.wait(PATIENCE_S) for other in others)


def test_who_waits_for_it_alone_is_not_passed(tmp_path: Path) -> None:
    first = Taker(tmp_path, alone=False)
    assert first.has.wait(PATIENCE_S)
    alone = Taker(tmp_path, alone=True)
    assert not alone.has.wait(MOMENT_S)
    late = Taker(tmp_path, alone=False)
    assert not late.has.wait(MOMENT_S)
    first.end()
    assert alone.has.wait(PATIENCE_S) and not late.has.wait(MOMENT_S)
    alone.end()
    assert late.has.wait(PATIENCE_S)
    late.end()


def test_other_gpus_have_a_lock_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with GpuLock(tmp_path).held(alone=True):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937/../2")
        with GpuLock(tmp_path).held(alone=True):
            assert len(list(tmp_path.iterdir())) == 4


def test_a_process_that_dies_gives_it_back(tmp_path: Path) -> None:
    code = f"from tests.helpers.gpu_lock import *; GpuLock(Path({str(tmp_path)!r})).take(True); print(); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        waiting = Taker(tmp_path, alone=False)
        assert not waiting.has.wait(MOMENT_S)
        other.kill()
    assert waiting.has.wait(PATIENCE_S)
    waiting.end()


def test_another_users_link_is_not_followed(tmp_path: Path) -> None:
    with GpuLock(tmp_path).held(alone=False):
        (turn,) = tmp_path.glob("*.turn")
    turn.unlink()
    (tmp_path / "precious").touch()
    turn.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        GpuLock(tmp_path).take(alone=False)


CONFTEST = (
    "from tests.helpers.gpu_lock import pytest_collection_modifyitems, pytest_runtest_protocol, pytest_sessionfinish"
)
TESTS = """
import pytest
from pathlib import Path

def note(name):
    with open({log!r}, "a") as log:
        log.write(name + " ")

@pytest.fixture(scope="module")
def device():
    note("open")
    yield
    note("close")

def test_on_the_host():
    note("host")

@pytest.mark.gpu
@pytest.mark.timeout(0.2)  # waiting for others does not count
def test_beside():
    note("beside")

@pytest.mark.tensorrt
@pytest.mark.gpu_alone
def test_alone(device):
    note("alone")
"""


class Session:
    """Tests that run in a process of their own, and what they have noted."""

    def __init__(self, folder: Path, tests: str = TESTS) -> None:
        self._log = folder / "log"
        self._log.touch()
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_it.py").write_text(tests.format(log=str(self._log)))
        command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}"]
        self.process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", str(folder)],
            cwd=folder, env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def noted(self, count: int) -> list[str]:
        """What is noted when there are so many, and a moment later."""
        wait_until(lambda: len(self._log.read_text().split()) >= count or self.process.poll() is not None)
        time.sleep(MOMENT_S)
        return self._log.read_text().split()

    def ended(self) -> tuple[int, str]:
        """Its exit status and what it printed."""
        printed, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, printed


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[list[Session]]:
    found: list[Session] = []
    yield found
    for session in found:
        if session.process.poll() is None:
            session.process.kill()
        session.process.communicate()


def test_no_test_of_the_gpu_runs_while_another_is_alone(tmp_path: Path, sessions: list[Session]) -> None:
    with GpuLock(tmp_path).held(alone=True):
        sessions.append(session := Session(tmp_path))
        assert session.noted(1) == ["host"]
    status, printed = session.ended()
    assert status == 0 and "3 passed" in printed
    assert session.noted(5) == ["host", "beside", "open", "alone", "close"]


def test_one_that_needs_it_alone_waits_for_others(tmp_path: Path, sessions: list[Session]) -> None:
    with GpuLock(tmp_path).held(alone=False):
        sessions.append(session := Session(tmp_path))
        assert session.noted(2) == ["host", "beside"]  # fixtures of the next wait, too
    status, printed = session.ended()
    assert status == 0 and "3 passed" in printed
    assert session.noted(5) == ["host", "beside", "open", "alone", "close"]


HOST_LAST = """
import pytest, time
from pathlib import Path

@pytest.mark.gpu
def test_beside():
    Path({log!r}).write_text("beside")

def test_on_the_host():
    while not Path("go").exists():
        time.sleep(0.02)
"""


def test_a_process_that_had_it_does_not_end_while_another_is_alone(tmp_path: Path, sessions: list[Session]) -> None:
    sessions.append(session := Session(tmp_path, HOST_LAST))
    assert session.noted(1) == ["beside"]
    with GpuLock(tmp_path).held(alone=True):
        (tmp_path / "go").touch()
        time.sleep(2 * MOMENT_S)
        assert session.process.poll() is None
    status, printed = session.ended()
    assert status == 0 and "2 passed" in printed


def test_a_test_that_needs_it_alone_says_which_kind_it_needs(tmp_path: Path, sessions: list[Session]) -> None:
    sessions.append(session := Session(tmp_path, TESTS.replace("@pytest.mark.tensorrt\n", "")))
    status, printed = session.ended()
    assert status != 0 and "test_alone is marked gpu_alone, but neither gpu nor tensorrt" in printed
