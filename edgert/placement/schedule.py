"""Simulated time: events, accelerators that steps wait for and share memory on, and simulations of placements."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from edgert.errors import PlacementError
from edgert.placement.contention import Contention
from edgert.placement.segment_engines import Step
from edgert.policy import Dispatcher, ReorderBuffer

Then = Callable[[], object]
"""Function that an event calls."""


class Timeline:
    """Events in order of time; those of one moment in the order in which they were added; milliseconds."""

    __slots__ = ("_count", "_events", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._count = 0

    def at(self, at_ms: float, then: Then) -> None:
        """Add an event, not before the present."""
        self._count += 1
        heapq.heappush(self._events, (at_ms, self._count, then))

    @property
    def next_ms(self) -> float | None:
        """Time of the next event; None where there is none."""
        return self._events[0][0] if self._events else None

    def step(self) -> None:
        """Run the next event, and nothing else."""
        self.now_ms, _, then = heapq.heappop(self._events)
        then()

    def run(self, until_ms: float) -> None:
        """Run all events up to then, including those that they add."""
        events = self._events
        while events and events[0][0] <= until_ms:
            self.now_ms, _, then = heapq.heappop(events)
            then()
        self.now_ms = until_ms


class Progress:
    """Work in progress at a speed that may change.

    Args:
        timeline: the simulated time.
        time_ms: duration at speed 1.
        done: called at the end.

    Attributes:
        speed: 0 before it was first set.
    """

    __slots__ = ("_done", "_left_ms", "_since_ms", "_timeline", "_version", "speed")

    def __init__(self, timeline: Timeline, time_ms: float, done: Then) -> None:
        self._timeline, self._left_ms, self._done = timeline, time_ms, done
        self._since_ms, self._version, self.speed = timeline.now_ms, 0, 0.0

    def catch_up(self) -> float:
        """Return the milliseconds since the last call, all at the same speed."""
        now_ms = self._timeline.now_ms
        passed_ms = now_ms - self._since_ms
        self._left_ms -= passed_ms * self.speed
        self._since_ms = now_ms
        return passed_ms

    def go_on(self, speed: float) -> None:
        """Continue at this speed, above 0; ``done`` is called at the end; call :meth:`catch_up` before."""
        self.speed = speed
        self._version += 1
        end_ms = self._timeline.now_ms + max(self._left_ms, 0.0) / speed
        self._timeline.at(end_ms, partial(self._end, self._version))

    def stop(self) -> None:
        """Stop for good, without a call of ``done``; call :meth:`catch_up` before."""
        self._version += 1

    def _end(self, version: int) -> None:
        if version == self._version:  # else its speed changed since
            self._done()


@dataclass(slots=True)
class Used:
    """Work that an accelerator has done so far.

    Attributes:
        busy_ms: how long it ran.
        worked_ms: how long that would have taken alone on the board.
        traffic_bytes: to and from DRAM.
        energy_mj: drawn for that beyond what the board draws when idle, at full clocks.
    """

    busy_ms: float = 0.0
    worked_ms: float = 0.0
    traffic_bytes: float = 0.0
    energy_mj: float = 0.0


@dataclass(slots=True)
class _Server:
    """An accelerator: its queue, its running step, and its speed."""

    waiting: deque[tuple[Step, Then]] = field(default_factory=deque)
    running: Progress | None = None
    bytes_s: float = 0.0
    drawn_w: float = 0.0
    used: Used = field(default_factory=Used)

    def catch_up(self) -> None:
        """Count the work since the last call."""
        if self.running is None:
            return
        passed_ms = self.running.catch_up()
        worked_ms = passed_ms * self.running.speed
        self.used.busy_ms += passed_ms
        self.used.worked_ms += worked_ms
        self.used.traffic_bytes += worked_ms * self.bytes_s / 1e3
        self.used.energy_mj += worked_ms * self.drawn_w


class Accelerators:
    """Accelerators with shared memory that each run one step at a time, in order of arrival.

    Args:
        timeline: the simulated time.
        contention: how those that run at once slow one another down; None: not at all.
    """

    def __init__(self, timeline: Timeline, contention: Contention | None) -> None:
        self._timeline, self._contention = timeline, contention
        self._servers: dict[str, _Server] = {}
        self._clock = 1.0

    def throttle(self, clock: float) -> None:
        """Run everything at that share of its speed from now on, above 0 and up to 1."""
        if clock != self._clock:
            self._clock = clock
            self._pace()

    def run(self, step: Step, then: Then) -> None:
        """Queue a step; call ``then`` when it is done; a step without an accelerator only takes time."""
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
            server.running.go_on(self._clock)
        else:
            self._pace()

    def _finish(self, server: _Server, then: Then) -> None:
        server.catch_up()
        server.running, server.bytes_s = None, 0.0
        if server.waiting:
            self._start(server)
        elif self._contention is not None:
            self._pace()
        then()

    def _pace(self) -> None:
        """Set new speeds, and so new ends, for all running steps."""
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
                running.go_on(speed)


# A schedule is simulated event by event, for frames per second, latencies and the use of accelerators.
#
# Frames of a stream arrive at its rate and are dispatched to its replicas by weight. Every step waits in line for
# its accelerator, in order of arrival, and is never interrupted. Accelerators that run at once slow one another
# down by the contention model. Frames leave in the order they arrived. The same input gives the same output.

_WARM_UP = 0.1  # of the simulated time, not counted


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine of a stream.

    Attributes:
        steps: of one frame, in order.
        weight: its share of the frames, relative to the other replicas.
    """

    steps: tuple[Step, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Stream:
    """Frames for one network.

    Attributes:
        name: of the network.
        replicas: engines that frames are dispatched to.
        rate_hz: of arrivals; None: a new one as soon as one leaves.
        in_flight: most frames inside at a time; further arrivals are dropped. None: no limit, or two per replica where
            ``rate_hz`` is None.
        start_ms: when the first arrives.
    """

    name: str
    replicas: tuple[Replica, ...]
    rate_hz: float | None = None
    in_flight: int | None = None
    start_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Flow:
    """Result of one stream, after warming up.

    Attributes:
        name: of the network.
        fps: frames that left, per second.
        dropped: arrivals beyond ``in_flight``.
        p50_ms: median latency from arrival until leaving in order; nan if none left.
        p99_ms: 99th percentile of it; nan if none left.
    """

    name: str
    fps: float
    dropped: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a simulation.

    Attributes:
        streams: in the order given.
        utilization: accelerator → share of the time it was busy.
    """

    streams: tuple[Flow, ...]
    utilization: Mapping[str, float]


def play(streams: Sequence[Stream], duration_ms: float, contention: Contention | None = None) -> Played:
    """Simulate the streams for so long; the first tenth does not count.

    Raises:
        PlacementError: a stream has no replicas, or no weight above zero.
    """
    return _Simulation(streams, duration_ms, contention).run()


@dataclass(slots=True)
class _Frame:
    line: _Line
    index: int
    arrived_ms: float
    steps: tuple[Step, ...]
    at: int = 0
    then: Then = lambda: None


class _Line:
    """A stream during a simulation; raises PlacementError where it has no replicas, or no weight above zero."""

    __slots__ = ("dispatcher", "dropped", "inside", "left", "limit", "next_in", "reorder", "stream")

    def __init__(self, stream: Stream) -> None:
        if not any(replica.weight > 0 for replica in stream.replicas):
            raise PlacementError(f"{stream.name} has no engine that frames are dispatched to")
        self.stream, self.limit = stream, stream.in_flight
        if stream.in_flight is None and stream.rate_hz is None:
            self.limit = 2 * len(stream.replicas)
        self.dispatcher = Dispatcher([replica.weight for replica in stream.replicas])
        self.reorder: ReorderBuffer[_Frame] = ReorderBuffer(self.dispatcher)
        self.inside = self.next_in = self.dropped = 0
        self.left: list[tuple[float, float]] = []

    def flow(self, end_ms: float) -> Flow:
        """Return the stream's result, after warming up."""
        start = _WARM_UP * end_ms
        latencies = np.array([latency for at, latency in self.left if at >= start])
        fps = 1e3 * len(latencies) / (end_ms - start)
        quantiles = np.percentile(latencies, (50, 99)) if len(latencies) else [float("nan")] * 2
        return Flow(self.stream.name, fps, self.dropped, *map(float, quantiles))


class _Simulation:
    def __init__(self, streams: Sequence[Stream], duration_ms: float, contention: Contention | None) -> None:
        self._end_ms = duration_ms
        self._lines = [_Line(stream) for stream in streams]
        self._time = Timeline()
        self._accelerators = Accelerators(self._time, contention)

    def run(self) -> Played:
        for line in self._lines:
            for _ in range(1 if line.stream.rate_hz else line.limit or 1):
                self._time.at(line.stream.start_ms, partial(self._arrive, line))
        self._time.run(self._end_ms)
        busy = {name: used.busy_ms / self._end_ms for name, used in self._accelerators.used().items()}
        return Played(tuple(line.flow(self._end_ms) for line in self._lines), busy)

    def _arrive(self, line: _Line) -> None:
        if line.stream.rate_hz:
            count = line.next_in + line.dropped + 1
            self._time.at(line.stream.start_ms + 1e3 * count / line.stream.rate_hz, partial(self._arrive, line))
        if line.limit is not None and line.inside >= line.limit:
            line.dropped += 1
            return
        replica = line.stream.replicas[line.dispatcher.branch(line.next_in, line.next_in)]
        frame = _Frame(line, line.next_in, self._time.now_ms, replica.steps)
        line.next_in += 1
        line.inside += 1
        frame.then = partial(self._advance, frame)
        frame.then()

    def _advance(self, frame: _Frame) -> None:
        """Queue the frame's next step, or let it leave."""
        if frame.at == len(frame.steps):
            self._leave(frame)
            return
        step = frame.steps[frame.at]
        frame.at += 1
        self._accelerators.run(step, frame.then)

    def _leave(self, frame: _Frame) -> None:
        """Let frames leave in order: behind all that arrived earlier."""
        line, now = frame.line, self._time.now_ms
        line.reorder.add(frame.index, frame)
        while (due := line.reorder.pop()) is not None:
            line.left.append((now, now - due.arrived_ms))
            line.inside -= 1
            if line.stream.rate_hz is None:
                self._time.at(now, partial(self._arrive, line))
