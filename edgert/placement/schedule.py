"""Simulated time: events, accelerators with queues and shared memory, and simulations of placements."""

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
        worked_ms: time that this work would have taken alone on the board.
        traffic_bytes: bytes to and from DRAM.
        energy_mj: energy at full clocks, beyond the idle board's.
    """

    busy_ms: float = 0.0
    worked_ms: float = 0.0
    traffic_bytes: float = 0.0
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
        worked_ms = passed_ms * self.running.speed
        self.used.busy_ms += passed_ms
        self.used.worked_ms += worked_ms
        self.used.traffic_bytes += worked_ms * self.bytes_s / 1e3
        self.used.energy_mj += worked_ms * self.drawn_w


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
        """Update the speeds, and so the ends, of all running steps."""
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


# A placement is simulated event by event.
#
# Frames of a stream arrive at its rate and are dispatched to its replicas by weight. Every step waits for its
# accelerator, in order of arrival, and is never interrupted. Accelerators that run at once slow one another down by
# the contention model. Frames leave in the order they arrived. The same input gives the same output.

_WARM_UP = 0.1  # share of the simulated time that is not counted


@dataclass(frozen=True, slots=True)
class Replica:
    """An engine of a stream.

    Attributes:
        steps: steps of one frame, in order.
        weight: share of the frames, relative to the other replicas.
    """

    steps: tuple[Step, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Stream:
    """Frames for one network.

    Attributes:
        replicas: engines that frames are dispatched to.
        rate_hz: arrivals per second; None if a frame arrives as soon as another leaves.
        in_flight: maximum number of frames inside; further arrivals are dropped. None for no limit, or for two per
            replica where ``rate_hz`` is None.
        start_ms: time when the first frame arrives.
    """

    name: str
    replicas: tuple[Replica, ...]
    rate_hz: float | None = None
    in_flight: int | None = None
    start_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Flow:
    """Result of one stream, without the warm-up.

    Attributes:
        fps: frames per second that left.
        dropped: number of arrivals beyond ``in_flight``.
        p50_ms, p99_ms: percentiles of the time from arrival until leaving in order; nan if no frame left.
    """

    name: str
    fps: float
    dropped: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class SimulatedPlacement:
    """Result of a simulation.

    Attributes:
        streams: results of the streams, in the order given.
        utilization: accelerator → share of the time it was busy.
    """

    streams: tuple[Flow, ...]
    utilization: Mapping[str, float]


def play(streams: Sequence[Stream], duration_ms: float, contention: Contention | None = None) -> SimulatedPlacement:
    """Simulate the streams for a duration, whose first tenth does not count.

    Raises:
        PlacementError: a stream has no replica with a weight above zero.
    """
    return _Simulation(streams, duration_ms, contention).run()


@dataclass(slots=True)
class _Frame:
    line: _StreamState
    index: int
    arrived_ms: float
    steps: tuple[Step, ...]
    at: int = 0
    then: Callback = lambda: None


class _StreamState:
    """State of a stream during a simulation; raises PlacementError without a replica of positive weight."""

    __slots__ = ("dispatcher", "dropped", "inside", "left", "limit", "next_in", "reorder", "stream")

    def __init__(self, stream: Stream) -> None:
        if not any(replica.weight > 0 for replica in stream.replicas):
            raise PlacementError(f"no engine of {stream.name} receives frames", fix="give one a weight above 0")
        self.stream, self.limit = stream, stream.in_flight
        if stream.in_flight is None and stream.rate_hz is None:
            self.limit = 2 * len(stream.replicas)
        self.dispatcher = Dispatcher([replica.weight for replica in stream.replicas])
        self.reorder: ReorderBuffer[_Frame] = ReorderBuffer(self.dispatcher)
        self.inside = self.next_in = self.dropped = 0
        self.left: list[tuple[float, float]] = []

    def flow(self, end_ms: float) -> Flow:
        """Return the stream's result, without the warm-up."""
        start = _WARM_UP * end_ms
        latencies = np.array([latency for at, latency in self.left if at >= start])
        fps = 1e3 * len(latencies) / (end_ms - start)
        quantiles = np.percentile(latencies, (50, 99)) if len(latencies) else [float("nan")] * 2
        return Flow(self.stream.name, fps, self.dropped, *map(float, quantiles))


class _Simulation:
    def __init__(self, streams: Sequence[Stream], duration_ms: float, contention: Contention | None) -> None:
        self._end_ms = duration_ms
        self._lines = [_StreamState(stream) for stream in streams]
        self._time = Timeline()
        self._accelerators = Accelerators(self._time, contention)

    def run(self) -> SimulatedPlacement:
        for line in self._lines:
            for _ in range(1 if line.stream.rate_hz else line.limit or 1):
                self._time.call_at(line.stream.start_ms, partial(self._arrive, line))
        self._time.run(self._end_ms)
        busy = {name: used.busy_ms / self._end_ms for name, used in self._accelerators.used().items()}
        return SimulatedPlacement(tuple(line.flow(self._end_ms) for line in self._lines), busy)

    def _arrive(self, line: _StreamState) -> None:
        if line.stream.rate_hz:
            count = line.next_in + line.dropped + 1
            self._time.call_at(line.stream.start_ms + 1e3 * count / line.stream.rate_hz, partial(self._arrive, line))
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
        """Queue the frame's next step, or release the frame after its last step."""
        if frame.at == len(frame.steps):
            self._leave(frame)
            return
        step = frame.steps[frame.at]
        frame.at += 1
        self._accelerators.run(step, frame.then)

    def _leave(self, frame: _Frame) -> None:
        """Release finished frames in the order they arrived."""
        line, now = frame.line, self._time.now_ms
        line.reorder.add(frame.index, frame)
        while (due := line.reorder.pop()) is not None:
            line.left.append((now, now - due.arrived_ms))
            line.inside -= 1
            if line.stream.rate_hz is None:
                self._time.call_at(now, partial(self._arrive, line))
