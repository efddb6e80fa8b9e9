"""A node of a pipeline at work, a source that makes results or a stage that passes them on, and its thread."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import thread_time_ns
from typing import cast

from edgert.clock import Clock
from edgert.errors import EdgertError, StageError
from edgert.memory import Counter, EndedLease
from edgert.policy import Join, Reads, join_of, most_under_way
from edgert.runtime.channel import Channel, Inlet
from edgert.runtime.frame import Frame
from edgert.runtime.metrics import Lateness, StageMeter, Timing
from edgert.runtime.records import Result, Together
from edgert.runtime.stage import Batching, ServedSource, Source, Stage
from edgert.runtime.throttle import SourceRateLimiter


@dataclass(slots=True, eq=False)
class Node:
    """A stage in the graph: what runs, what it listens to, and what listens to it.

    Attributes:
        outlets: one channel per stage that listens to this one; replaced by a new tuple when a listener joins.
        carried: per edge of ``inlet``, the streams that arrive on it.
        producers: per edge of ``inlet``, the node at its other end.
        meter: totals of its thread; ``timing``: how they vary, from which a simulation samples.
        branch: which one of the outlets a result goes to, by number; None: to all.
        joins: whether several edges that carry one stream bring parts of the same frames, to be joined; otherwise
            each brings frames of its own.
        limiter: limits the frames of a source that a governor may throttle; None: all of them go on.
        reads: which pixels the stage looks at; nothing of that where frames are never on a GPU.
        take: makes of a result what the stage gets, such as one on the host, and takes over its hold; None: nothing.
        lets_go: whether nobody behind looks at pixels, so that a frame's lease ends before the node waits for others.
        host: the node in whose thread this one is worked on, too; None: it has a thread of its own.
        lag: of such a node, how many results may wait for it: it waits itself, for a GPU that goes on meanwhile.
        context: in which its thread works, such as a GPU's, instead of entering it for every call; its guests work
            outside, as their code may be a user's.
    """

    name: str
    work: Source | Stage
    inlet: Inlet = field(default_factory=Inlet)
    outlets: tuple[Channel, ...] = ()
    carried: list[frozenset[str]] = field(default_factory=list)
    producers: list[Node] = field(default_factory=list)
    meter: StageMeter = field(default_factory=StageMeter)
    timing: Timing = field(default_factory=Timing)
    branch: Callable[[Result], int] | None = None
    joins: bool = True
    limiter: SourceRateLimiter | None = None
    reads: Reads = "anywhere"
    take: Callable[[Result], Result] | None = None
    lets_go: bool = False
    host: Node | None = None
    lag: int = 0
    context: AbstractContextManager[object] | None = None

    def __post_init__(self) -> None:
        self.inlet.wakeup = self.timing.wakeup

    def under_way(self) -> int:
        """The most results of one stream that can be between its source and this node, by the slowest path."""
        edges = zip(self.producers, self.inlet.channels, strict=True)
        return most_under_way([(producer.under_way(), channel.capacity) for producer, channel in edges], self.joins)


class Station:
    """A node at work, in whatever thread calls it: what becomes of each result, and what is measured of it.

    Attributes:
        join: of the parts of a frame, where several edges bring them; set before the first result.
    """

    def __init__(self, node: Node, clock: Clock) -> None:
        self.node, self._clock = node, clock
        self._stage = cast("Stage", node.work)  # looked at whether it is one by whoever opens it; that takes long
        self.is_batching = isinstance(node.work, Batching)
        self.join: Join[Result] | None = None
        self._is_end = not node.outlets  # those who listen for a while come later

    def give(self, frame: Frame, made_ns: int, worked_ns: int) -> None:
        """Passes a source's frame on, with its hold; ``made_ns`` is when it was made, in ``worked_ns`` of work."""
        meter, timing = self.node.meter, self.node.timing
        meter.results_in += 1
        meter.busy_ns += worked_ns
        timing.worked(worked_ns)
        timing.passed_on(made_ns)
        self.hand_over(Result(frame))
        meter.results_out += 1

    def joined(self, edge: int, result: Result) -> Result | None:
        """What came on an edge, together with what belongs to it from others; None until all of that is there."""
        if self.join is None:
            return result
        joined, given_up = self.join.add(edge, result.frame.stream, result.frame.index, result)
        self._give_up(given_up)
        return joined

    def give_up(self) -> None:
        """Lets go of parts of frames whose others never came."""
        if self.join is not None:
            self._give_up(self.join.drain())

    def step(self, result: Result) -> None:
        """Has the stage work on a result, and passes on what comes of it; ends the hold on its frame."""
        node, stage, now = self.node, self._stage, self._clock.now_ns
        meter, timing = node.meter, node.timing
        started, lease = now(), result.frame.lease
        try:
            if node.take is not None:
                result = node.take(result)
                lease = result.frame.lease
            out = stage.process(result)
            if node.lets_go and out is not None and (isinstance(out, Result) or self.is_batching):
                out = _let_go(out)
                lease.release()
                lease = _NONE  # nothing is held while the queue behind is full
            done = now()
            worked_ns = done - started
            meter.busy_ns += worked_ns
            if isinstance(result, Together):
                meter.results_in += len(result.results)
                timing.worked(worked_ns, len(result.results))
            else:
                meter.results_in += 1
                timing.worked(worked_ns)
            if self._is_end:
                for one in result.results if isinstance(result, Together) else (result,):
                    meter.latency.add(done - one.frame.timestamp_ns)
            if out is None:
                timing.passed_on(done)
            elif self._pass_on(out, done):
                meter.wait_out_ns += now() - done
            else:
                timing.filled(worked_ns)
        finally:
            lease.release()

    def flush(self, last: bool = False) -> None:
        """Passes on what a batching stage holds and must wait no longer; with ``last`` everything."""
        node, now = self.node, self._clock.now_ns
        started = now()
        flushed = cast("Batching", self._stage).flush(last)
        out = _let_go(flushed) if node.lets_go else flushed
        done = now()
        node.meter.busy_ns += done - started
        node.timing.worked(done - started, results=0)
        self._pass_on(out, done)
        node.meter.wait_out_ns += now() - done

    def send(self, result: Result) -> None:
        """Gives a result to those that listen; the caller's hold on its frame goes on."""
        if self.node.outlets:
            result.frame.lease.retain()
            self.hand_over(result)

    def hand_over(self, result: Result) -> None:
        """Gives a result to those that listen, and with it the caller's hold on its frame."""
        node, lease = self.node, result.frame.lease
        outlets = node.outlets if node.branch is None else (node.outlets[node.branch(result)],)
        if len(outlets) != 1:
            if not outlets:
                lease.release()
                return
            lease.retain(len(outlets) - 1)
        for outlet in outlets:
            outlet.put(result)

    def failure(self, error: BaseException) -> EdgertError:
        """An error of the stage as that of the pipeline, with the stage's name."""
        place = f"stage {self.node.name!r}"
        if isinstance(error, EdgertError):
            return error.at(place)
        # a user's code or a bug: this stage's failure, with its traceback
        what = f"{place} failed: {type(error).__name__}: {error}"
        return StageError(what, where=place, fix="edgert run --debug shows the traceback").caused_by(error)

    def _pass_on(self, out: Result | Iterable[Result], done_ns: int) -> int:
        """How many went on."""
        count = 0
        for result in (out,) if isinstance(out, Result) else out:
            self.send(result)
            count += len(result.results) if isinstance(result, Together) else 1
        self.node.meter.results_out += count
        if count:
            self.node.timing.passed_on(done_ns)
        return count

    def _give_up(self, results: Sequence[Result]) -> None:
        self.node.meter.unmatched += len(results)
        for result in results:
            result.frame.lease.release()


class _Work:
    """A node from its opening to its closing. What goes wrong is reported, and ends this node alone."""

    def __init__(self, node: Node, clock: Clock, fail: Callable[[EdgertError], None]) -> None:
        self.node, self._clock, self._fail = node, clock, fail
        self.station = Station(node, clock)
        self._has_ended = False

    def open(self) -> bool:
        """Opens the stage; whether it is open now."""
        if self.succeeds(cast("Stage", self.node.work).open):
            self.node.timing.opened_ns = self._clock.now_ns()
            return True
        self._finish()
        return False

    def end(self) -> None:
        """Closes what was opened, and ends. Twice is once."""
        if not self._has_ended:
            self.succeeds(self.node.work.close)
            self._finish()

    def _finish(self) -> None:
        """Nothing goes in any more, and nothing comes out."""
        self._has_ended = True
        self.node.inlet.abandon()
        self.node.take = None  # with the memory for what it made
        for outlet in self.node.outlets:
            outlet.close()

    def succeeds(self, step: Callable[[], None]) -> bool:
        """Runs a step and reports its failure, so that a second one while closing does not hide the first."""
        try:
            step()
        except (Exception, SystemExit) as error:
            self._fail(self.station.failure(error))
            return False
        return True


class _Guest(_Work):
    """A node that is worked on in the thread of another.

    Attributes:
        late: results that wait until that thread has nothing else to do, or there are more than the node's ``lag``.
    """

    def __init__(self, node: Node, clock: Clock, fail: Callable[[EdgertError], None]) -> None:
        super().__init__(node, clock, fail)
        self.late = deque[Result]()

    def open(self) -> bool:
        """Opens the stage, and has its edge lead here."""
        if super().open():
            self.node.inlet.direct(self.late.append if self.node.lag else self._put)
        return not self._has_ended

    def catch_up(self, lag: int, outside: AbstractContextManager[object] | None = None) -> int:
        """Works on what waits beyond so many, outside of a context; returns how many nanoseconds that took."""
        if len(self.late) <= lag:
            return 0
        started = self._clock.now_ns()
        with _left(outside) if outside is not None else nullcontext():
            while len(self.late) > lag:
                self._work(self.late.popleft())
        return self._clock.now_ns() - started

    def _put(self, result: Result) -> None:
        meter = self.node.meter
        before_ns = meter.busy_ns + meter.wait_out_ns
        self._work(result)
        spent_ns = meter.busy_ns + meter.wait_out_ns - before_ns
        self.node.producers[0].meter.wait_out_ns -= spent_ns  # it worked, and did not wait for room

    def _work(self, result: Result) -> None:
        """Works on a result and ends the hold on its frame."""
        if self._has_ended:
            self.node.inlet.channels[0].lose(result)
            return
        try:
            self.station.step(result)
        except (Exception, SystemExit) as error:
            self._fail(self.station.failure(error))
            self.end()


class _Taking:
    """A source's node at work in the threads that bring its frames, one at a time."""

    def __init__(self, station: Station, clock: Clock, stop: threading.Event) -> None:
        self._station, self._clock, self._stop_event = station, clock, stop
        self._began_ns = self._ended_ns = clock.now_ns()

    def has_room(self, timeout_s: float | None) -> bool:
        """See :class:`~edgert.runtime.stage.FrameTaker`."""
        meter, came_ns = self._station.node.meter, self._clock.now_ns()
        until_ns = None if timeout_s is None else came_ns + round(timeout_s * 1e9)
        for outlet in self._station.node.outlets:
            left_s = None if until_ns is None else max(until_ns - self._clock.now_ns(), 0) / 1e9
            if not outlet.has_room(left_s):
                found = False
                break
        else:
            found = True
        self._began_ns = self._clock.now_ns()
        meter.wait_in_ns += came_ns - self._ended_ns
        meter.wait_out_ns += self._began_ns - came_ns
        self._ended_ns = self._began_ns
        return found

    def give(self, frame: Frame) -> None:
        """See :class:`~edgert.runtime.stage.FrameTaker`."""
        node, made_ns = self._station.node, self._clock.now_ns()
        if node.limiter is not None and not node.limiter.passes(self._stop_event):
            frame.lease.release()
            return
        self._station.give(frame, made_ns, made_ns - self._began_ns)
        self._ended_ns = self._clock.now_ns()


_GRACE_S = 0.0005
"""So long the next result may take before guests that lag catch up: whoever brings it had no turn while this thread had
Python's lock, and waiting for a GPU at once would have it wait for the host in turn."""


class Worker(threading.Thread):
    """Runs one node until its input ends, and its guests: those that are worked on in the same thread.

    Args:
        stop: set to make sources end; everything downstream then ends by itself; :attr:`stop_event`.
        fail: called once with the error if a node fails.
    """

    def __init__(
        self,
        node: Node,
        clock: Clock,
        stop: threading.Event,
        fail: Callable[[EdgertError], None],
        guests: Sequence[Node] = (),
    ) -> None:
        super().__init__(name=f"edgert:{node.name}", daemon=True)
        self.node, self.guests, self._clock, self.stop_event = node, guests, clock, stop
        self._own, self._guests = _Work(node, clock, fail), [_Guest(one, clock, fail) for one in guests]
        self._late = [guest for guest in self._guests if guest.node.lag]
        self._station = self._own.station

    def run(self) -> None:
        """The thread's body; never raises."""
        own = self._own
        for guest in reversed(self._guests):
            guest.open()
        if not isinstance(self.node.work, Stage):
            own.succeeds(self._give_frames)
        elif own.open():
            own.succeeds(self._loop)
        for guest in self._late:
            guest.catch_up(0)
        for one in (own, *self._guests):
            one.end()

    def _give_frames(self) -> None:
        node, source, meter, give = self.node, self.node.work, self.node.meter, self._station.give
        if isinstance(source, ServedSource):
            source.serve(_Taking(self._station, self._clock, self.stop_event), self.stop_event)
            return
        assert isinstance(source, Source)
        now, live = self._clock.now_ns, source.live
        started, before_ns, lateness = now(), thread_time_ns(), Lateness()
        for frame in source.frames(self.stop_event):
            if node.limiter is not None and not node.limiter.passes(self.stop_event):
                frame.lease.release()
                del frame
                continue
            made = now()
            worked_ns = made - started
            if live:  # it mostly waits for the camera: its own work is the CPU time of this thread
                used_ns = thread_time_ns()
                worked_ns, before_ns = min(used_ns - before_ns, worked_ns), used_ns
                node.timing.wakeup.add(lateness.of(frame.timestamp_ns, frame.media_ns))
            meter.wait_in_ns += made - started - worked_ns
            give(frame, made, worked_ns)
            del frame
            started = now()
            meter.wait_out_ns += started - made

    def _loop(self) -> None:
        node, stage, station = self.node, self.node.work, self._station
        meter, now = node.meter, self._clock.now_ns
        station.join = join_of(node.carried, node.under_way(), merged) if node.joins else None
        waiting = now()
        batching = stage if isinstance(stage, Batching) else None
        arrivals = self._arrivals(batching) if batching is not None or self._late else node.inlet
        try:
            with node.context or nullcontext():
                for edge, result in arrivals:
                    joined = station.joined(edge, result)
                    if joined is not None:
                        meter.wait_in_ns += now() - waiting
                        station.step(joined)
                        for guest in self._late:
                            guest.catch_up(guest.node.lag, node.context)
                        waiting = now()
                    # A variable left over would keep the frame's memory in use while this thread waits.
                    del result, joined
        finally:
            station.give_up()

    def _arrivals(self, batching: Batching | None) -> Iterator[tuple[int, Result]]:
        """Yields what comes in; in between, guests catch up, and a batching stage passes on what is due, at the end
        everything."""
        inlet, station = self.node.inlet, self._station
        while True:
            wait_s: float | None = 0.0  # what has come goes with what is held; the stage sees whether that is late
            is_short = False
            if inlet.is_empty:
                due_ns = batching.due_ns() if batching is not None else None
                wait_s = None if due_ns is None else max(due_ns - self._clock.now_ns(), 0) / 1e9
                # What is due sooner is passed on first: a guest may wait long.
                is_short = (wait_s is None or wait_s > _GRACE_S) and any(guest.late for guest in self._late)
                wait_s = _GRACE_S if is_short else wait_s
            try:
                arrived = inlet.get(wait_s)
            except queue.Empty:
                if is_short:
                    self._catch_up()
                elif batching is not None:
                    station.flush()
                continue
            if arrived is None:
                break
            yield arrived
            del arrived  # like the loop's own variables: it would keep the frame's memory in use
        if batching is not None:
            station.flush(last=True)

    def _catch_up(self) -> None:
        """Works on the oldest result that waits for a guest."""
        for guest in self._late:
            if guest.late:
                self.node.meter.wait_in_ns -= guest.catch_up(len(guest.late) - 1, self.node.context)  # it worked
                return


@contextmanager
def _left(context: AbstractContextManager[object]) -> Iterator[None]:
    """Outside of a context that this thread is in."""
    context.__exit__(None, None, None)
    try:
        yield
    finally:
        context.__enter__()


def works_for(stop: threading.Event) -> bool:
    """Whether the current thread is one of the pipeline that is ended by this event."""
    thread = threading.current_thread()
    return isinstance(thread, Worker) and thread.stop_event is stop


def merged(first: Result, second: Result) -> Result:
    """One of two parts of a frame: two holds came in, one goes out."""
    merged = first.merged(second)
    (second if merged.frame is first.frame else first).frame.lease.release()
    return merged


_NONE = EndedLease(Counter())


def _let_go(out: Result | Iterable[Result]) -> Result | list[Result]:
    """Results without pixels, all at once: the leases of a batch end together."""
    return out.let_go() if isinstance(out, Result) else [result.let_go() for result in out]
