"""What becomes of a stage that fails: ``on_error`` of the pipeline file.

A stage that is restarted is closed and left alone for a while. What reaches it meanwhile is lost there, and the first
result after that opens it again, in its own thread: nobody else waits for it.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from edgert import user_code
from edgert.errors import EdgertError, cause
from edgert.policy import OnError

if TYPE_CHECKING:
    from edgert.clock import Clock
    from edgert.runtime.channel import Channel
    from edgert.runtime.metrics import StageMeter
    from edgert.runtime.records import Result
    from edgert.runtime.stage import Source, Stage

_LOG = logging.getLogger(__name__)
FIRST_S, LONGEST_S, JITTER = 0.5, 60.0, 0.25
"""How long a stage that failed is left alone: twice as long each time, give or take a fourth."""
RESTARTS, WITHIN_S = 10, 600.0
"""So many restarts within that time are in order."""
RARELY_S = 300.0
"""Beyond them, one that nobody listens to is tried again only so often; others end the pipeline."""
OPENINGS = 3
"""So many times its opening a call of a stage may take, whatever its watchdog is: that ran a model, too."""
STEADY_S = 10.0
"""A stage works again once it has worked for so long: a full disk takes the first bytes of every try."""
REMIND_S = 300.0
"""How often what goes on being wrong is logged again."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """What holds for a stage that fails or hangs.

    Attributes:
        on_error: see :data:`edgert.policy.OnError`.
        at_start: whether that holds for its first opening, too; else the pipeline ends when that fails.
        watchdog_s: a call of it that takes longer is reported; 0: none is.
    """

    on_error: OnError = "stop"
    at_start: bool = False
    watchdog_s: float = 0.0


STOPS = FailurePolicy()
"""Any failure ends the pipeline."""


class Down(Exception):  # noqa: N818 - nothing new is wrong
    """The stage is down, and its turn to be opened again has not come."""


class Failing(Protocol):
    """What is needed of the node of a stage that fails; see :class:`~edgert.runtime.node.Node`."""

    name: str
    work: Source | Stage
    outlets: tuple[Channel, ...]
    meter: StageMeter
    care: FailurePolicy
    failing: str
    back: tuple[int, float] | None

    def reopen(self) -> None:
        """Opens the stage after a failure. Raises what that raises."""
        ...


class Notice:
    """A warning that may come for every frame: logged the first time, then every few minutes with their number."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._next_ns, self._unsaid = clock, 0, 0

    def warn(self, text: str) -> bool:
        """Whether it is logged now."""
        now_ns = self._clock.now_ns()
        self._unsaid += 1
        if now_ns < self._next_ns:
            return False
        more = f" ({self._unsaid} times since the last such line)" if self._unsaid > 1 else ""
        self._next_ns, self._unsaid = now_ns + round(REMIND_S * 1e9), 0
        _LOG.warning("%s%s", text, more)
        return True


class Recovery:
    """One stage's failures. While it is down, this takes its place. For the stage's thread.

    Attributes:
        is_open: whether the stage is.
        stage: what is called: the stage, or this in its place.
    """

    def __init__(self, node: Failing, clock: Clock) -> None:
        self._node, self._clock, self.is_open = node, clock, False
        self.stage = cast("Stage", node.work)  # looked at whether it is one by whoever opens it; that takes long
        self._restarts = deque[int]()
        self._due_ns: int | None = None
        self._down_ns = 0
        self._notice = Notice(clock)

    def outlives(self, error: BaseException) -> bool:
        """Whether the pipeline goes on after a failure; it is counted and logged, and the stage closed if it is."""
        if isinstance(error, Down):
            return True
        node, what = self._node, self._node.care.on_error
        if what == "stop" or not isinstance(error, Exception):
            return False
        node.meter.errors += 1
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
        was_down, is_same = bool(node.failing), bool(node.failing or node.back)
        self._down_ns, node.back = self._down_ns if is_same else now_ns, None
        if not is_same:  # it is said of each anew
            self._notice = Notice(self._clock)
        self._due_ns = None if wait_s is None else now_ns + round(wait_s * 1e9)
        node.failing, self.stage = reason, self
        self._close_quietly()
        if not was_down:  # whoever looks at all of them, the watchdog, reports what stays down
            then = "it is dropped for good" if wait_s is None else f"it is opened again in {wait_s:.1f} s"
            self._warn(f"{reason}; {then}, and the others go on")
        return True

    def failed_to_close(self, error: Exception) -> None:
        """What it wrote may not be whole."""
        self._node.meter.errors += 1
        if not self._node.back:
            self._notice = Notice(self._clock)
        self._node.back = None
        self._node.failing = described(error)
        self._warn(f"{self._node.failing}; it was being closed")

    # As a stage, in the place of the one that is down.

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Opens the stage again once it is due, and has it work. Raises Down before; or what the stage raises."""
        node = self._node
        if self._due_ns is None or self._clock.now_ns() < self._due_ns:
            raise Down
        node.meter.restarts += 1
        node.reopen()
        self.is_open = True
        stage = cast("Stage", node.work)
        out = stage.process(result)
        self.stage = stage
        now_ns = self._clock.now_ns()
        node.failing, node.back = "", (now_ns, (now_ns - self._down_ns) / 1e9)
        return out

    def flush(self, last: bool = False) -> Iterable[Result]:
        """Holds nothing."""
        return ()

    def give_up(self) -> Sequence[Result]:
        """Holds nothing."""
        return ()

    def open(self) -> None:
        """Is what is there when nothing is open."""

    def close(self) -> None:
        """Has nothing to give back."""

    def is_over(self) -> None:
        """Nothing more comes."""
        self.stage = cast("Stage", self._node.work)  # not itself, which only Python's garbage collector would free

    def _pause_s(self) -> float | None:
        """How long it is left alone; None where it has been restarted too often and others need it."""
        now_ns = self._clock.now_ns()
        while self._restarts and now_ns - self._restarts[0] > WITHIN_S * 1e9:
            self._restarts.popleft()
        count = len(self._restarts)
        if count >= RESTARTS:
            return None if self._node.outlets else self._jittered(RARELY_S)
        self._restarts.append(now_ns)
        return self._jittered(min(FIRST_S * 2**count, LONGEST_S))

    @staticmethod
    def _jittered(seconds: float) -> float:
        return seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret

    def _close_quietly(self) -> None:
        """What has failed often fails once more."""
        if self.is_open:
            self.is_open = False
            try:
                self._node.work.close()
            except Exception as error:  # noqa: BLE001 - a user's code
                _LOG.debug("stage %r failed again while it was closed: %s", self._node.name, error)

    def _warn(self, text: str) -> None:
        self._notice.warn(f"stage {self._node.name!r}: {text}")


def note_back(node: Failing, now_ns: int) -> None:
    """Log that a stage works again, once it has done so for :data:`STEADY_S` at ``now_ns``."""
    if node.back is not None and not node.failing and now_ns - node.back[0] >= STEADY_S * 1e9:
        _LOG.warning("stage %r works again, after %.1f s", node.name, node.back[1])
        node.back = None


def described(error: BaseException) -> str:
    """An error in one line, with the line of the user's own code that it comes from."""
    if isinstance(error, EdgertError):
        return ": ".join(filter(None, (error.what, error.why)))
    where = user_code.place_of(error)
    text = cause(error) if isinstance(error, Exception) else str(error)
    return f"{type(error).__name__}: {text}{where and f' at {where}'}"
