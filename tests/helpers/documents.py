"""What README.md, pages and notebooks of docs/, and DESIGN.md files ask people to type and write, with its place."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.helpers.command import ROOT
from tools.docs_site import notebook_text

PAGES = (
    *(page for page in sorted(ROOT.glob("*.md")) if page.name != "CHANGELOG.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("edgert/**/DESIGN.md")),
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"(?<!`)`(edgert [^`]+)`(?!`)")
_SHELL = ("sh", "bash")


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that somebody may copy; words within a sentence are not ``whole``, and may leave things out."""

    place: str
    text: str
    whole: bool = True

    def __str__(self) -> str:
        return self.place


def words(text: str) -> int:
    """Return how many words a page has; what draws its tables is none."""
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def blocks(*languages: str) -> list[Piece]:
    """Return the fenced blocks in one of these languages."""
    return [piece for language, piece in fenced() if language in languages]


def shell_lines() -> list[Piece]:
    """Return every command of the shell blocks, continued lines as one, without comments."""
    found = []
    for block in blocks(*_SHELL):
        name, _, first = block.place.rpartition(":")
        text = re.sub(r"(\\|(?<=&&))\n\s*", lambda end: " " * len(end[0]), block.text)
        for number, line in enumerate(text.splitlines(), int(first)):
            if command := re.split(r"(?:^|\s+)#\s", line)[0].strip():
                found.append(Piece(f"{name}:{number}", command))
    return found


def commands() -> list[Piece]:
    """Return every ``edgert …``, of a block or in a sentence, without pipes and redirections."""
    lines = [one for one in shell_lines() if one.text.startswith("edgert ")]
    return [Piece(one.place, re.split(r"\s+[|>&]+(?:\s|$)", one.text)[0], one.whole) for one in (*lines, *_spans())]


def fenced() -> Iterator[tuple[str, Piece]]:
    """Yield the language of every fenced block, and the block; a cell of a notebook is a block of Python."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    texts |= {book: notebook_text(book) for book in sorted((ROOT / "docs").glob("*.ipynb"))}
    for page, text in texts.items():
        for match in FENCE.finditer(text):
            yield match[1], Piece(f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start(2)) + 1}", match[2])


def _spans() -> Iterator[Piece]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _SPAN.finditer(text):
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
            yield Piece(place, " ".join(match[1].split()), whole=False)
