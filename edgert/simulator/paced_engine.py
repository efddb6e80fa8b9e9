"""Engines, stages and sources that do real work, and take as long as an emulated board would."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, cast

from edgert.backend import Engine, Session
from edgert.backend.base import Array
from edgert.config import InferStage, StageConfig
from edgert.placement.schedule import AcceleratorUse
from edgert.placement.segment_engines import Step
from edgert.runtime import AsyncStage, Frame, Result, Source, Stage, Task
from edgert.runtime.stage import ServedSource, SourceStats
from edgert.simulator.board_clock import BoardClock
from edgert.simulator.hardware import TICK_MS
from edgert.simulator.play import Machine, Platform
from edgert.stages.infer import Infer, InferBatch

Steps = Sequence[Step]


class Pacer:
    """Emulated board whose work takes time of its clock, for any number of threads.

    Attributes:
        clock: clock of the board.
        here: thread-local data; ``run`` has the steps before each run of a model while a thread works on a result.
            Without it, runs take this machine's time.
    """

    def __init__(self, clock: BoardClock, platform: Platform) -> None:
        self.clock, self.here = clock, threading.local()
        self._machine = Machine(clock.timeline, platform)
        self.thermal = self._machine.thermal
        self._next_tick()

    def takes(self, steps: Steps) -> AbstractContextManager[None]:
        """Let the block take as long as these steps on the board, one after the other."""
        return self.clock.takes(partial(self._machine.perform, steps))

    def used(self) -> Mapping[str, AcceleratorUse]:
        """Return copies of each accelerator's work so far."""
        with self.clock.lock:
            return {name: replace(use) for name, use in self._machine.used().items()}

    def _tick(self) -> None:
        self._machine.tick(self._machine.used())
        self._next_tick()

    def _next_tick(self) -> None:
        time = self.clock.timeline
        time.call_at(time.now_ms + TICK_MS, self._tick)


class PacedStage:
    """Stage that takes a board's time for each result.

    Args:
        stage: stage that does the work.
        steps: steps for one result.
        pacer: emulated board.
    """

    def __init__(self, stage: Stage, steps: Steps, pacer: Pacer) -> None:
        self._stage, self._steps, self._pacer = stage, steps, pacer

    def open(self) -> None:
        """Open the stage before the board's time begins."""
        self._stage.open()
        self._pacer.clock.enter()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Process the result while the board's time passes."""
        with self._pacer.takes(self._steps):
            return self._stage.process(result)

    def close(self) -> None:
        try:
            self._stage.close()
        finally:
            self._pacer.clock.close()


class PacedInference(PacedStage):
    """Stage with a model, whose runs take the board's time.

    Args:
        stage: stage that does the work.
        steps: other steps for each result that the model processes, or for each crop.
        pacer: emulated board.
        every: interval of processed frames.
        is_on_crops: whether the model runs on crops or tiles.
    """

    def __init__(self, stage: Stage, steps: Steps, pacer: Pacer, every: int, is_on_crops: bool) -> None:
        super().__init__(stage, () if is_on_crops else steps, pacer)
        self._run, self._every, self._is_on_crops = steps if is_on_crops else (), every, is_on_crops

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Take the time of the stage's own work, then process the result."""
        is_wanted = result.frame.index % self._every == 0
        if not is_wanted or not self._is_on_crops:
            with self._pacer.takes(self._steps if is_wanted else ()):
                pass
        return cast("Result | Iterable[Result] | None", self._run_with_steps(partial(self._stage.process, result)))

    def _run_with_steps(self, work: Callable[[], object]) -> object:
        here = self._pacer.here
        here.run = self._run
        try:
            return work()
        finally:
            here.run = None


class PacedBatch(PacedInference):
    """Stage with a model that runs batches, an :class:`edgert.runtime.AsyncStage`."""

    limit = 1

    @property
    def _batching(self) -> AsyncStage:
        return cast("AsyncStage", self._stage)

    @property
    def in_flight(self) -> int:
        """Number of runs in progress."""
        return self._batching.in_flight

    @property
    def is_ready(self) -> bool:
        """Whether a result can be collected at once."""
        return self._batching.is_ready

    def room(self) -> int:
        """Return 1, because each result takes the stage's own time."""
        return 1

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        """Take the time of the stage's own work on the results, and submit them."""
        for result in results:
            with self._pacer.takes(self._steps if result.frame.index % self._every == 0 else ()):
                pass
        self._run_with_steps(partial(self._batching.submit, results, onward))

    def due_ns(self) -> int | None:
        """Return the time at which to collect."""
        return self._batching.due_ns()

    def collect(self, wait: bool) -> list[Result]:
        """Run a batch that is due, while the board's time passes."""
        return cast("list[Result]", self._run_with_steps(partial(self._batching.collect, wait)))

    def give_up(self) -> Sequence[Result]:
        """Return the results that are held."""
        return self._batching.give_up()


class PacedSource:
    """Source whose frames take a board's time to make, from the moment when all stages are ready.

    Args:
        source: source of the frames.
        steps: steps to make one frame.
        pacer: emulated board.
        number: position among the sources.
        period_ns: time between frames of a live source, some of which a slow machine skips. None for files and drawn
            images, which follow the board's clock.
    """

    def __init__(self, source: Source, steps: Steps, pacer: Pacer, number: int, period_ns: float | None) -> None:
        self._source, self._steps, self._pacer, self._number = source, steps, pacer, number
        self._period_ns, self.live = period_ns, source.live

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        clock = self._pacer.clock
        if not clock.enter_as(self._number, stop):
            return
        frames = self._source.frames(stop)
        if self._period_ns is None:
            yield from self._file_frames(frames)
        else:
            clock.leave()
            yield from self._live_frames(frames, self._period_ns)

    def stats(self) -> SourceStats:
        return self._source.stats()

    def close(self) -> None:
        try:
            self._source.close()
        finally:
            self._pacer.clock.close()

    def _file_frames(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        while True:
            with self._pacer.takes(self._steps):
                pass
            frame = next(frames, None)
            if frame is None:
                return
            yield frame
            del frame

    def _live_frames(self, frames: Iterator[Frame], period_ns: float) -> Iterator[Frame]:
        """Yield the frames that are due in the board's time, and skip others where it passes slowly."""
        due_ns = 0.0
        for frame in frames:
            now_ns = self._pacer.clock.now_ns()
            if now_ns < due_ns:
                frame.lease.release()
                continue
            due_ns = max(due_ns + period_ns, now_ns - period_ns / 2)
            with self._pacer.takes(self._steps):
                pass
            yield frame


class PacedEngine:
    """Engine whose runs take a board's time.

    Args:
        engine: engine that does the work.
        slots: steps of a run for each of the board's engines; sessions use them in turn.
        pacer: emulated board.
        board: name of the board for ``info``.
    """

    def __init__(self, engine: Engine, slots: Sequence[Steps], pacer: Pacer, board: str) -> None:
        self._engine, self._pacer, self._slots = engine, pacer, cycle(slots)
        self.profiles, self.inputs, self.outputs = engine.profiles, engine.inputs, engine.outputs
        self.outputs_known, self.batched = engine.outputs_known, engine.batched
        self.dynamic_batch = engine.dynamic_batch
        self.info: Mapping[str, Any] = {**engine.info, "simulated": board}

    def session(self, profile: str | None = None) -> Session:
        """Return a new set of bound tensors; raise ModelError for an unknown profile."""
        return PacedSession(self._engine.session(profile), next(self._slots), self._pacer)

    def close(self) -> None:
        """Free the engine's memory."""
        self._engine.close()


class PacedSession:
    """Session whose runs take a board's time, a :class:`edgert.backend.Session`."""

    def __init__(self, session: Session, steps: Steps, pacer: Pacer) -> None:
        self._session, self._steps, self._pacer = session, steps, pacer
        self.inputs = session.inputs

    def run(self, rows: int | None = None) -> Sequence[Array]:
        """Run the model; the board's time passes if a stage processes a result in this thread."""
        before = getattr(self._pacer.here, "run", None)
        if before is None:
            return self._session.run(rows)
        count = rows or next(iter(self.inputs.values())).shape[0]
        with self._pacer.takes([step.times(count) for step in (*before, *self._steps)]):
            return self._session.run(rows)


def paced_tasks(
    tasks: Sequence[Task],
    stages: Mapping[str, StageConfig],
    own: Mapping[str, Steps],
    rates_hz: Mapping[str, float],
    pacer: Pacer,
) -> None:
    """Change the tasks of a pipeline so that they take a board's time.

    Args:
        tasks: connected tasks that have not started.
        stages: stages of the pipeline file.
        own: stage → steps for a frame, without those of a model.
        rates_hz: live source → frames per second.
        pacer: emulated board.
    """
    paced = [task for task in tasks if not isinstance(task.stage, ServedSource)]
    pacer.clock.expect(len(paced))
    for number, task in enumerate(paced):
        task.wiring.inlet.use_queues(pacer.clock.new_queue)
        name = task.name.partition(":")[0]
        work, section, steps = task.stage, stages.get(name), own.get(name, ())
        if isinstance(work, Source):
            period_ns = 1e9 / rates_hz[name] if name in rates_hz else None
            task.stage = PacedSource(work, steps, pacer, number, period_ns)
        elif isinstance(section, InferStage) and isinstance(work, Infer | InferBatch):
            kind = PacedBatch if isinstance(work, InferBatch) else PacedInference
            task.stage = kind(work, steps, pacer, section.every, section.parts is not None)
        else:  # dispatchers and reorder buffers too
            task.stage = PacedStage(work, () if isinstance(section, InferStage) else steps, pacer)
