"""Polling of a model's runs on a GPU, and two ways in which a thread waits for one.

:class:`PollingWait` sleeps for about as long as such a run usually takes and then looks: soon, and with little of the
processor. :class:`BlockingWait` sleeps until the driver wakes it, by an interrupt that a thread of the driver handles.
That takes more of the processor than two or three looks, but suits a run that waits behind others, for an unknown time.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from edgert.memory.cuda import CudaDevice, Event

How = Literal["poll", "block"]
_LEAST_NS = 20_000
"""The shortest sleep between two looks; Linux wakes a thread up to 50 µs later."""
_LATE_PART = 32
"""A sleep between two looks is at most the wait so far divided by this: so late, at most, the end is noticed."""
_EARLY_NS = 50_000
"""How long before the usual end to begin to look: so late may the system wake a sleeping thread."""
_SPIN_NS = 2 * _EARLY_NS
"""For how long to look again and again, before sleeping between two looks."""
_SHRINKS = 32
"""A sleep that was too long shortens the next by this part of it. With an eighth, two looks of three came too early."""


class RunTimes:
    """Learned run times, by number of rows, until the first poll of a run.

    A first look that was too early makes the next later by a quarter of what was missing. It no more than doubles: a
    stall, as of a machine that was suspended, is no reason to sleep through the runs that follow.
    """

    def __init__(self) -> None:
        self._first_ns: dict[int, int] = {}

    def first_ns(self, rows: int) -> int:
        """Return how long after a run of so many rows began to look at it first."""
        return self._first_ns.get(rows, 0)

    def next_ns(self, waited_ns: int) -> int:
        """Return how long to wait for the next look, after so long."""
        return max(waited_ns // _LATE_PART, _LEAST_NS)

    def was_done(self, rows: int) -> None:
        """Note that a run was done at the first look."""
        first_ns = self.first_ns(rows)
        self._first_ns[rows] = first_ns - first_ns // _SHRINKS

    def took(self, rows: int, least_ns: int) -> None:
        """Note that a run was not done at the first look, nor after ``least_ns``."""
        first_ns, best_ns = self.first_ns(rows), max(least_ns - _EARLY_NS, 0)
        self._first_ns[rows] = first_ns + min((best_ns - first_ns) // 4, max(first_ns, _EARLY_NS))


class Waiting(ABC):
    """One way to wait. ``event`` is recorded behind each run."""

    def __init__(self, event: Event) -> None:
        self.event = event

    @abstractmethod
    def wait(self, rows: int = 1) -> None:
        """Wait until the run of so many rows is done. Raises DeviceError when it, or work before it, failed."""


class BlockingWait(Waiting):
    """Wait in which the driver wakes the thread. The event must be a blocking one."""

    def wait(self, rows: int = 1) -> None:
        self.event.synchronize()


class PollingWait(Waiting):
    """Sleeps, by the clock, for about as long as the last waits for as many rows took, and then looks.

    Args:
        now_ns, sleep: the clock's.
    """

    def __init__(
        self,
        event: Event,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(event)
        self._now_ns, self._sleep, self._times = now_ns, sleep, RunTimes()

    def wait(self, rows: int = 1) -> None:
        first_ns, slept_ns = self._times.first_ns(rows), 0
        if first_ns > _EARLY_NS:
            slept_ns = first_ns
            self._sleep(slept_ns / 1e9)
            if self.event.passed():
                self._times.was_done(rows)
                return
        self._times.took(rows, slept_ns + self._look(first_ns))

    def _look(self, first_ns: int) -> int:
        """Look until the run is done; return for how many nanoseconds it is known not to have been."""
        started_ns, rested_ns = self._now_ns(), 0
        while not self.event.passed():
            rested_ns = self._now_ns() - started_ns
            if rested_ns >= _SPIN_NS:
                self._sleep(self._times.next_ns(first_ns + rested_ns) / 1e9)
        return rested_ns


def ways(device: CudaDevice) -> dict[How, Waiting]:
    """Return both, each with an event of its own."""
    return {"poll": PollingWait(device.event()), "block": BlockingWait(Event(device, patient=True))}
