"""Tasks that together run one stage of the pipeline file: one task, a chain of segments, or parallel branches.

A branch is one stage or a chain of stages. With several branches, a dispatcher sends each frame to one of them, and a
reorder buffer restores the order of the results.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise

from edgert.policy import Dispatcher, Reads, ReorderBuffer
from edgert.runtime.graph import connect
from edgert.runtime.records import Result, ticket_of, with_ticket
from edgert.runtime.stage import SimpleStage, Stage
from edgert.runtime.task import Execution, Task, Wiring


@dataclass(slots=True)
class ModelLevel:
    """Degradation level of a pipeline's models, written by the governor; 0 runs the first of each stage's models."""

    level: int = 0


class Dispatch(SimpleStage):
    """Stage in front of branches. It passes every result on; its task asks :meth:`branch` where each one goes.

    Args:
        choice: level that is read for every frame; only branches of that level receive it.
    """

    def __init__(self, dispatcher: Dispatcher, choice: ModelLevel | None = None) -> None:
        self.dispatcher, self._choice, self._tickets = dispatcher, choice or ModelLevel(), count(1)

    def branch(self, result: Result) -> int:
        """Return the number of the branch for this result, and count it as in flight there."""
        return self.dispatcher.branch(ticket_of(result), result.frame.index, self._choice.level)

    @property
    def every(self) -> int:
        """Interval between the frames that the branches process, in frames; may be set at any time."""
        return self.dispatcher.every

    @every.setter
    def every(self, every: int) -> None:
        self.dispatcher.every = every

    def process(self, result: Result) -> Result:
        """Return the result with a ticket, as frame numbers are not unique: a frame may have several results."""
        return with_ticket(result, next(self._tickets))


class Reorder(SimpleStage):
    """Stage behind branches that restores the order of results. Each waits for those that were dispatched before it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._buffer: ReorderBuffer[Result] = ReorderBuffer(dispatcher)

    def process(self, result: Result) -> Iterator[Result]:
        """Add one result, and yield those whose turn has come."""
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
        stages: stages of the chain, in order.
        weight: share of the frames relative to other branches.
        level: degradation level at which the branch receives frames.
        reads: which pixels the first stage reads; later stages work only on the outputs of the one before.
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
    choice: ModelLevel | None = None,
) -> list[Task]:
    """Return connected tasks that together run the stage ``name``. The first takes the input; the last has that name.

    Several branches get a dispatcher before and a reorder buffer behind them. Tasks before the last are called
    ``name:0``, ``name:1`` …

    Args:
        name: name of the stage.
        branches: branches of the stage, at least one.
        streams: names of the sources whose frames pass through.
        capacity: maximum number of results that wait between two of the tasks.
        every: interval between the frames that the branches process, in frames.
        choice: level that is read for every frame.
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
    dispatch = Dispatch(dispatcher, choice)
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
