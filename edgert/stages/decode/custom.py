"""The user's own decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from edgert.errors import ConfigError
from edgert.runtime.records import Record
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Array, Shapes, Size
from edgert.user_code import load_object


@dataclass(frozen=True, slots=True)
class Custom:
    """Calls ``function(outputs, geometry)``; what it returns is the record."""

    function: Callable[..., Record]
    args: Mapping[str, Any]

    def check(self, shapes: Shapes, network: Size) -> None:
        """Only the user's code knows what it can read."""

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Record:
        """``outputs`` are views of bound memory: the function must copy what it keeps."""
        return self.function(outputs, geometry, **self.args)


def load_custom(spec: str, args: Mapping[str, Any], where: str, search: Path | None) -> Custom:
    """The decoder ``module:name``: a function that gets ``args`` with every call, or a class made once with them.

    Raises:
        ConfigError: it cannot be found or called, or the class does not take these arguments.
    """
    found = load_object(spec, where, search)
    if not isinstance(found, type):
        return Custom(cast(Callable[..., Record], found), dict(args))
    try:
        made = found(**args)
    except TypeError as error:
        raise ConfigError(f"{spec!r} cannot be made from its args", why=str(error), where=where) from error
    if not callable(made):
        raise ConfigError(f"a {spec!r} cannot be called", where=where, fix="give the class __call__(outputs, geometry)")
    return Custom(cast(Callable[..., Record], made), {})
