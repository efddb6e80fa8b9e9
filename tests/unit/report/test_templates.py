"""Templates: strict about what is missing; words from strangers stay words wherever they stand."""

import re

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from edgert.placement.plan_record import BoardPlan, Plan
from edgert.planner.plan_page import render
from edgert.report.page import Cell, Chart, Column, Part, Table, breakable, environment

HOSTILE = "<script>alert(1)</script>\" onload='x' {{ 7 * 7 }}\u202e"


def assert_harmless(text: str) -> None:
    assert "<script>alert" not in text and "{{ 49 }}" not in text and "\u202e" not in text
    assert not re.search(r'<[^>]*" onload=', text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and r"\u202e" in text


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="no_such_field"):
        environment().from_string("{{ one.no_such_field }}").render(one=Cell("a"))


@pytest.mark.parametrize("kind", ["", "number", "name", "wrap", "prose", "minor name"])
def test_tables_and_charts_are_escaped(kind: str) -> None:
    cells = [Cell(HOSTILE), Cell(HOSTILE, look=HOSTILE, below=HOSTILE), Cell(HOSTILE, link=HOSTILE)]
    columns = [Column(HOSTILE, cells, kind), Column("l", [Cell("", 0.5), Cell("", 0), Cell("", 1)], "length")]  # type: ignore[arg-type]
    table = Table(HOSTILE, columns, sortable=True, stacked=True, heading=HOSTILE, folded=HOSTILE)
    chart = Chart(Markup("<svg></svg>"), HOSTILE, [(HOSTILE, HOSTILE)], HOSTILE, HOSTILE, HOSTILE)
    shown = Part(HOSTILE, HOSTILE, HOSTILE, [chart], [table])
    text = environment().from_string('{% from "parts.html.j2" import part %}{{ part(one) }}').render(one=shown)
    assert_harmless(text)
    assert "<svg></svg>" in text and 'width="50%"' in text and breakable("M_<b>") == "M_<wbr>&lt;b&gt;"


def test_a_page_is_escaped() -> None:
    board = BoardPlan(HOSTILE, HOSTILE, (), None, (HOSTILE,), (HOSTILE,))
    for boards in ((board,), (board, board)):
        text = render(Plan(HOSTILE, HOSTILE, boards, HOSTILE, (HOSTILE,)))
        assert_harmless(text.partition("<style>")[0] + text.partition("</style>")[2].partition("<script>")[0])
        assert text.count("<script>") == 1 == text.count("<style>")
