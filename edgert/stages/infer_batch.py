"""Running a model on frames of several cameras at once, without one camera waiting for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgert.clock import Clock
from edgert.runtime import Record, Result
from edgert.stages.geometry import Geometry
from edgert.stages.infer import AnyLane

_LOOK_NS = 300_000


class InferBatch:
    """A stage that adds one model's record to every ``every``-th result of a stream, several results at a time.

    While the engine has nothing to do, a frame is run at once, together with those that have come by then; batches
    form while it works on others. A batch is run when it is full, when the engine is free, or when its first frame has
    waited long enough, whatever the other streams do: a camera that is slow or gone holds up nobody. Each frame is
    brought into the input when it comes. Results leave in the order in which they came.

    Args:
        most: frames in a full batch; no more than the lane has rows.
        wait_s: the longest that the first frame of a batch waits, however busy the engine is.
    """

    def __init__(self, name: str, lane: AnyLane, most: int, wait_s: float, clock: Clock, every: int = 1) -> None:
        self.name, self._lane, self._most, self._every = name, lane, most, every
        self._wait_ns, self._clock = round(wait_s * 1e9), clock
        self._held: list[tuple[Result, bool]] = []
        self._geometries: list[Geometry] = []
        self._deadline_ns = 0

    def open(self) -> None:
        """Warms the engine up."""
        self._lane.warm_up()

    def process(self, result: Result) -> Result | Iterator[Result]:
        """See :class:`~edgert.runtime.Stage`; nothing comes out until a batch is run."""
        is_wanted = result.frame.index % self._every == 0
        if not is_wanted and not self._held:
            return result
        result.frame.lease.retain()
        self._held.append((result, is_wanted))
        if is_wanted:
            if not self._geometries:
                self._deadline_ns = self._clock.now_ns() + self._wait_ns
            self._geometries.append(self._lane.fill(result.frame, len(self._geometries)))
        return self._run() if self._is_full() or self._is_late() else iter(())

    def due_ns(self) -> int | None:
        """See :class:`~edgert.runtime.Batching`; while the engine is busy, it is looked at again and again."""
        if not self._held:
            return None
        now = self._clock.now_ns()
        return now if self._lane.idle else min(self._deadline_ns, now + _LOOK_NS)

    def flush(self, last: bool = False) -> Iterator[Result]:
        """Runs what is held and gives it out, if the engine is free, or it is late, or the end."""
        if self._held and (last or self._lane.idle or self._is_late()):
            return self._run()
        return iter(())

    def close(self) -> None:
        """Lets go of what was held when a pipeline was broken off. The engine belongs to the pipeline."""
        for result, _ in self._held:
            result.frame.lease.release()
        self._held, self._geometries = [], []

    def _is_full(self) -> bool:
        return len(self._geometries) == self._most

    def _is_late(self) -> bool:
        return self._clock.now_ns() >= self._deadline_ns

    def _run(self) -> Iterator[Result]:
        records = self._lane.run(*self._geometries)
        held, self._held, self._geometries = self._held, [], []
        return self._given(held, records)

    def _given(self, held: Sequence[tuple[Result, bool]], records: Sequence[Record]) -> Iterator[Result]:
        made = iter(records)
        for result, is_wanted in held:
            yield result.with_output(self.name, next(made)) if is_wanted else result
            result.frame.lease.release()
