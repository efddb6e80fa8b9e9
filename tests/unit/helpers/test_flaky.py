"""A test that fails and then passes alone is named; one that fails again fails the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.command import environment

TESTS = """
import pathlib
import pytest

MARK = pathlib.Path(__file__).with_suffix(".mark")

@pytest.mark.parametrize("size", [1, 2])
def test_second_time_lucky(size):
    seen = MARK.exists()
    if size == 2:
        MARK.touch()
    assert seen or size == 1, "the queue was empty"

def test_fine():
    pass
"""
BROKEN = """
def test_broken():
    raise ValueError("for good")
"""


def pytest_on(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugin = ["-p", "tests.helpers.flaky", "-p", "no:cacheprovider", "-c", str(folder / "none.ini")]
    (folder / "none.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("beside", [[], ["-n", "2"]], ids=["alone", "in workers"])
def test_a_flaky_test_is_named_with_its_first_failure(tmp_path: Path, beside: list[str]) -> None:
    (tmp_path / "test_lucky.py").write_text(TESTS)
    failures = tmp_path / "failures.jsonl"
    first = pytest_on(tmp_path, "--failures", str(failures), *beside)
    assert first.returncode == 1 and "flaky" not in first.stdout
    again = pytest_on(tmp_path, "--again", str(failures))
    assert again.returncode == 0 and "1 passed" in again.stdout
    said = again.stdout.splitlines()[-1]
    assert said.startswith("flaky: test_lucky.py::test_second_time_lucky[2]: AssertionError: the queue was empty")


def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    (tmp_path / "test_lucky.py").write_text(TESTS)
    failures = tmp_path / "failures.jsonl"
    assert pytest_on(tmp_path, "--failures", str(failures)).returncode == 1
    again = pytest_on(tmp_path, "--again", str(failures))
    assert again.returncode == 1 and "1 failed, 1 passed" in again.stdout
    assert [line.partition(": ")[2][:12] for line in again.stdout.splitlines() if line.startswith("flaky: ")] == [
        "test_lucky.p"
    ]
