"""Tables with a caption, headers for columns and rows, and what a script needs to sort them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgert.report.markup import Markup, tag


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell shows, and the number it is sorted by."""

    content: object
    order: float


@dataclass(frozen=True, slots=True)
class Column:
    """A header and its cells, each text, Markup or a :class:`Cell`.

    ``number`` columns align right; ``name``, ``prose`` and ``length`` columns share what room is left; ``minor`` ones
    are left out on narrow pages.
    """

    header: str
    cells: Sequence[object]
    kind: Literal["text", "number", "name", "prose", "length", "minor", "minor number", "minor name"] = "text"


def table(caption: str, columns: Sequence[Column], *, head: int = 0, sortable: bool = False) -> Markup:
    """A table.

    Args:
        caption: read out before the table; not shown, for a heading says the same.
        columns: of equal length.
        head: the column whose cells name their rows.
        sortable: a click on a header sorts, where scripts may run.
    """
    headers = [tag("th", column.header, scope="col", class_=_class(column)) for column in columns]
    rows = zip(*(_cells(column, place == head) for place, column in enumerate(columns)), strict=True)
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *headers)),
        tag("tbody", *(tag("tr", *row) for row in rows)),
        class_="sortable" if sortable else None,
    )
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cells(column: Column, is_head: bool) -> list[Markup]:
    element, scope = ("th", "row") if is_head else ("td", None)
    found = []
    for cell in column.cells:
        content, order = (cell.content, cell.order) if isinstance(cell, Cell) else (cell, None)
        found.append(tag(element, content, class_=_class(column), scope=scope, data_order=order))
    return found


def _class(column: Column) -> str | None:
    return None if column.kind == "text" else column.kind
