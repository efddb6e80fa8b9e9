"""Text of any editor and system; what is none is refused with its line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edgert.errors import ConfigError
from edgert.text_files import as_text, lines_of, read_text

LINES = "Käfer\nVogel, blau\n"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_encodings_and_line_ends(encoding: str, end: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert as_text(LINES.replace("\n", end).encode(encoding), "names.txt") == LINES
    warned = [one.getMessage() for one in caplog.records]
    assert [one.startswith("names.txt:1 is not UTF-8") for one in warned] == [True] * (
        encoding in ("latin-1", "cp1252")
    )


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("a\nкошка\n".encode("cp1251"), 2),  # mostly beyond ASCII, so no text of Windows-1252
        ("人\n汽车\n".encode("gbk"), 1),
        (b"\xff\xfe\x00ca", 1),
        (b"\x00\x01\x02\xff\xff", 1),
        (b"a\nb\n\x81c d e f", 3),
    ],
)
def test_what_is_no_text_names_its_line(data: bytes, line: int) -> None:
    with pytest.raises(ConfigError, match="text") as caught:
        as_text(data, "names.txt")
    assert caught.value.where == f"names.txt:{line}" and caught.value.fix == "save it as UTF-8"


def test_characters_that_other_readers_take_for_line_ends_stay(tmp_path: Path) -> None:
    assert as_text("a\u2028b\x85c\x0bd\n".encode(), "dict.txt") == "a\u2028b\x85c\x0bd\n"
    assert as_text(b"", "empty.txt") == ""


def test_lines_without_blanks_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(b"# head\r\n\r\n a.jpg \r\n  \n#b.jpg\n#\n")
    assert list(lines_of(path)) == [(3, "a.jpg"), (5, "#b.jpg")]
    with pytest.raises(ConfigError, match="cannot read"):
        list(lines_of(tmp_path / "none.txt"))
    with pytest.raises(ConfigError, match="too long"):
        read_text(path, most_bytes=3)
