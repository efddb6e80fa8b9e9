"""A tactic's engine, compiled and warm, and how long it takes for a frame."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from edgert.backend import Session
from edgert.backend.base import Array
from edgert.board.core import core_accelerators, pin
from edgert.config import ModelConfig
from edgert.graph.model import Model
from edgert.ready import build_engine
from edgert.tune.once import Run, one_run
from edgert.tune.tactic import Tactic, applied


class Contestant:
    """An engine, and a thread with bound tensors for each of its replicas, as a pipeline has them. A context.

    Args:
        feed: input → array, written into every session once; all runs are on it.

    Raises:
        EdgertError: the backend is not there, or refuses the model.
    """

    def __init__(self, tactic: Tactic, model: Model, config: ModelConfig, feed: Mapping[str, Array]) -> None:
        self.tactic = tactic
        self._engine = build_engine(model, applied(config, tactic), tactic.threads, tactic.batch)
        self._sessions = [self._engine.session() for _ in range(tactic.replicas)]
        for session in self._sessions:
            _fill(session, feed)
        self._runs = [one_run(session, tactic.batch) for session in self._sessions]
        self._threads = _threads(tactic)

    def __enter__(self) -> Contestant:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.shutdown()
        self._engine.close()

    def outputs(self) -> Mapping[str, Array]:
        """Output → what the engine gives for the feed, of the caller's own; of one frame where the batch is open."""
        arrays = self._sessions[0].run(1)
        return {tensor.name: array.copy() for tensor, array in zip(self._engine.outputs, arrays, strict=True)}

    def frame_ms(self, frames: int) -> float:
        """Milliseconds per frame, of so many dealt to the replicas; once each before, while the threads of engines that
        ran before, which spin for a while, go to sleep."""
        self._work(1)
        each = max(1, frames // self.tactic.frames)
        started = time.perf_counter()
        self._work(each)
        return (time.perf_counter() - started) * 1e3 / (each * self.tactic.frames)

    def _work(self, runs: int) -> None:
        if not self._threads:
            _repeat(self._runs[0], runs)
            return
        pairs = zip(self._threads, self._runs, strict=True)
        for future in [thread.submit(_repeat, run, runs) for thread, run in pairs]:
            future.result()


def _repeat(run: Run, times: int) -> None:
    for _ in range(times):
        run()


def _fill(session: Session, feed: Mapping[str, Array]) -> None:
    for name, tensor in session.inputs.items():
        if name in feed:
            tensor[...] = feed[name]


def _threads(tactic: Tactic) -> Sequence[ThreadPoolExecutor]:
    """A thread for each replica, on its core where that is asked for; none where the caller's own will do."""
    if tactic.replicas == 1 and not tactic.pinned:
        return ()
    cores = list(core_accelerators().values()) if tactic.pinned else []
    return [
        ThreadPoolExecutor(1, initializer=pin, initargs=(cores[number],)) if cores else ThreadPoolExecutor(1)
        for number in range(tactic.replicas)
    ]
