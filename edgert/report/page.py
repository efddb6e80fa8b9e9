"""Pages: the records of their contents, and the templates that render them.

Names of models, layers and files come from strangers, so templates escape everything that is not Markup. A page is one
HTML file that needs no network and no fonts, and can be read without its script.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from markupsafe import Markup

from edgert.report import numbers, svg

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).with_name("templates")
_STYLES = ("page.css", "charts.css", "network.css", "dla.css")
_SCRIPTS = ("page.js", "network.js", "dla.js")
_NAME_HEAD, _NAME_TAIL = 52, 18  # maximum characters of a name's two ends; hovering shows all of it

VERDICTS = {"kept": ("✓", "good"), "close": ("≈", "doubt"), "unknown": ("?", "open"), "missed": ("✗", "bad")}
"""Sign and CSS class of verdicts on budgets."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: its text, a number to sort by instead, a remark below, CSS classes, and a URL to link to."""

    text: str | int
    order: float | None = None
    below: str = ""
    look: str = ""
    link: str = ""


Kind = Literal[
    "", "number", "name", "prose", "wrap", "rank", "length", "minor", "minor number", "minor name", "minor length"
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, with its header.

    ``number`` columns align right. ``name``, ``prose`` and ``length`` columns share the free width. Names are
    shortened. A length is drawn as a bar, by the ``order`` of its cell, 0 to 1. Text of a ``wrap`` column may take
    several lines. ``rank`` columns number the rows. ``minor`` columns are left out on narrow pages.
    """

    header: str
    cells: Sequence[Cell | str | int]
    kind: Kind = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    ``caption`` is for screen readers. Column ``head`` names the rows. If ``stacked``, every row is a block on narrow
    pages. A click on the text ``folded`` unfolds the table; empty: it is open.
    """

    caption: str
    columns: Sequence[Column]
    head: int = 0
    sortable: bool = False
    stacked: bool = False
    heading: str = ""
    folded: str = ""

    @property
    def heads(self) -> Sequence[tuple[str, str]]:
        """Headers and kinds of the columns."""
        return [(column.header, column.kind) for column in self.columns]

    @property
    def looks(self) -> str:
        """CSS classes of the table."""
        return " ".join(filter(None, ("sortable" if self.sortable else "", "stacked" if self.stacked else "")))

    @property
    def rows(self) -> Sequence[Sequence[Cell]]:
        """Cells row by row."""
        cells = ([one if isinstance(one, Cell) else Cell(one) for one in column.cells] for column in self.columns)
        return list(zip(*cells, strict=True))


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its caption.

    ``keys`` is the legend after ``about``: texts and the CSS classes of their colors. ``signs`` is the second line of
    the caption; ``remark``, below the drawing, says how to read it.
    """

    drawn: Markup
    caption: str
    keys: Sequence[tuple[str, str]] = ()
    about: str = ""
    signs: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The content of a section: sentences, charts, tables; or the reason why it is ``absent``."""

    lead: str = ""
    absent: str = ""
    caution: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


class Figure(NamedTuple):
    """A number in large print: its label, its value, and a detail."""

    label: str
    value: str
    detail: str


class Badge(NamedTuple):
    """A highlighted text above the headline, the CSS class of its color, and the URL that it links to."""

    words: str
    look: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of every page, from ``kicker``, the kind of page, to ``advice``, paragraphs below figures."""

    title: str
    kicker: str
    name: str
    headline: str
    badges: Sequence[Badge] = ()
    cautions: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    advice: Sequence[str] = ()


def render(template: str, head: Head, page: object, more: str = "") -> str:
    """Return a complete HTML document; equal pages give equal text.

    The template extends ``base.html.j2``; ``more`` names an additional style and script.
    """
    found = environment().get_template(template)
    return found.render(head=head, page=page, **(_looks((f"{more}.css",), (f"{more}.js",)) if more else {}))


def script_data(json: str) -> Markup:
    """Return JSON for a ``script`` element, which no text in it can end."""
    return Markup(json.replace("<", "\\u003c"))  # noqa: S704  # ours


@cache
def _looks(styles: tuple[str, ...] = (), scripts: tuple[str, ...] = ()) -> dict[str, Markup]:
    """Return style and script of all pages, with additional files, and the policy that allows only these.

    So even a mistake in escaping has no effect.
    """
    each = ((*_STYLES, *styles), (*_SCRIPTS, *scripts))
    style, script = ("".join((_FOLDER / name).read_text("utf-8") for name in names) for names in each)
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"
    return {"style": Markup(style), "script": Markup(script), "policy": Markup(policy)}  # noqa: S704  # ours


@cache
def environment() -> "Environment":
    """Return the environment of all templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # not needed by users of the records

    # the finalizer also makes invisible characters visible
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=svg.escaped,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= _looks()
    made.filters |= {"name": name, "breakable": breakable, "percent": svg.percent}
    shown = ("bare", "counted", "difference", "milliseconds", "score", "size", "times")
    made.filters |= {one: getattr(numbers, one) for one in shown}
    return made


def name(text: str) -> Markup:
    """Return the name of a node or tensor. A long one is shortened in the middle; hovering shows all of it."""
    shown = svg.visible(text)
    if len(shown) > _NAME_HEAD + _NAME_TAIL:
        parts = [shown[:_NAME_HEAD] + "…", shown[-_NAME_TAIL:]]
    else:
        cut = len(shown) - _NAME_TAIL if len(shown) > _NAME_TAIL + 1 else 0  # one letter is no wider than "…"
        parts = [shown[:cut], shown[cut:]]
    spans = Markup("").join(Markup("<span>{}</span>").format(part) for part in parts if part)
    return Markup('<span class="name" title="{}">{}</span>').format(shown, spans)


def breakable(text: str) -> Markup:
    """Return a name that may break into lines behind its underscores."""
    return Markup("_<wbr>").join(map(svg.escaped, text.split("_")))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
