"""Checks of a board file for wrong types and contradictory numbers, such as a mode faster than its board.

Checks of numbers work on the plain data, so that their mistakes are reported together with wrong types. They skip
values that are not numbers.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from edgert.errors import nearest

Loc = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Mistake:
    """Mistake in a board file.

    Attributes:
        loc: key path in the file.
        what: wrong key and value, in words.
        why: reason; may be empty.
        fix: correction; may be empty.
    """

    loc: Loc
    what: str
    why: str = ""
    fix: str = ""


def type_mistake(detail: Any, model: type[BaseModel]) -> Mistake:
    """Return the mistake for an error of pydantic's validation of ``model``: a wrong type, key or range."""
    loc: Loc = detail["loc"]
    key, kind = dotted(loc) or "its top level", detail["type"]
    if kind == "extra_forbidden":
        hint = nearest(str(loc[-1]), sorted(set(_keys(model))))
        return Mistake(loc, f"unknown key {key!r} in a board file{hint}", fix="rename or remove the key")
    if kind == "missing":
        for step in loc[:-1]:
            if isinstance(step, str) and (section := model.model_fields.get(step)):
                model = next(_parts(section.annotation), model)
        field = model.model_fields.get(str(loc[-1]))
        null = ", or null where it is unknown" if field and type(None) in get_args(field.annotation) else ""
        return Mistake(loc, f"{key} is missing from a board file", fix=f"add {loc[-1]}: with a value{null}")
    why = str(detail["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")
    return Mistake(loc, f"wrong value in a board file: {key}: {detail['input']!r}", why, _FIXES.get(kind, ""))


def dotted(loc: Loc) -> str:
    """Return a key path as text, such as ``modes.0.gpu_mhz``."""
    return ".".join(map(str, loc))


_FIXES = {
    "greater_than": "write the number of the data sheet, or null where it is unknown and null is allowed",
    "greater_than_equal": "write the number of the data sheet",
    "finite_number": "write the number of the data sheet, or null where it is unknown",
}


def _keys(model: type[BaseModel]) -> Iterator[str]:
    """Yield every key of a record and of its sections."""
    for name, field in model.model_fields.items():
        yield name
        for part in _parts(field.annotation):
            yield from _keys(part)


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the records in a type annotation such as ``tuple[Mode, ...] | None``."""
    inner = get_args(annotation)
    if not inner and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in inner:
        yield from _parts(part)


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
"""Key of a mode → number of the board that it cannot exceed."""
_CLOCKS = [key for key in _AT_MOST if key.endswith("_mhz")]
_COMMON = frozenset({"source", "confidence", "notes", "origins"})


def contradictions(data: Any) -> list[Mistake]:
    """Return the contradictions in a board file's plain data; empty for data that is not a mapping."""
    if not isinstance(data, dict):
        return []
    modes = [(n, mode) for n, mode in enumerate(_list(data.get("modes"))) if isinstance(mode, dict)]
    found = [*_units(data), *_named(data, modes)]
    for n, mode in modes:
        found += [*_clocks(data, n, mode), *_origins(("modes", n), mode)]
    for n, line in enumerate(_list(data.get("idle"))):
        found += _origins(("idle", n), line)
    for name, section in data.items():
        found += _origins((name,), section)
    return found


def _clocks(data: dict[str, Any], n: int, mode: dict[str, Any]) -> Iterator[Mistake]:
    """Yield mistakes of a mode that exceeds its board, or whose free clock differs from the board's."""
    name, uncapped = mode.get("name"), _texts(mode.get("uncapped"))
    for key, (section, limit) in _AT_MOST.items():
        value, most = _number(mode.get(key)), _number(_part(data, section).get(limit))
        if value is None or most is None:
            continue
        loc = ("modes", n, key)
        if value > most:
            why = f"the board has {section}.{limit}: {most:g}"
            fix = f"{key}: {most:g} or less, or correct {section}.{limit}"
            yield Mistake(loc, f"mode {name}: {key}: {value:g} is impossible", why, fix)
        if value < most and key in uncapped and key in _CLOCKS:
            why = f"the mode lists it under uncapped, but {section}.{limit} is {most:g}"
            yield Mistake(loc, f"mode {name}: {key}: {value:g} is a cap", why, f"{key}: {most:g}")
    for key in _texts(mode.get("estimated")):
        if mode.get(key) is None:
            what, fix = f"mode {name}: estimated: {key!r} has no value", "write the estimate, or remove the key"
            yield Mistake(("modes", n, "estimated"), what, fix=fix)
    for key in uncapped:
        if key not in _CLOCKS:
            what = f"mode {name}: uncapped: {key!r} is not a clock"
            yield Mistake(("modes", n, "uncapped"), what, fix=f"clocks: {', '.join(_CLOCKS)}")


def _named(data: dict[str, Any], modes: list[tuple[int, dict[str, Any]]]) -> Iterator[Mistake]:
    """Yield mistakes of modes without a unique name, and of names that are not those of modes."""
    seen: dict[str, str] = {}
    for n, mode in modes:
        name = str(mode.get("name"))
        bare = name.lower().removeprefix("mode_")
        if bare in seen:
            why = f"modes are selected by name, and {seen[bare]!r} is defined above"
            yield Mistake(("modes", n, "name"), f"two modes are called {name!r}", why, "rename or remove one of them")
        seen.setdefault(bare, name)
    default, names = _part(data, "default_mode").get("name"), [str(mode.get("name")) for _, mode in modes]
    if default is not None and default not in names:
        what = f"default_mode.name: {default!r} is not a mode of the board{nearest(str(default), names)}"
        yield Mistake(("default_mode", "name"), what, fix=f"modes: {', '.join(names)}")
    for n, line in enumerate(_list(data.get("idle"))):
        for name in _texts(line.get("modes")) if isinstance(line, dict) else []:
            if str(name) not in names:
                what = f"idle watts of {name!r}, which is not a mode of the board{nearest(str(name), names)}"
                yield Mistake(("idle", n, "modes"), what, fix=f"modes: {', '.join(names)}")


def _units(data: dict[str, Any]) -> Iterator[Mistake]:
    """Yield mistakes in the numbers of DLA cores and CUDA cores."""
    dla, gpu = _part(data, "dla"), _part(data, "gpu")
    cores, generation = _number(dla.get("cores")), _number(dla.get("generation"))
    if cores == 0 and generation is not None:
        what = f"dla.generation: {generation:g} for a board without DLA cores"
        yield Mistake(("dla", "generation"), what, "dla.cores is 0", "generation: null, or correct dla.cores")
    if cores and generation is None and "generation" in dla:
        what, why = "dla.generation: null for a board with DLA cores", f"dla.cores is {cores:g}"
        yield Mistake(("dla", "generation"), what, why, "generation: 1 (Xavier) or 2 (Orin)")
    cores, sms = _number(gpu.get("cuda_cores")), _number(gpu.get("sms"))
    if cores and sms and cores % sms:
        what = f"gpu.cuda_cores: {cores:g} is not a multiple of {sms:g} SMs"
        why = "every SM has the same number of cores"
        yield Mistake(("gpu", "cuda_cores"), what, why, "correct gpu.cuda_cores or gpu.sms")


def _origins(loc: Loc, section: Any) -> Iterator[Mistake]:
    """Yield mistakes of ``origins`` for keys that the section does not have."""
    for n, origin in enumerate(_list(section.get("origins")) if isinstance(section, dict) else []):
        for key in _texts(origin.get("of")) if isinstance(origin, dict) else []:
            keys = sorted(set(section) - _COMMON)
            if key not in keys:
                what = f"origins of {key!r}, which is not in {'.'.join(map(str, loc))}{nearest(str(key), keys)}"
                yield Mistake((*loc, "origins", n, "of"), what, fix=f"keys: {', '.join(keys)}")


def _part(data: dict[str, Any], name: str) -> dict[str, Any]:
    part = data.get(name)
    return part if isinstance(part, dict) else {}


def _texts(value: object) -> list[str]:
    return [one for one in _list(value) if isinstance(one, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:  # whole numbers in YAML have no limit
        return math.inf if value > 0 else -math.inf
