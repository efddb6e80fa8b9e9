"""Stage of a model on a GPU, which submits frames, one at a time or in batches, and collects their records.

One thread does both. While a run is in flight, it waits for input until the run is usually done, and then polls. So no
frame waits for the records of another, and no other thread is woken.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from edgert.clock import REAL, Clock
from edgert.policy import Batcher
from edgert.runtime import Record, Result
from edgert.runtime.branches import ModelLevel
from edgert.stages.crop import Geometry
from edgert.stages.gpu.infer_gpu import SLOTS, Batch, GpuInference
from edgert.stages.gpu.waiting import RunTimes
from edgert.stages.infer import BatchedStage

_POLL_NS = 300_000
_LONG_NS = 3_600_000_000_000


@dataclass(slots=True)
class _Run:
    """Results that leave together: those of a run, and those after it that the model skips.

    Attributes:
        batch: pending records; None if the model skips all results.
        absent_ns: longest time after the begin at which a poll found it not done; -1 before the first poll.
    """

    results: list[tuple[Result, bool]]
    batch: Batch | None
    rows: int
    began_ns: int
    due_ns: int
    absent_ns: int = -1
    is_done: bool = False


class GpuInfer(BatchedStage):
    """A stage that adds one model's record to every ``every``-th result of a stream.

    While the GPU is idle, a frame runs at once, or with a batcher together with the frames that wait. Results leave in
    the order in which they came. ``inferences`` are those of the model and of its fallback models; ``every`` is ignored
    with a batcher.
    """

    limit, is_ready = SLOTS, False

    def __init__(
        self,
        name: str,
        inferences: Sequence[GpuInference],
        clock: Clock = REAL,
        *,
        batcher: Batcher[Result] | None = None,
        every: int = 1,
        choice: ModelLevel | None = None,
    ) -> None:
        self.name, self._inferences, self._choice, self._clock = name, inferences, choice or ModelLevel(), clock
        self._inference = inferences[0]
        self._batch = batcher or Batcher[Result](1, 0, every)
        self._geometries: list[Geometry] = []
        self._runs = deque[_Run]()
        self._times = RunTimes()

    def open(self) -> None:
        for inference in self._inferences:
            inference.warm_up()

    @property
    def in_flight(self) -> int:
        """Number of runs in progress."""
        return len(self._runs)

    def submit(self, results: Sequence[Result], onward: Sequence[Result]) -> None:
        batch, now_ns = self._batch, self._clock.now_ns()
        if not batch.rows and len(self._inferences) > 1:
            self._inference = self._inferences[min(self._choice.level, len(self._inferences) - 1)]
        with self._inference.device:  # once, instead of around every driver call
            if len(results) == batch.most > 1 and self.every == 1 and not batch.held:
                for kept in onward:
                    kept.frame.lease.retain()
                batch.hold_all(onward, now_ns)
                self._geometries = self._inference.fill_batch([one.frame for one in results])
            else:
                for result, kept in zip(results, onward, strict=True):
                    self._take(result, kept, now_ns)
            if batch.rows == batch.most or (batch.held and batch.is_due(now_ns, idle=False)):
                self._launch(now_ns)
            self.is_ready = bool(self._runs) and self._is_done(self._runs[0])

    def due_ns(self) -> int | None:
        batch = self._batch
        done_ns = self._runs[0].due_ns if self._runs else None
        if not batch.held:
            return done_ns
        now_ns = self._clock.now_ns()
        if batch.is_patient:
            due_ns = min(batch.due(now_ns, idle=False) or now_ns, now_ns + _LONG_NS)
        else:
            due_ns = min(batch.due(now_ns, self._inference.idle) or now_ns, now_ns + _POLL_NS)
        return round(due_ns) if done_ns is None else min(round(due_ns), done_ns)

    def collect(self, wait: bool) -> list[Result]:
        batch, runs = self._batch, self._runs
        out: list[Result] = []
        with self._inference.device:
            if batch.held and len(runs) < self.limit:
                now_ns, last = self._clock.now_ns(), wait and not runs
                if batch.is_due(now_ns, not batch.is_patient and self._inference.idle, last):
                    self._launch(now_ns)
            while runs and ((is_done := self._is_done(runs[0])) or (wait and not out)):
                records = iter(self._records(runs[0], is_done))
                run = runs.popleft()
                out += [one.with_output(self.name, next(records)) if wanted else one for one, wanted in run.results]
        return out

    def give_up(self) -> Sequence[Result]:
        held = [result for run in self._runs for result, _ in run.results]
        held += [result for result, _ in self._batch.take()]
        self._runs.clear()
        self._geometries = []
        return held

    def _take(self, result: Result, kept: Result, now_ns: int) -> None:
        """Bring one frame to the GPU, or queue it unchanged behind earlier ones if the model skips it."""
        batch, index = self._batch, result.frame.index
        kept.frame.lease.retain()
        if not batch.passes(index):
            row = batch.hold(kept, index, now_ns)
            if row is not None:
                self._geometries.append(self._inference.fill(result.frame, row))
        elif self._runs:
            self._runs[-1].results.append((kept, False))
        else:
            self._runs.append(_Run([(kept, False)], None, 0, now_ns, now_ns))

    def _launch(self, now_ns: int) -> None:
        batch = self._inference.submit_batch(self._geometries)
        rows, self._geometries = len(self._geometries), []
        first_ns = self._times.first_ns(rows)
        # It begins at the estimated end of the run before it.
        began_ns = max(now_ns, self._runs[-1].began_ns + self._times.first_ns(self._runs[-1].rows) if self._runs else 0)
        self._runs.append(_Run(self._batch.take(), batch, rows, began_ns, began_ns + first_ns))

    def _is_done(self, run: _Run) -> bool:
        """Return whether a run is done. The GPU is polled only when that is likely."""
        if run.is_done or run.batch is None:
            return True
        now_ns = self._clock.now_ns()
        if now_ns < run.due_ns:
            return False
        run.is_done = run.batch.is_done
        if run.is_done:
            return True
        run.absent_ns = max(now_ns - run.began_ns, 0)
        run.due_ns = now_ns + self._times.next_ns(run.absent_ns)
        return False

    def _records(self, run: _Run, is_done: bool) -> Sequence[Record]:
        if run.batch is None:
            return ()
        polled_ns = self._clock.now_ns()
        records = run.batch.records()
        if is_done and run.absent_ns < 0:
            self._times.note_done(run.rows)
        elif is_done:
            self._times.note_late(run.rows, run.absent_ns)
        elif (now_ns := self._clock.now_ns()) - polled_ns > _POLL_NS:  # else it was done for an unknown time
            self._times.note_late(run.rows, now_ns - run.began_ns)
        return records
