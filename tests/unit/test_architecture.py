"""What the pages for contributors say of the tree is so: paths exist, every package is there, the rows are held."""

import re

import pytest

from tests.helpers.command import ROOT
from tests.unit.test_source import LAYERS

DESIGNS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "edgert").rglob("DESIGN.md"))
PAGES = ("docs/architecture.md", "CONTRIBUTING.md", *DESIGNS)
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+(?:\.py|/))`", text)
    bases = (ROOT, ROOT / "edgert", (ROOT / page).parent)
    assert [path for path in named if not any((base / path).exists() for base in bases)] == []


def test_every_package_has_a_line() -> None:
    table = ARCHITECTURE.partition("| row |")[2].partition("\n\n")[0]
    packages = {path.parent.name for path in (ROOT / "edgert").glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}`" not in table} == set()


def test_the_rows_are_those_that_the_layer_test_holds() -> None:
    table = ARCHITECTURE.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()]
    assert [row for row in rows if row] == [name for name, _ in LAYERS]


def test_a_newcomer_reads_it_in_a_quarter_of_an_hour() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150


@pytest.mark.parametrize("page", DESIGNS)
def test_every_design_note_is_linked(page: str) -> None:
    assert f"](../{page})" in ARCHITECTURE
