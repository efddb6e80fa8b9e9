"""The nodes that together run one stage of the pipeline file: one, a chain of segments, or several branches of these.

A branch is one stage, or a chain of them. Before several branches a dispatcher sends each frame into one; behind them a
reorder buffer restores the order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count, pairwise

from edgert.policy import Dispatcher, Drop, Reads, ReorderBuffer, shares_streams
from edgert.runtime.node import Node
from edgert.runtime.passing import ticket_of, with_ticket
from edgert.runtime.records import Result
from edgert.runtime.stage import Gathering, Stage


def connect(producer: Node, consumer: Node, streams: frozenset[str], capacity: int, drop: Drop) -> None:
    """Let ``consumer`` listen to ``producer``, also while the producer already runs.

    Args:
        streams: the sources whose frames pass here.
        capacity, drop: bound of the new edge; see :class:`~edgert.runtime.channel.Channel`.
    """
    channel = consumer.inlet.connect(capacity, drop)
    channel.together = isinstance(consumer.work, Gathering) and drop == "never"  # nothing is dropped by the batch
    consumer.carried.append(streams)
    if shares_streams(consumer.carried):  # parts of frames are joined one by one
        for each in consumer.inlet.channels:
            each.together = False
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
        self.dispatcher, self._level, self._tickets = dispatcher, level, count(1)

    def branch(self, result: Result) -> int:
        """The branch of this result, which is now under way."""
        return self.dispatcher.branch(ticket_of(result), result.frame.index, self._level())

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Result:
        """Passes it on, with a ticket: results of one frame may be several, and a frame may become another."""
        return with_ticket(result, next(self._tickets))

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
        self._buffer.add(abs(ticket_of(result)), result)
        while (due := self._buffer.pop()) is not None:
            if ticket_of(due) > 0:  # else it was lost in its branch
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
        reads: what its first stage looks at; those behind it only work on what that one made.
        context: of all of them; see :class:`~edgert.runtime.node.Node`.
    """

    stages: tuple[Stage, ...]
    weight: int = 1
    level: int = 0
    reads: Reads = "host"
    context: AbstractContextManager[object] | None = None


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
        nodes = [*(Node(next(labels), stage, reads="nothing") for stage in before), Node(name, last, reads="nothing")]
        _settle(nodes, branches[0])
        _link(nodes, streams, capacity)
        return nodes
    dispatcher = Dispatcher([branch.weight for branch in branches], every, [branch.level for branch in branches])
    dispatch = Dispatch(dispatcher, level)
    head = Node(f"{name}:dispatch", dispatch, branch=dispatch.branch, reads="nothing")
    tail = Node(name, Reorder(dispatcher), joins=False, reads="nothing")
    chains = [[Node(next(labels), stage, reads="nothing") for stage in branch.stages] for branch in branches]
    for branch, chain in zip(branches, chains, strict=True):
        _settle(chain, branch)
        chain[-1].reorders = True
        _link([head, *chain, tail], streams, capacity)
    return [head, *(node for chain in chains for node in chain), tail]


def let_go(nodes: Sequence[Node]) -> None:
    """Has every node pass frames on without their pixels where nobody behind it looks at any.

    Args:
        nodes: every one after those it listens to; may be running.
    """
    wanting: set[int] = set()  # those that must get pixels, for themselves or for others
    for node in reversed(nodes):
        if node.reads in ("host", "anywhere"):
            wanting.add(id(node))
        for producer, channel in zip(node.producers, node.inlet.channels, strict=True):
            channel.is_bare = id(node) not in wanting
            if not channel.is_bare:
                wanting.add(id(producer))
    for node in nodes:
        if node.branch is None:  # those that may wait without holding pixels come last
            node.outlets = tuple(sorted(node.outlets, key=lambda outlet: outlet.is_bare))
        node.lets_go = bool(node.outlets) and all(outlet.is_bare for outlet in node.outlets)


def _settle(nodes: Sequence[Node], branch: Branch) -> None:
    nodes[0].reads = branch.reads
    for node in nodes:
        node.context = branch.context


def _link(nodes: Sequence[Node], streams: frozenset[str], capacity: int) -> None:
    for before, after in pairwise(nodes):
        connect(before, after, streams, capacity, "never")
