"""The page about the DLA names every rule, limit and layer, with the source the code names, and every rewrite."""

from __future__ import annotations

import re
from pathlib import Path

from dla import LAYERS, LIMITS, RULES, SOURCES
from edgert.graph.dla_rewrites import REWRITES

PAGE = (Path(__file__).parents[3] / "docs" / "dla.md").read_text(encoding="utf-8")
ROWS = PAGE.splitlines()
LINKS = dict(re.findall(r"^\[(.+?)\]: (\S+)$", PAGE, re.MULTILINE))


def source_of(row: str) -> str:
    """The address that the last column of a row leads to."""
    return LINKS[row.rsplit("[", 1)[1].split("]")[0]]


def test_every_rule_stands_on_the_page() -> None:
    for name, source in SOURCES.items():
        rows = [row for row in ROWS if row.startswith(f"| `{name}` |")]
        assert rows and {source_of(row) for row in rows} == {source}, name
    for name, rule in RULES.items():
        assert f"| `{name}` | {rule.about} |" in PAGE


def test_every_limit_stands_on_the_page() -> None:
    for name, limit in LIMITS.items():
        rows = [row for row in ROWS if row.startswith(f"| `{name}` | {limit} |")]
        assert [source_of(row) for row in rows] == [limit.source], name


def test_every_operator_stands_on_the_page() -> None:
    for op, layer in LAYERS.items():
        assert any(row.startswith(f"| {layer.name} | ") and op in row.split(" | ")[1] for row in ROWS), op


def test_every_rewrite_stands_on_the_page_in_order() -> None:
    rows = [f"| `{one.name}` | {one.does} | {one.because} |" for one in REWRITES.values()]
    assert [row for row in ROWS if row in rows] == rows
