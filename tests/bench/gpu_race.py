"""How the sides of a race on the GPU are timed: as fast as they go, and one batch at a time."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tests.bench.gpu_task import Answer

IN_FLIGHT = 3
IDLE = 0.05
"""Less than so much of a core."""
WARM_S = 0.3


@dataclass(frozen=True)
class Busy:
    """Going as fast as possible: from giving a frame to its answer, and processor time of a frame."""

    fps: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    n: int


class Watch:
    def __init__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def busy(self, frames: int, ages_ms: Sequence[float]) -> Busy:
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        p50, p99 = np.percentile(ages_ms, [50, 99]).tolist() if ages_ms else (0.0, 0.0)
        return Busy(frames / wall_s, p50, p99, cpu_s / max(frames, 1) * 1e6, frames)


def idle(most_s: float) -> bool:
    """Waits until this process does next to nothing for half a second, ``most_s`` at most; whether it came to that."""
    until = time.perf_counter() + most_s
    while time.perf_counter() < until:
        before = time.process_time()
        time.sleep(0.5)
        if time.process_time() - before < IDLE * 0.5:
            return True
    return False


class Side(Protocol):
    def saturated(self, seconds: float) -> Busy:
        """Goes as fast as it can, after a short while that does not count."""

    def close(self) -> None: ...


@runtime_checkable
class Answering(Side, Protocol):
    """A side that is given frames, in batches of ``rows``."""

    rows: int

    def alone(self, count: int) -> list[float]:
        """Milliseconds from giving a batch to having its answers, one batch at a time."""

    def answers(self, count: int) -> list[Answer]:
        """Of the first so many frames, a multiple of ``rows``."""


class InFlight(ABC):
    """A side that is given batches by the thread that measures, a few at a time."""

    rows: int
    in_flight = IN_FLIGHT

    @abstractmethod
    def submit(self, index: int) -> Any:
        """Puts a batch on the GPU, of the frames from ``index`` on; what :meth:`wait` is to be given."""

    @abstractmethod
    def wait(self, ticket: Any) -> list[Answer]:
        """Its answers."""

    def saturated(self, seconds: float) -> Busy:
        self._go(WARM_S)
        return self._go(seconds)

    def _go(self, seconds: float) -> Busy:
        waiting, index, ages = deque[tuple[Any, float]](), 0, list[float]()
        watch, until = Watch(), time.perf_counter() + seconds
        while time.perf_counter() < until or waiting:
            if len(waiting) == self.in_flight or time.perf_counter() >= until:
                ticket, given = waiting.popleft()
                self.wait(ticket)
                ages.append((time.perf_counter() - given) * 1e3)
            if time.perf_counter() < until:
                given = time.perf_counter()
                waiting.append((self.submit(index), given))
                index += self.rows
        return watch.busy(index, ages)

    def alone(self, count: int) -> list[float]:
        taken = []
        for index in range(count):
            started = time.perf_counter()
            self.wait(self.submit(index * self.rows))
            taken.append((time.perf_counter() - started) * 1e3)
        return taken

    def answers(self, count: int) -> list[Answer]:
        return [one for index in range(0, count, self.rows) for one in self.wait(self.submit(index))]
