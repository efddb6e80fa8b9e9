"""Tests of several processes on one GPU: most share it; one that compares how much of its memory is free has it alone.

Imported by conftest.py: hooks of pytest. What a test needs is said by its markers, ``gpu`` or ``tensorrt``, and beside
them ``gpu_alone``. The lock is of files, so that it goes with a process however that ends.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path

import pytest

USED = pytest.StashKey[bool]()
"""Of a session: whether a test of it had the GPU, which this process may then hold memory of until it ends."""


class GpuLock:
    """One of the GPUs that a user's tests see.

    Whoever comes waits for its turn first and keeps that until it has the GPU: who waits for it alone would else be
    passed by others, one after another, as long as some come.

    Args:
        folder: of the two files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        visible = re.sub(r"\W+", "-", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
        path = (folder or Path(tempfile.gettempdir())) / f"edgert-tests-{os.getuid()}-gpu-{visible}"
        self._gpu, self._turn = path.with_suffix(".lock"), path.with_suffix(".turn")

    def take(self, alone: bool) -> int:
        """The open file that holds the lock; waits for those who have it, and for those who came before."""
        with _locked(self._turn, LOCK_EX):
            return _open(self._gpu, LOCK_EX if alone else LOCK_SH)

    @contextmanager
    def held(self, alone: bool) -> Iterator[None]:
        """The GPU, beside others or alone."""
        file = self.take(alone)
        try:
            yield
        finally:
            _close(file)


def needs(item: pytest.Item) -> bool | None:
    """Whether a test needs the GPU alone; None: it needs none. Raises pytest.UsageError where markers are at odds."""
    is_on_gpu = any(item.get_closest_marker(name) for name in ("gpu", "tensorrt"))
    is_alone = item.get_closest_marker("gpu_alone") is not None
    if is_alone and not is_on_gpu:
        raise pytest.UsageError(f"{item.nodeid} is marked gpu_alone, but neither gpu nor tensorrt")
    return is_alone if is_on_gpu else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test's markers make sense."""
    for item in items:
        needs(item)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around pytest-timeout: whoever waits for others takes no time
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test's own time and that of its fixtures, also a module's: they open the GPU and free its memory."""
    alone = needs(item)
    if alone is None:
        return (yield)
    item.session.stash[USED] = True
    with GpuLock().held(alone):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that ends frees what it has of the GPU: not while another's test is alone there. Kept until it ends."""
    if session.stash.get(USED, False):
        GpuLock().take(alone=False)


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    file = _open(path, how)
    try:
        yield
    finally:
        _close(file)


def _open(path: Path, how: int) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        flock(file, how)
    except BaseException:  # such as an interrupt while it waits
        os.close(file)
        raise
    return file


def _close(file: int) -> None:
    flock(file, LOCK_UN)  # also for a child process that has the file, too
    os.close(file)
