"""Looks at what the stages of a running pipeline are in the middle of, and reports calls that do not return."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgert import user_code
from edgert.runtime.recovery import OPENINGS, REMIND_S, note_back

if TYPE_CHECKING:
    from edgert.clock import Clock
    from edgert.runtime.node import Node

_LOG = logging.getLogger(__name__)
FIRST_S = 120.0
"""For opening a stage, and for its first result: engines are prepared there, and memory is taken."""
AT_THE_END = 6
"""Once all sources have ended, a call that took so many watchdogs is given up."""
_LOOK_S = 1.0
_LATELY_S = 1.0
_BUSY = 0.02
"""Of a core: whoever closes files and uses less, and writes nothing, is not at work."""


class AtWork(Protocol):
    """A thread that calls stages, as a :class:`~edgert.runtime.worker.Worker` is.

    Attributes:
        node, inline: those that it calls.
        ident, native_id: Python's and the system's number of it.
    """

    node: Node
    inline: Sequence[Node]

    @property
    def ident(self) -> int | None: ...

    @property
    def native_id(self) -> int | None: ...

    def is_alive(self) -> bool:
        """Whether it may be in a call."""
        ...


class Watchdog:
    """Of one pipeline, for one thread.

    Args:
        nodes, workers: all of them.

    Attributes:
        workers: those that may be in a call; they hold whoever holds this, who takes those that have ended away.
    """

    def __init__(self, nodes: Sequence[Node], workers: Sequence[AtWork], clock: Clock) -> None:
        self._nodes, self.workers, self._clock = nodes, workers, clock
        self._calls = dict[str, tuple[int, int]]()  # reported ones: since when, and when they are reported again
        self._down_ns = dict[str, tuple[int, int]]()  # those that are down: since when, and when that is said again
        self._at_work = dict[str, tuple[int, int, int]]()  # who closes: what the thread used and wrote, and until when
        shortest_s = min((node.care.watchdog_s for node in nodes if node.care.watchdog_s), default=4 * _LOOK_S)
        self.every_s = max(min(_LOOK_S, shortest_s / 4), 0.01)

    def look(self) -> None:
        """Reports who is in one call for too long, and who is down, now and then; ends calls that can be ended."""
        now_ns = self._clock.now_ns()
        for node in self._nodes:
            since_ns, patience_s = self._since_ns(node), self._patience_s(node)
            took_s = (now_ns - since_ns) / 1e9
            if since_ns and 0 < patience_s < took_s:
                self._stuck(node, since_ns, took_s)
            elif node.stuck_s:
                self._goes_on(node)
            if not node.failing:
                note_back(node, now_ns)
                self._down_ns.pop(node.name, None)
                continue
            began_ns, next_ns = self._down_ns.setdefault(node.name, (now_ns, now_ns + round(REMIND_S * 1e9)))
            if now_ns >= next_ns:
                self._down_ns[node.name] = began_ns, now_ns + round(REMIND_S * 1e9)
                away_s = (now_ns - began_ns) / 1e9
                _LOG.warning("stage %r is still down, for %.0f s: %s", node.name, away_s, node.failing)

    def hangs_at_the_end(self) -> list[Node]:
        """Who has been in one call for so long that a pipeline whose sources have ended need not wait for it."""
        return [node for node in self._nodes if node.stuck_s > AT_THE_END * node.care.watchdog_s]

    def finishes(self, node: Node) -> bool:
        """Whether a node is closing files, and has just begun, or its thread was seen to compute or to write lately; or
        it says itself how long closing takes, ``closing_s``, and that is not over."""
        seen_ns, now_ns, own_s = self._since_ns(node), self._clock.now_ns(), getattr(node.work, "closing_s", 0.0)
        if not seen_ns or not node.is_closing:
            return False
        return now_ns - seen_ns < _LATELY_S * 1e9 or now_ns - node.since_ns < (own_s + _LATELY_S) * 1e9

    def place_of(self, node: Node) -> str:
        """Where in the user's own code it is; empty elsewhere."""
        frames = sys._current_frames()
        places = (user_code.place_in(frames.get(worker.ident or 0)) for worker in self.workers_of(node))
        return next(filter(None, places), "")

    def workers_of(self, node: Node) -> Iterator[AtWork]:
        """The threads that may be in a call of it."""
        carriers = list(node.carriers())
        for worker in self.workers:
            if worker.is_alive() and (worker.node in carriers or node in worker.inline):
                yield worker

    def _since_ns(self, node: Node) -> int:
        """Since when a call has made no progress. That of a stage is not known; what is closed writes or computes."""
        since_ns = node.since_ns
        if not since_ns or not node.is_closing:
            return since_ns
        used, now_ns = _used_by(next(self.workers_of(node), None)), self._clock.now_ns()
        cpu_ns, written, seen_ns = self._at_work.setdefault(node.name, (*used, since_ns))
        if used[1] > written or used[0] - cpu_ns > _BUSY * (now_ns - seen_ns):
            self._at_work[node.name] = (*used, now_ns)
        return self._at_work[node.name][2]

    @staticmethod
    def _patience_s(node: Node) -> float:
        watchdog_s = node.care.watchdog_s
        if not watchdog_s:
            return 0.0
        is_first = not node.is_closing and not node.meter.results_in
        return max(watchdog_s, FIRST_S if is_first else OPENINGS * node.opening_s)

    def _stuck(self, node: Node, since_ns: int, took_s: float) -> None:
        node.stuck_s = took_s
        before, next_ns = self._calls.get(node.name, (0, 0))
        if before == since_ns and self._clock.now_ns() < next_ns:
            return
        self._calls[node.name] = (since_ns, self._clock.now_ns() + round(REMIND_S * 1e9))
        at = self.place_of(node)
        waiting = sum(len(channel.items) for channel in node.inlet.channels)
        behind = ", ".join(other.name for other in self._nodes if node in other.producers)
        _LOG.warning(
            "stage %r has been in one call for %.1f s%s; %d results wait for it%s",
            *(node.name, took_s, at and f", at {at}", waiting, behind and f", and behind it {behind}"),
        )
        if before != since_ns:
            if node.care.on_error != "stop":
                node.inlet.be_passed_by(True)
            if (interrupt := getattr(node.work, "interrupt", None)) is not None:
                interrupt()

    def _goes_on(self, node: Node) -> None:
        _LOG.warning("stage %r goes on, after %.1f s in one call", node.name, node.stuck_s)
        node.stuck_s = 0.0
        node.inlet.be_passed_by(False)


def _used_by(worker: AtWork | None) -> tuple[int, int]:
    """Nanoseconds of the processor, and bytes written, by a thread so far; zeros where the system does not say."""
    cpu_ns = written = 0
    if worker is not None and worker.native_id is not None:
        folder = Path(f"/proc/self/task/{worker.native_id}")
        with suppress(OSError, ValueError, IndexError):
            cpu_ns = int((folder / "schedstat").read_text().split()[0])
        with suppress(OSError, ValueError, IndexError):
            written = int((folder / "io").read_text().split("wchar:")[1].split()[0])
    return cpu_ns, written
