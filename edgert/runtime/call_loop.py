"""Loop of a pipeline without threads: its stages run one after the other in the caller's thread."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from threading import Event

from edgert.clock import Clock
from edgert.errors import StageError
from edgert.policy import Join
from edgert.runtime import Frame, Record, Result
from edgert.runtime.station import Fail, Station, merge_parts
from edgert.runtime.task import Task

FrameSupply = tuple[Callable[[], Sequence[Frame]], int]
_Arrival = tuple["_LocalStation", int, Sequence[Result]]
_ALL = 2**62
"""Number above all frame numbers, also used as the bound of joins, which hold only the parts of one call."""


class EndOfFrames(StageError):  # noqa: N818 - reads as what it is
    """The end of a source's frames: its ``limit`` was reached, or the pipeline was stopped."""


class CallLoop:
    """Executor of calls, one after the other. For one thread at a time.

    Stages get the same results in the same order as with threads, and the same is measured. Unless frames may stay in
    flight, queues are empty between two calls, so no frame is dropped. A batch runs when the call has no more frames
    for it. Parts of a frame whose other part was removed by a filter are discarded.

    Args:
        tasks: in topological order; the first is the source.
        stop: stop event of the pipeline.
        fail: function called with each error of a stage, the first one first.
        sinks: names of tasks whose results are not returned.

    Attributes:
        is_left: whether a call was left behind in a stage that does not return; the loop must not be used any more.
    """

    def __init__(self, tasks: Sequence[Task], clock: Clock, stop: Event, fail: Fail, sinks: Collection[str]) -> None:
        self._clock, self._stop, self._fail, self._queue = clock, stop, fail, deque[_Arrival]()
        self._places = [_LocalStation(task, clock, self._queue, task.name in sinks) for task in tasks]
        edges = {id(channel): (place, edge) for place in self._places
                 for edge, channel in enumerate(place.task.wiring.inlet.channels)}  # fmt: skip
        for place in self._places:
            place.listeners = [edges[id(outlet)] for outlet in place.task.wiring.outlets]
            place.task.wiring.releases_pixels = False  # all frames are held until the call returns them
        self._at = self._places[0]
        self._is_open, self._opened = False, list[_LocalStation]()
        self._in_flight = deque[Frame]()  # taken, and not returned yet
        self.is_left = False

    def run(self, supplies: Iterable[FrameSupply], leaves: bool = False) -> list[Result]:
        """Process the frames of one call. The first call opens all stages; if one fails, they are closed again.

        Args:
            supplies: for each group of frames, a function that takes them from the source, and their number.
            leaves: whether frames may stay in flight in asynchronous stages when this returns; a later call then
                returns them. Else all frames are returned.

        Returns:
            One result with all records for each finished frame, in order. The caller releases the frames.

        Raises:
            EndOfFrames: the source gives no more frames. Those in flight stay in flight.
            Exception, SystemExit: the error of a stage. The loop must not be used after it.
        """
        try:
            if not self._is_open:
                self._open()
            for supply in supplies:
                self._take(*supply)
                self._run_queued()  # a GPU gets one frame while the host prepares the next
            if not leaves:
                self._finish()
            if self.is_left:
                raise self._too_late()
            return self._finished_results()
        except BaseException as error:
            is_end = isinstance(error, EndOfFrames)
            if not (is_end and leaves):
                self._release_all()
            if isinstance(error, (Exception, SystemExit)) and not is_end:  # of a user's code, as in a thread
                self._fail(self._at.failure(error))
            raise
        finally:
            if self.is_left or not self._is_open:
                self._close_stages()

    @property
    def in_flight(self) -> int:
        """Number of frames that were taken and not returned yet."""
        return len(self._in_flight)

    def close(self) -> None:
        """Close the source and all stages, each once, and release frames in flight."""
        self._release_all()
        self._places[0].task.stage.close()
        self._close_stages()

    def leave(self) -> None:
        """Close all stages from another thread, except one in a call, which is closed when its call returns."""
        self.is_left = True
        self._close_stages()

    @staticmethod
    def _too_late() -> EndOfFrames:
        return EndOfFrames("the call returned too late", why="the pipeline was closed meanwhile")

    def _open(self) -> None:
        """Open every stage, the last first."""
        for place in reversed(self._places[1:]):
            self._at = place
            place.open()
            self._opened.insert(0, place)
            place.task.meter.status.was_opened = True
            if self.is_left:
                raise self._too_late()
        self._is_open = True

    def _close_stages(self) -> None:
        hangs = [place for place in self._opened if self.is_left and place.task.meter.status.since_ns]
        opened, self._opened = [place for place in self._opened if place not in hangs], hangs
        for place in opened:
            try:
                place.close()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - of a user's code, as in a thread
                self._fail(place.failure(error))
            place.task.execution.download = None  # frees its memory

    def _take(self, supply: Callable[[], Sequence[Frame]], count: int) -> None:
        """Take frames from the source and pass them on. Each is retained until :meth:`run` returns it."""
        self._at, started = self._places[0], self._clock.now_ns()
        frames = supply()
        made = self._clock.now_ns()
        limiter, is_full = self._at.task.execution.limiter, len(frames) == count
        if limiter is not None:
            passed = list(takewhile(lambda _: limiter.passes(self._stop), frames))
            for frame in frames[len(passed) :]:
                frame.lease.release()
            frames, is_full = passed, is_full and len(passed) == count
        for frame in frames:
            frame.lease.retain()
        self._in_flight.extend(frames)
        if frames:
            self._at.give(frames, made, made - started)
        if not is_full:
            why = "the pipeline was stopped" if self._stop.is_set() else "its limit: was reached"
            raise EndOfFrames("no more frames are taken", why=why, where=f"stage {self._at.task.name!r}")

    def _run_queued(self) -> None:
        queue = self._queue
        while queue and not self.is_left:
            place, edge, results = queue.popleft()
            self._at = place
            if place.join is not None:
                results = [one for each in results if (one := place.join_parts(edge, each)) is not None]
            if not results:
                continue
            if not place.is_async:
                place.step(results)
                continue
            place.taken = results[-1].frame.index
            while results:
                room = place.room
                place.step(results[:room])
                results = results[room:]

    def _finish(self) -> None:
        """Finish all frames, running partial batches too."""
        for place in self._places:
            if place.is_async and not self.is_left:
                self._at = place
                place.finish()
                self._run_queued()

    def _finished_results(self) -> list[Result]:
        """Return the results of finished frames; they are no longer in flight then."""
        first, found = self._first_unfinished(), list[Result]()
        for place in self._places:
            place.drop_incomplete(first)
        while self._in_flight and self._in_flight[0].index < first:
            found.append(self._result(self._in_flight.popleft()))
        return found

    def _first_unfinished(self) -> int:
        """Return the number of the first frame that a stage still holds.

        Stages pass frames on in order, so earlier frames whose parts still wait in a join will never be complete.
        """
        held = (place.passed + 1 for place in self._places if place.holds and place.passed < place.taken)
        return min(held, default=_ALL)

    def _release_all(self) -> None:
        """Release all frames in flight."""
        while self._in_flight:
            self._in_flight.popleft().lease.release()
        while self._queue:
            for result in self._queue.popleft()[2]:
                result.frame.lease.release()
        for place in self._places:
            place.drop_incomplete()
            place.sent.clear()

    def _result(self, frame: Frame) -> Result:
        """Return one result with the records of all stages, in the order in which they ran."""
        index, parts = frame.index, list[Result]()
        for place in self._places:
            found = place.sent.pop(index, None)
            if found is not None and not place.is_sink:
                parts.append(found)
        if len(parts) == 1 and parts[0].frame is frame:  # the usual case: one model
            return parts[0]
        outputs, image = dict[str, Record](), None
        for part in parts:
            outputs |= part.outputs
            image = image if part.image is None else part.image
        return Result(frame, outputs, image)


class _LocalStation(Station):
    """A task whose listeners run in the same thread.

    Attributes:
        listeners: listener and number of its edge, for each outlet of the task.
        sent: results that the task passed on, by number of the frame in flight.
        taken, passed: numbers of the last frames that an asynchronous stage took and passed on.
    """

    def __init__(self, task: Task, clock: Clock, queue: deque[_Arrival], is_sink: bool) -> None:
        super().__init__(task, clock)
        self.queue, self.is_sink = queue, is_sink
        self.listeners: list[tuple[_LocalStation, int]] = []
        self.sent: dict[int, Result] = {}
        self.taken = self.passed = -1
        if task.wiring.joins and len(task.wiring.streams) > 1:
            self.join = Join(task.wiring.streams, _ALL, merge_parts)

    def send(self, result: Result) -> None:
        result.frame.lease.retain()
        self.hand_over((result,))

    def hand_over(self, results: Sequence[Result]) -> None:
        task, sent, branch = self.task, self.sent, self.task.wiring.branch
        for result in results:
            if result.frame.index in sent:
                for one in results:
                    one.frame.lease.release()
                raise StageError(
                    f"stage {task.name!r} passed on several results of one frame",
                    why="a call returns one result for each frame",
                    fix="submit frames, and take results from pipeline.results(…)",
                )
            sent[result.frame.index] = result
        self.passed = results[-1].frame.index
        if branch is not None:
            for result in results:
                place, edge = self.listeners[branch(result)]
                place.queue.append((place, edge, (result,)))
            return
        for result in results:
            if self.listeners:
                result.frame.lease.retain(len(self.listeners))
            result.frame.lease.release()
        for place, edge in self.listeners:
            place.queue.append((place, edge, results))
