"""Tutorials of docs/: their files are written, their commands run one after the other, and what they print is compared.

python -m tests.helpers.tutorial field-failure     # runs a page, and pastes what its commands print into it

A block of YAML or Python is saved under the file name that the line before it ends with. A block of ``text`` behind a
block of ``sh`` is what that printed: all of it, or the lines that fit ``<!-- shows: EXPRESSION -->`` above it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.helpers.command import ROOT, environment

_PART = re.compile(
    r"(?P<before>[^\n]*)\n\n(?:<!-- shows: (?P<shows>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_NAMED = re.compile(r"`([\w./-]+\.\w+)`:$")
_VARIES = (
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\b[0-9a-f]{12,64}\b", "DIGEST"),
    (r"\d[\d.,]*(?=(?: | )(?:s|ms|fps)\b)", "N"),
    (r"\b(p50|p95|p99) [\d.]+", r"\1 N"),
    (r"/tmp/\S+", "FOLDER"),
)
"""What no two runs share."""
BESIDE_PYTHON = str(Path(sys.executable).parent)
"""Where programs are that were installed with the tests."""
EXIT_CODE = re.compile(r"# exit code (\d+)")


@dataclass(frozen=True)
class Step:
    """A file to save, or commands to run where ``file`` is empty, and the lines that the page shows of them."""

    file: str
    text: str
    shows: str = ""
    shown: str = ""
    at: tuple[int, int] = (0, 0)

    @property
    def exit_code(self) -> int:
        found = EXIT_CODE.search(self.text)
        return int(found[1]) if found else 0


class Setting(Protocol):
    """What a tutorial supposes to be there: makes it in a folder, and yields variables of the environment."""

    def __call__(self, folder: Path) -> AbstractContextManager[dict[str, str]]: ...


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    for part in _PART.finditer(page):
        if part["language"] == "text":
            last = found.pop()
            found.append(Step("", last.text, part["shows"] or "", part["text"], part.span("text")))
        elif part["language"] == "sh":
            found.append(Step("", part["text"]))
        elif named := _NAMED.search(part["before"]):
            found.append(Step(named[1], part["text"]))
    return found


def plain(text: str) -> str:
    """Return text with single spaces, and without what no two runs share."""
    for pattern, shown in _VARIES:
        text = re.sub(pattern, shown, text)
    return " ".join(text.split())


def printed(step: Step, folder: Path, variables: dict[str, str]) -> list[str]:
    """Save a file, or run commands and return the lines that they print; their exit code is the announced one."""
    if step.file:
        (folder / step.file).parent.mkdir(parents=True, exist_ok=True)
        (folder / step.file).write_text(step.text, encoding="utf-8")
        return []
    path = os.pathsep.join((BESIDE_PYTHON, os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", step.text],
        cwd=folder,
        env=environment({"PATH": path, "HOME": str(folder), "COLUMNS": "120", **variables}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == step.exit_code, f"{step.text}{done.stdout}"
    return [line.rstrip() for line in done.stdout.splitlines() if re.search(step.shows, line)]


def run(page: str, setting: Setting) -> Iterator[tuple[Step, list[str]]]:
    with tempfile.TemporaryDirectory(prefix="tutorial") as name, setting(Path(name)) as variables:
        for step in steps(page):
            yield step, printed(step, Path(name), variables)


def pasted(page: str, setting: Setting) -> str:
    ran = list(run(page, setting))
    for step, lines in reversed(ran):
        if step.at[1]:
            page = page[: step.at[0]] + "".join(f"{line}\n" for line in lines) + page[step.at[1] :]
    return page


if __name__ == "__main__":
    from tests.helpers.tutorial_settings import SETTINGS

    for name in sys.argv[1:]:
        path = ROOT / "docs" / f"{name}.md"
        path.write_text(pasted(path.read_text(encoding="utf-8"), SETTINGS[name]), encoding="utf-8")
