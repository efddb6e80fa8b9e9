"""A thread that holds frames back to run them together; see :class:`edgert.stages.infer_batch.InferBatch`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgert.place.step import Step
from edgert.simulate.design import Node
from edgert.simulate.thread import Perform, Thread, times
from edgert.simulate.token import Token


class BatchThread(Thread):
    """Runs a batch when it is full, or when its first frame has waited long enough."""

    def __init__(self, node: Node, perform: Perform, finished: Callable[[Thread, Token], None]) -> None:
        super().__init__(node, perform, finished)
        self._held: list[Token] = []
        self._rows = 0
        self._runs = 0
        self._is_late = False

    @property
    def is_working(self) -> bool:
        """Whether it has anything to do."""
        return super().is_working or bool(self._held)

    def work(self, token: Token) -> None:
        """Brings the frame into the input, and runs the batch if it is due."""
        is_wanted = token.index % self.node.task.every == 0
        if not is_wanted and not self._held:
            super().work(token)
            return
        if is_wanted and not self._rows:
            wait = Step(None, self.node.task.wait_ms)
            self.perform((wait,), partial(self._late, self._runs))
        self._held.append(token)
        self._rows += is_wanted
        self.perform(self.node.task.steps if is_wanted else (), self._filled)

    def _filled(self) -> None:
        if self._is_late or self._rows == self.node.task.batch:
            self._run()
        else:
            self.free()

    def _late(self, runs: int) -> None:
        if runs != self._runs:
            return  # that batch was run
        self._is_late = True
        if not self.is_busy:
            self._run()

    def _run(self) -> None:
        held, rows = tuple(self._held), self._rows
        self._held, self._rows, self._is_late = [], 0, False
        self._runs += 1
        self.is_busy = True
        self.perform(tuple(times(self.node.task.run, rows)), partial(self.done, held))
