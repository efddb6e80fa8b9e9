"""``${NAME}`` in the pipeline file: filled in from the environment, and hidden in everything that is printed."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from edgert.errors import ConfigError

_VARIABLE = re.compile(r"\$\{([^}]*)(\}?)")
_INSIDE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_HIDDEN_FROM = 4  # characters; hiding shorter values would make nonsense of the text around them


class Variables:
    """Fills in ``${NAME}`` and ``${NAME:-default}``, and remembers what came from the environment.

    Args:
        env: the environment.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._used: dict[str, str] = {}

    def fill(self, text: str, where: str) -> str:
        """``text`` with its variables replaced. Raises ConfigError for an unset or malformed one."""
        return _VARIABLE.sub(lambda match: self._value(match, where), text)

    def hide(self, text: str) -> str:
        """``text`` with every value that came from the environment turned back into ``${NAME}``."""
        for value, name in sorted(self._used.items(), key=lambda item: -len(item[0])):
            for form in (value, repr(value)[1:-1]):
                text = text.replace(form, f"${{{name}}}")
        return text

    def _value(self, match: re.Match[str], where: str) -> str:
        inside = _INSIDE.fullmatch(match[1])
        if inside is None or not match[2]:
            raise ConfigError(
                f"cannot understand {match[0]!r}", where=where, fix="write ${NAME}, or ${NAME:-default} for a default"
            )
        name, default = inside.groups()
        found = self._env.get(name)
        if found is not None:
            if len(found) >= _HIDDEN_FROM:
                self._used[found] = name
            return found
        if default is None:
            raise ConfigError(
                f"environment variable {name} is not set",
                where=where,
                fix=f"export {name}=..., or write ${{{name}:-default}}",
            )
        return str(default)


def hide_in(error: ConfigError, variables: Variables) -> ConfigError:
    """The same error, and those that came with it, without values from the environment in their texts."""
    for each in (error, *error.others):
        each.what, each.why, each.fix = map(variables.hide, (each.what, each.why, each.fix))
        each.args = (each.what,)
    return error


# ``--set key.path=value``: one key of the file replaced, or added.

Loc = tuple["str | int", ...]
Parse = Callable[[str, Loc, str], Any]
"""(value text, key path, place) → data; notes the places of what it parsed."""


def override(data: dict[str, Any], text: str, parse: Parse, note: Callable[[Loc, str], None]) -> None:
    """Applies one override to ``data`` in place.

    Args:
        text: ``key.path=value``; entries of lists are numbered from 0, sections on the way are made.
        parse: reads the value.
        note: called with the place of every section that is made.

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
