"""Two ways in which a thread waits for a model's run on a GPU, polling and blocking.

:class:`PollingWait` sleeps for about as long as such a run usually takes and then polls: it is quick, and needs little
CPU time. :class:`BlockingWait` sleeps until the driver wakes it, by an interrupt that a driver thread handles. That
needs more CPU time than two or three polls, but suits a run that queues behind others for an unknown time.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal
from weakref import WeakKeyDictionary

from edgert.memory.cuda import CudaDevice, Event, Stream
from edgert.tracing import HERE, Ring

WaitMode = Literal["poll", "block"]
_LEAST_NS = 20_000
"""Shortest sleep between two polls; Linux wakes a thread up to 50 µs later."""
_LATE_PART = 32
"""Divisor of the time waited so far that limits the sleep between two polls, so that the end is noticed in time."""
_EARLY_NS = 50_000
"""Time before the usual end at which polling begins, as the system may wake a sleeping thread so much later."""
_SPIN_NS = 2 * _EARLY_NS
"""Time of polling without a pause, before sleeping between two polls."""
_SHRINKS = 32
"""Divisor by which a sleep that was too long shortens the next. With 8, two of three polls came too early."""


class RunTimes:
    """Learned times from the begin of a run to its first poll, by number of rows.

    A first poll that was too early adds a quarter of the missing time to the next, and at most doubles it. So a stall,
    such as of a suspended machine, does not delay the runs that follow.
    """

    def __init__(self) -> None:
        self._first_ns: dict[int, int] = {}

    def first_ns(self, rows: int) -> int:
        """Return the time from the begin of a run of ``rows`` to its first poll."""
        return self._first_ns.get(rows, 0)

    def next_ns(self, waited_ns: int) -> int:
        """Return the pause until the next poll, after having waited for ``waited_ns``."""
        return max(waited_ns // _LATE_PART, _LEAST_NS)

    def note_done(self, rows: int) -> None:
        """Learn that a run was done at its first poll."""
        first_ns = self.first_ns(rows)
        self._first_ns[rows] = first_ns - first_ns // _SHRINKS

    def note_late(self, rows: int, least_ns: int) -> None:
        """Learn that a run was not done at its first poll, nor after ``least_ns``."""
        first_ns, best_ns = self.first_ns(rows), max(least_ns - _EARLY_NS, 0)
        self._first_ns[rows] = first_ns + min((best_ns - first_ns) // 4, max(first_ns, _EARLY_NS))


class Waiting(ABC):
    """Base of the ways to wait. ``event`` is recorded after each run."""

    def __init__(self, event: Event) -> None:
        self.event = event

    @abstractmethod
    def wait(self, rows: int = 1) -> None:
        """Wait until the run of ``rows`` is done. Raises DeviceError if it, or work before it, failed."""


class BlockingWait(Waiting):
    """Waiting by a blocking event: the driver wakes the thread."""

    def wait(self, rows: int = 1) -> None:
        self.event.synchronize()


class PollingWait(Waiting):
    """Waiting by sleep and polls: sleeps for about as long as recent runs of the same rows took, and then polls."""

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
                self._times.note_done(rows)
                return
        self._times.note_late(rows, slept_ns + self._poll(first_ns))

    def _poll(self, first_ns: int) -> int:
        """Poll until the run is done; return the longest time after which a poll found it not done."""
        started_ns, rested_ns = self._now_ns(), 0
        while not self.event.passed():
            rested_ns = self._now_ns() - started_ns
            if rested_ns >= _SPIN_NS:
                self._sleep(self._times.next_ns(first_ns + rested_ns) / 1e9)
        return rested_ns


def wait_methods(device: CudaDevice) -> dict[WaitMode, Waiting]:
    """Return both ways to wait, each with a separate event."""
    return {"poll": PollingWait(device.event()), "block": BlockingWait(Event(device, patient=True))}


_ENDS_NS: WeakKeyDictionary[Stream, int] = WeakKeyDictionary()
"""End of the newest traced run of each stream, as runs of a stream follow each other."""


class RunTimer:
    """Timer of one slot's runs for a trace, by two CUDA events.

    CUDA measures how long a run took. The host bounds when it ran: after its launch and the end of the run before it,
    and before the host saw it done.
    """

    def __init__(self, device: CudaDevice, stream: Stream) -> None:
        self._began, self._ended = Event(device, timed=True), Event(device, timed=True)
        self._stream, self._launched_ns, self._rows = stream, 0, 0

    def begin(self, ring: Ring, rows: int) -> None:
        """Record the beginning of the run that is launched next. Raises DeviceError."""
        self._began.record(self._stream)
        self._launched_ns, self._rows = ring.now_ns(), rows

    def end(self, reading: Stream) -> None:
        """Record the end of the run: the present work of a stream. Raises DeviceError."""
        self._ended.record(reading)

    def add(self, name: str) -> None:
        """Add the run, which is done, to the current thread's ring, if it has one. Raises DeviceError."""
        launched_ns, self._launched_ns = self._launched_ns, 0
        ring = HERE.ring
        if not launched_ns or ring is None:
            return
        lasted_ns = round(self._ended.since_ms(self._began) * 1e6)
        begin_ns = max(launched_ns, _ENDS_NS.get(self._stream, 0))
        begin_ns = max(min(begin_ns, ring.now_ns() - lasted_ns), launched_ns)
        _ENDS_NS[self._stream] = begin_ns + lasted_ns
        ring.add(("gpu", begin_ns, begin_ns + lasted_ns, name, "", -1, self._rows))
