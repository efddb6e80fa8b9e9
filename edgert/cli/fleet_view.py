"""``edgert top URL...``: the boards of a fleet by their live pages, a line each, the worst first."""

from __future__ import annotations

import json as json_text
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from edgert import limits
from edgert.cli import terminal
from edgert.cli.top_view import HISTORY, History, Look, Row, is_number, number, part, shares, style_of, text
from edgert.control.client import STRANGE, unanswered
from edgert.runtime.health import unready
from edgert.units import format_ms

if TYPE_CHECKING:
    from rich.console import RenderableType

_ANSWER_S = 3.0
"""Longest time that a board may take for its answer, or for each part of it on a thin line."""
_SILENT, _FAILING, _STRAINED, _WELL = range(4)
_STYLES = {_SILENT: "red", _FAILING: "red", _STRAINED: "yellow", _WELL: ""}
_BOARDS = (
    terminal.Column("board", wraps=True),
    terminal.Column("pipeline", rank=1),
    terminal.Column("fps", is_number=True),
    terminal.Column("dropped", is_number=True, rank=2),
    terminal.Column("p99", is_number=True, rank=1),
    terminal.Column("cameras", is_number=True),
    terminal.Column("state", wraps=True),
)


class Board(threading.Thread):
    """A thread that asks one board again and again, so that a slow one delays no other.

    It is a daemon: a name that is still being looked up delays no exit.

    Args:
        url: of its live page.
        every_s: from one answer to the next question.
        stopped: ends it.
    """

    def __init__(self, url: str, every_s: float, stopped: threading.Event) -> None:
        super().__init__(name=f"edgert:top {url}", daemon=True)
        self.url, self._every_s, self._stopped = url, every_s, stopped
        self._latest: tuple[float, Row] | None = None
        self._started_s = time.monotonic()
        self.has_answered = threading.Event()

    def run(self) -> None:
        """Ask until stopped."""
        while not self._stopped.is_set():
            self._latest = time.monotonic(), ask(self.url)
            self.has_answered.set()
            self._stopped.wait(self._every_s)

    def row(self) -> Row:
        """Return the latest answer; a trouble where it is too old."""
        at_s, found = self._latest or (self._started_s, {"at": self.url, "trouble": "does not answer"})
        silent_s = time.monotonic() - at_s
        if "trouble" in found or silent_s <= self._every_s + _ANSWER_S:
            return found
        return {"at": self.url, "trouble": f"has not answered for {silent_s:.0f} s"}


def ask(url: str) -> Row:
    """Return what a live page reports of its run, or why there is nothing. The token is that of ``EDGERT_TOKEN``."""
    token = os.environ.get("EDGERT_TOKEN", "")
    try:
        requested = Request(f"{url.rstrip('/')}/stats.json")  # noqa: S310 - the verb accepts http and https only
        if token:
            requested.add_unredirected_header("Authorization", f"Bearer {token}")
        with urlopen(requested, timeout=_ANSWER_S) as answer:  # noqa: S310 - as above
            state = json_text.loads(answer.read(limits.STATE_BYTES))
    except (URLError, HTTPException, OSError, ValueError, RecursionError) as error:
        return {"at": url, "trouble": unanswered(error)}
    stats = state.get("stats") if isinstance(state, dict) else None
    return {"at": url, "stats": stats} if isinstance(stats, dict) else {"at": url, "trouble": STRANGE}


def judged(row: Row) -> tuple[int, str]:
    """Return how bad a board is, 0 the worst, and why."""
    if "trouble" in row:
        return _SILENT, text(row["trouble"])
    stats = row["stats"]
    try:
        missing = unready(stats)
    except (AttributeError, TypeError, ValueError):
        return _SILENT, STRANGE
    if missing:
        return _FAILING, text("; ".join(missing))
    strained = "; ".join(_strains(stats))
    return (_STRAINED, strained) if strained else (_WELL, "ready")


def _strains(stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield the budgets that a board exceeds, or keeps only by doing less."""
    p99, limit_s = part(part(stats, "recent"), "latency_ms").get("p99"), part(stats, "promised").get("latency")
    if is_number(p99) and is_number(limit_s) and p99 > 1e3 * limit_s:
        yield f"p99 {format_ms(p99)} of {format_ms(1e3 * limit_s)}"
    governor = part(part(stats, "budgets"), "governor")
    if is_number(level := governor.get("level")) and level > 0:
        yield f"runs with {text(governor.get('setting')) or 'less'}"


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return boards by how bad they are; equally bad ones by the results they dropped, then by address."""

    def place(row: Row) -> tuple[int, float, str]:
        dropped = part(part(row.get("stats") or {}, "recent"), "dropped").values()
        return judged(row)[0], -sum(filter(is_number, dropped)), row["at"]

    return sorted(rows, key=place)


def board_table(rows: Sequence[Row], width: int, history: History | None = None, chosen: str = "") -> RenderableType:
    """Return a table with a line for each board, in the given order; see :func:`.top_view.pipeline_table`."""
    shown, counts = [], [0] * len(_STYLES)
    for row in rows:
        badness, state = judged(row)
        counts[badness] += 1
        stats = row.get("stats") or {}
        fps, dropped, _, p99 = shares(part(stats, "recent")) if stats else ("",) * 4
        address = text(row["at"]).removeprefix("http://")
        cells = [address, text(stats.get("name")), fps, dropped, p99, _cameras(stats) if stats else "", state]
        cells += [] if history is None else [history.of(row)]
        shown.append(terminal.Row(cells, style_of(_STYLES[badness], row, chosen)))
    words = ("silent", "failing", "strained", "well")
    counted = ", ".join(f"{count} {word}" for count, word in zip(counts, words, strict=True) if count)
    columns = _BOARDS if history is None else (*_BOARDS, HISTORY)
    return terminal.table(
        columns, shown, width=width, title=f"{len(rows)} board{'s' if len(rows) > 1 else ''}: {counted}; last minute"
    )


def _cameras(stats: Mapping[str, Any]) -> str:
    """Return how many cameras give frames, of how many that can go down."""
    stages = (one for one in part(stats, "stages").values() if isinstance(one, dict))
    ups = [up for one in stages if isinstance(up := part(one, "source").get("up"), bool)]
    return number(sum(ups), "{:.0f}") + f"/{len(ups)}" if ups else ""


def watch(
    urls: Sequence[str],
    every_s: float,
    *,
    stopped: threading.Event,
    wait: Callable[[float], bool],
    write: Callable[[object], None],
    width: int,
    once: bool,
) -> Iterator[Look]:
    """Yield looks at all boards; each is also a line of JSON.

    Args:
        urls: of live pages.
        every_s: from one look to the next.
        stopped: ends it.
        wait: waits so many seconds for the next look, and returns whether it is over.
        write: gets the look as plain data.
        width: of the terminal.
        once: whether one look is enough.
    """
    history = None if once else History()
    boards = [Board(url, every_s, stopped) for url in dict.fromkeys(urls)]
    for board in boards:
        board.start()
    until_s = time.monotonic() + _ANSWER_S
    for board in boards:  # the first look waits for those that are quick
        board.has_answered.wait(max(0.0, until_s - time.monotonic()))
    while not stopped.is_set():
        rows = worst_first([board.row() for board in boards])
        if history is not None:
            history.add(rows)
        write({"time": time.time(), "boards": rows})
        yield Look(rows, partial(board_table, rows, width, history), all("stats" in row for row in rows))
        if once or wait(every_s):
            return
