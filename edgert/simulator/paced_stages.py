"""Stages, models and sources that do real work, and take as long as an emulated board would."""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle

from edgert.config import InferStage, PipelineFile
from edgert.config.flow import variants_of
from edgert.placement.segment_engines import Step
from edgert.runtime import Frame, Record, Result, Source, Stage, Task
from edgert.runtime.stage import ServedSource, SourceStats
from edgert.simulator.board_clock import BoardClock
from edgert.stages.crop import Geometry
from edgert.stages.infer import Infer, InferBatch, Inference, VariantInference

Steps = Sequence[Step]


class PacedStage:
    """Stage that takes a board's time for each result.

    Args:
        stage: stage that does the work.
        steps: steps for one result.
        clock: clock of the board.
    """

    def __init__(self, stage: Stage, steps: Steps, clock: BoardClock) -> None:
        self._stage, self._steps, self._clock = stage, steps, clock

    def open(self) -> None:
        """Open the stage before the board's time begins."""
        self._stage.open()
        self._clock.enter()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Process the result while the board's time passes."""
        with self._clock.takes(self._steps):
            return self._stage.process(result)

    def close(self) -> None:
        try:
            self._stage.close()
        finally:
            self._clock.close()


class PacedInfer(PacedStage):
    """Stage with a model, whose :class:`PacedInference` takes the board's time."""

    def __init__(self, stage: Infer, clock: BoardClock) -> None:
        super().__init__(stage, (), clock)
        self._infer = stage

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        """Process the result, in no time of its own unless it passes without a run."""
        return super().process(result) if result.frame.index % self._infer.every else self._stage.process(result)


class PacedBatch(PacedStage):
    """Stage with a model that runs batches, an :class:`edgert.runtime.AsyncStage`; else as :class:`PacedInfer`."""

    limit, in_flight = 1, 0

    def __init__(self, stage: InferBatch, clock: BoardClock) -> None:
        super().__init__(stage, (), clock)
        self._batch = stage
        self.room, self.due_ns, self.collect, self.give_up = stage.room, stage.due_ns, stage.collect, stage.give_up

    @property
    def is_ready(self) -> bool:
        """Whether a result can be collected at once."""
        return self._batch.is_ready

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        """Submit results; those that pass without a run take no steps."""
        for result in results:
            if result.frame.index % self._batch.every:
                with self._clock.takes(()):
                    pass
        self._batch.submit(results, onward)


class PacedInference:
    """Inference that takes a board's time, an :class:`edgert.stages.infer.Inference`.

    Args:
        inference: inference that does the work.
        own: steps to fill one row, which are the stage's work beside its model.
        run: steps of a run of one row.
        clock: clock of the board.
    """

    def __init__(self, inference: Inference, own: Steps, run: Steps, clock: BoardClock) -> None:
        self._inference, self._own, self._run, self._clock = inference, own, run, clock
        self.rows, self.idle = inference.rows, True  # run() returns when the run has ended

    def warm_up(self) -> None:
        """Run once, in no time of the board."""
        self._inference.warm_up()

    def fill(self, frame: Frame, row: int = 0) -> Geometry:
        with self._clock.takes(self._own):
            return self._inference.fill(frame, row)

    def run(self, *geometries: Geometry) -> Iterable[Record]:
        with self._clock.takes([step.times(len(geometries)) for step in self._run]):
            return self._inference.run(*geometries)


class PacedSource:
    """Source whose frames take a board's time to make, from the moment when all stages are ready.

    Args:
        source: source of the frames.
        steps: steps to make one frame.
        clock: clock of the board.
        number: position among the sources.
        period_ns: time between frames of a live source, some of which a slow machine skips. None for files and drawn
            images, which follow the board's clock.
    """

    def __init__(self, source: Source, steps: Steps, clock: BoardClock, number: int, period_ns: float | None) -> None:
        self._source, self._steps, self._clock, self._number = source, steps, clock, number
        self._period_ns, self.live = period_ns, source.live

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        self._clock.enter(stop)
        if self._clock.wait(stop, 1e-9 * self._number):  # sources start in their order
            return
        frames = self._source.frames(stop)
        if self._period_ns is not None:
            self._clock.leave()
            yield from self._live_frames(frames, self._period_ns)
            return
        while True:
            with self._clock.takes(self._steps):
                pass
            frame = next(frames, None)
            if frame is None:
                return
            yield frame
            del frame

    def stats(self) -> SourceStats:
        return self._source.stats()

    def close(self) -> None:
        try:
            self._source.close()
        finally:
            self._clock.close()

    def _live_frames(self, frames: Iterator[Frame], period_ns: float) -> Iterator[Frame]:
        """Yield the frames that are due in the board's time, and skip others where it passes slowly."""
        due_ns = 0.0
        for frame in frames:
            now_ns = self._clock.now_ns()
            if now_ns < due_ns:
                frame.lease.release()
                continue
            due_ns = max(due_ns + period_ns, now_ns - period_ns / 2)
            with self._clock.takes(self._steps):
                pass
            yield frame


def paced_tasks(
    tasks: Sequence[Task],
    file: PipelineFile,
    own: Mapping[str, Steps],
    runs: Mapping[str, Sequence[Steps]],
    rates_hz: Mapping[str, float],
    clock: BoardClock,
) -> None:
    """Change the tasks of a pipeline so that they take a board's time.

    Args:
        tasks: connected tasks that have not started.
        file: pipeline of the tasks.
        own: stage → steps for a frame, without those of a model.
        runs: model → steps of a run for each of the board's engines, which inferences use in turn.
        rates_hz: live source → frames per second.
        clock: clock of the board.
    """
    turns = {model: cycle(steps) for model, steps in runs.items()}
    paced = [task for task in tasks if not isinstance(task.stage, ServedSource)]
    clock.expect(len(paced))
    for number, task in enumerate(paced):
        task.wiring.inlet.use_queues(clock.new_queue)
        name = task.name.partition(":")[0]
        work, section, steps = task.stage, file.config.stages.get(name), own.get(name, ())
        if isinstance(work, Source):
            period_ns = 1e9 / rates_hz[name] if name in rates_hz else None
            task.stage = PacedSource(work, steps, clock, number, period_ns)
        elif not isinstance(section, InferStage):
            task.stage = PacedStage(work, steps, clock)
        elif isinstance(work, Infer | InferBatch):
            variants = [next(turns[model]) for model in variants_of(file.config.models, section.infer)]
            work.inference = _paced_inference(work.inference, steps, variants, clock)
            task.stage = PacedBatch(work, clock) if isinstance(work, InferBatch) else PacedInfer(work, clock)
        else:  # dispatchers and reorder buffers
            task.stage = PacedStage(work, (), clock)


def _paced_inference(inference: Inference, own: Steps, runs: Sequence[Steps], clock: BoardClock) -> Inference:
    if not isinstance(inference, VariantInference):
        return PacedInference(inference, own, runs[0], clock)
    parts = zip(inference.inferences, runs, strict=True)
    inference.inferences = [PacedInference(one, own, run, clock) for one, run in parts]
    return inference
