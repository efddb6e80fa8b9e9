"""A schedule played through, event by event: frames per second, latencies and how busy the accelerators are.

Frames of a stream arrive at its rate and are dealt to its replicas by weight. Every step waits in line for its
accelerator, first come first served, and is never interrupted. Accelerators that run at once slow one another down as
the contention model says. Frames leave in the order they came in. The same input gives the same output.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgert.errors import PlacementError
from edgert.place.contention import Contention
from edgert.place.step import Step

_ARRIVAL, _RELEASE, _END = range(3)
_WARM_UP = 0.1  # of the simulated time, not counted


@dataclass(frozen=True, slots=True)
class Replica:
    """One engine of a stream.

    Attributes:
        steps: of one frame, in order.
        weight: its share of the frames, against the other replicas'.
    """

    steps: tuple[Step, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Stream:
    """Frames for one network.

    Attributes:
        name: of the network.
        replicas: engines that frames are dealt to.
        rate_hz: of arrivals; None: a new one as soon as one leaves.
        in_flight: frames inside at a time; one that arrives when there are as many is dropped. None: no limit, or two
            per replica where ``rate_hz`` is None.
        start_ms: when the first arrives.
    """

    name: str
    replicas: tuple[Replica, ...]
    rate_hz: float | None = None
    in_flight: int | None = None
    start_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Flow:
    """What became of one stream, after warming up.

    Attributes:
        fps: frames that left, per second.
        dropped: frames that found no room.
        p50_ms, p90_ms, p99_ms: latency from arrival until leaving in order; nan if none left.
    """

    name: str
    fps: float
    dropped: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Played:
    """A simulation's outcome.

    Attributes:
        streams: in the order given.
        utilisation: accelerator → share of the time it was busy.
    """

    streams: tuple[Flow, ...]
    utilisation: Mapping[str, float]


def play(streams: Sequence[Stream], duration_ms: float, contention: Contention | None = None) -> Played:
    """Plays the streams for so long; the first tenth does not count.

    Raises:
        PlacementError: a stream has no replicas, or no weight above zero.
    """
    for stream in streams:
        if not any(replica.weight > 0 for replica in stream.replicas):
            raise PlacementError(f"{stream.name} has no engine that frames are dealt to")
    return _Simulation(streams, duration_ms, contention).run()


@dataclass(slots=True)
class _Frame:
    line: _Line
    index: int
    arrived_ms: float
    steps: tuple[Step, ...]
    at: int = 0


@dataclass(slots=True)
class _Line:
    """A stream on its way."""

    stream: Stream
    limit: int | None
    credit: list[float]
    inside: int = 0
    next_in: int = 0
    next_out: int = 0
    dropped: int = 0
    done: dict[int, float] = field(default_factory=dict)
    left: list[tuple[float, float]] = field(default_factory=list)

    def deal(self) -> Replica:
        """The replica furthest behind its share."""
        replicas = self.stream.replicas
        if len(replicas) == 1:
            return replicas[0]
        for index, replica in enumerate(replicas):
            self.credit[index] += replica.weight
        chosen = max(range(len(replicas)), key=self.credit.__getitem__)
        self.credit[chosen] -= sum(replica.weight for replica in replicas)
        return replicas[chosen]


@dataclass(slots=True)
class _Server:
    """An accelerator: who waits, what runs, how quickly."""

    waiting: deque[_Frame] = field(default_factory=deque)
    frame: _Frame | None = None
    left_ms: float = 0.0
    since_ms: float = 0.0
    speed: float = 1.0
    asked: float = 0.0
    version: int = 0
    busy_ms: float = 0.0


class _Simulation:
    def __init__(self, streams: Sequence[Stream], duration_ms: float, contention: Contention | None) -> None:
        self._end_ms, self._contention = duration_ms, contention
        self._lines = [_Line(stream, _room(stream), [0.0] * len(stream.replicas)) for stream in streams]
        every = (step for stream in streams for replica in stream.replicas for step in replica.steps)
        self._servers = {name: _Server() for name in dict.fromkeys(step.accelerator for step in every) if name}
        self._events: list[tuple[float, int, int, int, object]] = []
        self._count = 0

    def run(self) -> Played:
        for line in self._lines:
            for _ in range(1 if line.stream.rate_hz else line.limit or 1):
                self._push(line.stream.start_ms, _ARRIVAL, line)
        while self._events and self._events[0][0] <= self._end_ms:
            now, _, kind, version, what = heapq.heappop(self._events)
            if kind == _ARRIVAL:
                assert isinstance(what, _Line)
                self._arrive(what, now)
            elif kind == _RELEASE:
                assert isinstance(what, _Frame)
                self._advance(what, now)
            else:
                assert isinstance(what, _Server)
                if version == what.version:
                    self._finish(what, now)
        return self._told()

    def _push(self, at_ms: float, kind: int, what: object, version: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_ms, self._count, kind, version, what))

    def _arrive(self, line: _Line, now: float) -> None:
        if line.stream.rate_hz:
            count = line.next_in + line.dropped + 1
            self._push(line.stream.start_ms + 1e3 * count / line.stream.rate_hz, _ARRIVAL, line)
        if line.limit is not None and line.inside >= line.limit:
            line.dropped += 1
            return
        frame = _Frame(line, line.next_in, now, line.deal().steps)
        line.next_in += 1
        line.inside += 1
        self._enter(frame, now)

    def _enter(self, frame: _Frame, now: float) -> None:
        """Gets in line for its next step, or leaves."""
        if frame.at == len(frame.steps):
            self._leave(frame, now)
            return
        step = frame.steps[frame.at]
        if step.accelerator is None:
            self._push(now + step.time_ms, _RELEASE, frame)
            return
        server = self._servers[step.accelerator]
        server.waiting.append(frame)
        if server.frame is None:
            self._start(server, now)

    def _advance(self, frame: _Frame, now: float) -> None:
        frame.at += 1
        self._enter(frame, now)

    def _start(self, server: _Server, now: float) -> None:
        frame = server.waiting.popleft()
        step = frame.steps[frame.at]
        server.frame, server.left_ms, server.since_ms, server.speed = frame, step.time_ms, now, 1.0
        server.asked = 1e3 * step.traffic_bytes / step.time_ms
        self._pace(now, server)

    def _finish(self, server: _Server, now: float) -> None:
        frame = server.frame
        assert frame is not None
        server.busy_ms += now - server.since_ms
        server.frame, server.asked = None, 0.0
        server.version += 1
        if server.waiting:
            self._start(server, now)
        else:
            self._pace(now, None)
        self._advance(frame, now)

    def _pace(self, now: float, started: _Server | None) -> None:
        """New speeds, and so new ends, for all that runs."""
        total = sum(server.asked for server in self._servers.values()) if self._contention else 0.0
        for server in self._servers.values() if self._contention else (started,):
            if server is None or server.frame is None:
                continue
            speed = 1 / self._contention.slowdown(server.asked, total - server.asked) if self._contention else 1.0
            if speed != server.speed or server is started:
                server.left_ms -= (now - server.since_ms) * server.speed
                server.busy_ms += now - server.since_ms
                server.since_ms, server.speed = now, speed
                server.version += 1
                self._push(now + max(server.left_ms, 0.0) / speed, _END, server, server.version)

    def _leave(self, frame: _Frame, now: float) -> None:
        """In order: behind all that came in earlier."""
        line = frame.line
        line.done[frame.index] = frame.arrived_ms
        while line.next_out in line.done:
            line.left.append((now, now - line.done.pop(line.next_out)))
            line.next_out += 1
            line.inside -= 1
            if line.stream.rate_hz is None:
                self._push(now, _ARRIVAL, line)

    def _told(self) -> Played:
        for server in self._servers.values():
            if server.frame is not None:
                server.busy_ms += self._end_ms - server.since_ms
        busy = {name: server.busy_ms / self._end_ms for name, server in self._servers.items()}
        return Played(tuple(self._flow(line) for line in self._lines), busy)

    def _flow(self, line: _Line) -> Flow:
        start = _WARM_UP * self._end_ms
        latencies = np.array([latency for at, latency in line.left if at >= start])
        fps = 1e3 * len(latencies) / (self._end_ms - start)
        quantiles = np.percentile(latencies, (50, 90, 99)) if len(latencies) else [float("nan")] * 3
        return Flow(line.stream.name, fps, line.dropped, *map(float, quantiles))


def _room(stream: Stream) -> int | None:
    if stream.in_flight is None and stream.rate_hz is None:
        return 2 * len(stream.replicas)
    return stream.in_flight
