"""Threads and channels of a pipeline in simulated time, with the policies of :mod:`edgert.policy`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from edgert.placement.schedule import Callback, Timeline
from edgert.placement.segment_engines import Step
from edgert.policy import Batcher, BoundedQueue, Dispatcher, Join, ReorderBuffer
from edgert.simulator.design import Edge, Node, Task

LEAST_MS = 0.02
"""Time of a result without cost, so that time always advances."""
Perform = Callable[[Sequence[Step], Callback], None]
"""Function that runs steps one after the other, and then calls a function."""


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """Result with its stream, frame number, time of capture, and number of objects."""

    stream: str
    index: int
    born_ms: float
    objects: int


class Channel(BoundedQueue[Token]):
    """Queue between two threads."""

    __slots__ = ("blocked", "consumer", "edge", "number", "on_change")

    def __init__(self, edge: Edge, consumer: Thread, number: int) -> None:
        super().__init__(edge.capacity, edge.drop)
        self.edge, self.consumer, self.number = edge, consumer, number
        self.blocked: Callback | None = None
        self.on_change: Callback | None = None
        """Function called whenever the length may have changed; None for none."""

    def put(self, token: Token) -> bool:
        """Add an item; return False where the queue is full and the producer waits."""
        offered = self.offer(token)
        if offered == "added":
            if self.on_change is not None:
                self.on_change()
            self.consumer.ready.append(self.number)
            self.consumer.wake()
        return offered != "full"

    def take(self) -> Token:
        """Remove and return the oldest item; unblock a waiting producer."""
        token = self.items.popleft()
        if self.on_change is not None:
            self.on_change()
        if self.blocked is not None:
            resume, self.blocked = self.blocked, None
            resume()
        return token


class Sender:
    """Part of a thread that puts results into channels one after the other, and waits where a channel is full."""

    def __init__(self) -> None:
        self.outlets: list[Channel] = []
        self._pending: deque[tuple[Channel, Token]] = deque()
        self._then: Callback | None = None

    def send(self, puts: Iterable[tuple[Channel, Token]], then: Callback) -> None:
        """Put items into channels in order, waiting where one is full, then call ``then``."""
        self._pending.extend(puts)
        self._then = then
        self._continue()

    def _continue(self) -> None:
        while self._pending:
            channel, token = self._pending[0]
            if not channel.put(token):
                channel.blocked = self._continue
                return
            self._pending.popleft()
        then, self._then = self._then, None
        if then is not None:
            then()


class Thread(Sender):
    """Node at work.

    Args:
        node: description of the node.
        perform: function that runs steps.
        finished: function called with the thread and each finished result.
        timeline: simulated time.
    """

    def __init__(
        self, node: Node, perform: Perform, finished: Callable[[Thread, Token], None], timeline: Timeline
    ) -> None:
        super().__init__()
        self.node, self.perform, self._finished, self._timeline = node, perform, finished, timeline
        self.inlets: list[Channel] = []
        self.ready: deque[int] = deque()
        self.join: Join[Token] | None = None
        self.reorder: ReorderBuffer[Token] | None = None
        self.dispatcher = Dispatcher(node.weights, node.task.every, node.levels) if node.weights else None
        self.level = 0
        """Level of fallback models, set by the governor."""
        self.taken = self.passed = self.unmatched = 0
        self.is_busy = True  # until the simulation starts

    @property
    def task(self) -> Task:
        """Work on the next result."""
        tasks = (self.node.task, *self.node.fallbacks)
        return tasks[min(self.level, len(tasks) - 1)]

    @property
    def dropped(self) -> int:
        """Number of results that it never processed."""
        return self.unmatched + sum(channel.dropped for channel in self.inlets)

    @property
    def is_working(self) -> bool:
        """Whether it has work to do."""
        return self.is_busy or bool(self.ready)

    def wake(self) -> None:
        """Take the next result, if idle."""
        while not self.is_busy and self.ready:
            self.is_busy = True
            edge = self.ready.popleft()
            token = self.inlets[edge].take()
            joined, lost = self.join.add(edge, token.stream, token.index, token) if self.join else (token, ())
            self.unmatched += len(lost)
            if joined is not None:
                self.work(joined)
            else:
                self.is_busy = False

    def work(self, token: Token) -> None:
        """Process a result, and pass it on."""
        self.perform(self._steps(token), partial(self.done, (token,)))

    def done(self, tokens: Sequence[Token]) -> None:
        """Pass results on, then take the next one."""
        for token in tokens:
            self.taken += 1
            self._finished(self, token)
        results = [result for token in tokens for result in self._results(token)]
        self.passed += len(results)
        if self.dispatcher is None:
            puts = [(channel, result) for result in results for channel in self.outlets]
        else:
            turns = [self.dispatcher.branch(result, result.index, self.level) for result in results]
            puts = [(self.outlets[turn], result) for turn, result in zip(turns, results, strict=True)]
        self.send(puts, self.free)

    def free(self) -> None:
        """Take the next result, if one waits."""
        self.is_busy = False
        self.wake()

    def _results(self, token: Token) -> Iterator[Token]:
        if self.node.spread is not None:
            count = min(token.objects, self.node.spread)
            yield from (Token(token.stream, token.index, token.born_ms, 1) for _ in range(count))
        elif self.reorder is not None:
            self.reorder.add(token, token)
            yield from iter(self.reorder.pop, None)
        else:
            yield token

    def _steps(self, token: Token) -> Sequence[Step]:
        task = self.task
        if token.index % task.every:
            return ()
        if task.crops is None and not task.tiles:
            return task.steps + task.run
        crops = task.tiles or min(token.objects, task.crops or 0)
        runs = (min(task.rows, crops - first) for first in range(0, crops, task.rows))
        return task.steps + tuple(step for count in runs for step in times(task.run, count))


def times(steps: Sequence[Step], count: float) -> Iterator[Step]:
    """Yield the steps with ``count`` times their duration, traffic and energy."""
    return (step.times(count) for step in steps)


class BatchThread(Thread):
    """Thread that runs batches as :class:`edgert.stages.infer.InferBatch` does, as soon as its engine is idle."""

    def __init__(
        self, node: Node, perform: Perform, finished: Callable[[Thread, Token], None], timeline: Timeline
    ) -> None:
        super().__init__(node, perform, finished, timeline)
        self._batch: Batcher[Token] = Batcher(node.task.batch or 1, node.task.wait_ms, node.task.every)
        self._current = node.task

    def work(self, token: Token) -> None:
        """Copy the frame into the input, and run the batch if it is due."""
        batch = self._batch
        if batch.passes(token.index):
            super().work(token)
            return
        if not batch.held:  # one batch uses one model, even if the level changes while it fills
            self._current = self.task
            batch.most = self._current.batch or 1
        is_wanted = batch.hold(token, token.index, self._timeline.now_ms) is not None
        self.perform(self._current.steps if is_wanted else (), self._filled)

    def _filled(self) -> None:
        if not self._batch.is_due(self._timeline.now_ms, idle=not self.ready):
            self.free()
            return
        rows = self._batch.rows
        held = tuple(token for token, _ in self._batch.take())
        self.perform(tuple(times(self._current.run, rows)), partial(self.done, held))
