"""Every test is run, and every option of the command line and key of the pipeline file is used by one.

A test uses an option where a string of its file has the option and another, or the same, has the verb. It uses a key
where a string has it before a colon or ``=``, a dictionary has it, or a call has it as a keyword argument.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from _pytest.pathlib import fnmatch_ex

from edgert.cli import app
from edgert.config import json_schema

TESTS = Path(__file__).parents[1]
GROUP: Any = typer.main.get_command(app)
WORD = re.compile(r"[\w./-]+")
STRING = re.compile(r'"""(?s:.*?)"""|"[^"\n]*"(?:: )?')
KEY = re.compile(r"""([A-Za-z_]\w*)["']?\s*[:=]""")
KEYWORD = re.compile(r"[(, ]([a-z_]\w*)=[^= ]")
ANY_VERB = {"--debug"}
"""test_mistakes.py gives it to every verb."""


class Used:
    """What the tests of one file use: words of its strings, and keys."""

    def __init__(self, text: str) -> None:
        strings = "\n".join(STRING.findall(text))
        self.words = set(WORD.findall(strings))
        self.keys = set(KEY.findall(strings)) | set(KEYWORD.findall(text))


@pytest.fixture(scope="module")
def used() -> list[Used]:
    """Of every file of tests but benches, which nobody runs to judge a change."""
    paths = (path for path in sorted(TESTS.rglob("*.py")) if "bench" not in path.parts)
    return [Used(path.read_text(encoding="utf-8")) for path in paths]


def test_every_option_is_used_with_its_verb(used: list[Used]) -> None:
    missing = []
    for verb, command in GROUP.commands.items():
        for one in command.params:
            names = {name for name in (*one.opts, *one.secondary_opts) if name.startswith("-")} - {"--help", "-h"}
            if command.hidden or one.hidden or not names or names & ANY_VERB:
                continue
            if not any(verb in file.words and names & file.words for file in used):
                missing.append(f"edgert {verb} {'/'.join(sorted(names))}")
    assert not missing, f"no test uses {', '.join(missing)}: write one in tests/unit/cli"


def test_every_key_is_used(used: list[Used]) -> None:
    keys = set[str]().union(*(file.keys for file in used))
    schema = json_schema()
    sections = {"the file": schema, **schema.get("$defs", {})}
    missing = [
        f"{key} ({section})"
        for section, about in sections.items()
        for key in about.get("properties", {})
        if key not in keys
    ]
    assert not missing, f"no test uses {', '.join(missing)}"


_RUN_BY_DEFAULT = ("e2e", "faults", "integration", "unit")  # what scripts/test names
_TEST = re.compile(r"^(?:    )?(?:async )?def test_\w+\(", re.M)


def test_every_file_with_a_test_is_collected(pytestconfig: pytest.Config) -> None:
    names, passed_over = pytestconfig.getini("python_files"), pytestconfig.getini("norecursedirs")

    def collected(path: Path) -> bool:
        folders = [folder for folder in path.parents if folder.is_relative_to(TESTS)]
        hidden = any(fnmatch_ex(pattern, folder) for folder in folders for pattern in passed_over)
        return not hidden and any(fnmatch_ex(pattern, path) for pattern in names)

    assert [path for path in _with_tests() if not collected(path)] == []


def test_every_file_with_a_test_is_in_a_folder_that_the_test_script_runs() -> None:
    assert {path.relative_to(TESTS).parts[0] for path in _with_tests()} <= set(_RUN_BY_DEFAULT)


def _with_tests() -> list[Path]:
    return [path for path in sorted(TESTS.rglob("*.py")) if _TEST.search(path.read_text(encoding="utf-8"))]
