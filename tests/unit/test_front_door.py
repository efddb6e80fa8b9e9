"""README: short, complete, and each figure with the command that measures it."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from edgert.cli import app
from tests.helpers.command import ROOT
from tests.helpers.documents import words

README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
GROUP: Any = typer.main.get_command(app)


def rows(text: str, heading: str) -> Iterator[dict[str, str]]:
    """The tables of a section, row by row: column → cell."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    columns: list[str] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
        elif not set(line) <= set("|-: "):
            yield dict(zip(columns, cells, strict=True))


def test_the_readme_is_read_in_five_minutes() -> None:
    assert words(README) <= 700
    assert README.count("![") == 2
    (yaml,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    assert len(yaml.splitlines()) <= 12
    first = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)[0]
    assert len(first.splitlines()) == 2


def test_every_verb_answers_a_question() -> None:
    table = list(rows(README, "What it answers"))
    verbs = [row["verb"].strip("`") for row in table]
    assert sorted(verbs) == sorted(name for name, command in GROUP.commands.items() if not command.hidden)
    assert all(row["question it answers"].endswith("?") and "](" in row["page"] for row in table)


def test_benchmarks_can_be_read_and_repeated() -> None:
    few = list(rows(README, "How fast"))
    assert len(few) == 3
    assert all(row["better"] in ("lower", "higher") and row["n"] for row in few)
    headings = re.findall(r"^## (.*)$", BENCHMARKS, flags=re.MULTILINE)
    every = [row for heading in headings for row in rows(BENCHMARKS, heading) if "command" in row]
    assert len(every) > 20
    races = BENCHMARKS.split("## GPU\n")[1]  # whose tables are written, their command above them
    assert all((ROOT / path).is_file() for path in re.findall(r"`python (tests/bench/\S+\.py)", races))
    for row in every:
        assert row["better"] in "↓↑" and re.match(r"\d", row["n"]), row
        assert (ROOT / row["command"].strip("`")).is_file(), row
