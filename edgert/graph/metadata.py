"""Metadata that an exporter wrote into an ONNX file: class names and other texts by key."""

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from edgert.errors import CONTROL
from edgert.units import whole_number

_MOST_CHARACTERS = 4_000_000
"""Longest value that is read; a longer one is not a list of names."""
_NAMES = ("names", "classes", "labels", "class_names", "model_info labels")
"""Keys under which exporters store class names.

Ultralytics and YOLOv5 write ``names`` (https://docs.ultralytics.com/modes/export), Training Extensions
``model_info labels`` (https://github.com/open-edge-platform/model_api)."""


# Field 14 of a ModelProto is metadata_props, each with a key (1) and a value (2). All other fields are skipped by their
# length, so that onnx is not imported and weights are not read (https://protobuf.dev/programming-guides/encoding,
# https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).

_PROPERTY, _KEY, _VALUE = 14, 1, 2
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_MOST_FIELDS = 100_000
"""Largest number of fields that are read of one message; models have dozens."""


def metadata_of(path: Path) -> Mapping[str, str]:
    """Return the metadata of an ONNX file by key; empty where the file is unreadable or not an ONNX model."""
    found: dict[str, str] = {}
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            return {}
        with path.open("rb") as file:
            for number, length in _fields(file, path.stat().st_size):
                if number == _PROPERTY and length <= _MOST_CHARACTERS:
                    end = file.tell() + length
                    parts = {}
                    for part, size in _fields(file, end):
                        parts[part] = file.read(size)
                    if end == file.tell() and _KEY in parts:
                        found[parts[_KEY].decode(errors="replace")] = parts.get(_VALUE, b"").decode(errors="replace")
    except OSError:  # loading the model reports it
        return {}
    return found


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int]]:
    """Yield number and length of each field of a message that has a length; the file is then at its content.

    Iteration ends early where the bytes are not a message.
    """
    for _ in range(_MOST_FIELDS):
        if file.tell() >= end:
            return
        tag = _varint(file)
        kind = tag & 7
        if kind == _VARINT:
            _varint(file)
        elif kind in (_FIXED64, _FIXED32):
            file.seek(8 if kind == _FIXED64 else 4, 1)
        elif kind == _LENGTH:
            length = _varint(file)
            after = file.tell() + length
            if after > end:
                return
            yield tag >> 3, length
            file.seek(after)
        else:
            return


def _varint(file: BinaryIO) -> int:
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = file.read(1)
        if not byte:
            return 0
        value |= (byte[0] & 127) << 7 * place
        if byte[0] < 128:
            break
    return value


def class_names(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of a model's classes, in order of class number.

    Three forms are read: a mapping from numbers or a list, as Python or JSON literal, and words between spaces, where
    underscores stand for spaces inside a name. Empty where none are stored, or a number has no name.
    """
    for key in _NAMES:
        if text := metadata.get(key, "").strip():
            return _parse_names(literal(text))
    return ()


def characters(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return the characters that a text model reads, as RapidOCR stores them; empty where none are stored."""
    found = tuple(metadata.get("character", "").rstrip("\n").split("\n"))
    return found if all(len(text) == 1 and not CONTROL.search(text) for text in found) else ()


def literal(text: str) -> Any:
    """Return the value of a Python or JSON literal; the text itself where it is neither."""
    if len(text) > _MOST_CHARACTERS:
        return text
    for parse in (ast.literal_eval, json.loads):
        try:
            return parse(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    return text


def _is_usual_number(name: object) -> bool:
    """Return whether a name is an integer of ordinary size; Python refuses to print one of over 4,300 digits."""
    return isinstance(name, int) and abs(name) < 2**63


def _parse_names(found: Any) -> tuple[str, ...]:
    if isinstance(found, str):
        if found.startswith(("{", "[", "(")):  # a damaged list or mapping
            return ()
        found = found.replace(",", " ").split()
    if isinstance(found, dict):
        numbered = {whole_number(key) if isinstance(key, str) else key: value for key, value in found.items()}
        numbers = range(len(found))
        if numbered.keys() != set(numbers):
            return ()
        found = [numbered[number] for number in numbers]
    if not isinstance(found, (list, tuple)) or not all(
        isinstance(name, str) or _is_usual_number(name) for name in found
    ):
        return ()
    names = tuple(" ".join(str(name).split()) for name in found)
    return names if all(names) and not any(map(CONTROL.search, names)) else ()  # a terminal runs escape sequences
