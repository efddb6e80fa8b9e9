"""Measured values of sets of units, kept in a file: what an interrupted search has measured is not measured again."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from edgert.artifact.atomic import replace_text
from edgert.errors import CalibrationError
from edgert.quantize.resume import foreign, read_unfinished

log = logging.getLogger("edgert.quantize")

Units = frozenset[str]
Progress = Callable[[int, int, str], None]
"""Called after every measurement: how many are done, how many there are at most, and what this one said."""

_FORMAT, _HOLDS = "edgert measurements", "measurements"
_VERSION = 1


class Memo:
    """A function of a set of units that is evaluated once per set, and never again while its file is there.

    The file is rewritten atomically after every evaluation, so that the program may end at any moment. It belongs to
    one ``kind`` of measurement and one ``key``; with another key it is started over, which :attr:`note` tells.

    Args:
        function: what is measured. Whatever it raises is passed on, KeyboardInterrupt among the rest; the file then
            holds everything measured before.
        path: the file; None keeps the values in memory only.
        kind: what the values are, ``"accuracy"``.
        key: digest of everything else the values depend on: model, data, settings.

    Raises:
        CalibrationError: the file is something else, or cannot be read.
    """

    def __init__(self, function: Callable[[Units], float], path: Path | None, kind: str, key: str) -> None:
        self._function, self._path, self._kind, self._key = function, path, kind, key
        self.values: dict[Units, float] = {}
        self.note = ""
        if path is not None and path.exists():
            self._take(read_unfinished(path, _FORMAT, _HOLDS), path)
        self.resumed = len(self.values)

    def __call__(self, kept: Units) -> float:
        """The value of a set, measured now unless it is known.

        Raises:
            CalibrationError: the value is not a finite number.
            ArtifactError: the file cannot be written.
        """
        if kept not in self.values:
            value = float(self._function(kept))
            if not math.isfinite(value):
                raise CalibrationError(
                    f"the {self._kind} with {describe(kept)} in higher precision is {value}",
                    why="it is compared with others, so it must be a finite number",
                    fix="look for NaN or Inf in the model's outputs, or for labels that fit no picture",
                )
            self.values[kept] = value
            self._save()
        return self.values[kept]

    def _take(self, content: Mapping[str, Any], path: Path) -> None:
        if content.get("kind") != self._kind:
            raise foreign(path, _HOLDS, f"it holds {content.get('kind')!r}, not {self._kind!r}")
        if content.get("version") != _VERSION:
            self.note = f"{path} was written by another version of edgert; started over"
        elif content.get("key") != self._key:
            self.note = f"{path} belongs to another model, other data or other settings; started over"
        else:
            self.values = {frozenset(names): float(value) for names, value in content["values"]}
        if self.note:
            log.warning("%s", self.note)

    def _save(self) -> None:
        if self._path is None:
            return
        rows = sorted((sorted(kept), value) for kept, value in self.values.items())
        content = {"format": _FORMAT, "version": _VERSION, "kind": self._kind, "key": self._key, "values": rows}
        replace_text(self._path, json.dumps(content, indent=0))


def describe(kept: Collection[str]) -> str:
    """``"nothing"``, the name of one unit, or how many there are."""
    if len(kept) > 1:
        return f"{len(kept)} units"
    return next((repr(name) for name in kept), "nothing")
