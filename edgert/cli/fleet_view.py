"""``edgert top URL...``: the boards of a fleet by their live pages, a line each, the worst first."""

from __future__ import annotations

import json as json_text
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import Request, urlopen

from edgert import limits
from edgert.cli import top_view
from edgert.cli.top_view import History, Row, Snapshot, mapping_at
from edgert.control.client import NOT_EDGERT, add_token, unanswered
from edgert.errors import EdgertError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_ANSWER_S = 3.0
"""Timeout of a request to a board: for the connection, and for each piece of the answer."""


class BoardPoller(threading.Thread):
    """A daemon thread that polls one board, so that a slow board or host name delays nothing else."""

    def __init__(self, url: str, every_s: float, stopped: threading.Event) -> None:
        super().__init__(name=f"edgert:top {url}", daemon=True)
        self.url, self._every_s, self._stopped = url, every_s, stopped
        self._latest: tuple[float, Row] | None = None
        self._started_s = time.monotonic()
        self.has_answered = threading.Event()

    def run(self) -> None:
        """Poll until stopped."""
        while not self._stopped.is_set():
            self._latest = time.monotonic(), fetch_stats(self.url)
            self.has_answered.set()
            self._stopped.wait(self._every_s)

    def row(self) -> Row:
        """Return the latest answer; the trouble that the board is silent, where that answer is too old."""
        at_s, found = self._latest or (self._started_s, {"at": self.url, "trouble": "does not answer"})
        silent_s = time.monotonic() - at_s
        if "trouble" in found or silent_s <= self._every_s + _ANSWER_S:
            return found
        return {"at": self.url, "trouble": f"has not answered for {silent_s:.0f} s"}


def fetch_stats(url: str) -> Row:
    """Return the stats of a live page, or the trouble that prevents it. The token is read from ``EDGERT_TOKEN``."""
    token = os.environ.get("EDGERT_TOKEN", "")
    try:
        requested = Request(f"{url.rstrip('/')}/stats.json")  # noqa: S310 - the verb accepts http and https only
        if token:
            add_token(requested, token)
        with urlopen(requested, timeout=_ANSWER_S) as answer:  # noqa: S310 - as above
            state = json_text.loads(answer.read(limits.STATE_BYTES))
    except EdgertError as error:
        return {"at": url, "trouble": error.what}
    except (URLError, HTTPException, OSError, ValueError, RecursionError) as error:
        return {"at": url, "trouble": unanswered(error)}
    stats = state.get("stats") if isinstance(state, dict) else None
    return {"at": url, "stats": stats} if isinstance(stats, dict) else {"at": url, "trouble": NOT_EDGERT}


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return boards sorted by state, the worst first; then by dropped results, the most first; then by address."""

    def place(row: Row) -> tuple[int, float, str]:
        dropped = mapping_at(mapping_at(row.get("stats") or {}, "recent"), "dropped").values()
        return top_view.judge(row)[0], -sum(filter(top_view.is_number, dropped)), row["at"]

    return sorted(rows, key=place)


def board_table(rows: Sequence[Row], width: int, history: History | None = None, chosen: str = "") -> RenderableType:
    """Return a table with a line for each board, in the given order; see :func:`.top_view.row_table`."""
    counts = Counter(top_view.judge(row)[0] for row in rows)
    counted = ", ".join(f"{counts[state]} {word}" for state, word in top_view.STATES.items() if counts[state])
    title = f"{len(rows)} board{'s' if len(rows) > 1 else ''}: {counted}; last minute"
    return top_view.row_table(rows, width, title, history, chosen)


def watch_boards(
    urls: Sequence[str], every_s: float, stopped: threading.Event, screen: Console, once: bool
) -> Iterator[Snapshot]:
    """Yield snapshots of boards by their live pages, polled every ``every_s`` seconds, as wide as the screen."""
    history = None if once else History()
    boards = [BoardPoller(url, every_s, stopped) for url in dict.fromkeys(urls)]
    for board in boards:
        board.start()
    until_s = time.monotonic() + _ANSWER_S
    for board in boards:  # the first snapshot waits for boards that answer in time
        board.has_answered.wait(max(0.0, until_s - time.monotonic()))
    while not stopped.is_set():
        rows = worst_first([board.row() for board in boards])
        if history is not None:
            history.add(rows)
        data = {"time": time.time(), "boards": rows}
        shown = partial(board_table, rows, screen.width, history)
        yield Snapshot(rows, shown, data, all("stats" in row for row in rows))
