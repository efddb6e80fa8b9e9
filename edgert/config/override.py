"""``--set key.path=value``: one key of the file replaced, or added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgert.errors import ConfigError

Loc = tuple["str | int", ...]
Parse = Callable[[str, Loc, str], Any]
"""(value text, key path, place) → data; notes the places of what it parsed."""


def override(data: dict[str, Any], text: str, parse: Parse, note: Callable[[Loc, str], None]) -> None:
    """Applies one override to ``data`` in place.

    Args:
        text: ``key.path=value``; entries of lists are numbered from 0, sections on the way are made.
        parse: reads the value.
        note: told the place of every section that is made.

    Raises:
        ConfigError: no ``=``, a path through a plain value, an entry that a list does not have, or no YAML.
    """
    path, equals, value = text.partition("=")
    *above, last = path.strip().split(".")
    if not equals or not last or not all(above):
        raise ConfigError(
            f"cannot understand --set {text!r}", fix="write --set key.path=value, e.g. stages.camera.fps=15"
        )
    place = f"--set {path.strip()}"
    target, loc = _section(data, above, place, note)
    step = _step(target, last, loc, place)
    target[step] = parse(value, (*loc, step), place)


def _section(data: dict[str, Any], keys: list[str], place: str, note: Callable[[Loc, str], None]) -> tuple[Any, Loc]:
    """The mapping or list at a path, made of empty mappings where it is not there."""
    target: Any = data
    loc: Loc = ()
    for key in keys:
        step = _step(target, key, loc, place)
        loc = (*loc, step)
        if isinstance(target, dict) and target.get(key) is None:
            target[key] = {}
            note(loc, place)
        target = target[step]
    return target, loc


def _step(target: Any, key: str, loc: Loc, place: str) -> str | int:
    """A key as what ``target`` is indexed with."""
    if isinstance(target, dict):
        return key
    above = ".".join(map(str, loc))
    if not isinstance(target, list):
        raise ConfigError(f"{place} goes nowhere", why=f"{above} holds a plain value, not keys")
    if not (key.isdecimal() and int(key) < len(target)):
        known = f"{above} has the entries 0 to {len(target) - 1}" if target else f"{above} is empty"
        raise ConfigError(f"{place} goes nowhere", why=known, fix=f"or replace the whole list: --set '{above}=[...]'")
    return int(key)
