"""What is wrong with a board file, told in its writer's words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from edgert.errors import nearest

Loc = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong.

    Attributes:
        loc: key path in the file.
        what: names the key and its value.
        why: what is the matter with it; may be empty.
        fix: what to write instead; may be empty.
    """

    loc: Loc
    what: str
    why: str
    fix: str


def typed(detail: Any, model: type[BaseModel]) -> Mistake:
    """A value of the wrong type or out of range, as pydantic reports it of ``model``."""
    loc: Loc = detail["loc"]
    key, kind = dotted(loc) or "its top level", detail["type"]
    if kind == "extra_forbidden":
        known = sorted(set(_keys(model)))
        what = f"unknown key {key!r} in a board file{nearest(str(loc[-1]), known)}"
        return Mistake(loc, what, "", "rename or remove it")
    if kind == "missing":
        fix = f"add {loc[-1]}: with a value" + (", or null where it is unknown" if _takes_null(loc, model) else "")
        return Mistake(loc, f"{key} is missing from a board file", "", fix)
    what = f"wrong value in a board file: {key}: {detail['input']!r}"
    return Mistake(loc, what, _plain(detail), _FIXES.get(kind, ""))


def dotted(loc: Loc) -> str:
    """``modes.0.gpu_mhz``."""
    return ".".join(map(str, loc))


_FIXES = {
    "greater_than": "write the number of the data sheet, or null where it is unknown and may be so",
    "greater_than_equal": "write the number of the data sheet",
    "finite_number": "write the number of the data sheet, or null where it is unknown",
}


def _plain(detail: Any) -> str:
    return str(detail["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")


def _keys(model: type[BaseModel]) -> Iterator[str]:
    """Every key that can stand anywhere in such a record."""
    for name, field in model.model_fields.items():
        yield name
        for part in _parts(field.annotation):
            yield from _keys(part)


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections within a type such as ``tuple[Mode, ...] | None``."""
    inner = get_args(annotation)
    if not inner and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in inner:
        yield from _parts(part)


def _takes_null(loc: Loc, model: type[BaseModel]) -> bool:
    """Whether the key may be written without being known."""
    for step in loc[:-1]:
        if isinstance(step, str):
            field = model.model_fields.get(step)
            model = next(_parts(field.annotation), model) if field else model
    field = model.model_fields.get(str(loc[-1]))
    return field is not None and type(None) in get_args(field.annotation)
