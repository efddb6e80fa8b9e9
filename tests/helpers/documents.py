"""What README.md and docs/*.md tell people to type and write, with its place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.helpers.command import ROOT

PAGES = (
    *(page for page in sorted(ROOT.glob("*.md")) if page.name != "CHANGELOG.md"),  # which tells of what was
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "edgert" / "runtime" / "DESIGN.md",
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`(edgert [^`]+)`(?!`)")
_VERBATIM = re.compile(r"^ {4}(edgert .*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that somebody may copy.

    Attributes:
        place: ``docs/plan.md:6``.
        text: as it stands there.
        whole: False for words within a sentence, which may leave out what does not matter there.
    """

    place: str
    text: str
    whole: bool = True

    def __str__(self) -> str:
        return self.place


def blocks(*languages: str) -> list[Piece]:
    """Fenced blocks in one of these languages; ``""`` is one that says none."""
    return [piece for language, piece in _fenced() if language in languages]


def commands() -> list[Piece]:
    """Every ``edgert …``, a line of a block or in a sentence; pipes, redirections and comments are left out."""
    lines = [piece for language, block in _fenced() if language in ("", "sh", "bash") for piece in _lines(block)]
    return [Piece(one.place, _bare(one.text), one.whole) for one in (*lines, *_verbatim(), *_spans())]


def words(command: str) -> list[str]:
    """What the shell would make of it."""
    return shlex.split(command)


def _bare(command: str) -> str:
    return re.split(r"\s+#|\s+[|>]\s", command)[0].strip()


def _fenced() -> Iterator[tuple[str, Piece]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            yield match[1], Piece(f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start(2)) + 1}", match[2])


def _lines(block: Piece) -> Iterator[Piece]:
    name, _, first = block.place.rpartition(":")
    for number, line in enumerate(block.text.splitlines(), int(first)):
        if line.startswith("edgert "):
            yield Piece(f"{name}:{number}", line)


def _verbatim() -> Iterator[Piece]:
    yield from _found(_VERBATIM, whole=True)


def _spans() -> Iterator[Piece]:
    yield from _found(_SPAN, whole=False)


def _found(pattern: re.Pattern[str], whole: bool) -> Iterator[Piece]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in pattern.finditer(text):
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
            yield Piece(place, " ".join(match[1].split()), whole)
