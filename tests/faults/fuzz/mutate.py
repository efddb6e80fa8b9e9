"""Mutators: what damages bytes, trees of plain data and protobuf messages, each by a given random generator."""

import copy
import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import yaml

SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    7,
    2**31,
    2**63,
    2**64,
    -(2**63),
    10**400,
    0.5,
    -0.5,
    1e-308,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "0",
    "-1",
    "x",
    "x\0y",
    "\x1b[2J",
    "\ud800",
    "é" * 3,
    "a" * 300,
    "../x",
    "/etc/passwd",
    "nan",
    "1x3x8x8",
    "${HOME}",
    "host",
    "gpu",
    "dla0",
    "fp16",
)
SHELLS: tuple[Any, ...] = ([], {}, [[]], [None], {"": None}, [{}], {"x": []}, [0] * 40, {"a": {"a": {"a": {"a": 1}}}})
TOKENS = (
    b"\0",
    b"\xff\xfe",
    b"\r\n",
    b"[" * 2000,
    b"{",
    b"}",
    b'"',
    b"'",
    b": ",
    b"- ",
    b"9" * 5000,
    b"&a *a",
    b"!!python/object:x ",
    b"\xed\xa0\x80",
    b"NaN",
    b"1e999",
    b"%s%n",
    b"\x1b]0;x\x07",
    b"<<: *a",
    b"\t",
)


def mutated_bytes(rng: Random, data: bytes) -> bytes:
    """With bits turned, and parts cut out, doubled, exchanged or put in."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted((rng.randrange(len(found) + 1), rng.randrange(len(found) + 1)))
        match rng.randrange(6):
            case 0 if found:
                found[min(at, len(found) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                found[at:at] = rng.choice(TOKENS)
            case 2:
                del found[at : min(end, at + 64)]
            case 3:
                found[at:at] = found[at : min(end, at + 64)]
            case 4 if rng.random() < 0.3:
                del found[at:]
            case _:
                found[at : at + 4] = rng.randbytes(rng.randrange(8))
    return bytes(found)


Place = tuple[Any, Any]
"""A list or a mapping, and an index or key of it."""


def places(tree: Any) -> Iterator[Place]:
    """Every place in a tree of plain data where something stands."""
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from places(tree[key])


def mutated_tree(rng: Random, tree: Any, words: Sequence[str] = ()) -> Any:
    """With values replaced, removed, doubled, exchanged or renamed; ``words`` are keys that may be added."""
    tree = [copy.deepcopy(tree)]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        known = list(places(tree))
        if known:
            _change(rng, known, words)
    return tree[0] if tree else None


def _change(rng: Random, known: list[Place], words: Sequence[str]) -> None:
    holder, key = rng.choice(known)
    value, kind = holder[key], rng.randrange(9)
    if kind <= 1:
        holder[key] = copy.deepcopy(rng.choice(SCALARS))
    elif kind == 2:
        holder[key] = copy.deepcopy(rng.choice(SHELLS))
    elif kind == 3:
        del holder[key]
    elif kind == 4:
        other, place = rng.choice(known)
        holder[key] = copy.deepcopy(other[place])
    elif kind == 5 and isinstance(value, (int, float)) and not isinstance(value, bool):
        holder[key] = rng.choice((-value, value + 1, value - 1, value * 10**9, value // 10**9, str(value)[:400]))
    elif kind == 6 and isinstance(holder, dict):
        holder[rng.choice((*words, str(key) + "x", "", "0"))] = holder.pop(key)
    elif kind == 7 and isinstance(value, dict) and words:
        value[rng.choice(words)] = copy.deepcopy(rng.choice((*SCALARS, *SHELLS)))
    elif isinstance(value, (list, str)):
        holder[key] = value * rng.choice((0, 2, 3))
    elif isinstance(holder, list):
        holder.append(copy.deepcopy(value))


def yaml_text(tree: Any) -> bytes:
    """As YAML: by the library in C, nine times as fast, where it knows all the characters."""
    try:
        text: str = yaml.dump(tree, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    except UnicodeEncodeError:
        text = yaml.safe_dump(tree, sort_keys=False)
    return text.encode()


def mutated_json(rng: Random, data: bytes) -> bytes:
    """A JSON text: nine times of ten its tree changed, else its bytes."""
    if rng.random() < 0.1:
        return mutated_bytes(rng, data)
    try:
        tree = json.loads(data)
    except ValueError:  # it was changed before
        return mutated_bytes(rng, data)
    return json.dumps(mutated_tree(rng, tree)).encode()


def mutated_lines(rng: Random, data: bytes) -> bytes:
    lines = data.splitlines()
    for _ in range(rng.choice((1, 2))):
        at = rng.randrange(len(lines))
        lines[at] = mutated_json(rng, lines[at]) if lines[at][:1] == b"{" else mutated_bytes(rng, lines[at])
    return b"\n".join(lines)


NUMBERS = (-1, 0, 1, 2, 3, 5, 7, 16, 255, 65536, 2**31 - 1, -(2**31))
LARGE = (2**31, 2**36, 2**62, 2**63 - 1, -(2**63))
TEXTS = (
    "",
    "x",
    "y",
    "\x1b[2J",
    "Conv",
    "Relu",
    "Loop",
    "If",
    "Resize",
    "LSTM",
    "Gemm",
    "Concat",
    "ai.onnx.ml",
    "a" * 300,
    "nan",
)


def messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if hasattr(value, "add") else (value,):
                yield from messages(one)


def mutate_message(rng: Random, message: Any) -> None:
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        holder = rng.choice(list(messages(message)))
        field = rng.choice([*(field for field, _ in holder.ListFields()), *holder.DESCRIPTOR.fields])
        value = getattr(holder, field.name)
        if not hasattr(value, "extend"):
            _set_field(rng, message, holder, field)
        elif len(value) and rng.random() < 0.5:
            del value[rng.randrange(len(value))]
        elif field.message_type is not None:
            if len(value):
                value.add().CopyFrom(rng.choice(list(value)))
        else:
            value.append(_scalar(rng, field))
            if len(value) > 1:
                value[rng.randrange(len(value))] = value.pop()


def _set_field(rng: Random, message: Any, holder: Any, field: Any) -> None:
    if rng.random() < 0.2:
        holder.ClearField(field.name)
    elif field.message_type is not None:
        same = [one for one in messages(message) if one.DESCRIPTOR is field.message_type and one is not holder]
        if same and (other := rng.choice(same)).ByteSize() < 4096:
            getattr(holder, field.name).CopyFrom(copy.deepcopy(other))
    elif field.cpp_type == field.CPPTYPE_STRING and field.type == field.TYPE_STRING:
        names = [one.name for one in messages(message) if "name" in one.DESCRIPTOR.fields_by_name]
        setattr(holder, field.name, rng.choice((*TEXTS, *names)))
    else:
        setattr(holder, field.name, _scalar(rng, field))


def _scalar(rng: Random, field: Any) -> Any:
    if field.type == field.TYPE_BYTES:
        return rng.choice((b"", b"\xff\xfe", rng.randbytes(rng.randrange(40)), b"linear", b"SAME_UPPER"))
    if field.type == field.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 0.5, 1e30, float("nan"), float("inf"), 1e-30))
    if field.enum_type is not None:
        return rng.choice(list(field.enum_type.values_by_number))
    wide = field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64)
    value = rng.choice((*NUMBERS, *LARGE) if wide else NUMBERS)
    return abs(value) % 2**31 if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64) else value
