"""Decisions of queues, joins, batches, dispatchers and rate limiters, without threads and without a clock.

Each class is a state machine: it gets an event and the time, and answers what to pass on, drop or wait for.
:mod:`edgert.runtime` wraps them in threads and runs them by the real clock. :mod:`edgert.simulator` and
:mod:`edgert.placement` use a virtual clock. So a policy is changed here for all of them.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Drop = Literal["oldest", "newest", "never"]
"""What a full queue loses; ``never``: nothing, its producer waits instead."""

OnError = Literal["stop", "restart", "drop", "log"]
"""Effect of a failing stage. ``stop``: the pipeline ends. ``restart``: the stage is closed and opened again. ``drop``:
it is closed, and other stages continue. ``log``: the result is lost, and the stage continues."""

Reads = Literal["nothing", "drawn", "host", "anywhere"]
"""Pixels that a stage reads: none, the image drawn before it on the host, those of the frame on the host, or these on
the host or a GPU."""

Offer = Literal["added", "dropped", "full"]
"""Result of an offer: one more item waits, an item was lost, or the producer must wait for room."""

_USER_HELD = 16
"""Results that a user's stage may collect before a join gives their frames up."""
_LEARNING_RATE = 0.1
"""Weight of one frame in the learned speed of a file."""
_UNLIMITED_FRAMES = 8
"""Frames of a file that pass at full speed, to learn from."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counters of one queue: items put in, items dropped because it was full, items waiting, and its capacity."""

    put: int
    dropped: int
    waiting: int
    capacity: int


class BoundedQueue(Generic[T]):
    """Bounded FIFO queue from one producer to one consumer.

    It needs no lock: the one producer adds, and an item is removed by a single pop.
    """

    __slots__ = ("capacity", "count", "drop", "dropped", "items", "waits")

    def __init__(self, capacity: int, drop: Drop) -> None:
        self.capacity, self.drop, self.waits = capacity, drop, drop == "never"
        self.items: deque[T] = deque()
        self.count = self.dropped = 0

    def offer(self, item: T) -> Offer:
        """Add an item, if there is room or the policy makes some."""
        if len(self.items) < self.capacity:
            self.count += 1
            self.items.append(item)
            return "added"
        if self.waits:
            return "full"
        self.count += 1
        victim = self.displace(item)
        if victim is not None:
            self.lose(victim)
        return "dropped"

    def displace(self, item: T) -> T | None:
        """Put an item into the full queue or not; return the one that is lost for it."""
        if self.drop == "newest":
            return item
        # Append before taking the oldest away, so that a consumer that was notified of an item always finds one.
        self.items.append(item)
        return self.pop()

    def pop(self) -> T | None:
        """Remove and return the oldest item; None where another thread took it."""
        try:
            return self.items.popleft()
        except IndexError:
            return None

    def lose(self, result: T, /) -> None:
        """Count a lost item; a queue that must free something overrides this."""
        self.dropped += 1

    def stats(self) -> QueueStats:
        """Return totals so far; callable from any thread."""
        return QueueStats(self.count, self.dropped, len(self.items), self.capacity)


class Join(Generic[T]):
    """Barrier that passes a frame on when every edge that carries its stream has delivered it.

    Where the edges of a stage carry different streams this is a plain merge. Each edge keeps the order of a stream, so
    once it delivers frame n, frames before n that still wait for it were dropped before and are given up. An edge may
    also fall silent, when a filter lets nothing pass: then the oldest frame is given up beyond ``limit``.

    Args:
        carried: for every edge, the streams it carries.
        limit: frames of one stream that may wait; at least as many as can be under way to the slowest edge.
        merge: function that joins the parts of a frame so far with a new part.
    """

    def __init__(self, carried: Sequence[frozenset[str]], limit: int, merge: Callable[[T, T], T]) -> None:
        self._limit, self._merge = limit, merge
        self._edges_of = _edges_of(carried)
        self._pending: dict[str, dict[int, tuple[T, set[int]]]] = {stream: {} for stream in self._edges_of}

    def add(self, edge: int, stream: str, index: int, item: T) -> tuple[T | None, list[T]]:
        """Add a part of frame ``index`` of ``stream``; return the frame if it is complete, and frames given up."""
        needed = self._edges_of.get(stream, ())
        if len(needed) < 2:
            return item, []
        pending = self._pending[stream]
        given_up = [pending.pop(n)[0] for n in sorted(pending) if n < index and edge not in pending[n][1]]
        if index not in pending:
            pending[index] = (item, {edge})
            if len(pending) > self._limit:
                given_up.append(pending.pop(min(pending))[0])
            return None, given_up
        first, seen = pending[index]
        joined = self._merge(first, item)
        seen.add(edge)
        if seen != needed:
            pending[index] = (joined, seen)
            return None, given_up
        del pending[index]
        return joined, given_up

    def rewire(self, carried: Sequence[frozenset[str]], under_way: int) -> list[T]:
        """Replace the edges, which keep their numbers; return frames that are complete without removed edges.

        Frames that wait already need no part from a new edge.
        """
        before, self._edges_of, self._limit = self._edges_of, _edges_of(carried), under_way + _USER_HELD
        complete = list[T]()
        for stream in self._edges_of:
            self._pending.setdefault(stream, {})
        for stream, pending in self._pending.items():
            needed = self._edges_of.get(stream, frozenset())
            for index in sorted(pending):
                item, seen = pending[index]
                seen |= needed - before.get(stream, frozenset())
                if needed <= seen:
                    del pending[index]
                    complete.append(item)
        return complete

    def drain(self, before: int | None = None) -> list[T]:
        """Remove and return waiting frames, all or those below ``before``, whose other parts will not come."""
        removed = list[T]()
        for pending in self._pending.values():
            removed += [pending.pop(n)[0] for n in list(pending) if before is None or n < before]
        return removed


def _edges_of(carried: Sequence[frozenset[str]]) -> Mapping[str, frozenset[int]]:
    """Return stream → edges that carry it."""
    return {
        stream: frozenset(edge for edge, streams in enumerate(carried) if stream in streams)
        for stream in frozenset().union(*carried)
    }


def join_of(carried: Sequence[frozenset[str]], under_way: int, merge: Callable[[T, T], T]) -> Join[T] | None:
    """Return the join of a stage whose edges bring parts of the same frames; None for other stages."""
    return Join(carried, under_way + _USER_HELD, merge) if shares_streams(carried) else None


def shares_streams(carried: Sequence[frozenset[str]]) -> bool:
    return sum(map(len, carried)) > len(frozenset().union(*carried))


def most_under_way(edges: Sequence[tuple[int, int]], joins: bool) -> int:
    """Return the largest number of results of one stream between its source and a stage, on the longest path.

    Args:
        edges: for each edge into the stage, this number for its producer, and the capacity of the edge.
        joins: whether several edges bring parts of the same frames.
    """
    counts = [before + 1 + capacity for before, capacity in edges]
    if not joins:
        return sum(counts)
    most = max(counts, default=0)
    return 2 * most if len(edges) > 1 else most  # a join holds as many again


class Dispatcher:
    """Weighted dispatcher of frames to several branches, spread as evenly as possible.

    The smooth weighted round robin: each turn every branch earns its weight, and the richest pays the sum of all.
    Weights 2 and 1 give the branches 0, 1, 0, 0, 1, 0 …

    Args:
        weights: weight of each branch.
        every: interval of frames that the branches process; frames between them cost nothing and use no turn.
        levels: level of each branch, from 0; a frame goes to a branch of the requested level. Empty: all have level 0.

    Attributes:
        order: keys of the frames under way, in order; see :class:`ReorderBuffer`.
    """

    def __init__(self, weights: Sequence[float], every: int = 1, levels: Sequence[int] = ()) -> None:
        self._weights, self.every = tuple(weights), every
        levels = levels or [0] * len(weights)
        self._branches = [
            [branch for branch, one in enumerate(levels) if one == level] for level in range(max(levels) + 1)
        ]
        self._credit = [0.0] * len(weights)
        self._next = [self._richest(branches) for branches in self._branches]
        self.order: deque[Hashable] = deque()

    def branch(self, key: Hashable, index: int, level: int = 0) -> int:
        """Return the branch of frame ``index``, now under way as ``key``; levels beyond the last count as the last."""
        level = min(level, len(self._next) - 1)
        branch = self._next[level]
        if index % self.every == 0:
            self._next[level] = self._richest(self._branches[level])
        self.order.append(key)
        return branch

    def _richest(self, branches: Sequence[int]) -> int:
        if len(branches) == 1:
            return branches[0]
        credit, weights, richest, total = self._credit, self._weights, branches[0], 0.0
        for branch in branches:
            credit[branch] += weights[branch]
            total += weights[branch]
            if credit[branch] > credit[richest]:
                richest = branch
        credit[richest] -= total
        return richest


class ReorderBuffer(Generic[T]):
    """Buffer that passes results on in the order in which a dispatcher sent their frames.

    At most as many wait here as can be under way in the branches, because a full branch blocks the dispatcher.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._order = dispatcher.order
        self._waiting: dict[Hashable, T] = {}

    def add(self, key: Hashable, item: T) -> None:
        self._waiting[key] = item

    def pop(self) -> T | None:
        """Return the next result in order, if it has come."""
        if not self._order or (due := self._waiting.pop(self._order[0], None)) is None:
            return None
        self._order.popleft()
        return due

    def drain(self) -> list[T]:
        """Remove and return the results behind lost frames, at the end of a run."""
        removed = list(self._waiting.values())
        self._waiting.clear()
        return removed


def run_sizes(rows: int, dynamic: bool) -> tuple[int, ...]:
    """Return the batch sizes that a model is prepared for: powers of two and ``rows``; only ``rows`` if not dynamic.

    A batch is run with the next larger of these sizes.
    """
    if not dynamic:
        return (rows,)
    return (*(1 << power for power in range((rows - 1).bit_length())), rows)


_LONGEST_PAUSE = 1024
"""Maximum number of batches between two attempts to fill one."""


class Batcher(Generic[T]):
    """Grouping of frames into batches, across cameras without waiting, or from files.

    A batch is run when it is full, when the engine is free and no other frame has come, or when its first frame has
    waited long enough. Frames that the model skips keep their place in order. Times are of any one clock, in its unit.

    Frames of files can wait. With ``fills``, a free engine also waits for a full batch, while each frame comes within
    ``wait`` of the one before. After an attempt fails, the next batch is run as soon as possible; after the next
    failure two batches, then four and so on. So a slow producer, or one that waits for each result, is hardly delayed.

    Args:
        most: number of frames in a full batch.
        wait: longest time that the first frame of a batch waits, however busy the engine is.
        every: interval of frames that the model processes.
        fills: whether a free engine may wait for a full batch.

    Attributes:
        held: waiting frames, and whether the model processes each.
        rows: number of waiting frames that the model processes.
        is_patient: whether a free engine waits for the rest of a batch.
    """

    def __init__(self, most: int, wait: float, every: int = 1, fills: bool = False) -> None:
        self.most, self.wait, self.every, self._fills = most, wait, every, fills
        self.held: list[tuple[T, bool]] = []
        self.rows = 0
        self._deadline = 0.0
        self.is_patient = False
        self._pause = self._left = 0  # batches to run without waiting after the last failure: all, and those left

    def passes(self, index: int) -> bool:
        """Return whether a frame passes at once: the model skips it, and none before it waits."""
        return not self.held and index % self.every != 0

    def hold(self, item: T, index: int, now: float) -> int | None:
        """Keep a frame until the batch is run; return its row, or None if the model skips it."""
        is_wanted = index % self.every == 0
        self.held.append((item, is_wanted))
        if not is_wanted:
            return None
        if not self.rows:
            self.is_patient = self._fills and not self._left
        if not self.rows or self.is_patient:
            self._deadline = now + self.wait
        self.rows += 1
        return self.rows - 1

    def hold_all(self, items: Sequence[T], now: float) -> None:
        """Keep a full batch, none of which the model skips, where nothing is held."""
        self.is_patient, self._deadline = self._fills and not self._left, now + self.wait
        self.held, self.rows = [(item, True) for item in items], len(items)

    def is_due(self, now: float, idle: bool, last: bool = False) -> bool:
        """Return whether to run the batch now.

        An engine is ``idle`` while it is free and no other frame has come; ``last``: no more will.
        """
        is_free = idle and not self.is_patient
        return bool(self.held) and (last or is_free or self.rows == self.most or now >= self._deadline)

    def due(self, now: float, idle: bool) -> float | None:
        """Return the time until which to wait for more frames; None while none is held."""
        if not self.held:
            return None
        return now if idle and not self.is_patient else self._deadline

    def take(self) -> list[tuple[T, bool]]:
        """Remove and return the batch; the next one is empty."""
        if self.is_patient:
            failed = self.rows < self.most
            self._pause = self._left = min(2 * self._pause or 1, _LONGEST_PAUSE) if failed else 0
        else:
            self._left = max(self._left - 1, 0)
        held, self.held, self.rows = self.held, [], 0
        return held


class RateLimiter:
    """Reduction of a source's frame rate: a camera drops frames evenly, a file delivers them later.

    ``share`` is the fraction of frames that pass.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self._credit = 1.0
        self._own, self._learned = 0.0, 0  # learned time between two frames of an unlimited file; frames it is from

    def has_turn(self) -> bool:
        """Return whether to pass on the next frame of a live source."""
        self._credit += self.share
        if self._credit < 1.0:
            return False
        self._credit = min(self._credit - 1.0, 1.0)
        return True

    def pause(self, passed: float) -> float:
        """Return the time to wait before a file's next frame, so that it plays at ``share`` of its own speed.

        The time has the unit of ``passed``, the time since the last frame; it is infinite while the share is 0.
        """
        if self.share >= 1.0 or self._learned < _UNLIMITED_FRAMES:
            self._own += (passed - self._own) * (_LEARNING_RATE if self._learned > 1 else 1.0)
            self._learned += 1
            return 0.0
        return max(self._own / self.share - passed, 0.0) if self.share > 0.0 else math.inf
