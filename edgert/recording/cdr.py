"""CDR, the binary form of ROS 2 messages: encoded to pieces that are sent one after another, decoded without a copy.

It is the little-endian plain CDR of DDS (OMG formal/2014-11-01, clause 9.3.2). A message is a flat mapping: path of a
field, such as ``header.stamp.sec``, → value. A list of messages is a list of such mappings.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from edgert.errors import StageError
from edgert.recording.definitions import DEFINITIONS, full_name

Message = Mapping[str, Any]
_PLAIN = b"\x00\x01\x00\x00"
"""Header of little-endian plain CDR."""
_CODES = {
    "bool": "?", "byte": "B", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i",
    "float32": "f", "float64": "d", "uint64": "Q", "int64": "q",
}  # fmt: skip
_LENGTH = struct.Struct("<I")


class DamagedMessage(StageError):  # noqa: N818 - reads as what it is
    """Bytes that are not a message of their type."""


def encode(name: str, message: Message) -> list[bytes | memoryview]:
    """Return a message as pieces; those of ``uint8[]`` fields are views of the caller's memory.

    Args:
        name: message type, such as ``sensor_msgs/msg/Image``.
        message: fields; missing ones have their default.
    """
    out = _Writer([_PLAIN], 0)
    _layout(name).write(out, message)
    return out.pieces


def decode(name: str, data: bytes | memoryview) -> dict[str, Any]:
    """Return the fields of a message; ``uint8[]`` fields are views into ``data``.

    Raises:
        DamagedMessage: the message ends too early, or has another encoding.
    """
    view = memoryview(data)
    if bytes(view[:2]) != _PLAIN[:2]:
        why = f"its first bytes are {bytes(view[:4]).hex(' ') or 'missing'}; expected {_PLAIN.hex(' ')}"
        raise DamagedMessage(f"a message is not plain CDR of {name}", why=why)
    try:
        return _layout(name).read(_Reader(view[len(_PLAIN) :]))
    except (struct.error, ValueError) as error:
        raise DamagedMessage(f"a message of {len(view)} bytes is not a {name}", why=str(error)) from error


@dataclass(slots=True)
class _Writer:
    """Pieces of a message, and their size without the header."""

    pieces: list[bytes | memoryview]
    size: int

    def add(self, piece: bytes | memoryview) -> None:
        self.pieces.append(piece)
        self.size += len(piece)

    def add_length(self, length: int) -> None:
        self.add(bytes(-self.size % 4) + _LENGTH.pack(length))


@dataclass(slots=True)
class _Reader:
    """Position in the bytes of a message."""

    view: memoryview
    at: int = 0

    def take(self, count: int) -> memoryview:
        end = self.at + count
        if end > len(self.view):
            raise ValueError(f"it ends after {len(self.view)} of at least {end} bytes")
        found, self.at = self.view[self.at : end], end
        return found

    def take_length(self, least_size: int) -> int:
        """Return the length of a sequence whose items have at least this many bytes each."""
        self.at += -self.at % 4
        (length,) = _LENGTH.unpack(self.take(4))
        if length * least_size > len(self.view) - self.at:
            raise ValueError(f"a length of {length} is more than fits into {len(self.view)} bytes")
        return int(length)


class _Numbers:
    """Numbers and arrays of fixed length, up to the next text or sequence, which one call of ``struct`` converts."""

    def __init__(self, fields: Sequence[tuple[str, str, int, float]]) -> None:
        self._fields = [(path, count, default if count == 1 else (0,) * count) for path, _, count, default in fields]
        self._forms = [_form(fields, begin) for begin in range(8)]
        self.least_size = sum(struct.calcsize(code) * count for _, code, count, _ in fields)

    def write(self, out: _Writer, message: Message) -> None:
        values = list[Any]()
        for path, count, default in self._fields:
            value = message.get(path, default)
            if count == 1:
                values.append(value)
            else:
                values.extend(value)
        out.add(self._forms[out.size % 8].pack(*values))

    def read(self, reader: _Reader, into: dict[str, Any]) -> None:
        form = self._forms[reader.at % 8]
        values, at = form.unpack(reader.take(form.size)), 0
        for path, count, _ in self._fields:
            into[path] = values[at] if count == 1 else values[at : at + count]
            at += count


def _form(fields: Sequence[tuple[str, str, int, float]], begin: int) -> struct.Struct:
    """Return the struct of numbers, each aligned to its size, that begin at this offset from a multiple of 8."""
    text, at = "<", begin
    for _, code, count, _ in fields:
        size = struct.calcsize(code)
        padding = -at % size
        text += f"{padding}x{count}{code}"
        at += padding + size * count
    return struct.Struct(text)


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A text, or a ``uint8[]`` field, such as the pixels of an image, which is not copied."""

    path: str
    is_text: bool

    @property
    def least_size(self) -> int:
        return 4 + self.is_text

    def write(self, out: _Writer, message: Message) -> None:
        if self.is_text:
            data: bytes | memoryview = message.get(self.path, "").encode(errors="replace") + b"\0"
        else:
            data = memoryview(message.get(self.path, b"")).cast("B")
        out.add_length(len(data))
        out.add(data)

    def read(self, reader: _Reader, into: dict[str, Any]) -> None:
        data = reader.take(reader.take_length(1))
        into[self.path] = bytes(data).rstrip(b"\0").decode(errors="replace") if self.is_text else data


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Sequence of numbers of one type."""

    path: str
    code: str
    least_size: int = 4

    def write(self, out: _Writer, message: Message) -> None:
        data = np.asarray(message.get(self.path, ()), f"<{self.code}")
        out.add_length(len(data))
        if len(data):
            out.add(bytes(-out.size % data.itemsize))
            out.add(data.tobytes())

    def read(self, reader: _Reader, into: dict[str, Any]) -> None:
        dtype = np.dtype(f"<{self.code}")
        if count := reader.take_length(dtype.itemsize):
            reader.at += -reader.at % dtype.itemsize
        into[self.path] = np.frombuffer(bytes(reader.take(count * dtype.itemsize)), dtype)


@dataclass(frozen=True, slots=True)
class _Messages:
    """Sequence of messages of one type."""

    path: str
    layout: _Layout
    least_size: int = 4

    def write(self, out: _Writer, message: Message) -> None:
        found = message.get(self.path, ())
        out.add_length(len(found))
        for one in found:
            self.layout.write(out, one)

    def read(self, reader: _Reader, into: dict[str, Any]) -> None:
        count = reader.take_length(self.layout.least_size)
        into[self.path] = [self.layout.read(reader) for _ in range(count)]


_Step = _Numbers | _Bytes | _Sequence | _Messages


@dataclass(frozen=True, slots=True)
class _Layout:
    """All fields of a message type, in order."""

    steps: tuple[_Step, ...]
    least_size: int

    def write(self, out: _Writer, message: Message) -> None:
        for step in self.steps:
            step.write(out, message)

    def read(self, reader: _Reader) -> dict[str, Any]:
        found = dict[str, Any]()
        for step in self.steps:
            step.read(reader, found)
        return found


@cache
def _layout(name: str) -> _Layout:
    steps, numbers = list[_Step](), list[tuple[str, str, int, float]]()
    for path, kind, length, default in _fields(name):
        is_number, is_sequence = kind in _CODES, length == "[]"
        if is_number and not is_sequence:
            numbers.append((path, _CODES[kind], int(length.strip("[]") or 1), default))
            continue
        if numbers:
            steps.append(_Numbers(tuple(numbers)))
            numbers = []
        if kind in ("string", "uint8"):
            steps.append(_Bytes(path, kind == "string"))
        else:
            steps.append(_Sequence(path, _CODES[kind]) if is_number else _Messages(path, _layout(full_name(kind))))
    if numbers:
        steps.append(_Numbers(tuple(numbers)))
    return _Layout(tuple(steps), sum(step.least_size for step in steps))


def _fields(name: str, before: str = "") -> list[tuple[str, str, str, float]]:
    """Return (path, type, ``[N]`` or ``[]`` or empty, default) of a type's fields, with nested messages flattened."""
    found = list[tuple[str, str, str, float]]()
    for line in DEFINITIONS[name].splitlines():
        typed, field, *default = line.split()
        kind, bracket, length = typed.partition("[")
        if "/" in kind and not bracket:
            found += _fields(full_name(kind), f"{before}{field}.")
        else:
            found.append((before + field, kind, bracket + length, float(default[0]) if default else 0))
    return found
