"""Draws a recorded terminal as one SVG that is animated by CSS, light or dark as the reader's system.

    python tools/film.py session.cast session.svg

A recording is in asciinema's format, version 2: a line of JSON about the terminal, then a line for each output.
"""

import base64
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

SPEED = 4.0
"""Speed of the film relative to the terminal; its clock shows the terminal's time."""
LONGEST_PAUSE_S, FRAME_S, PAGE_S = 1.0, 0.25, 6.0
"""Seconds of the film: longest pause, shortest time between two frames, and last frame."""
CELL_PX, LINE_PX, MARGIN_PX, BAR_PX = 7.8, 17, 14, 30
_TOKEN = re.compile(
    r"\x1b\[(?P<private>\??)(?P<numbers>[\d;]*)(?P<verb>[A-Za-z])|\x1b\][^\x07]*\x07|(?P<control>[\r\n\b])"
    r"|(?P<text>[^\x00-\x1f]+)"
)
_CUT = re.compile(r"\x1b(\[\??[\d;]*|\][^\x07]{0,100})?")  # the next output may complete it
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_NAMED = {1: "b", 2: "d", 4: "u"}
_STYLE = """
svg { --back: #ffffff; --edge: #d0d7de; --text: #24292f; --dim: #6e7781; }
.c1 { fill: #b3202c } .c2 { fill: #1a7f37 } .c3 { fill: #7a5700 } .c4 { fill: #0550ae } .c5 { fill: #8250df }
.c6 { fill: #0b6b74 } .c7 { fill: #57606a } .c0 { fill: #57606a } .night { display: none }
@media (prefers-color-scheme: dark) {
svg { --back: #0d1117; --edge: #30363d; --text: #e6edf3; --dim: #8b949e; }
.c1 { fill: #ff7b72 } .c2 { fill: #56d364 } .c3 { fill: #e3b341 } .c4 { fill: #79c0ff } .c5 { fill: #d2a8ff }
.c6 { fill: #56d4dd } .c7 { fill: #b1bac4 } .c0 { fill: #8b949e } .night { display: inline } .day { display: none }
}
text { fill: var(--text); white-space: pre } .b { font-weight: 600 } .d { fill: var(--dim) }
.u { text-decoration: underline }
"""


@dataclass(frozen=True, slots=True)
class Output:
    at_s: float
    text: str


class Screen:
    """Cells of a terminal, each a character with the classes of its style, changed by text and control sequences."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self.lines: list[list[tuple[str, str]]] = [[]]
        self._row = self._column = 0
        self._style: list[str] = []
        self._rest = ""

    def write(self, text: str) -> None:
        """Show text. Raises ValueError for an unknown control sequence."""
        text = self._rest + text
        place = 0
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                break
            place = token.end()
            self._obey(token)
        self._rest = text[place:]
        if self._rest and not _CUT.fullmatch(self._rest):
            raise ValueError(f"unknown control sequence: {self._rest[:20]!r}")

    def _obey(self, token: re.Match[str]) -> None:
        if token["text"]:
            for letter in token["text"]:
                self._put(letter)
        elif token["control"] == "\r":
            self._column = 0
        elif token["control"] == "\b":
            self._column = max(self._column - 1, 0)
        elif token["control"] == "\n":
            self._move_down()
        elif token["verb"] and not token["private"]:
            self._control(token["verb"], [int(one or 0) for one in token["numbers"].split(";")])

    def _put(self, letter: str) -> None:
        if self._column == self._columns:
            self._column = 0
            self._move_down()
        line = self.lines[self._row]
        line.extend([(" ", "")] * (self._column + 1 - len(line)))
        line[self._column] = (letter, " ".join(self._style))
        self._column += 1

    def _move_down(self) -> None:
        self._row += 1
        if self._row == len(self.lines):
            self.lines.append([])
        if len(self.lines) > self._rows:
            del self.lines[0]
            self._row -= 1

    def _control(self, verb: str, numbers: list[int]) -> None:
        count = max(numbers[0], 1)
        line = self.lines[self._row]
        if verb == "m":
            self._dress(numbers)
        elif verb == "A":
            self._row = max(self._row - count, 0)
        elif verb == "B":
            for _ in range(count):
                self._move_down()
        elif verb == "C":
            self._column = min(self._column + count, self._columns - 1)
        elif verb == "D":
            self._column = max(self._column - count, 0)
        elif verb == "G":
            self._column = count - 1
        elif verb == "K":
            del line[0 if numbers[0] == 2 else self._column :]
        elif verb == "J":
            del line[self._column :], self.lines[self._row + 1 :]
        else:
            raise ValueError(f"unknown control sequence: CSI {numbers} {verb}")

    def _dress(self, numbers: list[int]) -> None:
        """Set the style (Select Graphic Rendition): bold, dim, underlined, and the nearest of sixteen colors."""
        left = iter(numbers)
        for number in left:
            if number == 0:
                self._style = []
            elif number in _NAMED:
                self._style.append(_NAMED[number])
            elif number == 38:
                kind = next(left, 0)
                parts = [next(left, 0) for _ in range(1 if kind == 5 else 3)]
                self._paint(_nearest(parts))
            elif 30 <= number <= 37 or 90 <= number <= 97:
                self._paint(number % 10)
            elif number == 39:
                self._style = [one for one in self._style if one[0] != "c"]

    def _paint(self, color: int) -> None:
        self._style = [*(one for one in self._style if one[0] != "c"), f"c{color}"]


def _nearest(parts: Sequence[int]) -> int:
    """Return the nearest of eight colors to an entry of the 256 colors, or to red, green and blue."""
    if len(parts) == 1:
        number = parts[0]
        if number < 16:
            return number % 8
        if number > 231:
            return 7 if number > 243 else 0
        parts = [(number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6]
    middle = max(max(parts) / 2, 1)
    return sum(1 << place for place, part in enumerate(parts) if part > middle)


def read(path: Path) -> tuple[dict[str, Any], list[Output]]:
    """Return a recording's description of the terminal, and its outputs."""
    head, *lines = path.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return json.loads(head), [Output(at_s, text) for at_s, kind, text in events if kind == "o"]


def frames(head: Mapping[str, Any], outputs: Sequence[Output]) -> Iterator[tuple[float, float, list[str]]]:
    """Yield the time of each screen in the film, its time in the terminal, and its rows as SVG."""
    screen = Screen(head["width"], head["height"])
    film_s, before_s, shown_s, shown = 0.0, 0.0, -FRAME_S, [""]
    for number, output in enumerate(outputs):
        film_s += min((output.at_s - before_s) / SPEED, LONGEST_PAUSE_S)
        before_s = output.at_s
        screen.write(output.text)
        following = outputs[number + 1].at_s if number + 1 < len(outputs) else None
        is_last = following is None or (following - output.at_s) / SPEED > FRAME_S
        rows = [row(line) for line in screen.lines]
        if rows != shown and (is_last or film_s - shown_s >= FRAME_S):
            shown, shown_s = rows, film_s
            yield film_s, output.at_s, rows


def row(line: Sequence[tuple[str, str]]) -> str:
    runs, column = [], 0
    for style, cells in groupby(line, key=lambda cell: cell[1]):
        text = "".join(letter for letter, _ in cells)
        start = column + len(text) - len(text.lstrip())
        column += len(text)
        if seen := text.strip():
            place = f'x="{start * CELL_PX:.0f}" textLength="{len(seen) * CELL_PX:.0f}"'
            look = f' class="{style}"' if style else ""
            runs.append(f"<tspan {place}{look}>{escape(seen)}</tspan>")
    return "".join(runs)


def draw(head: Mapping[str, Any], outputs: Sequence[Output], page: Mapping[str, bytes] | None = None) -> str:
    """Return the film as SVG; ``page`` has images of a browser at the end, as WebP: ``day`` and ``night``."""
    played = list(frames(head, outputs))
    ids: dict[str, str] = {}
    width = round(head["width"] * CELL_PX) + 2 * MARGIN_PX
    height = head["height"] * LINE_PX + BAR_PX + 2 * MARGIN_PX
    strip, moves = [], []
    ends_s = played[-1][0] + PAGE_S
    for number, (film_s, at_s, rows) in enumerate(played):
        used = [
            f'<use href="#{ids.setdefault(text, f"r{len(ids)}")}" y="{place * LINE_PX}"/>'
            for place, text in enumerate(rows)
            if text
        ]
        strip.append(f'<g transform="translate({number * width})">{"".join(used)}{_clock(at_s, width)}</g>')
        moves.append(_move(film_s / ends_s, number * width))
    if page:
        images = (
            f'<image class="{when}" x="{-MARGIN_PX}" y="{-LINE_PX}" width="{width}" height="{height - BAR_PX}" '
            f'preserveAspectRatio="xMidYMin slice" href="data:image/webp;base64,{base64.b64encode(image).decode()}"/>'
            for when, image in page.items()
        )
        last = len(played) * width
        strip.append(f'<g transform="translate({last})">{"".join(images)}{_clock(played[-1][1], width)}</g>')
        moves.append(_move((played[-1][0] + 1.0) / ends_s, last))
    end = moves[-1].partition("{")[2].rstrip("}")
    motion = (
        f"@keyframes film{{{''.join(moves)}}} .film {{ animation: film {ends_s:.1f}s step-end infinite }}\n"
        f"@media (prefers-reduced-motion: reduce) {{ .film {{ animation: none; {end} }} }}"
    )
    lights = "".join(f'<circle cx="{20 + 18 * place}" cy="15" r="5" fill="var(--edge)"/>' for place in range(3))
    about = escape(head.get("title", "a terminal"))
    look = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="{_FONT}" font-size="13"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{about}" {look}>
<title>{about}</title>
<style>{_STYLE}{motion}</style>
<defs>{"".join(f'<text id="{name}">{text}</text>' for text, name in ids.items())}</defs>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="var(--back)" stroke="var(--edge)"/>
{lights}<line y1="{BAR_PX}" y2="{BAR_PX}" x2="{width}" stroke="var(--edge)"/>
<text x="{width // 2}" y="20" text-anchor="middle" class="d">{about}</text>
<svg width="{width}" height="{height - 1}"><g class="film"><g transform="translate({MARGIN_PX} {BAR_PX + LINE_PX})">
{chr(10).join(strip)}
</g></g></svg>
</svg>
"""


def _clock(at_s: float, width: int) -> str:
    minutes, seconds = divmod(int(at_s), 60)
    place = f'x="{width - 2 * MARGIN_PX}" y="{20 - BAR_PX - LINE_PX}" text-anchor="end"'
    return f"<text {place}>{minutes}:{seconds:02}</text>"


def _move(share: float, left_px: int) -> str:
    return f"{share * 100:.2f}%{{transform:translateX({-left_px}px)}}"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(*read(Path(sys.argv[1]))), encoding="utf-8")
