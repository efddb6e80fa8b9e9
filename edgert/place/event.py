"""Simulated time: what happens when, and steps that wait for an accelerator and slow one another down."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from edgert.place.contention import Contention
from edgert.place.step import Step

Then = Callable[[], object]
"""What happens next."""


class Timeline:
    """Events in order of time; those of one moment in the order in which they were noted. Milliseconds."""

    __slots__ = ("_count", "_events", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._count = 0

    def at(self, at_ms: float, then: Then) -> None:
        """Notes an event; not before the present."""
        self._count += 1
        heapq.heappush(self._events, (at_ms, self._count, then))

    def run(self, until_ms: float) -> None:
        """Lets everything happen up to then, and what follows from it up to then."""
        events = self._events
        while events and events[0][0] <= until_ms:
            self.now_ms, _, then = heapq.heappop(events)
            then()
        self.now_ms = until_ms


class Progress:
    """Work under way at a speed that may change.

    Args:
        time_ms: what it takes at speed 1.

    Attributes:
        speed: 0 before it was first set.
    """

    __slots__ = ("_done", "_left_ms", "_since_ms", "_timeline", "_version", "speed")

    def __init__(self, timeline: Timeline, time_ms: float, done: Then) -> None:
        self._timeline, self._left_ms, self._done = timeline, time_ms, done
        self._since_ms, self._version, self.speed = timeline.now_ms, 0, 0.0

    def catch_up(self) -> float:
        """Milliseconds since the last look, all at the same speed."""
        now_ms = self._timeline.now_ms
        passed_ms = now_ms - self._since_ms
        self._left_ms -= passed_ms * self.speed
        self._since_ms = now_ms
        return passed_ms

    def go_on(self, speed: float) -> None:
        """From now on at this speed, above 0; ``done`` follows at its end. Only after :meth:`catch_up`."""
        self.speed = speed
        self._version += 1
        end_ms = self._timeline.now_ms + max(self._left_ms, 0.0) / speed
        self._timeline.at(end_ms, partial(self._end, self._version))

    def _end(self, version: int) -> None:
        if version == self._version:  # else its speed changed since
            self._done()


@dataclass(slots=True)
class Used:
    """What an accelerator did so far.

    Attributes:
        busy_ms: how long it ran.
        worked_ms: how long that would have taken alone on the board.
        traffic_bytes: to and from DRAM.
    """

    busy_ms: float = 0.0
    worked_ms: float = 0.0
    traffic_bytes: float = 0.0


@dataclass(slots=True)
class _Server:
    """An accelerator: who waits, what runs, how quickly."""

    waiting: deque[tuple[Step, Then]] = field(default_factory=deque)
    running: Progress | None = None
    asked: float = 0.0
    used: Used = field(default_factory=Used)

    def catch_up(self) -> None:
        """Counts what was done since the last look."""
        if self.running is None:
            return
        passed_ms = self.running.catch_up()
        worked_ms = passed_ms * self.running.speed
        self.used.busy_ms += passed_ms
        self.used.worked_ms += worked_ms
        self.used.traffic_bytes += worked_ms * self.asked / 1e3


class Accelerators:
    """Each runs one step at a time, first come first served, and is never interrupted; all share the memory.

    Args:
        contention: how those that run at once slow one another down; None: not at all.
    """

    def __init__(self, timeline: Timeline, contention: Contention | None) -> None:
        self._timeline, self._contention = timeline, contention
        self._servers: dict[str, _Server] = {}
        self._clock = 1.0

    def throttle(self, clock: float) -> None:
        """Everything that runs, and what will run, goes at that part of its speed, above 0 and up to 1."""
        if clock != self._clock:
            self._clock = clock
            self._pace()

    def run(self, step: Step, then: Then) -> None:
        """Gets in line; ``then`` follows when the step is done. A step without an accelerator only takes time."""
        if step.accelerator is None:
            self._timeline.at(self._timeline.now_ms + step.time_ms, then)
            return
        server = self._servers.get(step.accelerator)
        if server is None:
            server = self._servers[step.accelerator] = _Server()
        server.waiting.append((step, then))
        if server.running is None:
            self._start(server)

    def used(self) -> dict[str, Used]:
        """Accelerator → what it did up to now."""
        for server in self._servers.values():
            server.catch_up()
        return {name: server.used for name, server in self._servers.items()}

    def _start(self, server: _Server) -> None:
        step, then = server.waiting.popleft()
        server.running = Progress(self._timeline, step.time_ms, partial(self._finish, server, then))
        server.asked = 1e3 * step.traffic_bytes / step.time_ms
        if self._contention is None:
            server.running.go_on(self._clock)
        else:
            self._pace()

    def _finish(self, server: _Server, then: Then) -> None:
        server.catch_up()
        server.running, server.asked = None, 0.0
        if server.waiting:
            self._start(server)
        elif self._contention is not None:
            self._pace()
        then()

    def _pace(self) -> None:
        """New speeds, and so new ends, for all that runs."""
        contention, servers = self._contention, self._servers.values()
        total = sum([server.asked for server in servers])
        for server in servers:
            running = server.running
            if running is None:
                continue
            speed = self._clock
            if contention is not None:
                speed /= contention.slowdown(server.asked, total - server.asked)
            if speed != running.speed:
                if running.speed:  # else it has only just begun
                    server.catch_up()
                running.go_on(speed)
