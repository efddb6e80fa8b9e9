"""Tables that all verbs print: columns are left out, never cut off."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from edgert.cli.terminal import Column, Row, console, facts, json_lines, styled, table
from edgert.errors import ArtifactError

COLUMNS = (
    Column("name"),
    Column("fps", is_number=True),
    Column("memory", is_number=True, rank=1),
    Column("SoC", rank=2),
    Column("why", wraps=True),
)
ROWS = (
    Row(("first [bold]", "30.5", "229.5 MiB", "tegra234", "it is the fastest of all that keep the budgets of power")),
    Row(("second", "7", "1.0 GiB", "tegra194", styled("slow", "red")), "bold"),
)


def lines(width: int, columns: Sequence[Column] = COLUMNS, caption: str = "") -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(table(columns, ROWS, width=width, title="boards", caption=caption))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_all_columns_where_there_is_room() -> None:
    title, heads, first, second = lines(120)
    assert title == "boards" and heads.split() == ["name", "fps", "memory", "SoC", "why"]
    assert "first [bold]" in first and first.endswith("the budgets of power")
    assert second.index("7") + 1 == first.index("30.5") + 4  # numbers end at the same place


@pytest.mark.parametrize(
    ("width", "heads", "left_out"),
    [(80, ["name", "fps", "memory", "SoC", "why"], ""), (70, ["name", "fps", "memory", "why"], "SoC"),
     (60, ["name", "fps", "why"], "memory, SoC"), (50, ["name", "fps", "why"], "memory, SoC")],
)  # fmt: skip
def test_the_highest_rank_goes_first_and_is_named(width: int, heads: list[str], left_out: str) -> None:
    found = lines(width)
    assert found[1].split() == heads and all(len(line) <= width for line in found)
    assert "…" not in "".join(found)
    below = " ".join(found)
    assert ("in a wider terminal:" in below) is bool(left_out) and left_out in below


def test_a_caption_stands_before_what_was_left_out() -> None:
    assert lines(70, caption="3 more: --all")[-1] == "3 more: --all; in a wider terminal: SoC"


def test_facts_take_brackets_as_they_are() -> None:
    out = io.StringIO()
    Console(file=out, width=40).print(facts([("input", "x [1, 3]"), ("note", styled("late", "yellow"))]))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == ["input x [1, 3]", "note  late"]


@pytest.mark.parametrize("width", [1, 9, 20, 31, 40, 49])
def test_where_nothing_more_can_go_each_row_is_a_list_with_every_digit(width: int) -> None:
    found = lines(width)
    assert all(len(line) <= width for line in found)
    text = "".join("".join(found).split())
    assert all("".join(str(cell).split()) in text for row in ROWS for cell in row.cells)
    if width > 30:
        assert "  fps 30.5" in found and "  memory 229.5 MiB" in found


def test_a_pipe_gets_lines_that_are_neither_folded_nor_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = io.StringIO()
    screen = console()
    screen.file = out
    screen.print(table(COLUMNS, ROWS, width=screen.width))
    screen.print("word " * 100)
    heads, first, second, words = out.getvalue().splitlines()
    assert "SoC" in heads and "229.5 MiB" in first and "slow" in second and len(words) >= 499
    assert "\x1b" not in out.getvalue() and console(stderr=True).stderr


def test_a_full_disk_is_an_error_about_the_file_of_json_lines() -> None:
    with pytest.raises(ArtifactError, match="cannot write '/dev/full'"), json_lines(Path("/dev/full")) as write:
        write({"time": 1})
