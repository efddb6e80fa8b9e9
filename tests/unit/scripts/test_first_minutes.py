"""The film of the first minutes: a terminal as SVG, and that the lines of README are those that were typed."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from edgert import __version__
from tests.helpers.browser import browser
from tests.helpers.command import ROOT
from tools import film
from tools.film import Screen, draw, read, row
from tools.first_minutes import Terminal, commands, walk

README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = ROOT / "docs/first-minutes.svg"


def shown(*texts: str, size: tuple[int, int] = (10, 4)) -> list[str]:
    """The rows of a terminal that was given these texts, one after the other."""
    screen = Screen(*size)
    for text in texts:
        screen.write(text)
    return ["".join(letter for letter, _ in line) for line in screen.lines]


@pytest.mark.parametrize(
    ("texts", "rows"),
    [
        (("one\r\ntwo",), ["one", "two"]),
        (("50 %\r100 %",), ["100 %"]),
        (("abc\b\bX",), ["aXc"]),
        (("0123456789\r\nx",), ["0123456789", "x"]),  # a full line wraps at the next letter, not before
        (("0123456789x",), ["0123456789", "x"]),
        (("a\r\nb\r\nc\r\nd\r\ne",), ["b", "c", "d", "e"]),  # it scrolls
        (("old\r\nbar\x1b[2K\x1b[1A\x1b[2K\rnew",), ["new", ""]),  # as a bar is drawn again
        (("abcdef\x1b[3D\x1b[K",), ["abc"]),
        (("a\r\nb\x1b[A\x1b[J",), ["a"]),
        (("\x1b[?25l\x1b]133;D;0\x07\x1b[5Gx\x1b[1Bi\x1b[1Cj",), ["    x", "     i j"]),
        (("a\x1b", "[31", "mb"), ["ab"]),  # cut anywhere
    ],
)
def test_a_screen_shows_what_a_terminal_shows(texts: tuple[str, ...], rows: list[str]) -> None:
    assert shown(*texts) == rows


@pytest.mark.parametrize("text", ["\x1b[5x", "\x1b(B", "\x07", "\x1b]8;;" + "x" * 200])
def test_what_a_screen_does_not_know_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="unknown control sequence"):
        Screen(10, 4).write(text)


def test_colors_are_the_nearest_of_eight() -> None:
    screen = Screen(80, 2)
    screen.write("  \x1b[1;32mgo\x1b[0m \x1b[38;5;197mr\x1b[39m\x1b[38;2;114;156;31mg\x1b[0m<&")
    assert re.findall(r'class="([^"]*)">([^<]+)', row(screen.lines[0])) == [("b c2", "go"), ("c1", "r"), ("c3", "g")]
    assert "&lt;&amp;" in row(screen.lines[0]) and row([]) == ""


def test_a_recording_is_read_and_long_pauses_are_cut(tmp_path: Path) -> None:
    lines = [{"version": 2, "width": 20, "height": 5, "title": "a < b"}, [0.5, "o", "$ "], [0.6, "i", "x"]]
    lines += [[0.7, "o", "x"], [90.0, "o", "\r\nlater"]]
    (tmp_path / "a.cast").write_text("\n".join(map(json.dumps, lines)))
    head, outputs = read(tmp_path / "a.cast")
    assert [one.text for one in outputs] == ["$ ", "x", "\r\nlater"]
    played = list(film.frames(head, outputs))
    assert played[-1][0] < 2 * film.LONGEST_PAUSE_S and played[-1][1] == 90.0
    text = draw(head, outputs, {"day": b"1", "night": b"2"})
    tree = ElementTree.fromstring(text)
    assert tree.get("aria-label") == "a < b" and text.count("data:image/webp") == 2 and "1:30" in text
    assert text.count("translateX(") == len(played) + 2  # one for each frame, the page, and readers without motion


def test_the_film_of_readme_is_small_and_types_what_it_says() -> None:
    lines, address = commands(README)
    assert f"pip install edgert-{__version__}-py3-none-any.whl" in lines
    text = SHOWN.read_text(encoding="utf-8")
    assert SHOWN.stat().st_size <= 200_000 and "prefers-color-scheme: dark" in text
    typed = ["".join(one.itertext()) for one in ElementTree.fromstring(text).iter() if one.tag.endswith("}text")]
    for line in lines:
        plain = re.sub(r"\s+", "", line)
        assert any(re.sub(r"\s+", "", one).endswith(f"${plain}") for one in typed), f"make it again: {line}"
    assert address in text and "files.pythonhosted" not in text


def test_it_plays_in_a_browser_without_a_word_of_complaint(tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        for dark, color in ((False, "rgb(36, 41, 47)"), (True, "rgb(230, 237, 243)")):
            page.open(SHOWN, 900, dark=dark)
            assert page.evaluate("getComputedStyle(document.querySelector('text')).fill") != ""
            assert page.evaluate("getComputedStyle(document.querySelector('defs text')).fill") == color
            assert page.evaluate("document.querySelector('.film').getAnimations().length") == 1
            assert page.errors == [] and len(page.requests) == len(set(page.requests))
            assert not [one for one in page.requests if not one.startswith(("file:", "data:"))]


def test_a_terminal_runs_what_is_typed_and_says_how_it_ended(tmp_path: Path) -> None:
    with Terminal(tmp_path, 60_000) as terminal:
        terminal.type("echo $((6 * 7)) $HOME; false")
        terminal.wait(lambda: len(terminal.exit_codes()) == 2, 10)
        assert terminal.exit_codes()[1] == 1
        assert f"42 {tmp_path}/home" in "".join(one.text for one in terminal.outputs)


@pytest.mark.parametrize("lines", [["(exit 3)", "echo never"], ["true", "(exit 3)"]])
def test_a_command_that_fails_ends_it(tmp_path: Path, lines: list[str]) -> None:
    with Terminal(tmp_path, 60_000) as terminal:
        with pytest.raises(RuntimeError, match=r"exit code 3, and no live page: \(exit 3\)"):
            walk(terminal, lines, "http://127.0.0.1:9", 10)
        assert "never" not in "".join(one.text for one in terminal.outputs)


def test_a_page_that_does_not_come_is_too_late(tmp_path: Path) -> None:
    with Terminal(tmp_path, 60_000) as terminal, pytest.raises(TimeoutError, match=r"within 0\.3 s: sleep 20"):
        walk(terminal, ["sleep 20"], "http://127.0.0.1:9", 0.3)
