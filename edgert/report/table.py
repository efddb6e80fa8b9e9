"""Tables with a caption, headers for columns and rows, and what a script needs to sort them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from edgert.report.markup import Markup, tag


@dataclass(frozen=True, slots=True)
class Column:
    """A header and how its cells are set: ``name`` columns take what room is left, ``number`` columns align right."""

    header: str
    kind: Literal["text", "number", "name", "wide"] = "text"


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell shows, and the number it is sorted by."""

    content: object
    order: float


def table(
    caption: str, columns: Sequence[Column], rows: Iterable[Sequence[object]], *, head: int = 0, sortable: bool = False
) -> Markup:
    """A table.

    Args:
        caption: read out before the table; not shown where a heading says the same.
        columns: their number is that of every row's cells.
        rows: cells, each text, Markup or a :class:`Cell`.
        head: the column whose cells name their rows.
        sortable: a click on a header sorts, where scripts may run.
    """
    headers = [tag("th", column.header, scope="col", class_=_class(column)) for column in columns]
    body = [
        tag("tr", *(_cell(cell, columns[place], place == head) for place, cell in enumerate(row, 0))) for row in rows
    ]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *headers)),
        tag("tbody", *body),
        class_="sortable" if sortable else None,
    )
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(cell: object, column: Column, is_head: bool) -> Markup:
    content, order = (cell.content, cell.order) if isinstance(cell, Cell) else (cell, None)
    name = "th" if is_head else "td"
    return tag(name, content, class_=_class(column), scope="row" if is_head else None, data_order=order)


def _class(column: Column) -> str | None:
    return None if column.kind == "text" else column.kind
