"""The limits of what comes from outside: SECURITY.md shows each of them, and no other number."""

from pathlib import Path

from edgert import limits

ROOT = Path(__file__).parents[2]


def test_security_shows_the_table_of_the_code() -> None:
    section = (ROOT / "SECURITY.md").read_text().partition("## Limits")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows == [f"| {' | '.join(row)} |" for row in limits.TABLE]


def test_every_limit_stands_in_the_table_and_is_asked_somewhere() -> None:
    names = [name for name in vars(limits) if name.isupper() and name != "TABLE"]
    assert len(names) == len(limits.TABLE) + 1  # connections and viewers share a row
    code = "".join(path.read_text() for path in (ROOT / "edgert").rglob("*.py"))
    assert [name for name in names if f"limits.{name}" not in code] == []
