"""How a thread waits for runs of a model on a GPU, one after the other.

Who is called wants to know at once, and has nothing else to do: :class:`Nap`. Frames of files may be late, as others
are under way: :class:`Doze`. Beside cameras, a run that the GPU begins at once takes about as long every time:
:class:`Snooze`. For one that must wait for others a thread sleeps until the driver wakes it: :class:`Sleep`. That ends
by an interrupt, which a thread of the driver's own handles, and takes more of the processor than two or three looks do,
but it is seldom very late. Measured in docs/gpu.md, "What a frame takes of the processor".
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from edgert.memory.cuda import CudaDevice, Event

How = Literal["nap", "sleep", "doze", "snooze"]
_LEAST_NS = 20_000
"""Of a sleep between two looks; Linux wakes a thread up to 50 µs later."""
_LOOKS = 32
"""Between two looks one sleeps for such a part of the wait so far: so much later, at most, one notices the end."""
_SPUN_NS = 50_000
"""How long one who waits for what usually takes as long still looks: so late may a sleeper wake."""


class Waiting(ABC):
    """One way to wait. ``event`` is recorded behind each run."""

    def __init__(self, event: Event) -> None:
        self.event = event

    @abstractmethod
    def wait(self, rows: int = 1) -> None:
        """Until the run, of so many rows, is done. Raises DeviceError when it, or work before it, failed."""


class Sleep(Waiting):
    """The driver's own way. The event is a patient one."""

    def wait(self, rows: int = 1) -> None:
        self.event.synchronize()


class _Expecting(Waiting):
    """Sleeps, by the clock, for about as long as the last waits for as many rows were, and then looks.

    A sleep that was too long shortens the next by a part, one that was too short lengthens it by what is known to have
    been missing, but for the time that one wants to be early. It no more than doubles: a stall, as of a machine that
    was suspended, is no reason to sleep through the runs that follow.

    Args:
        now_ns, sleep: the clock's.
    """

    _early_ns: int
    _shrinks: int

    def __init__(
        self,
        event: Event,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(event)
        self._now_ns, self._sleep = now_ns, sleep
        self._first_ns: dict[int, int] = {}
        """By rows, the next wait's first sleep, where it is worth one."""

    def wait(self, rows: int = 1) -> None:
        first_ns, slept_ns = self._first_ns.get(rows, 0), 0
        if first_ns > _SPUN_NS:
            slept_ns = first_ns
            self._sleep(slept_ns / 1e9)
            if self.event.passed():
                self._first_ns[rows] = first_ns - first_ns // self._shrinks
                return
        best_ns = slept_ns + self._rest(first_ns) - self._early_ns
        self._first_ns[rows] = first_ns + min((max(best_ns, 0) - first_ns) // 4, max(first_ns, _SPUN_NS))

    @abstractmethod
    def _rest(self, first_ns: int) -> int:
        """Waits for it, after the first sleep; returns for how many nanoseconds it is known not to have passed."""


class Nap(_Expecting):
    """Looks again and again after the first sleep: sooner than who sleeps until the GPU is done, and with less of the
    processor than who never sleeps."""

    _early_ns, _shrinks = _SPUN_NS, 8

    def _rest(self, first_ns: int) -> int:
        started_ns = self._now_ns()
        self.event.synchronize()
        return self._now_ns() - started_ns


class Doze(_Expecting):
    """Sleeps between two looks, too: takes least of the processor, and is a little late.

    Attributes:
        looks_ns: for so long it looks again and again before that.
    """

    _early_ns, _shrinks, looks_ns = 0, 32, 0

    def _rest(self, first_ns: int) -> int:
        started_ns, rested_ns = self._now_ns(), 0
        while not self.event.passed():
            rested_ns = self._now_ns() - started_ns
            if rested_ns >= self.looks_ns:
                self._sleep(max((first_ns + rested_ns) // _LOOKS, _LEAST_NS) / 1e9)
        return rested_ns


class Snooze(Doze):
    """Is as soon as a nap where runs take as long every time, and takes little of the processor where they do not."""

    _early_ns, _shrinks, looks_ns = _SPUN_NS, 8, 2 * _SPUN_NS


def ways(device: CudaDevice) -> dict[How, Waiting]:
    """All of them, each with an event of its own."""
    return {
        "nap": Nap(device.event()),
        "sleep": Sleep(Event(device, patient=True)),
        "doze": Doze(device.event()),
        "snooze": Snooze(device.event()),
    }
