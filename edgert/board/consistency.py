"""Mistakes in a board file: wrong types, and numbers that cannot all be true, as a mode faster than its board.

Checks of numbers work on the plain data, so that their mistakes are reported beside those of type; whatever is not a
number is left to those.
"""

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


_AT_MOST = {
    "cpu_cores": ("cpu", "cores"),
    "cpu_mhz": ("cpu", "max_mhz"),
    "sms": ("gpu", "sms"),
    "gpu_mhz": ("gpu", "max_mhz"),
    "dla_cores": ("dla", "cores"),
    "dla_mhz": ("dla", "max_mhz"),
    "second_dla_mhz": ("dla", "max_mhz"),
    "emc_mhz": ("memory", "emc_max_mhz"),
}
"""Key of a mode → the number of its board that it cannot exceed."""
_COMMON = frozenset({"source", "confidence", "notes", "origins"})


def contradictions(data: Any) -> list[Mistake]:
    """What cannot be true of a board file's plain data. Nothing for data that is no mapping."""
    if not isinstance(data, dict):
        return []
    modes = [(n, mode) for n, mode in enumerate(_list(data.get("modes"))) if isinstance(mode, dict)]
    found = [*_dla(data), *_cores(data), *_names(modes), *_default(data, modes)]
    for n, mode in modes:
        found += [*_limits(data, n, mode), *_uncapped(data, n, mode), *_origins(("modes", n), mode)]
    for name, section in data.items():
        found += _origins((name,), section)
    return found


def _limits(data: dict[str, Any], n: int, mode: dict[str, Any]) -> Iterator[Mistake]:
    for key, (section, limit) in _AT_MOST.items():
        value, most = _number(mode.get(key)), _number(_part(data, section).get(limit))
        if value is not None and most is not None and value > most:
            why = f"the board has {section}.{limit}: {most:g}"
            fix = f"{key}: {most:g} or less, or correct {section}.{limit}"
            yield Mistake(("modes", n, key), f"mode {mode.get('name')}: {key}: {value:g} cannot be", why, fix)


def _uncapped(data: dict[str, Any], n: int, mode: dict[str, Any]) -> Iterator[Mistake]:
    for key in _list(mode.get("uncapped")):
        loc, name = ("modes", n, "uncapped"), mode.get("name")
        if key not in _AT_MOST or not key.endswith("_mhz"):
            clocks = [clock for clock in _AT_MOST if clock.endswith("_mhz")]
            yield Mistake(loc, f"mode {name}: uncapped: {key!r} is no clock", "", f"clocks: {', '.join(clocks)}")
            continue
        section, limit = _AT_MOST[key]
        value, most = _number(mode.get(key)), _number(_part(data, section).get(limit))
        if value is not None and most is not None and value < most:
            why = f"uncapped is a clock that the mode leaves free, and {section}.{limit} is {most:g}"
            yield Mistake(("modes", n, key), f"mode {name}: {key}: {value:g} is a cap", why, f"{key}: {most:g}")


def _names(modes: list[tuple[int, dict[str, Any]]]) -> Iterator[Mistake]:
    seen: dict[str, str] = {}
    for n, mode in modes:
        name = str(mode.get("name"))
        bare = name.lower().removeprefix("mode_")
        if bare in seen:
            why = f"modes are known by name, and {seen[bare]!r} stands above"
            yield Mistake(("modes", n, "name"), f"two modes are called {name!r}", why, "rename or remove one of them")
        seen.setdefault(bare, name)


def _default(data: dict[str, Any], modes: list[tuple[int, dict[str, Any]]]) -> Iterator[Mistake]:
    name = _part(data, "default_mode").get("name")
    names = [str(mode.get("name")) for _, mode in modes]
    if name is not None and name not in names:
        what = f"default_mode.name: {name!r} is none of the modes{nearest(str(name), names)}"
        yield Mistake(("default_mode", "name"), what, "", f"modes: {', '.join(names)}")


def _dla(data: dict[str, Any]) -> Iterator[Mistake]:
    dla = _part(data, "dla")
    cores, generation = _number(dla.get("cores")), _number(dla.get("generation"))
    if cores == 0 and generation is not None:
        what = f"dla.generation: {generation:g} of a board without DLA cores"
        yield Mistake(("dla", "generation"), what, "dla.cores is 0", "generation: null, or correct dla.cores")
    if cores and generation is None and "generation" in dla:
        what, why = "dla.generation: null of a board with DLA cores", f"dla.cores is {cores:g}"
        yield Mistake(("dla", "generation"), what, why, "generation: 1 (Xavier) or 2 (Orin)")


def _cores(data: dict[str, Any]) -> Iterator[Mistake]:
    gpu = _part(data, "gpu")
    cores, sms = _number(gpu.get("cuda_cores")), _number(gpu.get("sms"))
    if cores and sms and cores % sms:
        what = f"gpu.cuda_cores: {cores:g} cannot be shared by {sms:g} SMs"
        yield Mistake(("gpu", "cuda_cores"), what, "every SM has as many", "correct gpu.cuda_cores or gpu.sms")


def _origins(loc: Loc, section: Any) -> Iterator[Mistake]:
    """An origin must be of a number that is there."""
    for n, origin in enumerate(_list(section.get("origins")) if isinstance(section, dict) else []):
        for key in _list(origin.get("of")) if isinstance(origin, dict) else []:
            keys = sorted(set(section) - _COMMON)
            if key not in keys:
                what = f"origins of {key!r}, which is not in {'.'.join(map(str, loc))}{nearest(str(key), keys)}"
                yield Mistake((*loc, "origins", n, "of"), what, "", f"keys: {', '.join(keys)}")


def _part(data: dict[str, Any], name: str) -> dict[str, Any]:
    part = data.get(name)
    return part if isinstance(part, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
