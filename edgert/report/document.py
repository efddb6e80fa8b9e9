"""One HTML file that needs nothing else: no network, no script to be read, no fonts of its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from edgert.report.markup import Markup, join, tag


def document(
    title: str,
    description: str,
    body: Iterable[object],
    *,
    styles: Sequence[str] = ("page.css",),
    scripts: Sequence[str] = ("page.js",),
) -> str:
    """A whole page.

    Args:
        title: of the window.
        description: one sentence, for whoever lists pages.
        body: what is on it.
        styles, scripts: files of this package that become part of it, in order.
    """
    style, script = (join(map(_part, names)) for names in (styles, scripts))
    head = tag("head", *_head(title, description, style, script))
    return f"<!doctype html>\n{tag('html', head, tag('body', *body, tag('script', script)), lang='en')}\n"


def columns(sections: Iterable[tuple[str, str, object]], names: Mapping[str, str] | None = None) -> Markup:
    """Sections with a list of them beside.

    Args:
        sections: (id, title, content) of each.
        names: id → what the list calls it, of those that it has; all, by their titles, by default.
    """
    listed = tuple(sections)
    names = {name: title for name, title, _ in listed} if names is None else names
    links = (tag("li", tag("a", title, href=f"#{name}")) for name, title in names.items())
    contents = tag("nav", tag("ul", *links), aria_label="Sections")
    return tag("div", contents, tag("main", *(_section(*one) for one in listed)), class_="columns")


def figures(shown: Iterable[tuple[str, str, str]]) -> Markup:
    """A row of large numbers.

    Args:
        shown: (what it is, the number with its unit, what to know about it) of each.
    """
    return tag("dl", *(_figure(*one) for one in shown), class_="figures")


def _section(name: str, title: str, content: object) -> Markup:
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, content, id=name, aria_labelledby=f"{name}-title")


def _figure(label: str, value: str, detail: str) -> Markup:
    return tag("div", tag("dt", label), tag("dd", tag("b", value), tag("span", detail)))


def _head(title: str, description: str, style: Markup, script: Markup) -> list[Markup]:
    """A policy admits this page's own style and script and nothing else: even a mistake in escaping could not act."""
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"
    return [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=Markup(policy)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="description", content=description),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", style),
    ]


@cache
def _part(name: str) -> Markup:
    """A file of this package as it stands; it holds no end tag that would close its element."""
    return Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
