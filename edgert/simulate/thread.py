"""A pipeline's threads and channels in simulated time; they do what :mod:`edgert.runtime` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from edgert.place.event import Then
from edgert.place.step import Step
from edgert.simulate.chance import Chance
from edgert.simulate.design import Edge, Node, Task
from edgert.simulate.token import Join, Token

KEPT = 16
"""Results that a join keeps beyond those that can be under way to it, as the runtime's does."""
LEAST_MS = 0.02
"""A thread's time for a result that costs nothing, so that nothing goes on forever at one moment."""
Perform = Callable[[Sequence[Step], Then], None]
"""Runs steps one after the other, and then does what follows."""


@dataclass(slots=True, eq=False)
class Channel:
    """One edge; see :class:`edgert.runtime.channel.Channel`."""

    edge: Edge
    consumer: Thread
    number: int
    items: deque[Token] = field(default_factory=deque)
    blocked: Then | None = None
    dropped: int = 0

    def put(self, token: Token) -> bool:
        """Whether there was room, or made; if not, the producer waits."""
        if len(self.items) < self.edge.capacity:
            self.items.append(token)
            self.consumer.ready.append(self.number)
            self.consumer.wake()
            return True
        if self.edge.drop == "never":
            return False
        self.dropped += 1
        if self.edge.drop == "oldest":
            self.items.popleft()
            self.items.append(token)
        return True

    def take(self) -> Token:
        """The oldest; a producer that waits goes on."""
        token = self.items.popleft()
        if self.blocked is not None:
            go_on, self.blocked = self.blocked, None
            go_on()
        return token


class Sender:
    """The end of a thread that passes results on: one after the other, each to all that listen or to the one whose turn
    it is; where a channel is full and loses nothing, it waits."""

    def __init__(self) -> None:
        self.outlets: list[Channel] = []
        self._pending: deque[tuple[Channel, Token]] = deque()
        self._then: Then | None = None

    def send(self, puts: Iterator[tuple[Channel, Token]], then: Then) -> None:
        """Does it, sooner or later, and then what follows."""
        self._pending.extend(puts)
        self._then = then
        self._go_on()

    def _go_on(self) -> None:
        while self._pending:
            channel, token = self._pending[0]
            if not channel.put(token):
                channel.blocked = self._go_on
                return
            self._pending.popleft()
        then, self._then = self._then, None
        if then is not None:
            then()


class Thread(Sender):
    """A node at work.

    Args:
        perform: carries out its steps.
        finished: told of every result it is done with.
        chance: of how long things take.
    """

    def __init__(self, node: Node, perform: Perform, finished: Callable[[Thread, Token], None], chance: Chance) -> None:
        super().__init__()
        self.node, self.perform, self._finished, self._chance = node, perform, finished, chance
        self.inlets: list[Channel] = []
        self.ready: deque[int] = deque()
        self.join: Join | None = None
        self.gather: Gather | None = None
        self.dealer = Dealer(node.weights, node.task.every, node.levels) if node.weights else None
        self.level = 0
        """How far models are degraded; set by whoever governs."""
        self.taken = self.passed = self.unmatched = 0
        self.is_busy = True  # until it is ready

    @property
    def task(self) -> Task:
        """What it does with the next result."""
        tasks = (self.node.task, *self.node.stand_ins)
        return tasks[min(self.level, len(tasks) - 1)]

    @property
    def dropped(self) -> int:
        """Results that it never saw."""
        return self.unmatched + sum(channel.dropped for channel in self.inlets)

    @property
    def is_working(self) -> bool:
        """Whether it has anything to do."""
        return self.is_busy or bool(self.ready)

    def wake(self) -> None:
        """Something came. Takes it, sooner or later, if it has nothing to do."""
        if self.node.woken_ms and not self.is_busy:
            self.is_busy = True
            self.perform((Step(None, self._chance.of(self.node.woken_ms)),), self.free)
        else:
            self._take()

    def _take(self) -> None:
        while not self.is_busy and self.ready:
            self.is_busy = True
            edge = self.ready.popleft()
            token = self.inlets[edge].take()
            is_whole, lost = self.join.add(edge, token) if self.join is not None else (True, 0)
            self.unmatched += lost
            if is_whole:
                self.work(token)
            else:
                self.is_busy = False

    def work(self, token: Token) -> None:
        """Does what there is to do, and passes the result on."""
        self.perform(self.scattered(self._steps(token)), partial(self.done, (token,)))

    def done(self, tokens: Sequence[Token]) -> None:
        """Passes results on; then the next may come."""
        for token in tokens:
            self.taken += 1
            self._finished(self, token)
        results = [result for token in tokens for result in self._results(token)]
        self.passed += len(results)
        self.send(((channel, result) for result in results for channel in self._listeners(result)), self.free)

    def free(self) -> None:
        """Takes the next result, if one waits."""
        self.is_busy = False
        self._take()

    def scattered(self, steps: Sequence[Step]) -> Sequence[Step]:
        """As long as they take this time."""
        scatter = self.task.scatter
        return tuple(times(steps, self._chance.now(scatter))) if scatter and steps else steps

    def _results(self, token: Token) -> Iterator[Token]:
        if self.node.spread is not None:
            count = min(token.objects, self.node.spread)
            yield from (Token(token.stream, token.index, token.born_ms, 1) for _ in range(count))
        elif self.gather is not None:
            yield from self.gather.due(token)
        else:
            yield token

    def _listeners(self, token: Token) -> Sequence[Channel]:
        if self.dealer is None:
            return self.outlets
        return (self.outlets[self.dealer.branch(token, self.level)],)

    def _steps(self, token: Token) -> Sequence[Step]:
        task = self.task
        if token.index % task.every:
            return ()
        if task.crops is None:
            return task.steps + task.run
        return task.steps + tuple(step for count in _batches(task, token.objects) for step in times(task.run, count))


def _batches(task: Task, objects: int) -> Iterator[int]:
    """How many crops each run takes."""
    left = min(objects, task.crops or 0)
    while left > 0:
        yield min(left, task.rows)
        left -= task.rows


def times(steps: Sequence[Step], count: float) -> Iterator[Step]:
    """So many times each; steps of a run of so many rows."""
    return (step.times(count) for step in steps)


class Dealer:
    """Whose turn it is; see :class:`edgert.runtime.deal.Dealer`."""

    def __init__(self, weights: Sequence[float], every: int, levels: Sequence[int] = ()) -> None:
        self._weights, self._every = weights, every
        self._levels = levels or [0] * len(weights)
        self._credit = [0.0] * len(weights)
        self._chosen = self._next(0)
        self.dealt: deque[Token] = deque()

    def branch(self, token: Token, level: int = 0) -> int:
        """The branch of this result, which is now under way; one of those of this level."""
        level = min(level, max(self._levels))
        if self._levels[self._chosen] != level:
            self._chosen = self._next(level)
        chosen = self._chosen
        if token.index % self._every == 0:
            self._chosen = self._next(level)
        self.dealt.append(token)
        return chosen

    def _next(self, level: int) -> int:
        here = [branch for branch, one in enumerate(self._levels) if one == level]
        for branch in here:
            self._credit[branch] += self._weights[branch]
        chosen = max(here, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._weights[branch] for branch in here)
        return chosen


class Gather:
    """Holds a result back until those dealt before it have come."""

    def __init__(self, dealer: Dealer) -> None:
        self._dealt = dealer.dealt
        self._waiting: set[Token] = set()

    def due(self, token: Token) -> Iterator[Token]:
        """What may go on now."""
        self._waiting.add(token)
        while self._dealt and self._dealt[0] in self._waiting:
            first = self._dealt.popleft()
            self._waiting.remove(first)
            yield first
