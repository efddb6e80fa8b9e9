"""Loop of a task in a separate thread: results go from its inlet or source through the stage into its outlets."""

import queue
import threading
from collections.abc import Sequence
from time import thread_time_ns

from edgert.clock import Clock
from edgert.runtime.frame import Frame
from edgert.runtime.inline_loop import InlineLoop
from edgert.runtime.stage import ServedSource, Source, Stage
from edgert.runtime.station import Fail, Station, Work
from edgert.runtime.task import Task
from edgert.runtime.throttle import SourceRateLimiter


class SourceStop(threading.Event):
    """Stop event of one source, which is also set when the pipeline is stopped.

    Attributes:
        pipeline: stop event of the pipeline.
    """

    def __init__(self, pipeline: threading.Event) -> None:
        super().__init__()
        self.pipeline = pipeline


class ThreadLoop(threading.Thread):
    """Thread that runs one task and the tasks inline behind it, until its input ends.

    Args:
        stop: stop event of the pipeline.
        fail: function called with the error if a task fails.
        inline: other tasks that run in this thread.

    Attributes:
        inline: other tasks that run in this thread.
        stop_event: event that ends the source; tasks behind it then end with their input.
        is_left: whether the thread was left behind in a call that does not return.
        ended_ns: time at which its tasks ended; 0 before.
    """

    def __init__(
        self, task: Task, clock: Clock, stop: threading.Event, fail: Fail, inline: Sequence[Task] = ()
    ) -> None:
        super().__init__(name=f"edgert:{task.name}", daemon=True)
        self.task, self.inline, self._clock, self.stop_event = task, inline, clock, SourceStop(stop)
        self.is_left, self.ended_ns = False, 0
        self._works = [Work(task, clock, fail), *(InlineLoop(one, clock, fail) for one in inline)]

    def station_of(self, task: Task) -> Station:
        """Return the station of a task that runs in this thread."""
        return next(work.station for work in self._works if work.task is task)

    def run(self) -> None:
        """Run the thread's body. Never raises."""
        own, *behind = self._works
        for work in reversed(behind):
            work.open()
        if not isinstance(self.task.stage, Stage):
            own.station.mark_open()
            own.succeeds(self._give_frames_or_none)
        elif own.open():
            own.succeeds(self._loop)
        for work in self._works:
            work.end()
        self.task.wiring.inlet.apply()  # answers changes that came too late
        self.ended_ns = self._clock.now_ns()

    def _loop(self) -> None:
        """Process results until the input ends: submit while there is input and room, else collect, else wait."""
        task, station, now = self.task, self._works[0].station, self._clock.now_ns
        inlet, meter, get = task.wiring.inlet, task.meter, task.wiring.inlet.get
        station.rewire()
        inlet.is_slow_to_give_room = getattr(task.stage, "limit", 1) > 1
        waiting = now()
        try:
            while True:
                due_s = station.due_s() if station.is_async and not inlet.ready else None
                try:
                    arrived = get(due_s)
                except queue.Empty:
                    station.collect(wait=False)
                    waiting = now()
                    continue
                if arrived is None:
                    break
                edge, result = arrived
                joined = station.join_parts(edge, result)
                if joined is not None:
                    meter.wait_in_ns += now() - waiting
                    if inlet.ready and station.join is None and (room := station.room) > 1:
                        station.step((joined, *inlet.take_more(room - 1)))
                    else:
                        station.step((joined,))
                    if inlet.rooms:
                        inlet.give_room()
                    waiting = now()
                # A leftover variable would keep the frame's memory in use while this thread waits.
                del arrived, result, joined
            station.finish()
        finally:
            station.drop_incomplete()

    def _give_frames_or_none(self) -> None:
        """Pass on the source's frames. Raises its error, unless the pipeline continues without the source."""
        try:
            self._give_frames()
        except Exception as error:
            self._works[0].station.trace_failure((), error)
            if not self._works[0].station.continues_after(error):
                raise

    def _give_frames(self) -> None:
        task, source, station = self.task, self.task.stage, self._works[0].station
        if isinstance(source, ServedSource):
            source.serve(SourceFrameTaker(station, self._clock, self.stop_event), self.stop_event)
            return
        assert isinstance(source, Source)
        meter, inlet, now, live = task.meter, task.wiring.inlet, self._clock.now_ns, source.live
        started, before_ns = now(), thread_time_ns()
        for frame in source.frames(self.stop_event):
            if inlet.ready:
                inlet.apply()
            worked_ns = now() - started  # without the limiter's wait
            if (limiter := task.execution.limiter) is not None and not limiter.passes(self.stop_event):
                _drop_throttled(task, frame)
                del frame
                continue
            made = now()
            if live:  # the source mostly waits for the camera, so its work is the CPU time of this thread
                used_ns = thread_time_ns()
                worked_ns, before_ns = min(used_ns - before_ns, worked_ns), used_ns
            meter.wait_in_ns += made - started - worked_ns
            station.give((frame,), made, worked_ns)
            del frame
            started = now()
            meter.wait_out_ns += started - made


class SourceFrameTaker:
    """Task of a source whose frames other threads submit. One of these threads at a time runs it."""

    def __init__(self, station: Station, clock: Clock, stop: threading.Event) -> None:
        self._station, self._clock, self._stop_event = station, clock, stop
        self._last_ns = clock.now_ns()  # when has_room() or give() ended

    def has_room(self, timeout_s: float | None) -> bool:
        """Wait until all outlets have room and the source is not paused; see :class:`FrameTaker`."""
        task, now = self._station.task, self._clock.now_ns
        meter, came_ns, have_room = task.meter, now(), True
        limiter = task.execution.limiter
        if limiter is not None and not limiter.wait(self._stop_event, timeout_s) and not self._stop_event.is_set():
            return False
        for outlet in task.wiring.outlets:
            left_s = None if timeout_s is None else max(timeout_s - (now() - came_ns) / 1e9, 0.0)
            have_room = have_room and outlet.has_room(left_s)
        meter.wait_in_ns += came_ns - self._last_ns
        self._last_ns = now()
        meter.wait_out_ns += self._last_ns - came_ns
        return have_room

    def give(self, frames: Sequence[Frame]) -> None:
        """Pass on the frames that the rate limiter lets through; see :class:`FrameTaker`."""
        task, made_ns = self._station.task, self._clock.now_ns()
        if task.wiring.inlet.ready:
            task.wiring.inlet.apply()
        if (limiter := task.execution.limiter) is not None:
            frames = [frame for frame in frames if self._passes(limiter, frame)]
        if frames:
            self._station.give(frames, made_ns, made_ns - self._last_ns)
        self._last_ns = self._clock.now_ns()

    def _passes(self, limiter: SourceRateLimiter, frame: Frame) -> bool:
        if limiter.passes(self._stop_event):
            return True
        _drop_throttled(self._station.task, frame)
        return False


def _drop_throttled(task: Task, frame: Frame) -> None:
    """Record and release a frame that the rate limiter drops."""
    task.drop(frame, "throttle")
    frame.lease.release()


def runs_pipeline_of(stop: threading.Event) -> bool:
    """Return whether the current thread belongs to the pipeline of this stop event, or of this source's event."""
    thread, pipeline = threading.current_thread(), stop.pipeline if isinstance(stop, SourceStop) else stop
    return isinstance(thread, ThreadLoop) and thread.stop_event.pipeline is pipeline
