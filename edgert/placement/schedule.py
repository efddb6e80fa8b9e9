"""Simulated time: events, and accelerators with queues and shared memory."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from edgert.placement.contention import Contention
from edgert.placement.segment_engines import Step

Callback = Callable[[], object]
"""Function that an event calls."""


class Timeline:
    """Events in order of time, in milliseconds; events of the same time run in the order in which they were added."""

    __slots__ = ("_count", "_events", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Callback]] = []
        self._count = 0

    def call_at(self, at_ms: float, then: Callback) -> None:
        """Add an event at a time that is not in the past."""
        self._count += 1
        heapq.heappush(self._events, (at_ms, self._count, then))

    @property
    def next_ms(self) -> float | None:
        """Time of the next event; None where there is none."""
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        """Run only the next event."""
        self.now_ms, _, then = heapq.heappop(self._events)
        then()

    def run(self, until_ms: float) -> None:
        """Run all events up to a time, including those that they add."""
        events = self._events
        while events and events[0][0] <= until_ms:
            self.now_ms, _, then = heapq.heappop(events)
            then()
        self.now_ms = until_ms


class Progress:
    """Work in progress at a speed that may change.

    Args:
        timeline: simulated time.
        time_ms: duration at speed 1.
        done: function called at the end.

    Attributes:
        speed: current speed; 0 before the first :meth:`resume`.
    """

    __slots__ = ("_done", "_left_ms", "_since_ms", "_timeline", "_version", "speed")

    def __init__(self, timeline: Timeline, time_ms: float, done: Callback) -> None:
        self._timeline, self._left_ms, self._done = timeline, time_ms, done
        self._since_ms, self._version, self.speed = timeline.now_ms, 0, 0.0

    def catch_up(self) -> float:
        """Count the work done since the last call; return the milliseconds since then."""
        now_ms = self._timeline.now_ms
        passed_ms = now_ms - self._since_ms
        self._left_ms -= passed_ms * self.speed
        self._since_ms = now_ms
        return passed_ms

    def resume(self, speed: float) -> None:
        """Continue at this speed, above 0; call :meth:`catch_up` before."""
        self.speed = speed
        self._version += 1
        end_ms = self._timeline.now_ms + max(self._left_ms, 0.0) / speed
        self._timeline.call_at(end_ms, partial(self._end, self._version))

    def stop(self) -> None:
        """Stop permanently without calling ``done``; call :meth:`catch_up` before."""
        self._version += 1

    def _end(self, version: int) -> None:
        if version == self._version:  # otherwise the speed has changed since
            self._done()


@dataclass(slots=True)
class AcceleratorUse:
    """Work that an accelerator has done so far.

    Attributes:
        busy_ms: time it ran.
        energy_mj: energy at full clocks, beyond the idle board's.
    """

    busy_ms: float = 0.0
    energy_mj: float = 0.0


@dataclass(slots=True)
class _Server:
    """Accelerator with its queue, its running step, and the step's memory traffic and power."""

    waiting: deque[tuple[Step, Callback]] = field(default_factory=deque)
    running: Progress | None = None
    bytes_s: float = 0.0
    drawn_w: float = 0.0
    used: AcceleratorUse = field(default_factory=AcceleratorUse)

    def catch_up(self) -> None:
        """Count the work done since the last call."""
        if self.running is None:
            return
        passed_ms = self.running.catch_up()
        self.used.busy_ms += passed_ms
        self.used.energy_mj += passed_ms * self.running.speed * self.drawn_w


class Accelerators:
    """Accelerators with shared memory that each run one step at a time, in order of arrival.

    Args:
        timeline: simulated time.
        contention: model of how accelerators slow one another down; None for no slowdown.
    """

    def __init__(self, timeline: Timeline, contention: Contention | None) -> None:
        self._timeline, self._contention = timeline, contention
        self._servers: dict[str, _Server] = {}
        self._clock = 1.0

    def throttle(self, clock: float) -> None:
        """Run all accelerators at this share of their full speed from now on, above 0 and up to 1."""
        if clock != self._clock:
            self._clock = clock
            self._pace()

    def run(self, step: Step, then: Callback) -> None:
        """Queue a step and call ``then`` when it is done; a step without an accelerator only takes time."""
        if step.accelerator is None:
            self._timeline.call_at(self._timeline.now_ms + step.time_ms, then)
            return
        server = self._servers.get(step.accelerator)
        if server is None:
            server = self._servers[step.accelerator] = _Server()
        server.waiting.append((step, then))
        if server.running is None:
            self._start(server)

    def used(self) -> dict[str, AcceleratorUse]:
        """Return the work of each accelerator up to now."""
        for server in self._servers.values():
            server.catch_up()
        return {name: server.used for name, server in self._servers.items()}

    def _start(self, server: _Server) -> None:
        step, then = server.waiting.popleft()
        server.running = Progress(self._timeline, step.time_ms, partial(self._finish, server, then))
        server.bytes_s = 1e3 * step.traffic_bytes / step.time_ms
        server.drawn_w = step.energy_mj / step.time_ms
        if self._contention is None:
            server.running.resume(self._clock)
        else:
            self._pace()

    def _finish(self, server: _Server, then: Callback) -> None:
        server.catch_up()
        server.running, server.bytes_s = None, 0.0
        if server.waiting:
            self._start(server)
        elif self._contention is not None:
            self._pace()
        then()

    def _pace(self) -> None:
        contention, servers = self._contention, self._servers.values()
        total = sum([server.bytes_s for server in servers])
        for server in servers:
            running = server.running
            if running is None:
                continue
            speed = self._clock
            if contention is not None:
                speed /= contention.slowdown(server.bytes_s, total - server.bytes_s)
            if speed != running.speed:
                if running.speed:  # otherwise it has only just begun
                    server.catch_up()
                running.resume(speed)
