"""A schedule played through, event by event: frames per second, latencies and how busy the accelerators are.

Frames of a stream arrive at its rate and are dispatched to its replicas by weight. Every step waits in line for its
accelerator, first come first served, and is never interrupted. Accelerators that run at once slow one another down as
the contention model says. Frames leave in the order they came in. The same input gives the same output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from edgert.errors import PlacementError
from edgert.place.contention import Contention
from edgert.place.event import Accelerators, Then, Timeline
from edgert.place.step import Step
from edgert.policy import Dispatcher, ReorderBuffer

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
        replicas: engines that frames are dispatched to.
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
    then: Then = lambda: None


@dataclass(slots=True)
class _Line:
    """A stream on its way."""

    stream: Stream
    limit: int | None
    dispatcher: Dispatcher
    reorder: ReorderBuffer[_Frame]
    inside: int = 0
    next_in: int = 0
    dropped: int = 0
    left: list[tuple[float, float]] = field(default_factory=list)


class _Simulation:
    def __init__(self, streams: Sequence[Stream], duration_ms: float, contention: Contention | None) -> None:
        self._end_ms = duration_ms
        self._lines = [_line(stream) for stream in streams]
        self._time = Timeline()
        self._accelerators = Accelerators(self._time, contention)

    def run(self) -> Played:
        for line in self._lines:
            for _ in range(1 if line.stream.rate_hz else line.limit or 1):
                self._time.at(line.stream.start_ms, partial(self._arrive, line))
        self._time.run(self._end_ms)
        busy = {name: used.busy_ms / self._end_ms for name, used in self._accelerators.used().items()}
        return Played(tuple(self._flow(line) for line in self._lines), busy)

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
        """Gets in line for its next step, or leaves."""
        if frame.at == len(frame.steps):
            self._leave(frame)
            return
        step = frame.steps[frame.at]
        frame.at += 1
        self._accelerators.run(step, frame.then)

    def _leave(self, frame: _Frame) -> None:
        """In order: behind all that came in earlier."""
        line, now = frame.line, self._time.now_ms
        line.reorder.add(frame.index, frame)
        while (due := line.reorder.pop()) is not None:
            line.left.append((now, now - due.arrived_ms))
            line.inside -= 1
            if line.stream.rate_hz is None:
                self._time.at(now, partial(self._arrive, line))

    def _flow(self, line: _Line) -> Flow:
        start = _WARM_UP * self._end_ms
        latencies = np.array([latency for at, latency in line.left if at >= start])
        fps = 1e3 * len(latencies) / (self._end_ms - start)
        quantiles = np.percentile(latencies, (50, 90, 99)) if len(latencies) else [float("nan")] * 3
        return Flow(line.stream.name, fps, line.dropped, *map(float, quantiles))


def _line(stream: Stream) -> _Line:
    dispatcher = Dispatcher([replica.weight for replica in stream.replicas])
    return _Line(stream, _room(stream), dispatcher, ReorderBuffer(dispatcher))


def _room(stream: Stream) -> int | None:
    if stream.in_flight is None and stream.rate_hz is None:
        return 2 * len(stream.replicas)
    return stream.in_flight
