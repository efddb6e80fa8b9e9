"""Protocol buffers as text: https://protobuf.dev/reference/protobuf/textformat-spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias


class Word(str):
    """The name of an enumeration's value, which stands without quotes."""

    __slots__ = ()


Message: TypeAlias = Mapping[str, Any]
"""Field → a Word, text, bool or int; a Message; or a sequence of either."""


def text_of(message: Message) -> str:
    """A message, one field a line. A sequence of scalars is one list; one of messages is the field again and again."""
    return "".join(f"{line}\n" for line in _lines(message, ""))


def pairs(entries: Mapping[str, Any]) -> list[Message]:
    """A ``map`` field: its entries are messages with a key and a value."""
    return [{"key": key, "value": value} for key, value in entries.items()]


def _lines(message: Message, indent: str) -> Iterator[str]:
    for name, value in message.items():
        if isinstance(value, Mapping):
            yield from _block(name, value, indent)
        elif isinstance(value, (str, int)):
            yield f"{indent}{name}: {_scalar(value)}"
        elif value and isinstance(value[0], Mapping):
            for one in value:
                yield from _block(name, one, indent)
        else:
            yield f"{indent}{name}: [{', '.join(map(_scalar, value))}]"


def _block(name: str, message: Message, indent: str) -> Iterator[str]:
    yield f"{indent}{name} {{"
    yield from _lines(message, indent + "  ")
    yield f"{indent}}}"


def _scalar(value: Word | str | bool | int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (Word, int)) else _quoted(value)


def _quoted(text: str) -> str:
    """Bytes that are not plain ASCII as three octal digits, which every reader takes."""
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(plain)}"'
