"""Sources in simulated time, when their frames are due and what making them takes, and threads connected to them."""

import math
from collections.abc import Sequence
from random import Random

from edgert.placement.schedule import Timeline
from edgert.policy import RateLimiter, ReorderBuffer, join_of, most_under_way
from edgert.simulator.design import Source
from edgert.simulator.threads import Channel, Perform, Sender, Thread, Token

_CLOSED_MS = 100.0


class Camera(Sender):
    """A source at work. A frame that becomes due while the last is not yet passed on replaces one that waits.

    Args:
        perform: carries out what making a frame takes.

    Attributes:
        limiter: how many of its frames go on.
    """

    def __init__(self, source: Source, timeline: Timeline, rng: Random, perform: Perform) -> None:
        super().__init__()
        self.source, self._timeline, self._rng = source, timeline, rng
        self._perform = perform
        self.passed = self.lost = self.throttled = 0
        self.limiter = RateLimiter()
        self._last_ms: float | None = None  # when a frame went on
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
        """Schedule a camera's next frame at its time, independent of the last."""
        if not self.has_ended:
            self._timeline.at(max(self._timeline.now_ms, self._due()), self._arrived)

    def _arrived(self) -> None:
        if self._is_busy:
            self.lost += self._waiting_ms is not None
            self._waiting_ms = self._timeline.now_ms
        else:
            self._take(self._timeline.now_ms)
        self._await()

    def _take(self, born_ms: float) -> None:
        self._is_busy, self._waiting_ms = True, None
        self._perform(self.source.steps, lambda: self._give(born_ms))

    def _make(self) -> None:
        """Make a frame ahead; it is given out when it is due, or late where making it took longer."""
        if not self.has_ended:
            self._perform(self.source.steps, self._hold)

    def _hold(self) -> None:
        now_ms = self._timeline.now_ms
        due_ms = max(self._due(), now_ms) if self._is_paced else now_ms
        self._timeline.at(due_ms, lambda: self._give(due_ms))

    def _give(self, born_ms: float) -> None:
        if not self.source.is_live:
            now_ms = self._timeline.now_ms
            self._pass_later(born_ms, 0.0 if self._last_ms is None else now_ms - self._last_ms)
        elif self.limiter.has_turn():
            self._pass(born_ms)
        else:
            self.throttled += 1
            self._index += 1
            self._given()

    def _pass_later(self, born_ms: float, passed_ms: float) -> None:
        """Hold a frame that must not be lost until its turn; check from time to time where it has none."""
        pause_ms = self.limiter.pause(passed_ms)
        if pause_ms == math.inf:
            self._timeline.at(self._timeline.now_ms + _CLOSED_MS, lambda: self._pass_later(born_ms, passed_ms))
        elif pause_ms > 0:
            self._timeline.at(self._timeline.now_ms + pause_ms, lambda: self._pass(born_ms))
        else:
            self._pass(born_ms)

    def _pass(self, born_ms: float) -> None:
        self._last_ms = self._timeline.now_ms
        token = Token(self.source.name, self._index, born_ms, self._objects(self._index))
        self._index += 1
        self.passed += 1
        self.send(((channel, token) for channel in self.outlets), self._given)

    def _given(self) -> None:
        self._is_busy = False
        if not self._is_camera:
            self._make()
        elif self._waiting_ms is not None:
            self._take(self._waiting_ms)

    @property
    def has_ended(self) -> bool:
        """Whether it gives no more."""
        return self.source.limit is not None and self.passed + self.lost + self.throttled >= self.source.limit

    def _due(self) -> float:
        """Return when the next frame is due. Frames of a trace keep its order, those of a rate come by time."""
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
    """Draw a number, for small means, by a product of uniform ones (Knuth, TAOCP 2, 3.4.1)."""
    least, product, count = math.exp(-mean), rng.random(), 0
    while product > least:
        product *= rng.random()
        count += 1
    return count


# Threads connected by channels, as :mod:`edgert.runtime.branches` connects nodes.


def connected(cameras: Sequence[Camera], threads: Sequence[Thread]) -> None:
    """Give every thread its channels, its join and its reorder buffer.

    Args:
        cameras: the sources.
        threads: each after its producers.
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
