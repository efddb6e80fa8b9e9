"""What was measured, on disk: a search that was ended goes on from there, and one with other budgets reads it too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgert.artifact.atomic import replace_text
from edgert.compiler import digest_of


class Journal:
    """A file of answers by what was asked.

    Args:
        path: made when first written to; a damaged one is begun anew. It is of one machine and model, which searches
            have to themselves, one after the other.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read(path)

    def once(self, asked: object, answer: Callable[[], Any]) -> Any:
        """The answer that is written, as plain data; else asks for it and writes it down. Raises ArtifactError."""
        key = digest_of(asked)
        if key not in self._known:
            self._known[key] = answer()
            replace_text(self._path, json.dumps(self._known))
        return self._known[key]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
