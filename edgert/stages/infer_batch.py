"""Running a model on frames of several cameras at once, without one camera waiting for another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgert.clock import Clock
from edgert.runtime import Record, Result
from edgert.stages.geometry import Geometry
from edgert.stages.infer import AnyLane


class InferBatch:
    """A stage that adds one model's record to every ``every``-th result of a stream, several results at a time.

    A batch is run when it is full, or when its first frame has waited long enough, whatever the other streams do: a
    camera that is slow or gone costs the others at most ``wait_s``. Each frame is brought into the input when it
    comes, so that only the run is left to do. Results leave in the order in which they came.

    Args:
        most: frames in a full batch; no more than the lane has rows.
        wait_s: the longest that the first frame of a batch waits for others.
    """

    def __init__(self, name: str, lane: AnyLane, most: int, wait_s: float, clock: Clock, every: int = 1) -> None:
        self.name, self._lane, self._most, self._every = name, lane, most, every
        self._wait_ns, self._clock = round(wait_s * 1e9), clock
        self._held: list[tuple[Result, bool]] = []
        self._geometries: list[Geometry] = []
        self._due_ns: int | None = None

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
            self._geometries.append(self._lane.fill(result.frame, len(self._geometries)))
            if self._due_ns is None:
                self._due_ns = self._clock.now_ns() + self._wait_ns
        return self.flush() if self._is_due() else iter(())

    def due_ns(self) -> int | None:
        """See :class:`~edgert.runtime.Batching`."""
        return self._due_ns

    def flush(self) -> Iterator[Result]:
        """Runs what is held, and gives it out."""
        if not self._held:
            return iter(())
        records = self._lane.run(*self._geometries)
        held, self._held, self._geometries, self._due_ns = self._held, [], [], None
        return self._given(held, records)

    def close(self) -> None:
        """Lets go of what was held when a pipeline was broken off. The engine belongs to the pipeline."""
        for result, _ in self._held:
            result.frame.lease.release()
        self._held, self._geometries, self._due_ns = [], [], None

    def _is_due(self) -> bool:
        assert self._due_ns is not None  # whoever is held came with or after a frame that is wanted
        return len(self._geometries) == self._most or self._clock.now_ns() >= self._due_ns

    def _given(self, held: Sequence[tuple[Result, bool]], records: Sequence[Record]) -> Iterator[Result]:
        made = iter(records)
        for result, is_wanted in held:
            yield result.with_output(self.name, next(made)) if is_wanted else result
            result.frame.lease.release()
