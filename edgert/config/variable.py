"""``${NAME}`` in the pipeline file: filled in from the environment, and kept out of everything that is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping

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
