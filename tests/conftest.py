"""Settings of all tests."""

import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType

import pytest
import typer

from tests.helpers.browser import Page, browser
from tests.helpers.flaky import pytest_addoption, pytest_configure, pytest_unconfigure  # noqa: F401 - hooks

typer.main.get_command = lru_cache(typer.main.get_command)  # it takes Typer 26 ms to make the command line, each time
os.environ.setdefault("EDGERT_CHECK_PASSES", "1")  # before edgert is imported: every pass is held to its promises

if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    # A machine that is busy for a moment makes no test wrong; how fast things are is what tests/bench is for.
    settings.register_profile("edgert", deadline=None)
    settings.load_profile("edgert")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of every module that can open the evaluation data, so that ``-m data`` runs just these."""
    module = getattr(item, "module", None)
    if module is not None and _opens_evaluation_data(module):
        item.add_marker("data")


@cache
def _opens_evaluation_data(module: ModuleType) -> bool:
    """Return whether a module imports anything of the helper that opens the evaluation data."""
    from tests.helpers import evaluation_data

    sources = (getattr(value, "__module__", None) for value in vars(module).values())
    return evaluation_data.__name__ in sources


def pytest_collection_finish() -> None:
    """Leave the tests and all modules out of garbage collections, which looked at nothing else most of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """A value that one test hides shows in the messages of the next, and where a command's log went ends with it."""
    from edgert import errors
    from edgert.cli.progress import Interruption

    log = logging.getLogger("edgert")
    before = list(log.handlers), log.propagate, log.level
    yield
    errors._hidden.clear()
    Interruption.by_signal = Interruption.was_raised = False  # commands that tests run in this process
    log.handlers[:], log.propagate = before[0], before[1]
    log.setLevel(before[2])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A tab of a browser."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


_kept = set[str]()  # names of modules that outlive a test


@pytest.fixture(autouse=True)
def _modules_of_users_are_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A module of one test's folder would be what the next test of this process imports under that name."""
    yield
    folder = f"{tmp_path_factory.getbasetemp()}/"
    for name in sys.modules.keys() - _kept:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]
        else:
            _kept.add(name)


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that all workers share, instead of the user's, which may hold what a test is to make; logs of ROS 2."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_LOG_DIR", str(base / "ros"))
        patch.setenv("EDGERT_CACHE", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache for this test alone: that of the session may hold what the test is to make."""
    monkeypatch.setenv("EDGERT_CACHE", str(tmp_path / "cache"))
