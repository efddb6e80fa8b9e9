"""``edgert explain``: the page about an error, by its code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgert.cli import terminal
from edgert.errors import ConfigError, nearest

PAGES = Path(__file__).resolve().parents[1] / "explanations.md"


def explain(
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="Code of an error, such as E103.")] = None,
) -> None:
    """Explain an error: what it means, what causes it, and what to do.

    Without a code, list all that have a page. An error that has one ends with the line "more: edgert explain CODE".

    Examples:

        edgert explain

        edgert explain E103
    """
    found, screen = pages(), terminal.console()
    if code is None:
        for one, text in found.items():
            screen.print(f"{one}  {title(text)}", markup=False, highlight=False, soft_wrap=True)
        return
    wanted = code.upper()
    if wanted not in found:
        fix = "edgert explain lists the codes that have a page"
        raise ConfigError(f"no page about {code!r}{nearest(wanted, found)}", fix=fix)
    from rich.markdown import Markdown

    screen.print(Markdown(found[wanted]) if screen.is_terminal else found[wanted], markup=False, soft_wrap=True)


def pages() -> dict[str, str]:
    """Return code → page about it, in Markdown."""
    parts = PAGES.read_text(encoding="utf-8").split("\n## ")
    texts = [part.removeprefix("## ").strip() for part in parts]
    return {text.partition(":")[0]: f"## {text}" for text in texts}


def title(page: str) -> str:
    """Return what a page is about, in a few words."""
    return page.partition("\n")[0].partition(": ")[2]
