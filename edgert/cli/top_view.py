"""The screen of ``edgert top``: pipelines or boards with their history, the details of one, and the keys."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from edgert.cli import terminal
from edgert.cli.terminal import UNKNOWN
from edgert.units import format_bytes, format_ms

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


# Figures that another process reports: each may be missing, or of any type.

_LARGEST_NUMBER = 2**63
"""Largest accepted number: larger integers of Python do not fit into a float."""
_FOUR_DIGITS, _SMALLEST_NUMBER = 1e4, 1e-4


def mapping_at(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping under a key; an empty one where the value is not a mapping."""
    found = of.get(key)
    return found if isinstance(found, dict) else {}


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that can be shown."""
    return isinstance(value, (int, float)) and -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER


def format_number(value: object, form: str | Callable[[float], str]) -> str:
    """Return a number by a format string or function; ``?`` for anything else."""
    if not is_number(value):
        return UNKNOWN
    return form.format(value) if isinstance(form, str) else form(value)


def plain_number(value: float) -> str:
    """Return a number with four digits, or all digits of a large one; never with an exponent."""
    return f"{value:,.0f}" if abs(value) >= _FOUR_DIGITS else f"{value:.4g}" if abs(value) >= _SMALLEST_NUMBER else "0"


def format_size(value: object) -> str:
    """Return a number of bytes in a fitting unit; ``?`` for anything else."""
    return format_bytes(value) if isinstance(value, int) and is_number(value) else UNKNOWN


def clean_text(value: object) -> str:
    """Return a text without control characters, which the terminal would obey; an empty one for anything else."""
    return "".join(filter(str.isprintable, value)) if isinstance(value, str) else ""


def last_minute_cells(share: Mapping[str, Any]) -> Iterator[str]:
    """Yield frames a second, dropped results, and median and 99th percentile of latency, of the last minute."""
    latency, dropped = mapping_at(share, "latency_ms"), mapping_at(share, "dropped").values()
    yield format_number(share.get("fps"), plain_number)
    yield format_number(sum(filter(is_number, dropped)), "{:.0f}") if share else UNKNOWN
    yield from (format_number(latency.get(place), format_ms) for place in ("p50", "p99"))


# Rows of the screen, and the details of one.

_CAMERA_COLUMNS = (
    terminal.Column("camera", wraps=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("dropped", is_number=True),
    terminal.Column("p50", is_number=True, rank=2),
    terminal.Column("p99", is_number=True),
    terminal.Column("state", wraps=True),
)
_STAGE_COLUMNS = (
    terminal.Column("stage", wraps=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("busy", is_number=True),
    *_CAMERA_COLUMNS[2:],
)
_COLUMNS = (
    terminal.Column("where", wraps=True),
    terminal.Column("pipeline", wraps=True),
    terminal.Column("fps", is_number=True),
    terminal.Column("frames", is_number=True, rank=6),
    terminal.Column("dropped", is_number=True, rank=2),
    terminal.Column("p50", is_number=True, rank=5),
    terminal.Column("p99", is_number=True),
    terminal.Column("peak memory", is_number=True, rank=4),
    terminal.Column("cameras", is_number=True, rank=1),
    terminal.Column("state", wraps=True),
    terminal.Column("budgets", wraps=True, rank=3),
)
_HISTORY_COLUMN = terminal.Column("fps so far", rank=2)  # shown when there are several samples
_HISTORY_SAMPLES = 16
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
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
}
_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_HELP = "q quit · ↑ ↓ choose · Enter its stages · space pause"
_HEADING_LINES = 2
"""Title and header of a table, which stay visible above its first row."""
_STOP_CHECK_S = 0.25
"""Interval in which the wait for a key checks whether it shall end."""

Row = dict[str, Any]
"""A pipeline or board as plain data: its place ``at`` (``process 123``, or an address), and either its state with the
``stats`` of a live page, or the ``trouble`` why there are none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One sample of all pipelines or boards, in their order on the screen.

    ``shown`` returns the screen, given the ``at`` of the row to mark.
    """

    rows: Sequence[Row]
    shown: Callable[[str], RenderableType]
    data: Mapping[str, object]
    have_answered: bool = True


class History:
    """Frames a second of each row in the last samples."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float | None]] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Add a sample; forget rows that are no longer there."""
        self._seen = {row["at"]: self._seen.get(row["at"], deque(maxlen=_HISTORY_SAMPLES)) for row in rows}
        for row in rows:
            stats = mapping_at(row, "stats")
            now = row.get("fps_now")
            fps = mapping_at(stats, "recent").get("fps", stats.get("fps")) if now is None else now
            self._seen[row["at"]].append(float(fps) if is_number(fps) else None)

    def of(self, row: Row) -> str:
        """Return the sparkline of a row; empty before its second sample."""
        values = self._seen.get(row["at"], ())
        return sparkline(tuple(values)) if len(values) > 1 else ""


def sparkline(values: Sequence[float | None]) -> str:
    """Return a block for each value, as high as its share of the largest; a blank for an unknown value."""
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    last = len(_BLOCKS) - 1
    return "".join(" " if value is None else _BLOCKS[max(0, round(last * value / most))] for value in values)


class Panel:
    """A screen with keys, which choose a row, open its details, or pause the screen.

    ``read`` waits some seconds for a key, as :func:`keyboard` yields it; without it there are no keys. ``q`` sets
    ``stopped``.
    """

    def __init__(
        self,
        draw: Callable[[RenderableType], object],
        read: Callable[[float], str] | None,
        stopped: threading.Event,
        console: Console,
    ) -> None:
        self._draw, self._read, self._stopped, self._console = draw, read, stopped, console
        self._look: Snapshot | None = None
        self._chosen, self._is_open, self._is_paused = "", False, False
        self._first_line = 0

    def show(self, look: Snapshot) -> None:
        """Show a new sample."""
        self._look = look
        self._redraw()

    def wait(self, seconds: float) -> bool:
        """Wait until the next sample is due and the screen is not paused; return whether to end instead."""
        if self._read is None:
            return self._stopped.wait(seconds)
        until_s = time.monotonic() + seconds
        while not self._stopped.is_set():
            left_s = _STOP_CHECK_S if self._is_paused else until_s - time.monotonic()
            if left_s <= 0:
                return False
            if key := self._read(min(left_s, _STOP_CHECK_S)):
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
        elif key in ("page up", "page down"):
            self._first_line += (self._console.height - 1) * (1 if key == "page down" else -1)
        elif places:
            step = {"up": -1, "down": 1}.get(key, 0)
            first = 0 if step >= 0 else len(places) - 1
            at = (places.index(self._chosen) + step) % len(places) if self._chosen in places else first
            self._chosen, self._is_open = places[at], self._is_open or key == "open"
        self._redraw(scrolls_to_chosen=key in ("up", "down"))

    def _redraw(self, scrolls_to_chosen: bool = False) -> None:
        from rich.console import Group

        if self._look is None:
            return
        chosen = next((row for row in self._look.rows if row["at"] == self._chosen), None)
        is_open, width = self._is_open and chosen is not None, self._console.width
        shown = Group(*_row_details(chosen, width)) if is_open and chosen else self._look.shown(self._chosen)
        if self._read is None:
            self._draw(shown)
            return
        shown, place = self._cut_to_height(shown, scrolls_to_chosen)
        help_line = f"Esc all of them · {_HELP}{place}" if is_open else f"{_HELP}{place}"
        line = ("paused: space goes on", "yellow") if self._is_paused else (help_line, "dim")
        self._draw(Group(terminal.styled(*line), shown))

    def _cut_to_height(self, shown: RenderableType, scrolls_to_chosen: bool) -> tuple[RenderableType, str]:
        """Return the lines that fit below the help, and a text that says which; empty where all do."""
        from rich.segment import SegmentLines

        lines, room = self._console.render_lines(shown, pad=False), max(1, self._console.height - 1)
        if scrolls_to_chosen:
            chosen = [at for at, line in enumerate(lines) if any(one.style and one.style.reverse for one in line)]
            first = min(self._first_line, min(chosen, default=0) - _HEADING_LINES)
            self._first_line = max(first, max(chosen, default=0) - room + 1)
        self._first_line = first = max(0, min(self._first_line, len(lines) - room))
        last = min(first + room, len(lines))
        place = f" · PgUp PgDn lines {first + 1}–{last} of {len(lines)}" if room < len(lines) else ""
        return SegmentLines(lines[first:last], new_lines=True), place


@contextmanager
def keyboard() -> Iterator[Callable[[float], str] | None]:
    """Yield a function that waits some seconds for a key, and returns its meaning; an empty text for no known key.

    Yields None where this program cannot read keys: its input is not its terminal, or it runs in the background.
    """
    may_read = False
    with suppress(OSError):  # a terminal, but not the one that controls this process
        may_read = sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    if not may_read:
        yield None
        return
    import termios
    import tty

    terminal_fd, typed = sys.stdin.fileno(), bytearray()

    def read(seconds: float) -> str:
        if not typed and select.select([terminal_fd], [], [], seconds)[0]:
            typed.extend(os.read(terminal_fd, 1024) or b"q")  # nothing: the terminal is gone
        key = b"".join(_KEY.findall(bytes(typed))[:1])  # several come at once over a slow line
        del typed[: len(key)]
        return _KEYS.get(key, "")

    before = termios.tcgetattr(terminal_fd)
    try:
        tty.setcbreak(terminal_fd)
        yield read
    finally:
        termios.tcsetattr(terminal_fd, termios.TCSADRAIN, before)


def _row_details(row: Row, width: int) -> Iterator[RenderableType]:
    stats = mapping_at(row, "stats")
    name = " ".join(
        filter(None, (clean_text(row.get("label")), clean_text(row.get("name")) or clean_text(stats.get("name"))))
    )
    yield terminal.styled(" · ".join(filter(None, (name, clean_text(row["at"])))), "bold")
    if trouble := clean_text(row.get("trouble")):
        yield terminal.styled(trouble, "red")
        return
    yield terminal.table(_STAGE_COLUMNS, list(_stage_rows(stats)), width=width, title="stages, last minute")
    if cameras := list(_camera_rows([row])):
        yield ""
        yield terminal.table(_CAMERA_COLUMNS, cameras, width=width, title="cameras, last minute")


def _stage_rows(stats: Mapping[str, Any]) -> Iterator[terminal.Row]:
    recent = mapping_at(mapping_at(stats, "recent"), "stages")
    for name, stage in mapping_at(stats, "stages").items():
        if not isinstance(stage, dict) or mapping_at(stage, "source"):
            continue
        share = mapping_at(recent, name)
        fps, *rest = last_minute_cells(share)
        busy = format_number(share.get("busy_percent", stage.get("busy_percent")), "{:.0f} %")
        failing, stuck_s = clean_text(stage.get("failing")), stage.get("stuck_s")
        state = f"down: {failing}" if failing else ""
        if is_number(stuck_s) and stuck_s:
            state = f"in one call for {format_ms(1e3 * stuck_s)}"
        yield terminal.Row((clean_text(name), fps, busy, *rest, state), "yellow" if state else "")


_SILENT, _FAILING, _STRAINED, _WELL = range(4)
STATES = {_SILENT: "silent", _FAILING: "failing", _STRAINED: "strained", _WELL: "well"}
"""States of a pipeline or board, the worst first."""
_STYLES = {_SILENT: "red", _FAILING: "red", _STRAINED: "yellow", _WELL: ""}


def judge(row: Row) -> tuple[int, str]:
    """Return the state of a pipeline or board, a key of :data:`STATES`, and its reason."""
    from edgert.control.client import NOT_EDGERT
    from edgert.runtime.health import unready_reasons

    if "trouble" in row:
        return _SILENT, clean_text(row["trouble"])
    stats = row["stats"]
    try:
        missing = unready_reasons(stats)
    except (AttributeError, TypeError, ValueError):
        return _SILENT, NOT_EDGERT
    if missing:
        return _FAILING, clean_text("; ".join(missing))
    strained = "; ".join(_exceeded_budgets(stats))
    return (_STRAINED, strained) if strained else (_WELL, "ready")


def _exceeded_budgets(stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield the budgets that are exceeded, or kept only because the governor reduced the work."""
    latency, promised = mapping_at(mapping_at(stats, "recent"), "latency_ms"), mapping_at(stats, "promised")
    p99, limit_s = latency.get("p99"), promised.get("latency")
    if is_number(p99) and is_number(limit_s) and p99 > 1e3 * limit_s:
        yield f"p99 {format_ms(p99)} of {format_ms(1e3 * limit_s)}"
    governor = mapping_at(mapping_at(stats, "budgets"), "governor")
    if is_number(level := governor.get("level")) and level > 0:
        yield f"runs with {clean_text(governor.get('setting')) or 'less'}"


def row_table(rows: Sequence[Row], width: int, title: str, history: History | None = None, chosen: str = "") -> Table:
    """Return a table of pipelines or boards in the given order: rates, cameras, state and budgets, or what is wrong.

    The row whose place ``at`` is ``chosen`` is marked.
    """
    shown = []
    for row in rows:
        name = " ".join(filter(None, (clean_text(row.get("label")), clean_text(row.get("name")))))
        stats, (badness, state) = mapping_at(row, "stats"), judge(row)
        cells = [clean_text(row["at"]).removeprefix("http://"), name or clean_text(stats.get("name"))]
        cells += (
            [*_figures(stats), state, ", ".join(_budget_texts(stats))]
            if "stats" in row
            else ["", *("",) * 6, state, ""]
        )
        cells += [] if history is None else [history.of(row)]
        style = f"{_STYLES[badness]} reverse".strip() if row["at"] == chosen else _STYLES[badness]
        shown.append(terminal.Row(cells, style))
    columns = _COLUMNS if history is None else (*_COLUMNS, _HISTORY_COLUMN)
    return terminal.table(columns, shown, width=width, title=title)


def camera_table(pipelines: Sequence[Row], width: int) -> Table | None:
    """Return a table of all cameras; None where there are none."""
    cameras = list(_camera_rows(pipelines))
    return terminal.table(_CAMERA_COLUMNS, cameras, width=width, title="cameras, last minute") if cameras else None


def _camera_rows(pipelines: Sequence[Row]) -> Iterator[terminal.Row]:
    """Yield a row for each source that can be down, such as a camera."""
    for row in pipelines:
        stats = mapping_at(row, "stats")
        for name, stage in mapping_at(stats, "stages").items():
            source = mapping_at(stage, "source") if isinstance(stage, dict) else {}
            if not isinstance(up := source.get("up"), bool):
                continue
            streams = mapping_at(mapping_at(stats, "recent"), "streams")
            share = mapping_at(streams, name) or ({"fps": 0} if streams else {})
            reason = clean_text(source.get("reason"))
            seconds = format_number(source.get("state_s"), "{:.0f}")
            state = f"{'up' if up else 'down'} for {seconds} s{reason and f': {reason}'}"
            cells = (f"{clean_text(row.get('name'))} {clean_text(name)}".strip(), *last_minute_cells(share), state)
            yield terminal.Row(cells, "" if up else "yellow")


def _figures(stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield rates and latency of the last minute, frames so far, memory, and ``3/4``: how many cameras are up."""
    recent, stages = mapping_at(stats, "recent"), mapping_at(stats, "stages").values()
    _, dropped, p50, p99 = last_minute_cells(recent)
    yield format_number(recent.get("fps", stats.get("fps")), plain_number)  # the sparkline has those of this second
    yield format_number(stats.get("frames_out"), plain_number)
    yield from (dropped, p50, p99, format_size(stats.get("peak_rss_bytes")))
    sources = (mapping_at(stage, "source") for stage in stages if isinstance(stage, dict))
    ups = [up for source in sources if isinstance(up := source.get("up"), bool)]
    yield f"{sum(ups)}/{len(ups)}" if ups else ""


def _budget_texts(stats: Mapping[str, Any]) -> Iterator[str]:
    """Yield the governor's setting, and each budget with what is used of it."""
    budgets, promised = mapping_at(stats, "budgets"), mapping_at(stats, "promised")
    if governor := mapping_at(budgets, "governor"):
        yield clean_text(governor.get("setting"))
        yield f"{format_number(budgets.get('throttled'), '{:.0f}')} throttled"
    if used := mapping_at(budgets, "used"):
        taken, limit = format_number(used.get("mean"), "{:.3g}"), format_number(used.get("limit"), "{:g}")
        yield f"{taken} of {limit} {clean_text(used.get('unit'))}"
    if is_number(limit_s := promised.get("latency")):
        latency = mapping_at(mapping_at(stats, "recent"), "latency_ms")
        yield f"p99 {format_number(latency.get('p99'), format_ms)} of {format_ms(1e3 * float(limit_s))}"
    if "memory" in promised:
        yield f"{format_size(stats.get('peak_rss_bytes'))} of {format_size(promised['memory'])}"
