"""Running a model on frames of several cameras at once, without one camera waiting for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgert.clock import Clock
from edgert.policy import Batcher
from edgert.runtime import Record, Result
from edgert.stages.geometry import Geometry
from edgert.stages.infer import AnyLane

_LOOK_NS = 300_000


class InferBatch:
    """A stage that adds one model's record to every ``every``-th result of a stream, several results at a time.

    While the engine has nothing to do, a frame is run at once, together with those that have come by then; batches
    form while it works on others, as :class:`edgert.policy.Batcher` decides. Each frame is brought into the input when
    it comes. Results leave in the order in which they came.

    Args:
        most: frames in a full batch; no more than the lane has rows.
        wait_s: the longest that the first frame of a batch waits, however busy the engine is.
    """

    def __init__(self, name: str, lane: AnyLane, most: int, wait_s: float, clock: Clock, every: int = 1) -> None:
        self.name, self._lane, self._clock = name, lane, clock
        self._batch: Batcher[Result] = Batcher(most, round(wait_s * 1e9), every)
        self._geometries: list[Geometry] = []

    def open(self) -> None:
        """Warms the engine up."""
        self._lane.warm_up()

    def process(self, result: Result) -> Result | Iterator[Result]:
        """See :class:`~edgert.runtime.Stage`; nothing comes out until a batch is run."""
        frame, batch = result.frame, self._batch
        if batch.passes(frame.index):
            return result
        frame.lease.retain()
        row = batch.hold(result, frame.index, self._clock.now_ns())
        if row is not None:
            self._geometries.append(self._lane.fill(frame, row))
        return self._run() if batch.is_due(self._clock.now_ns(), idle=False) else iter(())

    def due_ns(self) -> int | None:
        """See :class:`~edgert.runtime.Batching`; while the engine is busy, it is looked at again and again."""
        now = self._clock.now_ns()
        due = self._batch.due(now, self._lane.idle)
        return None if due is None else min(round(due), now + _LOOK_NS)

    def flush(self, last: bool = False) -> Iterator[Result]:
        """Runs what is held and gives it out, if the engine is free, or it is late, or the end."""
        is_due = self._batch.is_due(self._clock.now_ns(), last or self._lane.idle)
        return self._run() if is_due else iter(())

    def close(self) -> None:
        """Lets go of what was held when a pipeline was broken off. The engine belongs to the pipeline."""
        for result, _ in self._batch.take():
            result.frame.lease.release()
        self._geometries = []

    def _run(self) -> Iterator[Result]:
        records = self._lane.run(*self._geometries)
        self._geometries = []
        return self._given(self._batch.take(), records)

    def _given(self, held: Sequence[tuple[Result, bool]], records: Sequence[Record]) -> Iterator[Result]:
        made = iter(records)
        for result, is_wanted in held:
            yield result.with_output(self.name, next(made)) if is_wanted else result
            result.frame.lease.release()
