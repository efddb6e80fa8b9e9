"""Files from which an interrupted job goes on; of a search, the values of the sets of units it has measured."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from edgert.errors import CalibrationError, cause
from edgert.files import replace_text

log = logging.getLogger("edgert.quantize")

VERSION = 1
"""Of the files: those of another version are started over."""


def read_unfinished(path: Path, kind: str, holds: str) -> Mapping[str, Any]:
    """The content of such a file.

    Args:
        kind: its value of ``format``.
        holds: what it should hold, for the error: ``"measurements"``.

    Raises:
        CalibrationError: it is another kind of file, damaged, or cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CalibrationError(f"cannot read {str(path)!r}", why=cause(error), fix="name another file") from error
    except ValueError as error:
        raise wrong_file(path, holds, str(error)) from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise wrong_file(path, holds, f"its format is not {kind!r}")
    return content


def wrong_file(path: Path, holds: str, why: str) -> CalibrationError:
    """The error for a file that holds something else."""
    return CalibrationError(
        f"{str(path)!r} holds no {holds} to go on with", why=why, fix="remove it, or name another file"
    )


Units = frozenset[str]

_FORMAT, _HOLDS = "edgert measurements", "measurements"


class Memo:
    """A function of a set of units that is evaluated once per set, and never again while its file is there.

    The file is rewritten atomically after every evaluation, so that the program may end at any moment. It belongs to
    one ``kind`` of measurement and one ``key``; with another key it is started over, which :attr:`note` reports.

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
            content = read_unfinished(path, _FORMAT, _HOLDS)
            if content.get("kind") != kind:
                raise wrong_file(path, _HOLDS, f"it holds {content.get('kind')!r}, not {kind!r}")
            if content.get("version") != VERSION:
                self.note = f"{path} was written by another version of edgert; started over"
            elif content.get("key") != key:
                self.note = f"{path} belongs to another model, other data or other settings; started over"
            else:
                self.values = {frozenset(names): float(value) for names, value in content["values"]}
            if self.note:
                log.warning("%s", self.note)

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
                    fix="look for NaN or Inf in the model's outputs, or for labels that fit no image",
                )
            self.values[kept] = value
            if self._path is not None:
                rows = sorted((sorted(names), value) for names, value in self.values.items())
                facts = {"format": _FORMAT, "version": VERSION, "kind": self._kind, "key": self._key}
                replace_text(self._path, json.dumps({**facts, "values": rows}, indent=0))
        return self.values[kept]


def describe(kept: Collection[str]) -> str:
    """``"nothing"``, the name of one unit, or how many there are."""
    if len(kept) > 1:
        return f"{len(kept)} units"
    return next((repr(name) for name in kept), "nothing")
