"""Trying again after a lost connection: soon at first, then less and less often, and not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from edgert.compiler import Event, Tell
from edgert.remote.failure import LinkError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Patience:
    """How long a connection is waited for.

    Attributes:
        tell: told of every loss.
        stop: ends the waiting when set.
        first_s, most_s: the pause before the first new try, and the longest; each is twice the one before.
        limit_s: pauses in a row, together, after which it is given up.
    """

    tell: Tell
    stop: threading.Event
    first_s: float = 0.5
    most_s: float = 30.0
    limit_s: float = 900.0

    def through(self, attempt: Callable[[], Result], state: Callable[[], object]) -> Result:
        """What an attempt returns, however often the connection is lost; a new ``state`` begins the pauses anew.

        Raises:
            LinkError: the connection will not come back by itself, did not come back in time, or was lost when
                ``stop`` was set.
        """
        seen, pause_s, waited_s = state(), self.first_s, 0.0
        while True:
            try:
                return attempt()
            except LinkError as error:
                if not error.passing or self.stop.is_set() or waited_s >= self.limit_s:
                    raise
                if state() != seen:
                    seen, pause_s, waited_s = state(), self.first_s, 0.0
                self.tell(Event("link", "", "note", detail=f"{error.what} ({error.why}); again in {pause_s:g} s"))
            self.stop.wait(pause_s)
            waited_s += pause_s
            pause_s = min(2 * pause_s, self.most_s)
