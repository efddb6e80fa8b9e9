"""Tasks that together run one stage of the pipeline file: one task, a chain of segments, or parallel branches.

A branch is one stage or a chain of stages. With several branches, a dispatcher sends each frame into one of them, and a
reorder buffer restores the order of the results.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from edgert.policy import Dispatcher, Reads, ReorderBuffer
from edgert.runtime.graph import connect
from edgert.runtime.records import Result, ticket_of, with_ticket
from edgert.runtime.stage import Stage
from edgert.runtime.task import Execution, Task, Wiring


class Dispatch:
    """Dispatcher before branches. It passes every result on; its task asks it for the branch.

    Args:
        level: returns the degradation level whose branches get the frame; called for every frame.
    """

    def __init__(self, dispatcher: Dispatcher, level: Callable[[], int] = lambda: 0) -> None:
        self.dispatcher, self._level, self._tickets = dispatcher, level, count(1)

    def branch(self, result: Result) -> int:
        """Return the branch of this result, and count it as under way there."""
        return self.dispatcher.branch(ticket_of(result), result.frame.index, self._level())

    @property
    def every(self) -> int:
        """Number of frames from one that the branches work on to the next; may be set at any time."""
        return self.dispatcher.every

    @every.setter
    def every(self, every: int) -> None:
        self.dispatcher.every = every

    def open(self) -> None:
        """Do nothing."""

    def process(self, result: Result) -> Result:
        """Pass a result on with a ticket, as frame numbers are not unique: a frame may have several results."""
        return with_ticket(result, next(self._tickets))

    def close(self) -> None:
        """Do nothing."""


class Reorder:
    """Reorder buffer behind branches. A result waits here for those that were dispatched before it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._buffer: ReorderBuffer[Result] = ReorderBuffer(dispatcher)

    def open(self) -> None:
        """Do nothing."""

    def process(self, result: Result) -> Iterator[Result]:
        """Take one result, and yield those whose turn has come."""
        result.frame.lease.retain()
        self._buffer.add(abs(ticket_of(result)), result)
        while (due := self._buffer.pop()) is not None:
            if ticket_of(due) > 0:  # else it was lost in its branch
                yield due
            due.frame.lease.release()

    def close(self) -> None:
        """Release waiting results, which are left over when a pipeline is aborted."""
        for result in self._buffer.drain():
            result.frame.lease.release()


@dataclass(frozen=True, slots=True)
class Branch:
    """A chain of stages, and its share of the frames relative to other branches.

    Attributes:
        level: the degradation level at which frames are sent here.
        reads: which pixels its first stage reads; later stages work only on the outputs of the one before.
    """

    stages: tuple[Stage, ...]
    weight: int = 1
    level: int = 0
    reads: Reads = "host"


def branch_tasks(
    name: str,
    branches: Sequence[Branch],
    streams: frozenset[str],
    capacity: int,
    every: int = 1,
    level: Callable[[], int] = lambda: 0,
) -> list[Task]:
    """Return connected tasks that together run the stage ``name``. The first takes its input; the last has its name.

    Several branches get a dispatcher before and a reorder buffer behind them. Tasks before the last are called
    ``name:0``, ``name:1`` …

    Args:
        name: of the stage.
        branches: its branches, at least one.
        streams: sources whose frames pass through.
        capacity: results that may wait between two of the tasks.
        every: number of frames from one that the branches work on to the next.
        level: returns the degradation level; called for every frame where branches have different levels.
    """
    count = sum(len(branch.stages) for branch in branches)
    labels = iter([f"{name}:{number}" for number in range(count)])
    if len(branches) == 1:
        *before, last = branches[0].stages
        tasks = [_task(next(labels), stage) for stage in before] + [_task(name, last)]
        tasks[0].execution.reads = branches[0].reads
        _link(tasks, streams, capacity)
        return tasks
    dispatcher = Dispatcher([branch.weight for branch in branches], every, [branch.level for branch in branches])
    dispatch = Dispatch(dispatcher, level)
    head, tail = _task(f"{name}:dispatch", dispatch), _task(name, Reorder(dispatcher))
    head.wiring.branch, tail.wiring.joins = dispatch.branch, False
    chains = [[_task(next(labels), stage) for stage in branch.stages] for branch in branches]
    for branch, chain in zip(branches, chains, strict=True):
        chain[0].execution.reads = branch.reads
        chain[-1].wiring.reorders = True
        _link([head, *chain, tail], streams, capacity)
    return [head, *(task for chain in chains for task in chain), tail]


def _task(name: str, stage: Stage) -> Task:
    return Task(name, stage, Wiring(), Execution(reads="nothing"))


def _link(tasks: Sequence[Task], streams: frozenset[str], capacity: int) -> None:
    for before, after in pairwise(tasks):
        connect(before, after, streams, capacity, "never")
