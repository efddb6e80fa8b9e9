"""HTML made of pieces that cannot be mistaken for text: whatever is not :class:`Markup` is escaped.

Names of tensors come from model files, and model files come from anywhere.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

_VOID = frozenset({"meta", "link", "br", "input"})
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})  # controls, direction overrides, lone surrogates, ...
_NAME_HEAD, _NAME_TAIL = 52, 18  # characters of a name that are shown at most; all of it on hover


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text with every character that would not show, or would hide others, written as its Python escape."""
    if text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    return character.encode("unicode_escape").decode("ascii")


def escape(text: object) -> Markup:
    """The text as HTML; Markup as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(visible(str(text))))


def join(pieces: Iterable[object], between: object = "") -> Markup:
    """Pieces one after the other."""
    return Markup(escape(between).join(map(escape, pieces)))


def tag(element: str, /, *children: object, **attributes: object) -> Markup:
    """``tag("td", "a < b", class_="name")`` → ``<td class="name">a &lt; b</td>``.

    Args:
        element: its name; those that have no content in HTML get no end tag.
        children: text is escaped, Markup is not.
        attributes: ``_`` stands for ``-`` and one at the end goes; True is a bare attribute; False and None are left
            out; a float is written with five digits.
    """
    head = "".join([element, *(_attribute(key, value) for key, value in attributes.items())])
    if element in _VOID:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{join(children)}</{element}>")


def shape(element: str, /, **attributes: object) -> Markup:
    """An SVG element without children."""
    return Markup(f"<{element}{''.join(_attribute(key, value) for key, value in attributes.items())}/>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    text = f"{value:.5g}" if isinstance(value, float) else value
    return f" {name}" if value is True else f' {name}="{escape(text)}"'


def code(name: str) -> Markup:
    """A node's or tensor's name, of any length: the middle gives way where it does not fit, and hovering shows all."""
    shown = visible(name)
    if len(shown) > _NAME_HEAD + _NAME_TAIL:
        head, tail = shown[:_NAME_HEAD] + "…", shown[-_NAME_TAIL:]
    else:
        cut = len(shown) - _NAME_TAIL if len(shown) > _NAME_TAIL + 1 else 0  # one letter is no wider than "…"
        head, tail = shown[:cut], shown[cut:]
    pieces = [tag("span", piece) for piece in (head, tail) if piece]
    return tag("span", *pieces, class_="name", title=shown)


def paragraph(text: object, class_: str | None = None) -> Markup:
    """One paragraph."""
    return tag("p", text, class_=class_)


def lines(text: str) -> Markup:
    """Text of one or several lines."""
    return join(text.strip().splitlines(), between=tag("br"))
