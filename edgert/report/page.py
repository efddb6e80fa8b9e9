"""Pages: what they are made of, as plain records, and the templates that lay them out.

Names of models, layers and files come from strangers, so templates escape everything that is not Markup. A page is one
HTML file that needs nothing else: no network, no fonts, and it can be read without its script.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from markupsafe import Markup

from edgert.report import numbers
from edgert.report.svg import escaped, percent, visible

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).with_name("templates")
_STYLES = ("page.css", "charts.css", "network.css", "dla.css")
_SCRIPTS = ("page.js", "network.js", "dla.js")
_NAME_HEAD, _NAME_TAIL = 52, 18  # characters of a name that are shown at most; all of it on hover

VERDICTS = {"kept": ("✓", "good"), "close": ("≈", "doubt"), "unknown": ("?", "open"), "missed": ("✗", "bad")}
"""Sign and class of budget verdicts."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: what it says.
        order: the number it is sorted by; None: its text.
        below: a remark on a line below.
        look: classes of its text: ``good``, ``bad``, ``strong`` …
        link: address that the text links to.
    """

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
    """A header and its cells.

    ``number`` columns align right. ``name``, ``prose`` and ``length`` columns share the free width. Names are
    shortened, and a length is drawn from its cell's ``order``, 0 to 1. Text of a ``wrap`` column may take several
    lines. ``rank`` columns number the rows. ``minor`` ones are left out on narrow pages.
    """

    header: str
    cells: Sequence[Cell | str | int]
    kind: Kind = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        caption: read out before the table; not shown, for a heading has the same text.
        columns: of equal length.
        head: number of the column whose cells name their rows.
        sortable: whether a click on a header sorts, where scripts may run.
        stacked: whether on narrow pages every row is a block of its own, with the headers inside.
        heading: shown above.
        folded: the words that unfold it; empty: it is open.
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
        """Titles and classes of its columns."""
        return [(column.header, column.kind) for column in self.columns]

    @property
    def looks(self) -> str:
        """Its classes."""
        return " ".join(filter(None, ("sortable" if self.sortable else "", "stacked" if self.stacked else "")))

    @property
    def rows(self) -> Sequence[Sequence[Cell]]:
        """Cells row by row."""
        cells = ([one if isinstance(one, Cell) else Cell(one) for one in column.cells] for column in self.columns)
        return list(zip(*cells, strict=True))


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its caption.

    Attributes:
        drawn: SVG.
        caption: what is drawn.
        keys: (words, class of color) of a legend.
        about: words before the keys.
        signs: a further line of the caption.
        remark: how to read it, below.
    """

    drawn: Markup
    caption: str
    keys: Sequence[tuple[str, str]] = ()
    about: str = ""
    signs: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The content of a section, in this order: sentences, charts, tables.

    Attributes:
        lead: what is most worth knowing.
        absent: why there is nothing.
        caution: what keeps it from being certain.
        charts, tables: shown one below the other.
    """

    lead: str = ""
    absent: str = ""
    caution: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()


class Figure(NamedTuple):
    """A number to print large: its label, its value, and what it was computed from."""

    label: str
    value: str
    detail: str


class Badge(NamedTuple):
    """A word that stands out above the headline, its class of color, and the address it links to."""

    words: str
    look: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of every page.

    Attributes:
        title: of the window.
        kicker: what the page is, above the headline.
        name: of the model or pipeline that it is about.
        headline: the page's result in one sentence.
        badges: between kicker and headline.
        cautions: what keeps the headline from being certain.
        figures: the same as numbers to print large.
        advice: paragraphs below.
    """

    title: str
    kicker: str
    name: str
    headline: str
    badges: Sequence[Badge] = ()
    cautions: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    advice: Sequence[str] = ()


def render(template: str, head: Head, page: object, more: str = "") -> str:
    """Return a whole HTML document; equal pages give equal text.

    Args:
        template: file of this package's ``templates``, which extends ``base.html.j2``.
        head: its ``head``.
        page: its ``page``.
        more: name of a style and a script that no other page has.
    """
    found = environment().get_template(template)
    return found.render(head=head, page=page, **(_looks((f"{more}.css",), (f"{more}.js",)) if more else {}))


def script_data(json: str) -> Markup:
    """Return JSON as it may stand in a ``script`` element, which none of its texts can end."""
    return Markup(json.replace("<", "\\u003c"))  # noqa: S704  # ours


@cache
def _looks(styles: tuple[str, ...] = (), scripts: tuple[str, ...] = ()) -> dict[str, Markup]:
    """Return style and script of all pages, with further files, and the policy that allows nothing else.

    Even a mistake in escaping could not act.
    """
    each = ((*_STYLES, *styles), (*_SCRIPTS, *scripts))
    style, script = ("".join((_FOLDER / name).read_text("utf-8") for name in names) for names in each)
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"
    return {"style": Markup(style), "script": Markup(script), "policy": Markup(policy)}  # noqa: S704  # ours


@cache
def environment() -> "Environment":
    """Return the templates' environment, with what all pages share."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # records of a report need none of it

    # autoescape with our own finalizer, so that invisible characters are shown, too
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escaped,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= _looks()
    made.filters |= {"name": name, "breakable": breakable, "percent": percent}
    shown = ("bare", "counted", "difference", "milliseconds", "score", "size", "times")
    made.filters |= {one: getattr(numbers, one) for one in shown}
    return made


def name(text: str) -> Markup:
    """Return a node's or tensor's name; a long one is shortened in the middle, and hovering shows all."""
    shown = visible(text)
    if len(shown) > _NAME_HEAD + _NAME_TAIL:
        parts = [shown[:_NAME_HEAD] + "…", shown[-_NAME_TAIL:]]
    else:
        cut = len(shown) - _NAME_TAIL if len(shown) > _NAME_TAIL + 1 else 0  # one letter is no wider than "…"
        parts = [shown[:cut], shown[cut:]]
    spans = Markup("").join(Markup("<span>{}</span>").format(part) for part in parts if part)
    return Markup('<span class="name" title="{}">{}</span>').format(shown, spans)


def breakable(text: str) -> Markup:
    """Return a name that may go on in a second line behind each of its underscores."""
    return Markup("_<wbr>").join(map(escaped, text.split("_")))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
