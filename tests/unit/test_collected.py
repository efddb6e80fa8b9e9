"""Every test is run: pytest finds all the files that hold one."""

import re
from pathlib import Path

import pytest
from _pytest.pathlib import fnmatch_ex

_TESTS = Path(__file__).resolve().parents[1]
_RUN_BY_DEFAULT = ("e2e", "faults", "integration", "unit")  # what scripts/test names
_TEST = re.compile(r"^(?:    )?(?:async )?def test_\w+\(", re.M)


def test_every_file_with_a_test_is_collected(pytestconfig: pytest.Config) -> None:
    names, passed_over = pytestconfig.getini("python_files"), pytestconfig.getini("norecursedirs")

    def collected(path: Path) -> bool:
        folders = [folder for folder in path.parents if folder.is_relative_to(_TESTS)]
        hidden = any(fnmatch_ex(pattern, folder) for folder in folders for pattern in passed_over)
        return not hidden and any(fnmatch_ex(pattern, path) for pattern in names)

    assert [path for path in _with_tests() if not collected(path)] == []


def test_every_file_with_a_test_is_in_a_folder_that_the_test_script_runs() -> None:
    assert {path.relative_to(_TESTS).parts[0] for path in _with_tests()} <= set(_RUN_BY_DEFAULT)


def _with_tests() -> list[Path]:
    return [path for path in sorted(_TESTS.rglob("*.py")) if _TEST.search(path.read_text(encoding="utf-8"))]
