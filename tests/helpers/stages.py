"""Sources and stages made of functions, and pipelines of them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from edgert.memory import Counter, Lease, Pool, lend
from edgert.policy import Drop
from edgert.runtime import Frame, Result, SourceStats, Task
from edgert.runtime.graph import connect
from edgert.stages.crop import Geometry


def frame(index: int, stream: str = "cam", timestamp_ns: int = 0) -> Frame:
    """A tiny frame that tells by its lease whether it was let go."""
    pixels = np.zeros((2, 2, 3), np.uint8)
    return Frame(stream, index, timestamp_ns, 0, 2, 2, "bgr", (pixels,), lend(pixels, Counter()))


def result(index: int, stream: str = "cam", **outputs: Any) -> Result:
    return Result(frame(index, stream), outputs)


class Rows:
    """An inference slot whose record for a row is its name and the frame that it was filled with."""

    def __init__(self, name: str = "", rows: int = 4, idle: bool = False) -> None:
        self.name, self.rows, self.idle = name, rows, idle
        self.filled: dict[int, str] = {}
        self.runs: list[int] = []

    def warm_up(self) -> None:
        self.runs.append(0)

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        self.filled[row] = f"{self.name}{frame.stream}{frame.index}"
        return Geometry(1, 1, 0, 0, (4, 4), (0.0, 0.0, 4.0, 4.0))

    def run(self, *geometries: Geometry) -> list[Any]:
        self.runs.append(len(geometries))
        return [self.filled[row] for row in range(len(geometries))]


@dataclass
class Numbers:
    """A source of ``count`` frames (endless for None), of which ``size`` are in use at most."""

    name: str = "cam"
    count: int | None = 10
    size: int = 64
    fails_at: int | None = None
    live: bool = False
    given: int = 0
    closed: int = 0
    pool: Pool = field(init=False)
    counter: Counter = field(default_factory=Counter)
    leases: list[Lease] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = Pool(12, self.counter, self.size)

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        while not stop.is_set() and self.given != self.count:
            if self.given == self.fails_at:
                raise ValueError("lens cap on")
            self.leases = [lease for lease in self.leases if lease.alive]
            if len(self.leases) >= self.size:
                stop.wait(0.001)
                continue
            leased = self.pool.acquire()
            assert leased is not None
            pixels, lease = leased[0].reshape(2, 2, 3), leased[1]
            self.leases.append(lease)
            index, self.given = self.given, self.given + 1
            del leased
            yield Frame(self.name, index, 0, 0, 2, 2, "bgr", (pixels,), lease)
            del pixels, lease

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None:
        self.closed += 1

    def is_full(self) -> bool:
        return not any(lease.alive for lease in self.leases)


@dataclass
class Does:
    """A stage that calls a function; remembers the (stream, index) it saw, and how often it was opened and closed."""

    function: Callable[[Result], Result | Iterable[Result] | None] = lambda result: result
    opening: Callable[[], object] = lambda: None
    closing: Callable[[], object] = lambda: None
    seen: list[tuple[str, int]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0

    def open(self) -> None:
        self.opened += 1
        self.opening()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        self.seen.append((result.frame.stream, result.frame.index))
        return self.function(result)

    def close(self) -> None:
        self.closed += 1
        self.closing()

    @property
    def indices(self) -> list[int]:
        return [index for _, index in self.seen]


@dataclass
class Later(Does):
    """A stage whose runs are done when they are waited for, or all at once where ``is_free``."""

    limit: int = 3
    is_free: bool = False
    order: list[str] = field(default_factory=list)
    runs: list[Result] = field(default_factory=list)
    most: int = 0

    @property
    def in_flight(self) -> int:
        return len(self.runs)

    @property
    def is_ready(self) -> bool:
        return self.is_free and bool(self.runs)

    def room(self) -> int:
        return 1

    def due_ns(self) -> int | None:
        return time.monotonic_ns() + 200_000 if self.runs else None

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        for result, kept in zip(results, onward, strict=True):
            self.order.append(f"submit{result.frame.index}")
            made = self.process(result)
            assert isinstance(made, Result)
            kept.frame.lease.retain()
            self.runs.append(replace(kept, outputs=made.outputs))
            self.most = max(self.most, len(self.runs))

    def collect(self, wait: bool) -> list[Result]:
        out = [self.runs.pop(0)] if self.runs and (wait or self.is_free) else []
        self.order += [f"collect{one.frame.index}" for one in out]
        return out

    def give_up(self) -> Sequence[Result]:
        held, self.runs = self.runs, []
        return held

    def close(self) -> None:
        for one in self.give_up():
            one.frame.lease.release()
        super().close()


def tag(name: str) -> Does:
    return Does(lambda result: result.with_output(name, result.frame.index))


def link(producer: Task, consumer: Task, *streams: str, capacity: int = 2, drop: Drop = "never") -> None:
    connect(producer, consumer, frozenset(streams or {"cam"}), capacity, drop)


def chain(*works: Any, capacity: int = 2, drop: Drop = "never") -> list[Task]:
    nodes = [Task(str(n), work) for n, work in enumerate(works)]
    for before, after in pairwise(nodes):
        link(before, after, works[0].name, capacity=capacity, drop=drop)
    return nodes
