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
from edgert.runtime.task import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgert.clock import Clock
    from edgert.runtime.metrics import Status
    from edgert.runtime.records import Result
    from edgert.runtime.stage import AsyncStage

_LOG = logging.getLogger(__name__)
FIRST_S, LONGEST_S, JITTER = 0.5, 60.0, 0.25
"""Pause after a failure: the first, the longest, and the random part. It doubles with each failure."""
RESTARTS, WITHIN_S = 10, 600.0
"""The most restarts within that many seconds before :data:`RARELY_S` applies."""
RARELY_S = 300.0
"""Pause of a stage without listeners after too many restarts. Other stages end the pipeline then."""
OPENINGS = 3
"""A call may take this many times as long as the stage's opening, whatever the watchdog: opening runs the model."""
STEADY_S = 10.0
"""A stage counts as recovered after it has worked for so long: a full disk accepts the first bytes of every attempt."""
REMIND_S = 300.0
"""How often a lasting failure is logged again."""


class Down(Exception):  # noqa: N818 - it is no new failure
    """The stage is down, and its pause is not over."""


class Notice:
    """A warning that may occur for every frame: logged once, then every few minutes with the number of repeats."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._next_ns, self._unsaid = clock, 0, 0

    def warn(self, text: str) -> bool:
        """Log the text, or only count it; return whether it was logged."""
        now_ns = self._clock.now_ns()
        self._unsaid += 1
        if now_ns < self._next_ns:
            return False
        more = f" ({self._unsaid} times since the last such line)" if self._unsaid > 1 else ""
        self._next_ns, self._unsaid = now_ns + round(REMIND_S * 1e9), 0
        _LOG.warning("%s%s", text, more)
        return True


class Recovery:
    """Failures of one stage, and its stand-in while it is down. For the thread that calls the stage.

    Attributes:
        is_open: whether the stage is open.
        stage: the stage to call: the real one, or this object while it is down.
    """

    limit, in_flight, is_ready = 1, 0, False

    def __init__(self, task: Task, clock: Clock) -> None:
        self._task, self._status, self._clock, self.is_open = task, task.meter.status, clock, False
        self.stage = cast("AsyncStage", task.stage)  # checked where it is opened
        self._restarts = deque[int]()
        self._due_ns: int | None = None
        self._down_ns = 0
        self._notice = Notice(clock)

    def outlives(self, error: BaseException) -> bool:
        """Count and log a failure, and close the stage; return whether the pipeline continues."""
        if isinstance(error, Down):
            return True
        status, what = self._status, self._task.policy.on_error
        if what == "stop" or not isinstance(error, Exception):
            return False
        status.errors += 1
        reason = described(error)
        if what == "log":
            self._warn(f"{reason}; what it worked on is lost, and it goes on")
            return True
        wait_s = self._pause_s() if what == "restart" else None
        if what == "restart" and wait_s is None:
            often = f"it was restarted {RESTARTS} times within {WITHIN_S / 60:.0f} min"
            self._warn(f"{reason}; {often}, and others need what it makes")
            return False
        now_ns = self._clock.now_ns()
        was_down, is_same = bool(status.failing), bool(status.failing or status.back)
        self._down_ns, status.back = self._down_ns if is_same else now_ns, None
        if not is_same:  # each new failure is logged
            self._notice = Notice(self._clock)
        self._due_ns = None if wait_s is None else now_ns + round(wait_s * 1e9)
        status.failing, self.stage = reason, self
        self._close_quietly()
        if not was_down:  # the watchdog reports stages that stay down
            then = "it is dropped for good" if wait_s is None else f"it is opened again in {wait_s:.1f} s"
            self._warn(f"{reason}; {then}, and the others go on")
        return True

    def failed_to_close(self, error: Exception) -> None:
        """Log that its output may be incomplete."""
        self._status.errors += 1
        if not self._status.back:
            self._notice = Notice(self._clock)
        self._status.back = None
        self._status.failing = described(error)
        self._warn(f"{self._status.failing}; it was being closed")

    def replaced(self) -> None:
        """Take over another stage of the task, which is open."""
        self.stage, self.is_open, self._due_ns = cast("AsyncStage", self._task.stage), True, None
        self._restarts.clear()
        self._status.failing, self._status.back = "", None

    # Methods of a stage, for use in place of the one that is down.

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Open the stage again when the pause is over, and process the result. Raises Down before that."""
        stage = self._opened_again()
        out = stage.process(result)
        self._is_back(stage)
        return out

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        """Do as :meth:`process` does, for an asynchronous stage."""
        stage = self._opened_again()
        stage.submit(results, onward)
        self._is_back(stage)

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

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def is_over(self) -> None:
        """End the use of this object as the stage, when the input has ended."""
        self.stage = cast("AsyncStage", self._task.stage)  # not itself, which only the garbage collector would free

    def _opened_again(self) -> AsyncStage:
        task = self._task
        if self._due_ns is None or self._clock.now_ns() < self._due_ns:
            raise Down
        self._status.restarts += 1
        if task.policy.remake is not None:
            task.stage = task.policy.remake()
        stage = cast("AsyncStage", task.stage)
        stage.open()
        self.is_open = True
        return stage

    def _is_back(self, stage: AsyncStage) -> None:
        self.stage = stage
        now_ns = self._clock.now_ns()
        self._status.failing, self._status.back = "", (now_ns, (now_ns - self._down_ns) / 1e9)

    def _pause_s(self) -> float | None:
        """Return the seconds of the pause; None where it has failed too often and has listeners."""
        now_ns = self._clock.now_ns()
        while self._restarts and now_ns - self._restarts[0] > WITHIN_S * 1e9:
            self._restarts.popleft()
        count = len(self._restarts)
        if count >= RESTARTS:
            return None if self._task.wiring.outlets else self._jittered(RARELY_S)
        self._restarts.append(now_ns)
        return self._jittered(min(FIRST_S * 2**count, LONGEST_S))

    @staticmethod
    def _jittered(seconds: float) -> float:
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret

    def _close_quietly(self) -> None:
        """Close the failed stage, ignoring further errors."""
        if self.is_open:
            self.is_open = False
            try:
                self._task.stage.close()
            except Exception as error:  # noqa: BLE001 - a user's code
                _LOG.debug("stage %r failed again while it was closed: %s", self._task.name, error)

    def _warn(self, text: str) -> None:
        self._notice.warn(f"stage {self._task.name!r}: {text}")


def note_back(name: str, status: Status, now_ns: int) -> None:
    """Log that a stage works again, once it has done so for :data:`STEADY_S` at ``now_ns``."""
    if status.back is not None and not status.failing and now_ns - status.back[0] >= STEADY_S * 1e9:
        _LOG.warning("stage %r works again, after %.1f s", name, status.back[1])
        status.back = None


def described(error: BaseException) -> str:
    """Return an error in one line, with the line of the user's own code that it comes from."""
    if isinstance(error, EdgertError):
        return ": ".join(filter(None, (error.what, error.why)))
    where = user_code.place_of(error)
    text = cause(error) if isinstance(error, Exception) else str(error)
    return f"{type(error).__name__}: {text}{where and f' at {where}'}"
