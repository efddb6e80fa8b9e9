"""Sources in simulated time, recordings of real runs as their input, and channels between sources and threads."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from edgert import limits
from edgert.errors import ConfigError, cause, raised_as
from edgert.placement.schedule import Timeline
from edgert.policy import RateLimiter, ReorderBuffer, join_of, most_under_way
from edgert.simulator.design import Source
from edgert.simulator.threads import Channel, Perform, Sender, Thread, Token

# Recordings of a real run: a camera's trace, and the times of stages.
#
# A trace has the time of each frame and its number of objects, as one JSON object per line:
#
#     {"time_s": 0.033, "objects": 4, "stream": "camera"}
#
# Without ``objects`` there are 0, and without ``stream`` the line is for any source. Lines of ``sink: jsonl`` are a
# trace too: their time is ``timestamp_ns``, and their objects are those of the last record of detections or keypoints.

_FIX = 'one object per line: {"time_s": 0.033, "objects": 4}, or what sink: jsonl wrote'
_COUNTED = ("detections", "keypoints")
_ODD = (ValueError, TypeError, KeyError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace of one stream.

    Attributes:
        times_ms: times of the frames since the first.
        objects: number of objects on each frame.
    """

    times_ms: tuple[float, ...]
    objects: tuple[int, ...]


def read_trace(path: Path) -> Mapping[str, Trace]:
    """Return stream → trace; the empty name stands for any source.

    Raises:
        ConfigError: the file cannot be read, a line is wrong, or a stream has fewer than two frames.
    """
    with raised_as(ConfigError, f"cannot read trace {path}", of=(OSError, UnicodeDecodeError), fix=_FIX):
        text = path.read_text(encoding="utf-8")
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        with raised_as(ConfigError, "cannot parse a line of the trace", of=_ODD, where=where, fix=_FIX):
            stream, time_ms, objects = _frame(json.loads(line))
        before = found[stream]
        if before and time_ms <= before[-1][0]:
            raise ConfigError("a frame comes before the last one", why=f"{time_ms:g} ms after {before[-1][0]:g} ms",
                              where=where, fix="sort the lines of each stream by time")  # fmt: skip
        before.append((time_ms, objects))
    if not found or any(len(frames) < 2 for frames in found.values()):
        raise ConfigError(f"trace {path} is too short", why="a stream needs two frames to have a rate", fix=_FIX)
    return {
        stream: Trace(tuple(time_ms - frames[0][0] for time_ms, _ in frames), tuple(objects for _, objects in frames))
        for stream, frames in found.items()
    }


def _frame(data: Any) -> tuple[str, float, int]:
    """Return (stream, milliseconds, objects) of a line; raise ValueError or TypeError for wrong values."""
    if not isinstance(data, dict):
        raise ValueError("the line is not a JSON object")
    if "time_s" not in data and "timestamp_ns" not in data:
        raise ValueError("the line has neither time_s nor timestamp_ns")
    time_ms = 1e3 * float(data["time_s"]) if "time_s" in data else float(data["timestamp_ns"]) / 1e6
    outputs = data.get("outputs", {})
    if "objects" not in data and not isinstance(outputs, dict):
        raise ValueError(f"outputs is {outputs!r}")
    objects = data.get("objects", 0)
    for record in outputs.values() if "objects" not in data else ():
        if isinstance(record, dict) and record.get("type") in _COUNTED:
            objects = len(record["objects"])  # of the last record that has any
    if not math.isfinite(time_ms) or not isinstance(objects, int) or not 0 <= objects <= limits.TRACE_OBJECTS:
        raise ValueError(f"time {time_ms} ms, objects {objects!r}")
    return str(data.get("stream", "")), time_ms, objects


_MEASURED_FIX = "write one on that machine, at a rate that it sustains: edgert run pipeline.yaml --json run.json"


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Mean milliseconds per result of a run's stages, by thread name."""

    threads: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """Return the time of a thread; 0 if the run had no thread of that name."""
        return self.threads.get(name, 0.0)

    def of_stage(self, name: str) -> float:
        """Return the time of a stage that has one thread; that of its first branch if the run had several."""
        return self.threads.get(f"{name}:0", self.of(name))

    def of_part(self, name: str, stage: str) -> float:
        """Return the time of a branch; that of the stage's first thread if the run had other branches."""
        return self.threads.get(name, self.of_stage(stage))


def read_stage_times(path: Path) -> StageTimes:
    """Return the times in a summary from ``edgert run --json``; raise ConfigError if it cannot be used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        times_ms = {str(name): float(stage["busy_ms_per_result"]) for name, stage in data["stages"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        why = f"{type(error).__name__}: {cause(error)}"
        raise ConfigError(f"{path} is not a summary of a run", why=why, fix=_MEASURED_FIX) from error
    for name, time_ms in times_ms.items():
        if not math.isfinite(time_ms) or time_ms < 0:
            why = f"busy_ms_per_result of {name} is {time_ms}"
            raise ConfigError(f"{path} has impossible times", why=why, fix=_MEASURED_FIX)
    return StageTimes(times_ms)


_CLOSED_MS = 100.0  # interval of checks while a governor lets no frame pass


class Camera(Sender):
    """Source at work; a new frame replaces one that waits until the frame before is passed on.

    Args:
        source: description of the source.
        timeline: simulated time.
        rng: random numbers for jitter and objects.
        perform: function that runs the steps to make a frame.

    Attributes:
        limiter: limiter of the frames that are passed on.
    """

    def __init__(self, source: Source, timeline: Timeline, rng: Random, perform: Perform) -> None:
        super().__init__()
        self.source, self._timeline, self._rng = source, timeline, rng
        self._perform = perform
        self.passed = self.lost = self.throttled = 0
        self.limiter = RateLimiter()
        self._last_ms: float | None = None  # time when the last frame was passed on
        self._count = self._index = 0
        self._waiting_ms: float | None = None
        self._is_busy = False

    @property
    def _is_paced(self) -> bool:
        return bool(self.source.rate_hz or self.source.times_ms)

    @property
    def _is_camera(self) -> bool:
        return self._is_paced and not self.source.is_ahead

    def start(self) -> None:
        """Begin with the first frame."""
        if self._is_camera:
            self._await()
        else:
            self._make()

    def _await(self) -> None:
        if not self.has_ended:
            self._timeline.call_at(max(self._timeline.now_ms, self._due()), self._arrived)

    def _arrived(self) -> None:
        if self._is_busy:
            self.lost += self._waiting_ms is not None
            self._waiting_ms = self._timeline.now_ms
        else:
            self._take(self._timeline.now_ms)
        self._await()

    def _take(self, born_ms: float) -> None:
        self._is_busy, self._waiting_ms = True, None
        self._perform(self.source.steps, lambda: self._offer(born_ms))

    def _make(self) -> None:
        if not self.has_ended:
            self._perform(self.source.steps, self._schedule_pass)

    def _schedule_pass(self) -> None:
        now_ms = self._timeline.now_ms
        due_ms = max(self._due(), now_ms) if self._is_paced else now_ms
        self._timeline.call_at(due_ms, lambda: self._offer(due_ms))

    def _offer(self, born_ms: float) -> None:
        if not self.source.is_live:
            now_ms = self._timeline.now_ms
            self._pass_later(born_ms, 0.0 if self._last_ms is None else now_ms - self._last_ms)
        elif self.limiter.has_turn():
            self._pass(born_ms)
        else:
            self.throttled += 1
            self._index += 1
            self._finish_frame()

    def _pass_later(self, born_ms: float, passed_ms: float) -> None:
        """Hold a frame that must not be lost until the limiter lets it pass."""
        pause_ms = self.limiter.pause(passed_ms)
        if pause_ms == math.inf:
            self._timeline.call_at(self._timeline.now_ms + _CLOSED_MS, lambda: self._pass_later(born_ms, passed_ms))
        elif pause_ms > 0:
            self._timeline.call_at(self._timeline.now_ms + pause_ms, lambda: self._pass(born_ms))
        else:
            self._pass(born_ms)

    def _pass(self, born_ms: float) -> None:
        self._last_ms = self._timeline.now_ms
        token = Token(self.source.name, self._index, born_ms, self._objects(self._index))
        self._index += 1
        self.passed += 1
        self.send(((channel, token) for channel in self.outlets), self._finish_frame)

    def _finish_frame(self) -> None:
        self._is_busy = False
        if not self._is_camera:
            self._make()
        elif self._waiting_ms is not None:
            self._take(self._waiting_ms)

    @property
    def has_ended(self) -> bool:
        """Whether the source gives no more frames."""
        return self.source.limit is not None and self.passed + self.lost + self.throttled >= self.source.limit

    def _due(self) -> float:
        """Return the time when the next frame is due, from the trace or the rate."""
        source, count, times_ms = self.source, self._count, self.source.times_ms
        self._count += 1
        if times_ms:
            rounds, place = divmod(count, len(times_ms))
            round_ms = times_ms[-1] + times_ms[-1] / max(1, len(times_ms) - 1)
            return rounds * round_ms + times_ms[place]
        assert source.rate_hz is not None
        period_ms = 1e3 / source.rate_hz
        jitter_ms = max(0.0, self._rng.gauss(0.0, source.jitter * period_ms))
        return count * period_ms + jitter_ms

    def _objects(self, index: int) -> int:
        objects = self.source.objects
        if objects is None:
            return self.source.most
        if isinstance(objects, tuple):
            return objects[index % len(objects)]
        return poisson(self._rng, objects)


def poisson(rng: Random, mean: float) -> int:
    """Return a random number with a Poisson distribution, from products of uniform numbers (Knuth, TAOCP 2, 3.4.1)."""
    count = 0
    while mean > 0:  # a sum of numbers with smaller means, because exp(-mean) must not underflow
        part, mean = min(mean, _LARGEST_MEAN), mean - _LARGEST_MEAN
        least, product = math.exp(-part), rng.random()
        while product > least:
            product *= rng.random()
            count += 1
    return count


_LARGEST_MEAN = 500.0


def connect(cameras: Sequence[Camera], threads: Sequence[Thread]) -> None:
    """Connect sources and threads by channels, joins and reorder buffers, as in :mod:`edgert.runtime.branches`.

    Args:
        cameras: sources.
        threads: threads, each after its producers.
    """
    senders: dict[str, Camera | Thread] = {camera.source.name: camera for camera in cameras}
    streams = {name: frozenset({name}) for name in senders}
    under_way = dict.fromkeys(senders, 0)
    for thread in threads:
        node = thread.node
        for number, edge in enumerate(node.inputs):
            channel = Channel(edge, thread, number)
            thread.inlets.append(channel)
            senders[edge.producer].outlets.append(channel)
        edges = [(under_way[edge.producer], edge.capacity) for edge in node.inputs]
        under_way[node.name] = most_under_way(edges, node.joins)
        carried = [streams[edge.producer] for edge in node.inputs]
        streams[node.name] = frozenset().union(*carried)
        thread.join = join_of(carried, under_way[node.name], lambda _, last: last) if node.joins else None
        before = senders.get(node.reorders)
        if isinstance(before, Thread) and before.dispatcher is not None:
            thread.reorder = ReorderBuffer(before.dispatcher)
        senders[node.name] = thread
