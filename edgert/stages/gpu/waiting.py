"""How a thread waits for a GPU: it sleeps for about as long as such a wait has taken lately, and then looks.

A driver's own sleep ends by an interrupt, which another thread of the driver handles, and that takes more of the
processor than two or three looks do (docs/gpu.md, "What keeps the processor free").
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from edgert.memory.cuda import Event

_LEAST_NS = 20_000
"""Of a sleep between two looks; Linux wakes a thread up to 50 µs later."""
_LOOKS = 32
"""Between two looks one sleeps for such a part of the wait so far: so much later, at most, one notices the end."""
_SPUN_NS = 50_000
"""How long one who waits for what usually takes as long still looks: so late may a sleeper wake."""


class Waiting(ABC):
    """Waits for runs of a model, one after the other.

    A sleep that was too long shortens the next by a part, one that was too short lengthens it by what is known to have
    been missing, but for the time that one wants to be early.

    Args:
        now_ns, sleep: the clock's.

    Attributes:
        ns: of the next wait's first sleep, where it is worth one; 0 at first. It shrinks when the GPU was done by its
            end.
    """

    _early_ns: int
    _shrinks: int

    def __init__(
        self, now_ns: Callable[[], int] = time.perf_counter_ns, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.ns, self._now_ns, self._sleep = 0, now_ns, sleep

    def wait(self, event: Event) -> None:
        """Waits for an event that the driver does not sleep on. Raises DeviceError when work before it failed."""
        slept_ns = 0
        if self.ns > _SPUN_NS:
            slept_ns = self.ns
            self._sleep(slept_ns / 1e9)
            if event.passed():
                self.ns -= self.ns // self._shrinks
                return
        best_ns = slept_ns + self._rest(event) - self._early_ns
        self.ns += (max(best_ns, 0) - self.ns) // 4

    @abstractmethod
    def _rest(self, event: Event) -> int:
        """Waits for it; returns for how many nanoseconds it is known not to have passed."""


class Nap(Waiting):
    """Looks again and again after the first sleep: sooner than who sleeps until the GPU is done, and with less of the
    processor than who never sleeps. For who is called, and has nothing else to do."""

    _early_ns, _shrinks = _SPUN_NS, 8

    def _rest(self, event: Event) -> int:
        started_ns = self._now_ns()
        event.synchronize()
        return self._now_ns() - started_ns


class Doze(Waiting):
    """Sleeps between two looks, too: takes least of the processor, and is a little late."""

    _early_ns, _shrinks = 0, 32

    def _rest(self, event: Event) -> int:
        started_ns, rested_ns = self._now_ns(), 0
        while not event.passed():
            rested_ns = self._now_ns() - started_ns
            self._sleep(max((self.ns + rested_ns) // _LOOKS, _LEAST_NS) / 1e9)
        return rested_ns
