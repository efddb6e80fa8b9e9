"""The screen of ``edgert top``: pipelines or boards with their history, one of them in full, and the keys."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from edgert.cli import terminal
from edgert.cli.terminal import UNKNOWN
from edgert.units import format_bytes, format_ms

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text


# Figures that another process reports, shown: each may be missing, or anything.

_MOST = 2**63
"""Largest number that is accepted: Python's integers have no limit, and its floats have one."""
_FOUR_DIGITS, _LEAST = 1e4, 1e-4


def part(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping under a key; an empty one where there is none."""
    found = of.get(key)
    return found if isinstance(found, dict) else {}


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that can be shown."""
    return isinstance(value, (int, float)) and -_MOST <= value <= _MOST


def number(value: object, form: str | Callable[[float], str]) -> str:
    """Return a number in a format, or as a function writes it; ``?`` for anything else."""
    if not is_number(value):
        return UNKNOWN
    return form.format(value) if isinstance(form, str) else form(value)


def plain_number(value: float) -> str:
    """Return four digits, and of large numbers all of them: never an exponent."""
    return f"{value:,.0f}" if abs(value) >= _FOUR_DIGITS else f"{value:.4g}" if abs(value) >= _LEAST else "0"


def size(value: object) -> str:
    """Return a number of bytes; ``?`` for anything else."""
    return format_bytes(value) if isinstance(value, int) and is_number(value) else UNKNOWN


def text(value: object) -> str:
    """Return the text without control characters, which would steer the terminal."""
    return "".join(filter(str.isprintable, value)) if isinstance(value, str) else ""


def shares(share: Mapping[str, Any]) -> Iterator[str]:
    """Yield frames a second, dropped results, and median and 99th percentile of latency, of the last minute."""
    latency, dropped = part(share, "latency_ms"), part(share, "dropped").values()
    yield number(share.get("fps"), plain_number)
    yield number(sum(filter(is_number, dropped)), "{:.0f}") if share else UNKNOWN
    yield from (number(latency.get(place), format_ms) for place in ("p50", "p99"))


# Lines of the screen, and one of them in full.

_CAMERAS = (
    terminal.Column("camera", wraps=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("dropped", is_number=True),
    terminal.Column("p50", is_number=True, rank=2),
    terminal.Column("p99", is_number=True),
    terminal.Column("state", wraps=True),
)
_STAGES = (
    terminal.Column("stage", wraps=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("busy", is_number=True),
    *_CAMERAS[2:],
)
_PIPELINES = (
    terminal.Column("pipeline", wraps=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("frames", is_number=True, rank=3),
    terminal.Column("dropped", is_number=True),
    terminal.Column("p50", is_number=True, rank=2),
    terminal.Column("p99", is_number=True),
    terminal.Column("peak memory", is_number=True, rank=1),
    terminal.Column("budgets", wraps=True),
    terminal.Column("process"),
)
HISTORY = terminal.Column("fps so far", rank=2)
"""The column of a sparkline, where there are several samples."""
_SAMPLES = 16
_BLOCKS = "▁▂▃▄▅▆▇█"
_KEYS = {
    b"q": "quit",
    b" ": "pause",
    b"p": "pause",
    b"\r": "open",
    b"\n": "open",
    b"\x1b": "close",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
}
_HELP = "q quit · ↑ ↓ choose · Enter its stages · space pause"
_STOP_S = 0.25
"""Longest time until a signal ends the wait for a key."""

Row = dict[str, Any]
"""A pipeline or board as plain data: ``at`` (``process 123``, or an address), and its state with ``stats`` as a live
page gives them; or its ``trouble``."""


@dataclass(frozen=True, slots=True)
class Look:
    """One sample.

    Attributes:
        rows: pipelines or boards, in their order on the screen.
        shown: what the screen shows, with the row of this ``at`` marked.
        have_answered: whether every one of them gave its state.
    """

    rows: Sequence[Row]
    shown: Callable[[str], RenderableType]
    have_answered: bool = True


class History:
    """Frames a second of each row, of the last samples."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float | None]] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Add a sample; rows that are gone are forgotten."""
        self._seen = {row["at"]: self._seen.get(row["at"], deque(maxlen=_SAMPLES)) for row in rows}
        for row in rows:
            stats = part(row, "stats")
            now = row.get("fps_now")
            fps = part(stats, "recent").get("fps", stats.get("fps")) if now is None else now
            self._seen[row["at"]].append(float(fps) if is_number(fps) else None)

    def of(self, row: Row) -> str:
        """Return the sparkline of a row; empty before its second sample."""
        values = self._seen.get(row["at"], ())
        return sparkline(tuple(values)) if len(values) > 1 else ""


def sparkline(values: Sequence[float | None]) -> str:
    """Return a block for each value, from nothing to the largest; a blank for an unknown one."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    last = len(_BLOCKS) - 1
    return "".join(" " if value is None else _BLOCKS[max(0, round(last * value / most))] for value in values)


class Panel:
    """A screen that keys change: they choose a row, open it, or keep the screen as it is.

    Args:
        draw: shows something in place of what was there.
        read: waits so many seconds for a key, and returns its meaning; see :func:`keyboard`. None: there are no keys.
        stopped: set by ``q``.
        width: of the terminal.
    """

    def __init__(
        self,
        draw: Callable[[RenderableType], object],
        read: Callable[[float], str] | None,
        stopped: threading.Event,
        width: int,
    ) -> None:
        self._draw, self._read, self._stopped, self._width = draw, read, stopped, width
        self._look: Look | None = None
        self._chosen, self._is_open, self._is_paused = "", False, False

    def show(self, look: Look) -> None:
        """Show a new sample."""
        self._look = look
        self._redraw()

    def wait(self, seconds: float) -> bool:
        """Wait for the next sample, as long as the screen is paused; return whether it is over."""
        if self._read is None:
            return self._stopped.wait(seconds)
        until_s = time.monotonic() + seconds
        while not self._stopped.is_set():
            left_s = _STOP_S if self._is_paused else until_s - time.monotonic()
            if left_s <= 0:
                return False
            if key := self._read(min(left_s, _STOP_S)):
                self._press(key)
        return True

    def _press(self, key: str) -> None:
        places = [row["at"] for row in self._look.rows] if self._look is not None else []
        if key == "quit":
            self._stopped.set()
        elif key == "pause":
            self._is_paused = not self._is_paused
        elif key == "close":
            self._is_open, self._chosen = False, self._chosen if self._is_open else ""
        elif places:
            step = {"up": -1, "down": 1}.get(key, 0)
            first = 0 if step >= 0 else len(places) - 1
            at = (places.index(self._chosen) + step) % len(places) if self._chosen in places else first
            self._chosen, self._is_open = places[at], self._is_open or key == "open"
        self._redraw()

    def _redraw(self) -> None:
        from rich.console import Group

        if self._look is None:
            return
        chosen = next((row for row in self._look.rows if row["at"] == self._chosen), None)
        is_open = self._is_open and chosen is not None
        shown = Group(*_in_full(chosen, self._width)) if is_open and chosen else self._look.shown(self._chosen)
        if self._read is None:
            self._draw(shown)
            return
        help_line = f"Esc all of them · {_HELP}" if is_open else _HELP
        line = ("paused: space goes on", "yellow") if self._is_paused else (help_line, "dim")
        self._draw(Group(terminal.marked(*line), shown))


@contextmanager
def keyboard() -> Iterator[Callable[[float], str] | None]:
    """Yield a function that waits so many seconds for a key, and returns what it means, or an empty text.

    Yields None where this program cannot read keys: its input is no terminal, or it runs in the background.
    """
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield None
        return
    import termios
    import tty

    terminal_fd = sys.stdin.fileno()

    def read(seconds: float) -> str:
        if not select.select([terminal_fd], [], [], seconds)[0]:
            return ""
        typed = os.read(terminal_fd, 16)
        if not typed:  # the other end of the terminal is gone
            return "quit"
        return _KEYS.get(typed, "")

    before = termios.tcgetattr(terminal_fd)
    try:
        tty.setcbreak(terminal_fd)
        yield read
    finally:
        termios.tcsetattr(terminal_fd, termios.TCSADRAIN, before)


def _in_full(row: Row, width: int) -> Iterator[RenderableType]:
    """Yield the name of a pipeline or board, its stages, and its cameras."""
    stats = part(row, "stats")
    name = " ".join(filter(None, (text(row.get("label")), text(row.get("name")) or text(stats.get("name")))))
    yield terminal.marked(" · ".join(filter(None, (name, text(row["at"])))), "bold")
    if trouble := text(row.get("trouble")):
        yield terminal.marked(trouble, "red")
        return
    yield terminal.table(_STAGES, list(_stages(stats)), width=width, title="stages, last minute")
    if cameras := list(_cameras([row])):
        yield ""
        yield terminal.table(_CAMERAS, cameras, width=width, title="cameras, last minute")


def _stages(stats: Mapping[str, Any]) -> Iterator[terminal.Row]:
    recent = part(part(stats, "recent"), "stages")
    for name, stage in part(stats, "stages").items():
        if not isinstance(stage, dict) or part(stage, "source"):
            continue
        share = part(recent, name)
        fps, *rest = shares(share)
        busy = number(share.get("busy_percent", stage.get("busy_percent")), "{:.0f} %")
        failing, stuck_s = text(stage.get("failing")), stage.get("stuck_s")
        state = f"down: {failing}" if failing else ""
        if is_number(stuck_s) and stuck_s:
            state = f"in one call for {format_ms(1e3 * stuck_s)}"
        yield terminal.Row((text(name), fps, busy, *rest, state), "yellow" if state else "")


def pipeline_table(rows: Sequence[Row], width: int, history: History | None = None, chosen: str = "") -> Table | Text:
    """Return a table of each pipeline's rates and budgets, or why they are not known; a line without pipelines.

    Args:
        rows: pipelines.
        width: of the terminal.
        history: of them; None shows none.
        chosen: ``at`` of the row that is marked.
    """
    if not rows:
        return terminal.marked("no pipelines of this user are running", "bold")
    shown = []
    for row in rows:
        name = " ".join(filter(None, (text(row.get("label")), text(row.get("name")))))
        last = row.get("trouble") or ", ".join(_promises(row))
        cells = [text(cell) for cell in (name or row["at"], *_figures(row), last, row["at"])]
        cells += [] if history is None else [history.of(row)]
        shown.append(terminal.Row(cells, style_of("yellow" if "trouble" in row else "", row, chosen)))
    columns = _PIPELINES if history is None else (*_PIPELINES, HISTORY)
    return terminal.table(columns, shown, width=width, title="pipelines, last minute")


def style_of(style: str, row: Row, chosen: str) -> str:
    """Return a row's style, which marks the chosen one."""
    return f"{style} reverse".strip() if row["at"] == chosen else style


def camera_table(pipelines: Sequence[Row], width: int) -> Table | None:
    """Return a table of all cameras; None where there are none."""
    cameras = list(_cameras(pipelines))
    return terminal.table(_CAMERAS, cameras, width=width, title="cameras, last minute") if cameras else None


def _cameras(pipelines: Sequence[Row]) -> Iterator[terminal.Row]:
    """Yield a row for each source that can go down and come back."""
    for row in pipelines:
        stats = part(row, "stats")
        for name, stage in part(stats, "stages").items():
            source = part(stage, "source") if isinstance(stage, dict) else {}
            if not isinstance(up := source.get("up"), bool):
                continue
            streams = part(part(stats, "recent"), "streams")
            share = part(streams, name) or ({"fps": 0} if streams else {})
            reason = text(source.get("reason"))
            state = (
                f"{'up' if up else 'down'} for {number(source.get('state_s'), '{:.0f}')} s{reason and f': {reason}'}"
            )
            cells = (f"{text(row.get('name'))} {text(name)}".strip(), *shares(share), state)
            yield terminal.Row(cells, "" if up else "yellow")


def _figures(row: Row) -> Iterator[str]:
    """Yield a pipeline's figures, in the order of the columns; another program wrote them, so they may be anything."""
    if "trouble" in row:
        yield from ("",) * 6
        return
    stats = row["stats"]
    recent = part(stats, "recent")
    _, *last_minute = shares(recent)
    yield number(recent.get("fps", stats.get("fps")), plain_number)  # the sparkline has those of this second
    yield number(stats.get("frames_out"), plain_number)
    yield from last_minute
    yield size(stats.get("peak_rss_bytes"))


def _promises(row: Row) -> Iterator[str]:
    """Yield what the governor does, and each budget with the part of it that is used."""
    stats = row["stats"]
    budgets, promised = part(stats, "budgets"), part(stats, "promised")
    if governor := part(budgets, "governor"):
        yield text(governor.get("setting"))
        yield f"{number(budgets.get('throttled'), '{:.0f}')} throttled"
    if used := part(budgets, "used"):
        taken, limit = number(used.get("mean"), "{:.3g}"), number(used.get("limit"), "{:g}")
        yield f"{taken} of {limit} {text(used.get('unit'))}"
    if is_number(limit_s := promised.get("latency")):
        latency = part(part(stats, "recent"), "latency_ms")
        yield f"p99 {number(latency.get('p99'), format_ms)} of {format_ms(1e3 * float(limit_s))}"
    if "memory" in promised:
        yield f"{size(stats.get('peak_rss_bytes'))} of {size(promised['memory'])}"
