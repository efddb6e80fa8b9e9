"""Processing and measurement of results at one task, the same for all kinds of loops."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from edgert import user_code
from edgert.clock import Clock
from edgert.errors import EdgertError, StageError
from edgert.policy import Join, join_of
from edgert.runtime import records
from edgert.runtime.frame import Frame
from edgert.runtime.records import Result, lost_placeholder, without_pixels
from edgert.runtime.recovery import OPENINGS, Recovery, log_recovery
from edgert.runtime.stage import AsyncStage, Stage
from edgert.runtime.task import Task

_LOG = logging.getLogger(__name__)


class Station:
    """A running task. All three loops call the same :meth:`step`.

    Attributes:
        is_async: whether the stage is an :class:`~edgert.runtime.AsyncStage`.
        join: join of the parts of a frame where several edges bring them, else None; see :meth:`rewire`.
    """

    def __init__(self, task: Task, clock: Clock) -> None:
        self.task, self._clock = task, clock
        self._meter, self._status, self._wiring = task.meter, task.meter.status, task.wiring
        self._recovery = Recovery(task, clock)
        self.is_async = isinstance(task.stage, AsyncStage)
        self.join: Join[Result] | None = None
        self._is_end = not task.wiring.outlets  # temporary listeners connect later
        self._execution, self._journal = task.execution, task.execution.journal
        self._run_progress_ns = 0  # when the first run in flight was begun, or the last one was collected

    def open(self) -> None:
        """Open the stage. Raises its error, unless the pipeline continues without the stage."""
        task, began_ns = self.task, self._clock.now_ns()
        self._status.since_ns = began_ns or 1
        try:
            self._recovery.stage.open()
        except Exception as error:
            if not (task.policy.at_start and self.continues_after(error)):
                raise
        else:
            self.mark_open()
            self._status.opening_s = took_s = (self._clock.now_ns() - began_ns) / 1e9
            if 0 < task.policy.watchdog_s < took_s:
                _LOG.warning(
                    "stage %r took %.3g s to open, with a first run; its watchdog of %.3g s allows %d times as long",
                    *(task.name, took_s, task.policy.watchdog_s, OPENINGS),
                )
        finally:
            self._status.since_ns = 0

    def mark_open(self) -> None:
        """Mark the stage as open, so that it will be closed. A source counts as open from the start."""
        self._recovery.is_open = True

    def close(self) -> None:
        """Close the stage if it is open. Raises its error, unless the pipeline continues anyway."""
        task = self.task
        self._status.is_closing = True
        self._recovery.stop_standing_in()
        if self._recovery.is_open:
            self._recovery.is_open = False
            self._status.since_ns = self._clock.now_ns() or 1
            try:
                task.stage.close()
            except Exception as error:
                if task.policy.on_error == "stop":
                    raise
                self._recovery.log_closing_error(error)
            finally:
                self._status.since_ns = 0
        log_recovery(task.name, self._status, 2**63)

    def replace(self, stage: Stage) -> None:
        """Use another stage from the next result on. The old one passes on the results that it holds, and is closed.

        If opening the new stage fails, the old one stays and the error is raised.
        """
        self.finish()
        self._status.since_ns = self._clock.now_ns() or 1
        try:
            stage.open()
        finally:
            self._status.since_ns = 0
        old, was_open = self.task.stage, self._recovery.is_open
        self.task.stage, self.is_async = stage, isinstance(stage, AsyncStage)
        self._recovery.use_new_stage()
        self.record_replacement()
        if was_open:
            try:
                old.close()
            except Exception as error:  # noqa: BLE001 - the new stage works anyway
                _LOG.warning("stage %r: closing the replaced stage failed: %s", self.task.name, error)

    def record_replacement(self) -> None:
        """Record in the journal that the stage works differently from the next result on."""
        if self._journal is not None:
            self._journal.replace(self._clock.now_ns())

    def continues_after(self, error: BaseException) -> bool:
        """Count and log a failure of the stage; return whether the pipeline continues."""
        return self._recovery.continues_after(error)

    def failure(self, error: BaseException) -> EdgertError:
        """Return the pipeline's error for an error of the stage, with the stage's name."""
        place = f"stage {self.task.name!r}"
        if isinstance(error, EdgertError):
            return error.at(place)
        # An error of a user's code or a bug, which keeps its traceback.
        what = f"{place} failed: {type(error).__name__}: {error}"
        at = user_code.place_of(error)
        fix = "edgert run --debug shows the traceback; in Python, error.__cause__ has it"
        return StageError(what, why=at and f"at {at}", where=place, fix=fix).caused_by(error)

    def give(self, frames: Sequence[Frame], made_ns: int, worked_ns: int) -> None:
        """Pass on frames of a source, with their holds.

        Args:
            frames: the frames, in order.
            made_ns: time at which the frames were ready.
            worked_ns: duration of the source's work on them.
        """
        meter = self._meter
        meter.results_in += len(frames)
        meter.busy_ns += worked_ns
        results = [Result(frame) for frame in frames]
        if self._journal is not None:
            self._journal.give(frames, made_ns)
        if (trace := self._execution.trace) is not None:
            trace.give(frames, made_ns, worked_ns)
        for frame in frames:
            meter.done(frame.stream, made_ns - frame.timestamp_ns)
        self.hand_over(results)
        meter.results_out += len(frames)

    def rewire(self) -> None:
        """Adapt to the current edges of the task. Called in its thread, between two results."""
        if not self._wiring.joins:
            return
        streams, under_way = self._wiring.streams, self.task.max_in_flight()
        if self.join is None:
            self.join = join_of(streams, under_way, merge_parts)
        else:
            for one in self.join.rewire(streams, under_way):
                self.step((one,))

    def join_parts(self, edge: int, result: Result) -> Result | None:
        """Return the result joined with the parts of its frame from other edges; None until all parts are there."""
        if self.join is None:
            return result
        if self._journal is not None and (producer := self._wiring.producers[edge]) is not None:
            self._journal.part(producer.name, result)
        joined, given_up = self.join.add(edge, result.frame.stream, result.frame.index, result)
        self._drop_parts(given_up)
        return joined

    def drop_incomplete(self, before: int | None = None) -> None:
        """Drop the parts of incomplete frames; with ``before``, only of frames with lower numbers."""
        if self.join is not None:
            self._drop_parts(self.join.drain(before))

    def step(self, results: Sequence[Result]) -> None:
        """Process results, pass on what the stage returns, and release the frames."""
        if self.is_async:
            self._submit(results)
            return
        if len(results) == 1:
            self._process(results[0])
            return
        left = deque(results)
        try:
            while left:
                self._process(left.popleft())
        finally:
            for one in left:
                one.frame.lease.release()

    def collect(self, wait: bool) -> None:
        """Pass on finished results of an asynchronous stage; ``wait`` is that of :meth:`AsyncStage.collect`."""
        if not self.is_async:  # the stage was replaced meanwhile
            return
        if wait:
            self._wiring.inlet.give_room()
        meter, now = self._meter, self._clock.now_ns
        ring = None if (trace := self._execution.trace) is None else trace.begin()
        started = now()
        self._status.since_ns = self._run_progress_ns if wait and self._run_progress_ns else started or 1
        try:
            out = self._recovery.stage.collect(wait)
            done = now()
            if trace is not None and ring is not None:
                trace.end_all(ring, "collect", started, done, [one.frame for one in out])
                ring = None
            self._status.since_ns = 0
            meter.busy_ns += done - started
            if out:
                self._run_progress_ns = done
                if self._journal is not None:
                    self._journal.collect(len(out), done)
                self._pass_on(out, done)
        except Exception as error:
            if not self._continues_without(error, ()):
                raise
        finally:
            self._status.since_ns = 0
            if trace is not None and ring is not None:
                trace.end_all(ring, "collect", started, now(), ())

    def finish(self) -> None:
        """Finish and pass on all results that an asynchronous stage holds."""
        while self.holds:
            self.collect(wait=True)

    @property
    def holds(self) -> bool:
        """Whether an asynchronous stage holds results or has runs in flight."""
        return self.is_async and self._recovery.stage.due_ns() is not None

    @property
    def room(self) -> int:
        """Maximum number of results for one :meth:`step`."""
        return self._recovery.stage.room() if self.is_async else 1

    def due_s(self) -> float | None:
        """Return the seconds after which to call :meth:`collect` if no input comes; None if nothing is held."""
        due_ns = self._recovery.stage.due_ns()
        if due_ns is None:
            return None
        if self._recovery.stage.in_flight:
            self._status.since_ns = self._run_progress_ns  # the watchdog treats a run that never ends as a call
        return max(due_ns - self._clock.now_ns(), 0) / 1e9

    def send(self, result: Result) -> None:
        """Pass a result to all listeners. The caller keeps its hold on the frame."""
        outlets = self._wiring.outlets
        if len(outlets) == 1 and self._wiring.branch is None:
            result.frame.lease.retain()
            outlets[0].put(result)
        elif outlets:
            result.frame.lease.retain()
            self.hand_over((result,))

    def hand_over(self, results: Sequence[Result]) -> None:
        """Pass results to all listeners, together with the caller's holds on the frames."""
        wiring = self._wiring
        outlets = wiring.outlets
        if len(outlets) == 1 and wiring.branch is None:
            if len(results) == 1:
                outlets[0].put(results[0])
            else:
                outlets[0].put_all(results)
            return
        for result in results:
            if wiring.branch is not None:
                outlets[wiring.branch(result)].put(result)
            elif not outlets:
                result.frame.lease.release()
            else:
                result.frame.lease.retain(len(outlets) - 1)
                for outlet in outlets:
                    outlet.put(result)

    def _process(self, result: Result) -> None:
        task, wiring, now = self.task, self._wiring, self._clock.now_ns
        meter, status = self._meter, self._status
        ring = None if (trace := self._execution.trace) is None else trace.begin()
        started, lease, has_pixels = now(), result.frame.lease, True
        status.since_ns = started or 1
        if self._journal is not None:
            self._journal.work("step", task.stage, (result,), started)
        try:
            if task.execution.download is not None:
                result = task.execution.download(result)
                lease = result.frame.lease
                if ring is not None:
                    ring.part("copy to the host", started)
            out = self._recovery.stage.process(result)
            if wiring.releases_pixels and isinstance(out, Result):
                out = without_pixels(out)
                lease.release()  # hold no pixels while the next queue is full
                lease, has_pixels = out.frame.lease, False
            done = now()
            status.since_ns = 0
            if trace is not None and ring is not None:
                trace.end(ring, "step", started, done, result.frame)
                ring = None
            meter.busy_ns += done - started
            meter.results_in += 1
            if self._is_end:
                meter.done(result.frame.stream, done - result.frame.timestamp_ns)
            if out is None:
                return
            for one in (out,) if isinstance(out, Result) else self._generated_results(out):
                meter.results_out += 1
                if not self._is_end:  # else it was counted as input
                    meter.done(one.frame.stream, done - one.frame.timestamp_ns)
                self.send(one)
            meter.wait_out_ns += now() - done
        except Exception as error:
            self.trace_failure((result,), error)
            if not self.continues_after(error):
                _refuse_frames((result,))
                raise
            self._count_failed((result,))
            if wiring.reorders and has_pixels:
                self.send(lost_placeholder(result))
        finally:
            status.since_ns = 0
            if trace is not None and ring is not None:
                trace.end(ring, "step", started, now(), result.frame)
            lease.release()

    def _submit(self, results: Sequence[Result]) -> None:
        task, meter, now = self.task, self._meter, self._clock.now_ns
        ring = None if (trace := self._execution.trace) is None else trace.begin()
        started, stage = now(), self._recovery.stage
        self._status.since_ns = started or 1
        onward = results
        try:
            if task.execution.download is not None:
                results = onward = [task.execution.download(one) for one in results]
            if self._wiring.releases_pixels:
                onward = [without_pixels(one) for one in results]
            if not stage.in_flight:
                self._run_progress_ns = started or 1
            if self._journal is not None:
                self._journal.work("submit", task.stage, results, started)
            stage.submit(results, onward)
            meter.results_in += len(results)
            stage = self._recovery.stage
            out = stage.collect(False) if stage.is_ready else None
            done = now()
            meter.busy_ns += done - started
        except Exception as error:
            if not self._continues_without(error, results):
                raise
            return
        finally:
            self._status.since_ns = 0
            if trace is not None and ring is not None:
                trace.end_all(ring, "submit", started, now(), [one.frame for one in results])
            for one in results:
                one.frame.lease.release()
            for one in onward if onward is not results else ():
                one.frame.lease.release()
        if out:
            self._run_progress_ns = done
            if self._journal is not None:
                self._journal.collect(len(out), done)
            if trace is not None and ring is not None:
                trace.collected(done, [one.frame for one in out])
            self._pass_on(out, done)
        if stage.in_flight >= stage.limit:
            self.collect(wait=True)

    def _pass_on(self, out: Sequence[Result], done_ns: int) -> None:
        """Pass on the results of an asynchronous stage, with their holds."""
        meter = self._meter
        for one in out:
            meter.done(one.frame.stream, done_ns - one.frame.timestamp_ns)
        self.hand_over(out)
        meter.results_out += len(out)
        meter.wait_out_ns += self._clock.now_ns() - done_ns

    def _generated_results(self, out: Iterable[Result]) -> Iterator[Result]:
        """Yield the results of a stage that is a generator. Each step of it counts as a call of the stage."""
        iterator = iter(out)
        while True:
            self._status.since_ns = began_ns = self._clock.now_ns()
            try:
                result = next(iterator)
            except StopIteration:
                return
            finally:
                self._status.since_ns = 0
            if (trace := self._execution.trace) is not None:
                trace.more("step", began_ns, self._clock.now_ns(), result.frame)
            yield result
            del result  # the variable would keep the frame's memory in use

    def _continues_without(self, error: Exception, results: Sequence[Result]) -> bool:
        """Give up ``results`` and those that an asynchronous stage holds; return whether the pipeline continues."""
        held = self._recovery.stage.give_up() if self.is_async else ()
        continues = self.continues_after(error)
        self.trace_failure((*results, *held), error)
        if continues:
            self._count_failed((*results, *held))
        else:
            _refuse_frames((*results, *held))
        for one in held:
            one.frame.lease.release()
        return continues

    def trace_failure(self, results: Iterable[Result], error: Exception) -> None:
        """Record in the trace, if there is one, on which results the stage failed."""
        if (trace := self._execution.trace) is not None:
            what = error.what if isinstance(error, EdgertError) else f"{type(error).__name__}: {error}"
            trace.fail({id(one.outputs): one.frame for one in results}.values(), what)

    def _count_failed(self, results: Iterable[Result]) -> None:
        """Count the results that the stage failed on or that came while it was down, each once."""
        unique = {id(one.outputs): one for one in results}.values()  # a result without pixels is a second object
        if self._journal is not None:
            self._journal.fail(unique, self._clock.now_ns())
        for one in unique:
            self._meter.losses[one.frame.stream, "error"] += 1

    def _drop_parts(self, results: Sequence[Result]) -> None:
        for result in results:
            self.task.drop(result.frame, "join")
            self._meter.losses[result.frame.stream, "join"] += 1
            result.frame.lease.release()


def _refuse_frames(results: Iterable[Result]) -> None:
    """Refuse unfinished frames from other machines, so that their senders send them again."""
    for one in results:
        if (delivery := one.frame.extra.delivery) is not None:
            delivery.receipt.refuse()


def merge_parts(first: Result, second: Result) -> Result:
    """Return one result for two parts of a frame, and release one of their two holds."""
    merged = records.merge_results(first, second)
    (second if merged.frame is first.frame else first).frame.lease.release()
    return merged


Fail = Callable[[EdgertError], None]


class Work:
    """A task from its opening to its closing. An error is reported, and ends only this task.

    Args:
        fail: function called with each error that ends the pipeline.
    """

    def __init__(self, task: Task, clock: Clock, fail: Fail) -> None:
        self.task, self._clock, self._fail = task, clock, fail
        self.station = Station(task, clock)
        self.has_ended = False

    def open(self) -> bool:
        """Open the stage; return whether that succeeded."""
        if self.succeeds(self.station.open):
            self.task.meter.status.was_opened = True
            return True
        self._finish()
        return False

    def end(self) -> None:
        """Close the stage, and end the task. May be called twice."""
        if not self.has_ended:
            self.succeeds(self.station.close)
            self._finish()

    def _finish(self) -> None:
        """End the task's input and outputs."""
        self.has_ended = self.task.meter.status.has_ended = True
        self.task.wiring.inlet.abandon()
        self.task.wiring.inlet.set_handler(None)
        self.task.execution.download = None  # frees its memory
        for outlet in self.task.wiring.outlets:
            outlet.close()

    def succeeds(self, step: Callable[[], object]) -> bool:
        """Run a step and report its error; return whether it succeeded."""
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - reported
            self.failed(error)
            return False
        return True

    def failed(self, error: BaseException) -> None:
        """Report a failure."""
        self._fail(self.station.failure(error))
