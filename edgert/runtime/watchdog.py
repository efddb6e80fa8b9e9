"""Watchdog of a running pipeline: reports calls of stages that do not return."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from edgert import user_code
from edgert.runtime.recovery import OPENINGS, REMIND_S, log_recovery
from edgert.runtime.stage import Source

if TYPE_CHECKING:
    from edgert.clock import Clock
    from edgert.runtime.task import Task

_LOG = logging.getLogger(__name__)
FIRST_S = 120.0
"""Limit for opening a stage and for its first result, which prepare engines and allocate memory."""
HANGS_AT_END = 6
"""Multiple of the watchdog after which a call is given up, once all sources have ended."""
_POLL_S = 1.0
_PROGRESS_S = 1.0
"""Age of the last progress up to which a closing stage is given more time."""
_BUSY_CORES = 0.02
"""CPU use below which a stage that closes files and writes nothing makes no progress."""


class WatchedThread(Protocol):
    """A thread that calls stages, such as :class:`~edgert.runtime.thread_loop.ThreadLoop`.

    Attributes:
        task, inline: tasks whose stages the thread calls.
        ident, native_id: number of the thread in Python and in the system.
    """

    task: Task
    inline: Sequence[Task]

    @property
    def ident(self) -> int | None: ...

    @property
    def native_id(self) -> int | None: ...

    def is_alive(self) -> bool:
        """Return whether the thread runs."""


class Watchdog:
    """Detector of calls that take too long in one pipeline. For one thread.

    Args:
        tasks: function that returns the current tasks.
        loops: threads that may be in a call.

    Attributes:
        loops: threads that may be in a call; the runner replaces them.
        every_s: interval in which to call :meth:`look`.
    """

    def __init__(self, tasks: Callable[[], Sequence[Task]], loops: Sequence[WatchedThread], clock: Clock) -> None:
        self._tasks, self.loops, self._clock = tasks, loops, clock
        self._calls = dict[str, tuple[int, int]]()  # reported calls: their start, and when to report them again
        self._down_ns = dict[str, tuple[int, int]]()  # stages that are down: since when, and when to report it again
        self._closing = dict[str, tuple[int, int, int]]()  # closing stages: CPU time and bytes written, and when seen
        shortest_s = min((one.policy.watchdog_s for one in tasks() if one.policy.watchdog_s), default=4 * _POLL_S)
        self.every_s = max(min(_POLL_S, shortest_s / 4), 0.01)

    def look(self) -> None:
        """Report calls that take too long and stages that are down, again after minutes; interrupt such calls."""
        now_ns = self._clock.now_ns()
        for task in self._tasks():
            since_ns, limit_s = self._since_ns(task), self._limit_s(task)
            took_s = (now_ns - since_ns) / 1e9
            if since_ns and 0 < limit_s < took_s:
                self._report_stuck(task, since_ns, took_s)
            elif task.meter.status.stuck_s:
                self._report_return(task)
            if not task.meter.status.failing:
                log_recovery(task.name, task.meter.status, now_ns)
                self._down_ns.pop(task.name, None)
                continue
            began_ns, next_ns = self._down_ns.setdefault(task.name, (now_ns, now_ns + round(REMIND_S * 1e9)))
            if now_ns >= next_ns:
                self._down_ns[task.name] = began_ns, now_ns + round(REMIND_S * 1e9)
                away_s = (now_ns - began_ns) / 1e9
                about = task.name, away_s, task.meter.status.failing
                _LOG.warning("stage %r is still down, for %.0f s: %s", *about, extra={"code": "stage.failed"})

    def tasks_hung_at_end(self) -> list[Task]:
        """Return tasks whose call takes so long that a pipeline does not wait for them once its sources have ended."""
        return [task for task in self._tasks() if task.meter.status.stuck_s > HANGS_AT_END * task.policy.watchdog_s]

    def finishes(self, task: Task) -> bool:
        """Return whether a task is closing files and makes progress.

        It does if closing has just begun, its thread has recently computed or written, or the stage's estimate for
        closing, ``closing_s``, is not over.
        """
        seen_ns, now_ns, own_s = self._since_ns(task), self._clock.now_ns(), getattr(task.stage, "closing_s", 0.0)
        if not seen_ns or not task.meter.status.is_closing:
            return False
        return now_ns - seen_ns < _PROGRESS_S * 1e9 or now_ns - task.meter.status.since_ns < (own_s + _PROGRESS_S) * 1e9

    def hangs(self, task: Task) -> bool:
        """Return whether a task that should have ended is in a call without progress, or is a source.

        The thread of another task that is in no call is about to end.
        """
        since_ns = task.meter.status.since_ns
        if self.finishes(task) or task.meter.status.since_ns != since_ns:
            return False
        return since_ns != 0 or isinstance(task.stage, Source)

    def place_of(self, task: Task) -> str:
        """Return the line of the user's code in which the task's call is; empty if it is in other code."""
        frames = sys._current_frames()
        places = (user_code.place_in(frames.get(loop.ident or 0)) for loop in self.loops_of(task))
        return next(filter(None, places), "")

    def loops_of(self, task: Task) -> Iterator[WatchedThread]:
        """Yield the threads that may be in a call of the task."""
        for loop in self.loops:
            if loop.is_alive() and loop.task is task.thread:
                yield loop

    def _since_ns(self, task: Task) -> int:
        """Return since when a call has made no progress: its start, or the last write or CPU use of a closing stage."""
        since_ns = task.meter.status.since_ns
        if not since_ns or not task.meter.status.is_closing:
            return since_ns
        used, now_ns = _used_by(next(self.loops_of(task), None)), self._clock.now_ns()
        cpu_ns, written, seen_ns = self._closing.setdefault(task.name, (*used, since_ns))
        if used[1] > written or used[0] - cpu_ns > _BUSY_CORES * (now_ns - seen_ns):
            self._closing[task.name] = (*used, now_ns)
        return self._closing[task.name][2]

    @staticmethod
    def _limit_s(task: Task) -> float:
        watchdog_s = task.policy.watchdog_s
        if not watchdog_s:
            return 0.0
        is_first = not task.meter.status.is_closing and not task.meter.results_in
        return max(watchdog_s, FIRST_S if is_first else OPENINGS * task.meter.status.opening_s)

    def _report_stuck(self, task: Task, since_ns: int, took_s: float) -> None:
        task.meter.status.stuck_s = took_s
        before, next_ns = self._calls.get(task.name, (0, 0))
        if before == since_ns and self._clock.now_ns() < next_ns:
            return
        self._calls[task.name] = (since_ns, self._clock.now_ns() + round(REMIND_S * 1e9))
        at = self.place_of(task)
        waiting = sum(len(channel.items) for channel in task.wiring.inlet.channels)
        behind = ", ".join(other.name for other in self._tasks() if other.wiring.listens_to(task))
        _LOG.warning(
            "stage %r has been in one call for %.1f s%s; %d results wait for it%s",
            *(task.name, took_s, at and f", at {at}", waiting, behind and f", and behind it {behind}"),
            extra={"code": "stage.stuck"},
        )
        if before != since_ns:
            if task.policy.on_error != "stop":
                task.wiring.inlet.bypass(True)
            if (interrupt := getattr(task.stage, "interrupt", None)) is not None:
                interrupt()

    def _report_return(self, task: Task) -> None:
        about = task.name, task.meter.status.stuck_s
        _LOG.warning("stage %r continues after %.1f s in one call", *about, extra={"code": "stage.continues"})
        task.meter.status.stuck_s = 0.0
        task.wiring.inlet.bypass(False)


def _used_by(loop: WatchedThread | None) -> tuple[int, int]:
    """Return a thread's CPU time in nanoseconds and the bytes it has written; 0 for what the system does not report."""
    cpu_ns = written = 0
    if loop is not None and loop.native_id is not None:
        folder = Path(f"/proc/self/task/{loop.native_id}")
        with suppress(OSError, ValueError, IndexError):
            cpu_ns = int((folder / "schedstat").read_text().split()[0])
        with suppress(OSError, ValueError, IndexError):
            written = int((folder / "io").read_text().split("wchar:")[1].split()[0])
    return cpu_ns, written
