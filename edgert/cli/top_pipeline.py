"""The pipelines that ``edgert top`` shows: those of this user that run here, and live pages anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgert.runtime.beacon import MOST_BYTES, STRANGE, seen

_FETCH_S = 1.0

Row = dict[str, Any]
"""A pipeline as plain data: ``at`` (``process 123``, or an address) and what it tells of itself, with ``stats`` as a
live page gives them and ``fps_now``, since the look before; or its ``trouble``."""


class Pipelines:
    """Looks at pipelines again and again.

    Args:
        urls: of live pages (``sink: http``).
        root: where the files of a Linux are.
    """

    def __init__(self, urls: tuple[str, ...], root: Path = Path("/")) -> None:
        self._urls, self._root = urls, root
        self._before: dict[str, tuple[float, float]] = {}

    def look(self) -> list[Row]:
        """All that can be seen now. Waits a second for each that does not answer."""
        found = dict(self._found())
        now = {key: counts for key, row in found.items() if (counts := _counts(row)) is not None}
        for key, row in found.items():
            if "trouble" not in row:
                row["fps_now"] = _rate(self._before.get(key), now.get(key))
        self._before = now
        return list(found.values())

    def _found(self) -> Iterator[tuple[str, Row]]:
        for one in seen(self._root):
            yield one.key, _row(f"process {one.pid}" if one.pid else "in a container", one.state)
        for url in self._urls:
            yield url, _row(url, _fetched(url))


def _row(at: str, told: Mapping[str, Any] | str) -> Row:
    if isinstance(told, str):
        return {"at": at, "trouble": told}
    return {"at": at, **told} if isinstance(told.get("stats"), dict) else {"at": at, "trouble": STRANGE}


def _fetched(url: str) -> Mapping[str, Any] | str:
    """What a pipeline's live page says of its run, or why nothing is known."""
    from urllib.error import URLError
    from urllib.parse import urlsplit
    from urllib.request import urlopen

    if urlsplit(url).scheme not in ("http", "https"):
        return "not a web address; expected http://host:port"
    try:
        with urlopen(f"{url.rstrip('/')}/stats.json", timeout=_FETCH_S) as answer:  # noqa: S310 - http only, above
            state = json.loads(answer.read(MOST_BYTES))
    except (URLError, OSError, ValueError) as error:
        return str(getattr(error, "reason", error))
    return {"stats": state.get("stats")} if isinstance(state, dict) else STRANGE


def _counts(row: Row) -> tuple[float, float] | None:
    """Frames so far, and seconds."""
    stats = row.get("stats", {})
    frames, seconds = stats.get("frames_out"), stats.get("seconds")
    return (frames, seconds) if isinstance(frames, (int, float)) and isinstance(seconds, (int, float)) else None


def _rate(before: tuple[float, float] | None, now: tuple[float, float] | None) -> float | None:
    """Frames per second between two looks; None where there was but one, or no time has passed."""
    if before is None or now is None or now[1] <= before[1]:
        return None
    return (now[0] - before[0]) / (now[1] - before[1])
