"""Tutorials of docs/ run as they are written, and print what they show; each is short."""

import re

import pytest

from tests.helpers.command import ROOT
from tests.helpers.documents import words
from tests.helpers.tutorial import plain, run, steps
from tests.helpers.tutorial_settings import SETTINGS

MOST_WORDS = 500
INDEX = (ROOT / "docs/index.md").read_text(encoding="utf-8")
PAGES = re.findall(r"\]\(([\w-]+)\.md\)", INDEX.partition("## Tutorials\n")[2].partition("\n## ")[0])


def text(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_every_tutorial_is_run() -> None:
    """The first one, with packages and weights that must be installed for it, has a test of its own."""
    assert sorted(PAGES) == sorted({*SETTINGS, "first-detector"})


@pytest.mark.parametrize("name", PAGES)
def test_a_tutorial_is_short_and_says_what_one_will_have(name: str) -> None:
    page = text(name)
    assert words(page) <= MOST_WORDS
    assert "At the end you will have" in page or name == "first-detector"
    assert all(step.file or step.shown.strip() for step in steps(page) if step.at[1])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SETTINGS)
def test_every_command_prints_what_the_page_shows(name: str) -> None:
    for step, lines in run(text(name), SETTINGS[name]):
        found = {plain(line) for line in lines}
        assert [line for line in step.shown.splitlines() if plain(line) not in found] == [], "\n".join(lines)
