"""Reading of text files from any editor on any system: class names, labels, lists of images, settings."""

import codecs
import logging
from collections.abc import Iterator
from pathlib import Path

from edgert.errors import ConfigError, raised_as

log = logging.getLogger("edgert.text_files")

_MOST_BYTES = 64 * 2**20
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
"""Byte order marks; those of UTF-32 begin with those of UTF-16."""
_GUESS_BYTES = 4096


def read_text(path: Path, most_bytes: int = _MOST_BYTES) -> str:
    """Return the text of a file; see :func:`as_text`.

    Raises:
        ConfigError: it is no text, or longer than ``most_bytes``.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)  # its size is not asked for: that of a pipe or device is 0
    if len(content) > most_bytes:
        raise ConfigError(f"{path} is too long", why=f"it has more than {most_bytes} bytes", where=str(path))
    return as_text(content, str(path))


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and content of a file's lines, except blank ones and comments, which begin with ``# ``.

    Raises:
        ConfigError: the file cannot be read, or is no text.
    """
    with raised_as(ConfigError, f"cannot read {path}", where=str(path)):
        content = read_text(path)
    for number, line in enumerate(content.split("\n"), 1):
        stripped = line.strip()
        if stripped and stripped.split()[0] != "#":
            yield number, stripped


def as_text(data: bytes, name: str) -> str:
    r"""Return bytes as text with ``\n`` between its lines and without a byte order mark.

    Without a mark the text is UTF-8, or UTF-16 where every other byte is zero. Other text is Windows-1252, which
    includes Latin-1, if most of each line is ASCII; that is logged as a warning.

    Raises:
        ConfigError: it is none of these; ``where`` is the file and line.
    """
    mark, encoding = next(
        ((mark, encoding) for mark, encoding in _MARKS if data.startswith(mark)), (b"", _guess_encoding(data))
    )
    content = data[len(mark) :]
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        text = _decode_western(content, name, error)
    return _unix_ends(text)


def _unix_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _guess_encoding(data: bytes) -> str:
    """Return the encoding of text without a mark: most characters of UTF-16 have one zero byte, always on one side."""
    head = data[: _GUESS_BYTES & ~1]
    for side, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros, others = head[side::2], head[1 - side :: 2]
        if len(zeros) > 1 and zeros.count(0) * 10 > len(zeros) * 9 and 0 not in others:
            return encoding
    return "utf-8"


def _decode_western(data: bytes, name: str, error: UnicodeDecodeError) -> str:
    """Decode Windows-1252. Raises ConfigError if the text does not look like that."""
    before = _unix_ends(data[: error.start].decode(error.encoding, "replace"))
    where = f"{name}:{before.count(chr(10)) + 1}"
    is_ascii = all(2 * sum(byte >= 0x80 for byte in line) <= len(line) for line in data.splitlines())  # mostly
    looks_western = error.encoding == "utf-8" and 0 not in data and is_ascii
    text = data.decode("cp1252", "replace") if looks_western else "\ufffd"
    if "\ufffd" in text:
        encoding = error.encoding.upper()
        raise ConfigError(
            f"{name} is not {encoding} text",
            why=f"byte {error.start} cannot be read: {error.reason}",
            where=where,
            fix="save it as UTF-8",
        ) from error
    log.warning("%s is not UTF-8: it is read as Windows-1252 (Latin-1); save it as UTF-8 if that is wrong", where)
    return text
