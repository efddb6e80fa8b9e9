"""Recovery of a failed stage: ``on_error`` of the pipeline file.

A failed stage is closed for a while. Results that reach it meanwhile are lost. The first result after the pause opens
it again, in the stage's own thread, so no other stage waits for it.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from edgert import user_code
from edgert.errors import EdgertError, cause
from edgert.runtime.stage import SimpleStage
from edgert.runtime.task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgert.clock import Clock
    from edgert.runtime.metrics import Status
    from edgert.runtime.records import Result
    from edgert.runtime.stage import AsyncStage

_LOG = logging.getLogger(__name__)
FIRST_S, LONGEST_S, JITTER = 0.5, 60.0, 0.25
"""First and longest pause after a failure, and the random part of a pause. Pauses double with each failure."""
MAX_RESTARTS, RESTART_WINDOW_S = 10, 600.0
"""Maximum number of restarts, and the seconds in which they are counted."""
RARE_RESTART_S = 300.0
"""Pause after too many restarts of a stage without listeners. One with listeners ends the pipeline instead."""
OPENINGS = 3
"""Number of times that a call may take as long as the stage's opening, which runs the model, whatever the watchdog."""
STEADY_S = 10.0
"""Seconds of work after which a stage has recovered: a full disk accepts the first bytes of every attempt."""
REMIND_S = 300.0
"""Interval in which a lasting failure is logged again."""


class StageDown(Exception):  # noqa: N818 - it is no new failure
    """The error of a call to a stage that is down, before its pause is over."""


class RepeatedWarning:
    """A warning that may occur for every frame: logged once, then every few minutes with the number of repeats."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._next_ns, self._repeats = clock, 0, 0

    def warn(self, text: str) -> bool:
        """Log the text, or only count it until the next line is due; return whether it was logged."""
        now_ns = self._clock.now_ns()
        self._repeats += 1
        if now_ns < self._next_ns:
            return False
        more = f" ({self._repeats} times since this was last logged)" if self._repeats > 1 else ""
        self._next_ns, self._repeats = now_ns + round(REMIND_S * 1e9), 0
        _LOG.warning("%s%s", text, more, extra={"code": "stage.failed"})
        return True


class Recovery(SimpleStage):
    """Reaction to failures of one stage, and its stand-in while it is down. For the thread that calls the stage.

    Attributes:
        is_open: whether the stage is open.
        stage: stage to call: the real one, or this object while that is down.
    """

    limit, in_flight, is_ready = 1, 0, False

    def __init__(self, task: Task, clock: Clock) -> None:
        self._task, self._status, self._clock, self.is_open = task, task.meter.status, clock, False
        self.stage = cast("AsyncStage", task.stage)  # checked where it is opened
        self._restarts = deque[int]()
        self._due_ns: int | None = None
        self._down_ns = 0
        self._warning = RepeatedWarning(clock)

    def continues_after(self, error: BaseException) -> bool:
        """Count and log a failure, and close the stage; return whether the pipeline continues."""
        if isinstance(error, StageDown):
            return True
        status, on_error = self._status, self._task.policy.on_error
        if on_error == "stop" or not isinstance(error, Exception):
            return False
        status.errors += 1
        reason = describe_error(error)
        if on_error == "log":
            self._warn(f"{reason}; this result is lost, and the stage continues")
            return True
        wait_s = self._pause_s() if on_error == "restart" else None
        if on_error == "restart" and wait_s is None:
            often = f"it was restarted {MAX_RESTARTS} times within {RESTART_WINDOW_S / 60:.0f} min"
            self._warn(f"{reason}; {often}, and other stages need its results")
            return False
        now_ns = self._clock.now_ns()
        was_down, is_same = bool(status.failing), bool(status.failing or status.recovered)
        self._down_ns, status.recovered = self._down_ns if is_same else now_ns, None
        if not is_same:  # each new failure is logged
            self._warning = RepeatedWarning(self._clock)
        self._due_ns = None if wait_s is None else now_ns + round(wait_s * 1e9)
        status.failing, self.stage = reason, self
        self._close_quietly()
        if not was_down:  # the watchdog reports stages that stay down
            then = "it is closed for good" if wait_s is None else f"it is opened again in {wait_s:.1f} s"
            self._warn(f"{reason}; {then}, and the other stages continue")
        return True

    def log_closing_error(self, error: Exception) -> None:
        """Count and log an error of closing: the stage's output may be incomplete."""
        self._status.errors += 1
        if not self._status.recovered:
            self._warning = RepeatedWarning(self._clock)
        self._status.recovered = None
        self._status.failing = describe_error(error)
        self._warn(f"{self._status.failing}; this happened as it was being closed")

    def use_new_stage(self) -> None:
        """Use the task's new stage, which is open, and forget failures of the old one."""
        self.stage, self.is_open, self._due_ns = cast("AsyncStage", self._task.stage), True, None
        self._restarts.clear()
        self._status.failing, self._status.recovered = "", None

    # Methods of the stage that is down, in whose place this object is called.

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Open the stage again if the pause is over, and process the result; else raise StageDown."""
        stage = self._reopened_stage()
        out = stage.process(result)
        self._mark_recovered(stage)
        return out

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        """Do the same as :meth:`process`, for an asynchronous stage."""
        stage = self._reopened_stage()
        stage.submit(results, onward)
        self._mark_recovered(stage)

    def room(self) -> int:
        """Return 1: the first result opens the stage again."""
        return 1

    def due_ns(self) -> int | None:
        """Return None: nothing is held."""
        return None

    def collect(self, wait: bool) -> list[Result]:
        """Return nothing, as nothing is held."""
        return []

    def give_up(self) -> Sequence[Result]:
        """Return nothing, as nothing is held."""
        return ()

    def stop_standing_in(self) -> None:
        """Call the real stage from now on, as the input has ended."""
        self.stage = cast("AsyncStage", self._task.stage)  # a reference to itself would keep this object alive

    def _reopened_stage(self) -> AsyncStage:
        task = self._task
        if self._due_ns is None or self._clock.now_ns() < self._due_ns:
            raise StageDown
        self._status.restarts += 1
        if task.policy.remake is not None:
            task.stage = task.policy.remake()
        stage = cast("AsyncStage", task.stage)
        stage.open()
        self.is_open = True
        return stage

    def _mark_recovered(self, stage: AsyncStage) -> None:
        self.stage = stage
        now_ns = self._clock.now_ns()
        self._status.failing, self._status.recovered = "", (now_ns, (now_ns - self._down_ns) / 1e9)

    def _pause_s(self) -> float | None:
        """Return the seconds of the pause; None if a stage with listeners has failed too often."""
        now_ns = self._clock.now_ns()
        while self._restarts and now_ns - self._restarts[0] > RESTART_WINDOW_S * 1e9:
            self._restarts.popleft()
        count = len(self._restarts)
        if count >= MAX_RESTARTS:
            return None if self._task.wiring.outlets else self._with_jitter(RARE_RESTART_S)
        self._restarts.append(now_ns)
        return self._with_jitter(min(FIRST_S * 2**count, LONGEST_S))

    @staticmethod
    def _with_jitter(seconds: float) -> float:
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret

    def _close_quietly(self) -> None:
        """Close the failed stage, ignoring further errors."""
        if self.is_open:
            self.is_open = False
            try:
                self._task.stage.close()
            except Exception as error:  # noqa: BLE001 - a user's code
                _LOG.debug("stage %r failed again as it was being closed: %s", self._task.name, error)

    def _warn(self, text: str) -> None:
        self._warning.warn(f"stage {self._task.name!r}: {text}")


def log_recovery(name: str, status: Status, now_ns: int) -> None:
    """Log that a stage works again, once it has worked for :data:`STEADY_S` at ``now_ns``."""
    if status.recovered is not None and not status.failing and now_ns - status.recovered[0] >= STEADY_S * 1e9:
        about = name, status.recovered[1]
        _LOG.warning("stage %r works again, after %.1f s", *about, extra={"code": "stage.recovered"})
        status.recovered = None


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with the line of the user's code that raised it."""
    if isinstance(error, EdgertError):
        return ": ".join(filter(None, (error.what, error.why)))
    where = user_code.place_of(error)
    text = cause(error) if isinstance(error, Exception) else str(error)
    return f"{type(error).__name__}: {text}{where and f' at {where}'}"
