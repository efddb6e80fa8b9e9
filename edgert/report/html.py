"""HTML made of pieces that cannot be mistaken for text: everything that is not :class:`Markup` is escaped.

Names of tensors come from model files, and model files come from anywhere.
"""

import base64
import hashlib
import html
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

_VOID = frozenset({"meta", "link", "br", "input"})
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})  # controls, direction overrides, lone surrogates, ...
_NAME_HEAD, _NAME_TAIL = 52, 18  # characters of a name that are shown at most; all of it on hover

VERDICTS = {"kept": ("✓", "good"), "close": ("≈", "doubt"), "unknown": ("?", "open"), "missed": ("✗", "bad")}
"""Sign and class of budget verdicts."""


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def visible(text: str) -> str:
    """Return the text with characters that are invisible, or would hide others, as Python escapes."""
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode("ascii") if unicodedata.category(one) in _HIDDEN else one for one in text
    )


def escape(text: object) -> Markup:
    """Return the text as HTML; Markup as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(visible(str(text))))


def join(pieces: Iterable[object], between: object = "") -> Markup:
    """Return the pieces one after the other."""
    return Markup(escape(between).join(map(escape, pieces)))


def tag(element: str, /, *children: object, **attributes: object) -> Markup:
    """Return ``<td class="name">a &lt; b</td>`` for ``tag("td", "a < b", class_="name")``.

    Args:
        element: its name; those that have no content in HTML get no end tag.
        children: text is escaped, Markup is not.
        attributes: ``_`` becomes ``-`` and one at the end is removed; True is a bare attribute; False and None are left
            out; a float is written with five digits.
    """
    head = "".join([element, *(_attribute(key, value) for key, value in attributes.items())])
    if element in _VOID:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{join(children)}</{element}>")


def shape(element: str, /, **attributes: object) -> Markup:
    """Return an SVG element without children."""
    return Markup(f"<{element}{''.join(_attribute(key, value) for key, value in attributes.items())}/>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    text = f"{value:.5g}" if isinstance(value, float) else value
    return f" {name}" if value is True else f' {name}="{escape(text)}"'


def code(name: str) -> Markup:
    """Return a node's or tensor's name; a long one is shortened in the middle, and hovering shows all."""
    shown = visible(name)
    if len(shown) > _NAME_HEAD + _NAME_TAIL:
        head, tail = shown[:_NAME_HEAD] + "…", shown[-_NAME_TAIL:]
    else:
        cut = len(shown) - _NAME_TAIL if len(shown) > _NAME_TAIL + 1 else 0  # one letter is no wider than "…"
        head, tail = shown[:cut], shown[cut:]
    pieces = [tag("span", piece) for piece in (head, tail) if piece]
    return tag("span", *pieces, class_="name", title=shown)


def paragraph(text: object, class_: str | None = None) -> Markup:
    """Return one paragraph."""
    return tag("p", text, class_=class_)


# Tables with a caption, headers for columns and rows, and what a script needs to sort them.


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of a cell, and the number it is sorted by."""

    content: object
    order: float


@dataclass(frozen=True, slots=True)
class Column:
    """A header and its cells, each text, Markup or a :class:`Cell`.

    ``number`` columns align right. ``name``, ``prose`` and ``length`` columns share the free width. Text of a ``wrap``
    column may take several lines. ``rank`` columns number the rows. ``minor`` ones are left out on narrow pages.
    """

    header: str
    cells: Sequence[object]
    kind: Literal[
        "text",
        "number",
        "name",
        "prose",
        "wrap",
        "rank",
        "length",
        "minor",
        "minor number",
        "minor name",
        "minor length",
    ] = "text"


def with_bar(text: object, bar: object) -> Markup:
    """Return the text of a cell, with its error bar or another remark on a line below."""
    return join([text, " ", tag("small", bar)]) if bar else escape(text)


def table(
    caption: str, columns: Sequence[Column], *, head: int = 0, sortable: bool = False, stacked: bool = False
) -> Markup:
    """Return a table.

    Args:
        caption: read out before the table; not shown, for a heading has the same text.
        columns: of equal length.
        head: the column whose cells name their rows.
        sortable: a click on a header sorts, where scripts may run.
        stacked: on narrow pages every row is a block of its own, with the headers inside.
    """
    kinds = [None if column.kind == "text" else column.kind for column in columns]
    headers = [tag("th", one.header, scope="col", class_=kind) for one, kind in zip(columns, kinds, strict=True)]
    cells = (_cells(one, kind, at == head, stacked) for at, (one, kind) in enumerate(zip(columns, kinds, strict=True)))
    rows = zip(*cells, strict=True)
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *headers)),
        tag("tbody", *(tag("tr", *row) for row in rows)),
        class_=" ".join(filter(None, ("sortable" if sortable else "", "stacked" if stacked else ""))) or None,
    )
    return tag("div", whole, class_="scroll", tabindex=0, role="group", aria_label=caption)


def _cells(column: Column, class_: str | None, is_head: bool, labeled: bool) -> list[Markup]:
    element, scope = ("th", "row") if is_head else ("td", None)
    label = column.header if labeled and not is_head else None
    found = []
    for cell in column.cells:
        content, order = (cell.content, cell.order) if isinstance(cell, Cell) else (cell, None)
        found.append(tag(element, content, class_=class_, scope=scope, data_order=order, data_label=label))
    return found


# One HTML file that needs nothing else: no network, no script to be read, no fonts of its own.


def document(
    title: str,
    description: str,
    body: Iterable[object],
    *,
    styles: Sequence[str] = ("page.css",),
    scripts: Sequence[str] = ("page.js",),
) -> str:
    """Return a whole page.

    Args:
        title: of the window.
        description: one sentence, for lists of pages.
        body: the page's content.
        styles: files of this package that become part of it, in order.
        scripts: likewise.
    """
    style, script = (join(map(_part, names)) for names in (styles, scripts))
    # this page's own style and script and nothing else: even a mistake in escaping could not act
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=Markup(policy)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="description", content=description),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", style),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', *body, tag('script', script)), lang='en')}\n"


def header(kicker: str, name: str, sentence: object, *rest: object, badges: Sequence[Markup] = ()) -> Markup:
    """Return the head of a page.

    Args:
        kicker: what the page is, above the heading.
        name: of the model or pipeline it is about.
        sentence: the heading: the page's result.
        rest: what follows it.
        badges: words that stand out, between kicker and heading.
    """
    about = tag("p", f"{kicker} · ", code(name), class_="kicker")
    return tag("header", about, tag("p", *badges, class_="badges") if badges else "", tag("h1", sentence), *rest)


def bullets(texts: Iterable[object]) -> Markup:
    """Return a list of texts."""
    return tag("ul", *(tag("li", text) for text in texts))


def columns(sections: Iterable[tuple[str, str, object]], names: Mapping[str, str] | None = None) -> Markup:
    """Return sections with a list of them beside.

    Args:
        sections: (id, title, content) of each.
        names: id → title in the list, of those that it has; all, by their titles, by default.
    """
    listed = tuple(sections)
    names = {name: title for name, title, _ in listed} if names is None else names
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, title in names.items())
    contents = tag("nav", tag("ul", *links), aria_label="Sections")
    main = (
        tag("section", tag("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title")
        for name, title, content in listed
    )
    return tag("div", contents, tag("main", *main), class_="columns")


def figures(shown: Iterable[tuple[str, str, str]]) -> Markup:
    """Return a row of large numbers.

    Args:
        shown: (label, number with its unit, remark) of each.
    """
    rows = (
        tag("div", tag("dt", label), tag("dd", tag("b", value), tag("span", detail))) for label, value, detail in shown
    )
    return tag("dl", *rows, class_="figures")


@cache
def _part(name: str) -> Markup:
    """Return a file of this package as it is; it holds no end tag that would close its element."""
    return Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
