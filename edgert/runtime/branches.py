"""The nodes that together run one stage of the pipeline file: one, a chain of segments, or several branches of these.

A branch is one stage, or a chain of them. Before several branches a dispatcher sends each frame into one; behind them a
reorder buffer restores the order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgert.policy import Dispatcher, Drop, ReorderBuffer
from edgert.runtime.records import Result
from edgert.runtime.stage import Stage
from edgert.runtime.worker import Node


def connect(producer: Node, consumer: Node, streams: frozenset[str], capacity: int, drop: Drop) -> None:
    """Lets ``consumer`` listen to ``producer``, also while the producer already runs.

    Args:
        streams: the sources whose frames pass here.
        capacity, drop: bound of the new edge; see :class:`~edgert.runtime.channel.Channel`.
    """
    channel = consumer.inlet.connect(capacity, drop)
    consumer.carried.append(streams)
    consumer.producers.append(producer)
    producer.outlets = (*producer.outlets, channel)


def disconnect(producer: Node, consumer: Node) -> None:
    """Undoes :func:`connect`, also while the producer runs: it no longer waits for this consumer."""
    gone = consumer.inlet.channels
    producer.outlets = tuple(outlet for outlet in producer.outlets if outlet not in gone)
    consumer.inlet.abandon()


class Dispatch:
    """The stage before the branches. Passes everything on; its node asks it for the branch.

    Args:
        level: the level whose branches get the frame, asked for every frame.
    """

    def __init__(self, dispatcher: Dispatcher, level: Callable[[], int] = lambda: 0) -> None:
        self.dispatcher, self._level = dispatcher, level

    def branch(self, result: Result) -> int:
        """The branch of this result, which is now under way."""
        return self.dispatcher.branch(id(result.frame), result.frame.index, self._level())

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Result:
        """Passes it on."""
        return result

    def close(self) -> None:
        """Has nothing to give back."""


class Reorder:
    """The stage behind the branches. A result waits here until those dispatched before it have come."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._buffer: ReorderBuffer[Result] = ReorderBuffer(dispatcher)

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Iterator[Result]:
        """Passes on what is due, this result among it or not."""
        result.frame.lease.retain()
        self._buffer.add(id(result.frame), result)
        while (due := self._buffer.pop()) is not None:
            yield due
            due.frame.lease.release()

    def close(self) -> None:
        """Lets go of what waits for a frame that was lost, as when a pipeline is broken off."""
        for result in self._buffer.drain():
            result.frame.lease.release()


@dataclass(frozen=True, slots=True)
class Branch:
    """Stages one behind the other, and their share of the frames, against that of the other branches.

    Attributes:
        level: at which level of degraded models frames are sent here.
    """

    stages: tuple[Stage, ...]
    weight: int = 1
    level: int = 0


def branch_nodes(
    name: str,
    branches: Sequence[Branch],
    streams: frozenset[str],
    capacity: int,
    every: int = 1,
    level: Callable[[], int] = lambda: 0,
) -> list[Node]:
    """Connected nodes that together are the stage ``name``; the first takes its input, the last has its name.

    One branch is a chain; several get a dispatcher before and a reorder buffer behind them. Those before the last are
    called ``name:0``, ``name:1`` …

    Args:
        streams: the sources whose frames pass here.
        capacity: results that may wait between two of the nodes.
        every: frames between two that the branches work on.
        level: asked for every frame where branches are of several.
    """
    count = sum(len(branch.stages) for branch in branches)
    labels = iter([f"{name}:{number}" for number in range(count)])
    if len(branches) == 1:
        *before, last = branches[0].stages
        nodes = [*(Node(next(labels), stage) for stage in before), Node(name, last)]
        _link(nodes, streams, capacity)
        return nodes
    dispatcher = Dispatcher([branch.weight for branch in branches], every, [branch.level for branch in branches])
    dispatch = Dispatch(dispatcher, level)
    head = Node(f"{name}:dispatch", dispatch, branch=dispatch.branch)
    tail = Node(name, Reorder(dispatcher), joins=False)
    chains = [[Node(next(labels), stage) for stage in branch.stages] for branch in branches]
    for chain in chains:
        _link([head, *chain, tail], streams, capacity)
    return [head, *(node for chain in chains for node in chain), tail]


def _link(nodes: Sequence[Node], streams: frozenset[str], capacity: int) -> None:
    for before, after in pairwise(nodes):
        connect(before, after, streams, capacity, "never")
