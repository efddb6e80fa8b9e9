"""A thread that runs a model on several cameras' frames at once; see :class:`edgert.stages.infer_batch.InferBatch`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgert.simulate.chance import Chance
from edgert.simulate.design import Node
from edgert.simulate.thread import Perform, Thread, times
from edgert.simulate.token import Token


class BatchThread(Thread):
    """Runs what has come as soon as it has nothing else to do: a thread that waits for its runs has an idle engine."""

    def __init__(self, node: Node, perform: Perform, finished: Callable[[Thread, Token], None], chance: Chance) -> None:
        super().__init__(node, perform, finished, chance)
        self._held: list[Token] = []
        self._rows = 0
        self._current = node.task
        self._pace = 1.0

    def work(self, token: Token) -> None:
        """Brings the frame into the input, and runs the batch if it is full or no other has come."""
        if not self._held:  # a batch is of one model, whatever is decided while it is filled
            self._current = self.task
            self._pace = self._chance.now(self._current.scatter)
        is_wanted = token.index % self._current.every == 0
        if not is_wanted and not self._held:
            super().work(token)
            return
        self._held.append(token)
        self._rows += is_wanted
        self.perform(tuple(times(self._current.steps, self._pace)) if is_wanted else (), self._filled)

    def _filled(self) -> None:
        if self._rows == self._current.batch or not self.ready:
            self._run()
        else:
            self.free()

    def _run(self) -> None:
        held, rows = tuple(self._held), self._rows
        self._held, self._rows = [], 0
        self.perform(tuple(times(self._current.run, rows * self._pace)), partial(self.done, held))
