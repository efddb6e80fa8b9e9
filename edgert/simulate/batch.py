"""A thread that runs a model on several cameras' frames at once; see :class:`edgert.stages.infer_batch.InferBatch`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgert.policy import Batcher
from edgert.simulate.chance import Chance
from edgert.simulate.design import Node
from edgert.simulate.thread import Perform, Thread, Token, times


class BatchThread(Thread):
    """Runs what has come as soon as it has nothing else to do: a thread that waits for its runs has an idle engine."""

    def __init__(self, node: Node, perform: Perform, finished: Callable[[Thread, Token], None], chance: Chance) -> None:
        super().__init__(node, perform, finished, chance)
        self._batch: Batcher[Token] = Batcher(node.task.batch or 1, node.task.wait_ms, node.task.every)
        self._current = node.task
        self._pace = 1.0

    def work(self, token: Token) -> None:
        """Brings the frame into the input, and runs the batch if it is due."""
        batch = self._batch
        if batch.passes(token.index):
            super().work(token)
            return
        if not batch.held:  # a batch is of one model, whatever is decided while it is filled
            self._current = self.task
            self._pace = self._chance.now(self._current.jitter)
            batch.most = self._current.batch or 1
        is_wanted = batch.hold(token, token.index, self._chance.timeline.now_ms) is not None
        self.perform(tuple(times(self._current.steps, self._pace)) if is_wanted else (), self._filled)

    def _filled(self) -> None:
        if self._batch.is_due(self._chance.timeline.now_ms, idle=not self.ready):
            self._run()
        else:
            self.free()

    def _run(self) -> None:
        rows = self._batch.rows
        held = tuple(token for token, _ in self._batch.take())
        self.perform(tuple(times(self._current.run, rows * self._pace)), partial(self.done, held))
