"""The thread of a node: a source that makes results, or a stage that passes them on, and what runs in it, too."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from time import thread_time_ns

from edgert.clock import Clock
from edgert.errors import EdgertError
from edgert.policy import join_of
from edgert.runtime.frame import Frame
from edgert.runtime.node import Node, Station, merged
from edgert.runtime.passing import Together
from edgert.runtime.records import Result
from edgert.runtime.stage import Batching, BurstSource, Gathering, ServedSource, Source, Stage
from edgert.runtime.throttle import SourceRateLimiter


class _Work:
    """A node from its opening to its closing. What goes wrong is reported, and ends this node alone."""

    def __init__(self, node: Node, clock: Clock, fail: Callable[[EdgertError], None]) -> None:
        self.node, self._clock, self._fail = node, clock, fail
        self.station = Station(node, clock)
        self.has_ended = False

    def open(self) -> bool:
        """Opens the stage; whether it is open now."""
        if self.succeeds(self.station.open):
            self.node.was_opened = True
            return True
        self._finish()
        return False

    def end(self) -> None:
        """Closes what was opened, and ends. Twice is once."""
        if not self.has_ended:
            self.succeeds(self.station.close)
            self._finish()

    def _finish(self) -> None:
        """Nothing goes in any more, and nothing comes out."""
        self.has_ended = True
        self.node.inlet.abandon()
        self.node.inlet.direct(None)
        self.node.take = None  # with the memory for what it made
        for outlet in self.node.outlets:
            outlet.close()

    def succeeds(self, step: Callable[[], object]) -> bool:
        """Runs a step and reports its failure, so that a second one while closing does not hide the first."""
        try:
            step()
        except BaseException as error:
            self.failed(error)
            return False
        return True

    def failed(self, error: BaseException) -> None:
        """Reports a failure."""
        self._fail(self.station.failure(error))


class _Inline(_Work):
    """A node that runs in the thread of another.

    Attributes:
        backlog: results that wait until that thread has nothing else to do, or there are more than the node's ``lag``.
    """

    def __init__(self, node: Node, clock: Clock, fail: Callable[[EdgertError], None]) -> None:
        super().__init__(node, clock, fail)
        self.backlog = deque[Result]()

    def open(self) -> bool:
        """Opens the stage, and has its edge lead here."""
        if super().open():
            self.node.inlet.direct(self._keep if self.node.lag else self._put)
        return not self.has_ended

    def catch_up(self, lag: int) -> int:
        """Works on what waits beyond so many; returns how many nanoseconds that took."""
        if len(self.backlog) <= lag:
            return 0
        started = self._clock.now_ns()
        while len(self.backlog) > lag:
            self._work(self.backlog.popleft())
        return self._clock.now_ns() - started

    def _keep(self, result: Result) -> bool:
        self.backlog.append(result)
        return True

    def _put(self, result: Result) -> bool:
        meter, before = self.node.meter, self.node.producers[0]
        before_ns = meter.busy_ns + meter.wait_out_ns
        outside = before.context
        if outside is None:
            self._work(result)
        else:
            outside.__exit__(None, None, None)
            try:
                self._work(result)
            finally:
                outside.__enter__()
        spent_ns = meter.busy_ns + meter.wait_out_ns - before_ns
        before.meter.wait_out_ns -= spent_ns  # it worked, and did not wait for room
        return True

    def _work(self, result: Result) -> None:
        """Works on a result and ends the hold on its frame."""
        if self.has_ended:
            self.node.inlet.channels[0].lose(result)
            return
        try:
            self.station.step(result)
        except BaseException as error:
            self.failed(error)
            self.end()


_SLOW = 3


class _Spared:
    """A node whose own thread sleeps while its results are worked on in the thread that they come from: once all that
    came before is done there, and as long as that takes less than its part of the time from one result to the next,
    with what that thread does itself; or at least not thrice in a row, and until the stage fails. Who would wait for
    room waits until the node is open; a camera does not, so that its driver's queue is not full of old frames then.

    Attributes:
        ready: set when the node is open, or never will be.
        done: how many results its own thread has worked on.
    """

    def __init__(self, own: _Work, clock: Clock) -> None:
        self._own, self._clock, self.ready, self.done = own, clock, threading.Event(), 0
        (self._before,), (self._channel,) = own.node.producers, own.node.inlet.channels
        self._context = own.node.context if own.node.context is not self._before.context else None
        self._is_taking, self._left, self._slow = False, 0, 0
        self._came_ns, self._busy_ns = clock.now_ns(), 0

    def work(self, result: Result) -> bool:
        """Works on a result, in its producer's thread, and ends the hold on its frame; False: its own is to do it."""
        own, meter = self._own, self._before.meter
        if own.has_ended or not (self._is_taking or self._takes()):
            self._left += 1
            return False
        came_ns, busy_ns = self._clock.now_ns(), meter.busy_ns
        try:
            if self._context is None:
                own.station.step(result)
            else:
                with self._context:
                    own.station.step(result)
        except BaseException as error:
            own.failed(error)
            own.node.inlet.abandon()
        took_ns = self._clock.now_ns() - came_ns
        meter.wait_out_ns -= took_ns  # it worked, and did not wait for room
        in_all_ns, between_ns = took_ns + busy_ns - self._busy_ns, came_ns - self._came_ns
        self._slow = self._slow + 1 if in_all_ns > own.node.spared * between_ns else 0
        self._came_ns, self._busy_ns = came_ns, busy_ns
        if self._slow == _SLOW or own.node.failing:
            own.node.inlet.direct(None)  # its own thread works on those to come
        return True

    def _takes(self) -> bool:
        if self._channel.waits:
            self.ready.wait()
        self._is_taking = self.ready.is_set() and self._left == self.done + self._channel.dropped
        return self._is_taking


class _Taking:
    """A source's node at work in the threads that bring its frames, one at a time."""

    def __init__(self, station: Station, clock: Clock, stop: threading.Event) -> None:
        self._station, self._clock, self._stop_event = station, clock, stop
        self._began_ns = self._ended_ns = clock.now_ns()

    def has_room(self, timeout_s: float | None, frames: int = 1) -> bool:
        """See :class:`~edgert.runtime.stage.FrameTaker`."""
        meter, came_ns = self._station.node.meter, self._clock.now_ns()
        until_ns = None if timeout_s is None else came_ns + round(timeout_s * 1e9)
        for outlet in self._station.node.outlets:
            left_s = None if until_ns is None else max(until_ns - self._clock.now_ns(), 0) / 1e9
            if not outlet.has_room(left_s, frames):
                found = False
                break
        else:
            found = True
        self._began_ns = self._clock.now_ns()
        meter.wait_in_ns += came_ns - self._ended_ns
        meter.wait_out_ns += self._began_ns - came_ns
        self._ended_ns = self._began_ns
        return found

    def give(self, frames: Sequence[Frame]) -> None:
        """See :class:`~edgert.runtime.stage.FrameTaker`."""
        node, made_ns = self._station.node, self._clock.now_ns()
        if node.limiter is not None:
            frames = [frame for frame in frames if self._passes(node.limiter, frame)]
        if len(frames) == 1:
            self._station.give(frames[0], made_ns, made_ns - self._began_ns)
        elif frames:
            self._station.give_several(frames, made_ns, made_ns - self._began_ns)
        self._ended_ns = self._clock.now_ns()

    def _passes(self, limiter: SourceRateLimiter, frame: Frame) -> bool:
        if limiter.passes(self._stop_event):
            return True
        frame.lease.release()
        return False


_BURST = 8
"""The most frames that go on as one: each stays in its decoder's memory until the last of them is read."""
_GRACE_S = 0.0005
"""So long the next result may take before inline nodes that lag catch up. Whoever brings it could not while this thread
had Python's lock; a thread that waited for the GPU at once would leave it without work afterwards."""


class Worker(threading.Thread):
    """Runs one node until its input ends, and those that run inline, in the same thread: they listen to it.

    Args:
        stop: set to make sources end; everything downstream then ends by itself; :attr:`stop_event`.
        fail: called once with the error if a node fails.

    Attributes:
        is_left: whether it is left behind, in a call that does not end.
    """

    def __init__(
        self,
        node: Node,
        clock: Clock,
        stop: threading.Event,
        fail: Callable[[EdgertError], None],
        inline: Sequence[Node] = (),
    ) -> None:
        super().__init__(name=f"edgert:{node.name}", daemon=True)
        self.node, self.inline, self._clock, self.stop_event = node, inline, clock, stop
        self.is_left = False
        self._own, self._inline = _Work(node, clock, fail), [_Inline(one, clock, fail) for one in inline]
        self._lagging = [one for one in self._inline if one.node.lag]
        self._comes_several = False  # whether whoever brings results brought several as one
        self._station = self._own.station
        self._spared = _Spared(self._own, clock) if node.spared else None

    def start(self) -> None:
        """Begins; before those that bring its results, as who works on them is settled here."""
        if self._spared is not None:  # not sooner: a pipeline that never starts would hold on to itself
            self.node.inlet.direct(self._spared.work)
        super().start()

    def run(self) -> None:
        """The thread's body; never raises."""
        own = self._own
        for one in reversed(self._inline):
            one.open()
        if not isinstance(self.node.work, Stage):
            self._station.opened()
            own.succeeds(self._give_frames_or_none)
        elif self._opens():
            own.succeeds(self._loop)
        if any(one.backlog for one in self._lagging):
            own.succeeds(self._catch_up_with_all)
        for work in (own, *self._inline):
            work.end()

    def _opens(self) -> bool:
        try:
            return self._own.open()
        finally:
            if self._spared is not None:
                self._spared.ready.set()

    def _give_frames_or_none(self) -> None:
        """Raises what its source raises, unless the others go on without it."""
        try:
            self._give_frames()
        except Exception as error:
            if not self._station.outlives(error):
                raise

    def _give_frames(self) -> None:
        node, source, meter, give = self.node, self.node.work, self.node.meter, self._station.give
        if isinstance(source, ServedSource):
            source.serve(_Taking(self._station, self._clock, self.stop_event), self.stop_event)
            return
        assert isinstance(source, Source)
        if isinstance(source, BurstSource):
            self._give_bursts(source)
            return
        now, live = self._clock.now_ns, source.live
        started, before_ns = now(), thread_time_ns()
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
            meter.wait_in_ns += made - started - worked_ns
            give(frame, made, worked_ns)
            del frame
            started = now()
            meter.wait_out_ns += started - made
            for outlet in node.outlets if live else ():
                if outlet.work is not None:  # a stage's work was done here, too
                    before_ns = thread_time_ns()

    def _give_bursts(self, source: BurstSource) -> None:
        """Of a source that is no camera: what it has at a time goes on as one, where the node behind takes it so."""
        node, meter, now, held = self.node, self.node.meter, self._clock.now_ns, list[Frame]()
        started = now()

        def give() -> None:
            nonlocal started
            made = now()
            if len(held) == 1:
                self._station.give(held[0], made, made - started)
            else:
                self._station.give_several(held, made, made - started)
            held.clear()  # a frame that is left over would keep its memory in use
            started = now()
            meter.wait_out_ns += started - made

        try:
            for frame in source.frames(self.stop_event):
                if node.limiter is not None and not node.limiter.passes(self.stop_event):
                    frame.lease.release()
                else:
                    held.append(frame)
                del frame
                if held and (len(held) == _BURST or not source.at_hand):
                    give()
        finally:
            if held:
                give()

    def _loop(self) -> None:
        node, stage, station = self.node, self.node.work, self._station
        meter, now = node.meter, self._clock.now_ns
        station.join = join_of(node.carried, node.under_way(), merged) if node.joins else None
        waiting = now()
        batching = stage if isinstance(stage, Batching) else None
        gathering = stage if isinstance(stage, Gathering) and station.join is None else None
        node.inlet.arrivals.batches = batching is not None and bool(self._lagging)
        arrivals = self._arrivals(batching, gathering) if batching is not None or self._lagging else node.inlet
        try:
            with node.context or nullcontext():
                for edge, result in arrivals:
                    joined = station.joined(edge, result)
                    self._comes_several = isinstance(result, Together)
                    if gathering is not None and not self._comes_several:
                        if more := node.inlet.more(gathering.room() - 1):
                            joined = Together.of([result, *more], {})
                        del more
                    if joined is not None:
                        meter.wait_in_ns += now() - waiting
                        if station.step(joined):
                            node.inlet.arrivals.give_room()
                        if self._spared is not None:
                            self._spared.done += 1
                        for one in self._lagging:
                            one.catch_up(one.node.lag)
                        waiting = now()
                    # A variable left over would keep the frame's memory in use while this thread waits.
                    del result, joined
        finally:
            station.give_up()

    def _arrivals(self, batching: Batching | None, gathering: Gathering | None) -> Iterator[tuple[int, Result]]:
        """Yields what comes in. In between, inline nodes catch up, and a batching stage passes on what is due; at the
        end everything."""
        inlet, station = self.node.inlet, self._station
        while True:
            wait_s: float | None = 0.0  # what has come goes with what is held; the stage sees whether that is late
            is_short = False
            if inlet.is_empty:
                due_ns = batching.due_ns() if batching is not None else None
                wait_s = None if due_ns is None else max(due_ns - self._clock.now_ns(), 0) / 1e9
                # What is due sooner is passed on first: an inline node may wait long.
                is_short = (wait_s is None or wait_s > _GRACE_S) and any(one.backlog for one in self._lagging)
                wait_s = _GRACE_S if is_short else wait_s
            try:
                # Where it is woken anyway before long, it is for a full batch.
                waits = self._lagging and wait_s is not None and not self._comes_several
                enough = gathering.room() if gathering is not None and waits else 1
                arrived = inlet.get(wait_s, enough)
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

    def _catch_up_with_all(self) -> None:
        with self.node.context or nullcontext():
            for one in self._lagging:
                one.catch_up(0)

    def _catch_up(self) -> None:
        """Works on the oldest result that waits for an inline node."""
        for one in self._lagging:
            if one.backlog:
                self.node.meter.wait_in_ns -= one.catch_up(len(one.backlog) - 1)  # it worked
                return


def works_for(stop: threading.Event) -> bool:
    """Whether the current thread is one of the pipeline that is ended by this event."""
    thread = threading.current_thread()
    return isinstance(thread, Worker) and thread.stop_event is stop
