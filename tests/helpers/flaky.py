"""Options of pytest with which a test that fails once and then passes is named as flaky: ``scripts/test`` uses them.

Imported by conftest.py. ``--failures FILE`` appends every test that fails to a JSON Lines file. ``--again FILE`` runs
just those tests; the last lines of its output name those that pass now, with the message of their first failure.
"""

import json
from pathlib import Path

import pytest

_PASSED = pytest.StashKey[dict[str, bool]]()
"""Of a run with --again: test → whether it passed, in all of its phases."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flaky tests")
    group.addoption("--failures", type=Path, metavar="FILE", help="append every test that fails to this file")
    group.addoption("--again", type=Path, metavar="FILE", help="run the tests of this file, and name the flaky ones")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the tests of ``--again``, and count what becomes of them."""
    again, failures = config.getoption("--again"), config.getoption("--failures")
    if again:
        config.args = list(_messages(again))
        config.stash[_PASSED] = {}
    if (again or failures) and not hasattr(config, "workerinput"):  # not in the worker processes of pytest-xdist
        config.pluginmanager.register(_Reports(config), "flaky-reports")


class _Reports:
    """What becomes of each test, in the process that prints the results."""

    def __init__(self, config: pytest.Config) -> None:
        self._failures: Path | None = config.getoption("--failures")
        self._passed = config.stash.get(_PASSED, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed[report.nodeid] = self._passed.get(report.nodeid, True) and report.passed
        if report.failed and self._failures:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else str(report.longrepr)
            message = next((line.strip() for line in text.splitlines() if line.strip()), "")
            with self._failures.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"test": report.nodeid, "message": message}) + "\n")


def pytest_unconfigure(config: pytest.Config) -> None:
    passed = config.stash.get(_PASSED, {})
    for test, message in _messages(config.getoption("--again")).items() if passed else ():
        if passed.get(test):
            print(f"flaky: {test}: {message}")


def _messages(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        found.setdefault(one["test"], one["message"])
    return found
