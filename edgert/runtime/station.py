"""Processing of a result at one task, with its measurements, in any thread."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from edgert import user_code
from edgert.clock import Clock
from edgert.errors import EdgertError, StageError
from edgert.policy import Join, join_of
from edgert.runtime import records
from edgert.runtime.frame import Frame
from edgert.runtime.records import Result, lost, without_pixels
from edgert.runtime.recovery import OPENINGS, Recovery, note_back
from edgert.runtime.stage import AsyncStage, Stage
from edgert.runtime.task import Task

_LOG = logging.getLogger(__name__)


class Station:
    """A task at work. All three loops call the same :meth:`step`.

    Attributes:
        is_async: whether the stage gives results out later.
        join: of the parts of a frame, where several edges bring them; see :meth:`rewire`.
    """

    def __init__(self, task: Task, clock: Clock) -> None:
        self.task, self._clock = task, clock
        self._meter, self._status, self._wiring = task.meter, task.meter.status, task.wiring
        self._recovery = Recovery(task, clock)
        self.is_async = isinstance(task.stage, AsyncStage)
        self.join: Join[Result] | None = None
        self._is_end = not task.wiring.outlets  # those who listen for a while come later
        self._journal = task.execution.journal
        self._progress_ns = 0  # when a run was begun with none under way, or one was collected

    def open(self) -> None:
        """Open the stage. Raise what it raises, unless the pipeline goes on without it."""
        task, began_ns = self.task, self._clock.now_ns()
        self._status.since_ns = began_ns or 1
        try:
            self._recovery.stage.open()
        except Exception as error:
            if not (task.policy.at_start and self.outlives(error)):
                raise
        else:
            self.opened()
            self._status.opening_s = took_s = (self._clock.now_ns() - began_ns) / 1e9
            if 0 < task.policy.watchdog_s < took_s:
                _LOG.warning(
                    "stage %r took %.3g s to open, with a first run; its watchdog of %.3g s waits %d times as long",
                    *(task.name, took_s, task.policy.watchdog_s, OPENINGS),
                )
        finally:
            self._status.since_ns = 0

    def opened(self) -> None:
        """Note that it is to be closed: a stage that was opened, and every source."""
        self._recovery.is_open = True

    def close(self) -> None:
        """Close what is open. Raise what that raises, unless the pipeline goes on all the same."""
        task = self.task
        self._status.is_closing = True
        self._recovery.is_over()
        if self._recovery.is_open:
            self._recovery.is_open = False
            self._status.since_ns = self._clock.now_ns() or 1
            try:
                task.stage.close()
            except Exception as error:
                if task.policy.on_error == "stop":
                    raise
                self._recovery.failed_to_close(error)
            finally:
                self._status.since_ns = 0
        note_back(task.name, self._status, 2**63)

    def replace(self, stage: Stage) -> None:
        """Have another stage work from the next result on; the old one gives out what it holds before, and is closed.

        Raises what opening raises, and the old one goes on then.
        """
        self.finish()
        self._status.since_ns = self._clock.now_ns() or 1
        try:
            stage.open()
        finally:
            self._status.since_ns = 0
        old, was_open = self.task.stage, self._recovery.is_open
        self.task.stage, self.is_async = stage, isinstance(stage, AsyncStage)
        self._recovery.replaced()
        self.note_replaced()
        if was_open:
            try:
                old.close()
            except Exception as error:  # noqa: BLE001 - the new one works all the same
                _LOG.warning("stage %r: closing the one before failed: %s", self.task.name, error)

    def note_replaced(self) -> None:
        """Note in the journal that the stage works in another way from the next result on."""
        if self._journal is not None:
            self._journal.replace(self._clock.now_ns())

    def outlives(self, error: BaseException) -> bool:
        """Return whether the pipeline goes on after a failure of the stage, which is counted and logged."""
        return self._recovery.outlives(error)

    def failure(self, error: BaseException) -> EdgertError:
        """Return an error of the stage as that of the pipeline, with the stage's name."""
        place = f"stage {self.task.name!r}"
        if isinstance(error, EdgertError):
            return error.at(place)
        # a user's code or a bug: this stage's failure, with its traceback
        what = f"{place} failed: {type(error).__name__}: {error}"
        at = user_code.place_of(error)
        fix = "edgert run --debug shows the traceback"
        return StageError(what, why=at and f"at {at}", where=place, fix=fix).caused_by(error)

    def give(self, frames: Sequence[Frame], made_ns: int, worked_ns: int) -> None:
        """Pass frames of a source on, with their holds.

        Args:
            frames: in their order.
            made_ns: when they were made.
            worked_ns: the work that it took.
        """
        meter = self._meter
        meter.results_in += len(frames)
        meter.busy_ns += worked_ns
        results = [Result(frame) for frame in frames]
        if self._journal is not None:
            self._journal.give(frames, made_ns)
        self._count(results, made_ns)
        self.hand_over(results)
        meter.results_out += len(frames)

    def rewire(self) -> None:
        """Take the edges as they are now; called in the thread that works here, between two results."""
        if not self._wiring.joins:
            return
        streams, under_way = self._wiring.streams, self.task.under_way()
        if self.join is None:
            self.join = join_of(streams, under_way, merged)
        else:
            for one in self.join.rewire(streams, under_way):
                self.step((one,))

    def joined(self, edge: int, result: Result) -> Result | None:
        """Return what came on an edge, with what belongs to it from others; None until all of that is there."""
        if self.join is None:
            return result
        if self._journal is not None and (producer := self._wiring.producers[edge]) is not None:
            self._journal.part(producer.name, result)
        joined, given_up = self.join.add(edge, result.frame.stream, result.frame.index, result)
        self._give_up(given_up)
        return joined

    def give_up(self, before: int | None = None) -> None:
        """Drop parts of frames whose others never came; ``before``: of those with lower numbers."""
        if self.join is not None:
            self._give_up(self.join.drain(before))

    def step(self, results: Sequence[Result]) -> None:
        """Have the stage work on results, and pass on what comes of them; end the holds on their frames."""
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
        """Pass on what an asynchronous stage has done; with ``wait``, begin what it holds, and wait for the oldest."""
        if not self.is_async:  # it was, when this was due
            return
        if wait:
            self._wiring.inlet.give_room()
        meter, now = self._meter, self._clock.now_ns
        started = now()
        self._status.since_ns = self._progress_ns if wait and self._progress_ns else started or 1
        try:
            out = self._recovery.stage.collect(wait)
            done = now()
            self._status.since_ns = 0
            meter.busy_ns += done - started
            if out:
                self._progress_ns = done
                if self._journal is not None:
                    self._journal.collect(len(out), done)
                self._hand_on(out, done)
        except Exception as error:
            if not self._survives(error, ()):
                raise
        finally:
            self._status.since_ns = 0

    def finish(self) -> None:
        """Pass on all that an asynchronous stage holds and has under way."""
        while self.holds:
            self.collect(wait=True)

    @property
    def holds(self) -> bool:
        """Whether an asynchronous stage holds results, or has runs under way."""
        return self.is_async and self._recovery.stage.due_ns() is not None

    @property
    def room(self) -> int:
        """How many results :meth:`step` takes at a time."""
        return self._recovery.stage.room() if self.is_async else 1

    def due_s(self) -> float | None:
        """Return after how many seconds :meth:`collect` is to be called if nothing comes; None: not at all."""
        due_ns = self._recovery.stage.due_ns()
        if due_ns is None:
            return None
        if self._recovery.stage.in_flight:
            self._status.since_ns = self._progress_ns  # a run that never ends is a call that never returns
        return max(due_ns - self._clock.now_ns(), 0) / 1e9

    def send(self, result: Result) -> None:
        """Give a result to those that listen; the caller's hold on its frame goes on."""
        outlets = self._wiring.outlets
        if len(outlets) == 1 and self._wiring.branch is None:
            result.frame.lease.retain()
            outlets[0].put(result)
        elif outlets:
            result.frame.lease.retain()
            self.hand_over((result,))

    def hand_over(self, results: Sequence[Result]) -> None:
        """Give results to those that listen, and with them the caller's holds on their frames."""
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
        started, lease, has_pixels = now(), result.frame.lease, True
        status.since_ns = started or 1
        if self._journal is not None:
            self._journal.work("step", task.stage, (result,), started)
        try:
            if task.execution.download is not None:
                result = task.execution.download(result)
                lease = result.frame.lease
            out = self._recovery.stage.process(result)
            if wiring.releases_pixels and isinstance(out, Result):
                out = without_pixels(out)
                lease.release()  # no pixels are held while the queue behind is full
                lease, has_pixels = out.frame.lease, False
            done = now()
            status.since_ns = 0
            meter.busy_ns += done - started
            meter.results_in += 1
            if self._is_end:
                self._count_one(result.frame, done)
            if out is None:
                return
            for one in (out,) if isinstance(out, Result) else self._made(out):
                meter.results_out += 1
                if not self._is_end:  # else it was counted when it came
                    self._count_one(one.frame, done)
                self.send(one)
            meter.wait_out_ns += now() - done
        except Exception as error:
            if not self.outlives(error):
                _refuse((result,))
                raise
            self._lose((result,))
            if wiring.reorders and has_pixels:
                self.send(lost(result))
        finally:
            status.since_ns = 0
            lease.release()

    def _submit(self, results: Sequence[Result]) -> None:
        task, meter, now = self.task, self._meter, self._clock.now_ns
        started, stage = now(), self._recovery.stage
        self._status.since_ns = started or 1
        onward = results
        try:
            if task.execution.download is not None:
                results = onward = [task.execution.download(one) for one in results]
            if self._wiring.releases_pixels:
                onward = [without_pixels(one) for one in results]
            if not stage.in_flight:
                self._progress_ns = started or 1
            if self._journal is not None:
                self._journal.work("submit", task.stage, results, started)
            stage.submit(results, onward)
            meter.results_in += len(results)
            stage = self._recovery.stage
            out = stage.collect(False) if stage.is_ready else None
            done = now()
            meter.busy_ns += done - started
        except Exception as error:
            if not self._survives(error, results):
                raise
            return
        finally:
            self._status.since_ns = 0
            for one in results:
                one.frame.lease.release()
            for one in onward if onward is not results else ():
                one.frame.lease.release()
        if out:
            self._progress_ns = done
            if self._journal is not None:
                self._journal.collect(len(out), done)
            self._hand_on(out, done)
        if stage.in_flight >= stage.limit:
            self.collect(wait=True)

    def _hand_on(self, out: Sequence[Result], done_ns: int) -> None:
        """Pass on results of an asynchronous stage, with their holds."""
        meter = self._meter
        self._count(out, done_ns)
        self.hand_over(out)
        meter.results_out += len(out)
        meter.wait_out_ns += self._clock.now_ns() - done_ns

    def _count_one(self, frame: Frame, done_ns: int) -> None:
        latency_ns = done_ns - frame.timestamp_ns
        self._meter.done(frame.stream, latency_ns)
        if self._is_end:
            self._meter.latency.add(latency_ns)

    def _count(self, results: Sequence[Result], done_ns: int) -> None:
        """Count results that it is done with; those in a row of one stream and time at once."""
        meter, at, last = self._meter, 0, len(results)
        while at < last:
            first, start = results[at].frame, at
            stream, timestamp_ns = first.stream, first.timestamp_ns
            at += 1
            while at < last and (one := results[at].frame).timestamp_ns == timestamp_ns and one.stream == stream:
                at += 1
            latency_ns = done_ns - timestamp_ns
            meter.done(stream, latency_ns, at - start)
            if self._is_end:
                meter.latency.add(latency_ns, at - start)

    def _made(self, out: Iterable[Result]) -> Iterator[Result]:
        """Yield results of a stage that makes each when it is asked for it: that is a call of it, too."""
        iterator = iter(out)
        while True:
            self._status.since_ns = self._clock.now_ns()
            try:
                result = next(iterator)
            except StopIteration:
                return
            finally:
                self._status.since_ns = 0
            yield result
            del result  # it would keep the frame's memory in use

    def _survives(self, error: Exception, results: Sequence[Result]) -> bool:
        """Give up what an asynchronous stage has taken, and ``results``; return whether the pipeline goes on."""
        held = self._recovery.stage.give_up() if self.is_async else ()
        goes_on = self.outlives(error)
        if goes_on:
            self._lose((*results, *held))
        else:
            _refuse((*results, *held))
        for one in held:
            one.frame.lease.release()
        return goes_on

    def _lose(self, results: Iterable[Result]) -> None:
        """Count what the stage failed on, each once, or what came while it was down."""
        meter = self._meter
        unique = {id(one.outputs): one for one in results}.values()  # without its pixels it is another object
        if self._journal is not None:
            self._journal.fail(unique, self._clock.now_ns())
        for one in unique:
            key = (one.frame.stream, "error")
            meter.lost, meter.losses[key] = meter.lost + 1, meter.losses.get(key, 0) + 1

    def _give_up(self, results: Sequence[Result]) -> None:
        meter = self._meter
        meter.unmatched += len(results)
        for result in results:
            if self._journal is not None:
                self._journal.drop(result.frame, "join")
            key = result.frame.stream, "join"
            meter.losses[key] = meter.losses.get(key, 0) + 1
            result.frame.lease.release()


def _refuse(results: Iterable[Result]) -> None:
    """Have frames of another machine sent again, as the run ends with their work undone."""
    for one in results:
        if one.frame.delivery is not None:
            one.frame.delivery.receipt.refuse()


def merged(first: Result, second: Result) -> Result:
    """Return one of two parts of a frame: two holds came in, one goes out."""
    merged = records.merged(first, second)
    (second if merged.frame is first.frame else first).frame.lease.release()
    return merged


Fail = Callable[[EdgertError], None]


class Work:
    """A task from its opening to its closing. What goes wrong is reported, and ends this task alone.

    Args:
        fail: called with each error that the pipeline does not outlive.
    """

    def __init__(self, task: Task, clock: Clock, fail: Fail) -> None:
        self.task, self._clock, self._fail = task, clock, fail
        self.station = Station(task, clock)
        self.has_ended = False

    def open(self) -> bool:
        """Open the stage; return whether it is open now."""
        if self.succeeds(self.station.open):
            self.task.meter.status.was_opened = True
            return True
        self._finish()
        return False

    def end(self) -> None:
        """Close what was opened, and end. Twice is once."""
        if not self.has_ended:
            self.succeeds(self.station.close)
            self._finish()

    def _finish(self) -> None:
        """Have nothing go in any more, and nothing come out."""
        self.has_ended = self.task.meter.status.has_ended = True
        self.task.wiring.inlet.abandon()
        self.task.wiring.inlet.handle(None)
        self.task.execution.download = None  # with the memory for what it made
        for outlet in self.task.wiring.outlets:
            outlet.close()

    def succeeds(self, step: Callable[[], object]) -> bool:
        """Run a step and report its failure, so that a second one while closing does not hide the first."""
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - reported
            self.failed(error)
            return False
        return True

    def failed(self, error: BaseException) -> None:
        """Report a failure."""
        self._fail(self.station.failure(error))
