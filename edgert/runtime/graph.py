"""The graph of a pipeline's tasks, and its changes while the pipeline runs.

Every change is checked first; where it raises, nothing has changed. Data that another thread uses is changed by that
thread, between two results:

- the *outlets* of a producer are one tuple, read once for each result, so that one assignment changes them;
- the *inlet* and the *stage* of a consumer are changed in the thread that calls the stage, by a
  :class:`~edgert.runtime.channel.Change` that comes through the inlet as a result does.

So the path of a result has no lock. A new listener gets every result from some point on; a removed one gets none after
some point. Changes are made one at a time; each call returns when its change is made.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from edgert.errors import StageError
from edgert.policy import Drop
from edgert.runtime.channel import Change, Channel
from edgert.runtime.stage import DisplayStage, Source, Stage
from edgert.runtime.station import Station
from edgert.runtime.task import Task
from edgert.tracing import Recorder

CHANGE_S, OPENING_S = 5.0, 120.0
"""Timeouts for a task to reach its next safe point (the end of a call, or a source's frame), and to open a stage."""


class Running(Protocol):
    """The threads of a running pipeline; see :class:`~edgert.runtime.runner.Runner`."""

    def station_of(self, task: Task) -> Station | None:
        """Return the station of a task whose thread runs, or None."""

    def is_working(self, task: Task) -> bool:
        """Return whether a task's thread still runs."""

    def start_task(self, task: Task) -> None:
        """Start a thread for an added task, if the pipeline runs. Raises StageError where that fails."""

    def end_source(self, task: Task) -> None:
        """Ask one source to end."""


class Graph:
    """Connected tasks of one pipeline. Operations may be called from any thread except those of the pipeline.

    An operation that cannot be done raises StageError with the reason, and changes nothing. That includes a task that
    does not reach a safe point within :data:`CHANGE_S`, because its stage hangs.

    Args:
        tasks: tasks in topological order.

    Attributes:
        tasks: the current tasks; replaced by a new tuple when one is added or removed.
        recorder: recorder of the activity of all tasks; None: it is not recorded.
        removed_frames, removed_throttled: number of frames that removed sources gave and throttled.
        mark_pixel_use: function called after each change to mark which tasks need pixels; see :func:`release_pixels`.
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self.tasks: tuple[Task, ...] = tuple(tasks)
        self.mark_pixel_use: Callable[[Sequence[Task]], object] = len
        self.recorder: Recorder | None = None
        self.removed_frames = self.removed_throttled = 0
        self._outside: tuple[Task, ...] = ()  # listeners that are not tasks of the pipeline
        self._running: Running | None = None
        self._turn = threading.RLock()  # one change at a time

    def record(self, recorder: Recorder | None) -> None:
        """Record the activity of all present and future tasks; None ends the recording."""
        with self._turn:
            self.recorder = recorder
            for task in self.tasks:
                task.use_recorder(recorder)

    def run_by(self, running: Running | None) -> None:
        """Set the threads that run the tasks; None: they have ended."""
        self._running = running

    def task(self, name: str) -> Task:
        """Return the task of that name. Raises StageError if there is none."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise StageError(f"no task {name!r}", fix=f"tasks: {', '.join(task.name for task in self.tasks)}")

    def add(self, task: Task) -> None:
        """Add a task and start it. Call :meth:`connect` for its producers first.

        Connect the listeners of a source first, too; else they miss its first frames.

        Raises:
            StageError: the name is taken, or the system starts no more threads.
        """
        with self._turn:
            if any(other.name == task.name for other in self.tasks):
                raise StageError(f"a task named {task.name!r} already exists", fix="give the new task another name")
            task.use_recorder(self.recorder)
            self.tasks = (*self.tasks, task)
            self._outside = tuple(other for other in self._outside if other is not task)
            self._mark_changed()
            try:
                if self._running is not None:
                    self._running.start_task(task)
            except BaseException:
                self._forget(task)
                raise

    def connect(self, producer: Task, consumer: Task, streams: frozenset[str], capacity: int, drop: Drop) -> Channel:
        """Connect a task to a producer, from the producer's next result on; see :func:`connect`.

        A consumer that was not added may read its inlet itself, and :meth:`leave` later. Joins behind the consumer
        include these streams from then on.

        Raises:
            StageError: the two are connected already; the edge would close a cycle; one of them shares a thread or has
                branches; or the consumer hangs.
        """
        with self._turn:
            self._check_connection(producer, consumer)
            self._add_streams_behind(consumer, streams)
            made = list[Channel]()

            def change() -> None:
                made.append(_attach(producer, consumer, streams, capacity, drop))
                if (station := self._station(consumer)) is not None:
                    station.rewire()

            self._apply(consumer, change)
            if consumer not in self.tasks:
                self._outside = (*self._outside, consumer)
            _open_outlet(producer, made[0])
            if self._has_ended(producer):
                made[0].close()
            self._mark_changed()
            return made[0]

    def leave(self, listener: Task) -> None:
        """Disconnect a listener that was never added, and end its inlet. May be called twice."""
        with self._turn:
            for producer in dict.fromkeys(producer for producer, _ in listener.wiring.edges()):
                self.disconnect(producer, listener)
            listener.wiring.inlet.finish()
            self._outside = tuple(other for other in self._outside if other is not listener)
            self._mark_changed()

    def disconnect(self, producer: Task, consumer: Task) -> None:
        """Undo :meth:`connect`. The consumer still processes the results that it has received.

        A consumer without another edge waits for a new one until the pipeline stops.

        Raises:
            StageError: the two are not connected, or share a thread; or the consumer hangs.
        """
        with self._turn:
            edges = [channel for other, channel in consumer.wiring.edges() if other is producer]
            if not edges:
                raise StageError(f"task {consumer.name!r} does not listen to {producer.name!r}")
            if consumer.execution.carrier is not None or producer.wiring.branch is not None:
                what = f"task {consumer.name!r} cannot be disconnected from {producer.name!r}"
                raise StageError(what, why="they are parts of one stage, or share a thread")

            def change() -> None:
                for channel in edges:
                    _detach(consumer, channel)
                if (station := self._station(consumer)) is not None:
                    station.rewire()

            before = producer.wiring.outlets
            producer.wiring.outlets = tuple(outlet for outlet in before if outlet not in edges)
            try:
                self._apply(consumer, change)
            except BaseException:
                producer.wiring.outlets = before
                raise
            self._mark_changed()

    def remove(self, task: Task) -> None:
        """Remove a task. A source is asked to end first, and its frames in flight are processed.

        A stage passes on the results that it holds, and is closed. Its listeners then wait for a new edge.

        Raises:
            StageError: the task is not in this pipeline, shares its thread, has branches, or hangs.
        """
        with self._turn:
            self._check_is_present(task)
            self._check_is_separate(task)
            listeners = [other for other in (*self.tasks, *self._outside) if other.wiring.listens_to(task)]
            for listener in listeners:  # they do not end with the task
                listener.wiring.inlet.is_kept_open = True
            try:
                for producer in dict.fromkeys(producer for producer, _ in task.wiring.edges()):
                    self.disconnect(producer, task)
                task.wiring.inlet.finish()
                self._end(task)
            except BaseException:
                for listener in listeners:
                    listener.wiring.inlet.finish()
                raise
            for listener in listeners:
                self.disconnect(task, listener)
            self._forget(task)
            if isinstance(task.stage, Source):  # counters of the run never fall
                self.removed_frames += task.meter.results_out
                self.removed_throttled += getattr(task.execution.limiter, "throttled", 0)

    def replace(self, task: Task, stage: Stage) -> None:
        """Replace the stage of a task, which keeps its name, edges, thread and meter.

        The old stage passes on the results that it holds. Then the new one is opened in the task's thread, and the old
        one is closed. During opening, the task processes nothing, and both stages are in memory.

        Raises:
            StageError: the task is a source, or it hangs.
            Exception: the error of opening the new stage; the old one stays.
        """
        with self._turn:
            self._check_is_present(task)
            if isinstance(task.stage, Source) or isinstance(stage, Source):
                why, fix = "a source cannot be replaced", "remove the source and add another"
                raise StageError(f"the stage of task {task.name!r} cannot be replaced", why=why, fix=fix)
            station = self._station(task)
            if station is None:
                task.stage = stage
            else:
                self._apply(task, lambda: station.replace(stage), OPENING_S)
            self._no_longer_show(task)

    def at_safe_point(self, task: Task, change: Callable[[], object]) -> None:
        """Run a change of a task's stage in its thread, between two results. Raises as :meth:`replace` does."""
        with self._turn:
            self._check_is_present(task)
            station = self._station(task)

            def change_and_record() -> None:
                change()
                if station is not None:
                    station.record_replacement()

            self._apply(task, change_and_record)

    # Changes that are made in a task's thread.

    def _apply(self, task: Task, change: Callable[[], None], timeout_s: float | None = None) -> None:
        """Run a change in a task's thread, or at once where no thread runs."""
        if self._station(task) is None:
            change()
            return
        change_request, timeout_s = Change(change), timeout_s or CHANGE_S
        task.thread.wiring.inlet.announce(change_request)
        if change_request.wait(lambda: self._has_ended(task), timeout_s):
            return
        if not self._has_ended(task):
            why = f"its thread has been in one call, or without a frame, for {timeout_s:g} s"
            raise StageError(f"task {task.name!r} was not changed", why=why, fix="try again once it continues")
        change()

    def _add_streams_behind(self, producer: Task, streams: frozenset[str]) -> None:
        """Add streams to all edges behind a task."""
        for task in self.tasks:
            carried = task.wiring.streams
            for number, other in enumerate(task.wiring.producers):
                if other is producer and not streams <= carried[number]:
                    self._apply(task, partial(self._add_streams, task, number, streams))
                    self._add_streams_behind(task, streams)

    def _add_streams(self, task: Task, edge: int, streams: frozenset[str]) -> None:
        task.wiring.streams[edge] |= streams
        if (station := self._station(task)) is not None:
            station.rewire()

    def _station(self, task: Task) -> Station | None:
        return None if self._running is None else self._running.station_of(task)

    def _has_ended(self, task: Task) -> bool:
        """Return whether the task's thread has run and ended."""
        return self._running is not None and task.meter.status.has_ended

    def _end(self, task: Task) -> None:
        """Wait until a task's thread has ended; ask a source to end first."""
        if self._running is None:
            return
        if isinstance(task.stage, Source):
            self._running.end_source(task)
        for _ in range(round(CHANGE_S / _POLL_S)):
            if not self._running.is_working(task):
                return
            time.sleep(_POLL_S)
        raise StageError(f"task {task.name!r} does not end", why=f"it still runs {CHANGE_S:g} s after it was asked to")

    def _forget(self, task: Task) -> None:
        self.tasks = tuple(other for other in self.tasks if other is not task)
        self._mark_changed()
        self._no_longer_show(task)

    def _no_longer_show(self, task: Task) -> None:
        for other in self.tasks:
            if isinstance(other.stage, DisplayStage):
                other.stage.forget(task.name)

    def _mark_changed(self) -> None:
        self.mark_pixel_use((*self.tasks, *self._outside))

    # Checks.

    def _check_connection(self, producer: Task, consumer: Task) -> None:
        what = f"task {consumer.name!r} cannot listen to {producer.name!r}"
        if isinstance(consumer.stage, Source):
            raise StageError(what, why="it is a source")
        if consumer.wiring.listens_to(producer):
            raise StageError(what, why="it already does")
        if consumer.execution.carrier is not None:
            raise StageError(what, why=f"it runs in the thread of {consumer.execution.carrier.name!r}")
        if producer.wiring.branch is not None:
            raise StageError(what, why="each result goes to one of its branches")
        ahead = [producer]
        while ahead:
            task = ahead.pop()
            if task is consumer:
                raise StageError(what, why="the connection would close a cycle")
            ahead += [other for other, _ in task.wiring.edges()]

    def _check_is_present(self, task: Task) -> None:
        if task not in self.tasks:
            raise StageError(f"no task {task.name!r}", why="it was removed or never added")

    def _check_is_separate(self, task: Task) -> None:
        """Raise StageError for a task that cannot be removed because others depend on its thread or its branches."""
        carried = [other.name for other in self.tasks if other.execution.carrier is task]
        branches = task.wiring.branch is not None or task.wiring.reorders or not task.wiring.joins
        if task.execution.carrier is not None or carried or branches:
            why = f"{' and '.join(carried)} run in its thread" if carried else "it is a part of another task's stage"
            raise StageError(f"task {task.name!r} cannot be removed", why=why)


_POLL_S = 0.002


def connect(producer: Task, consumer: Task, streams: frozenset[str], capacity: int, drop: Drop) -> Channel:
    """Connect ``consumer`` to ``producer`` before the consumer starts; return the channel between them.

    Args:
        producer: task whose results are passed on.
        consumer: task that receives them.
        streams: names of the sources whose frames pass through.
        capacity: maximum number of waiting results.
        drop: which result a full channel loses; see :class:`~edgert.runtime.channel.Channel`.
    """
    channel = _attach(producer, consumer, streams, capacity, drop)
    _open_outlet(producer, channel)
    return channel


def release_pixels(tasks: Sequence[Task]) -> None:
    """Mark the edges on which frames pass without their pixels, because no later stage reads them.

    Args:
        tasks: all connected tasks, which may be running.
    """
    listeners: dict[int, list[Task]] = {}
    for task in tasks:
        for producer, _ in task.wiring.edges():
            listeners.setdefault(id(producer), []).append(task)
    known: dict[int, bool] = {}

    def needs_pixels(task: Task) -> bool:  # for itself or for later tasks
        if id(task) not in known:
            reads_pixels = task.execution.reads in ("host", "anywhere")
            known[id(task)] = reads_pixels or any(map(needs_pixels, listeners.get(id(task), ())))
        return known[id(task)]

    for task in tasks:
        for _, channel in task.wiring.edges():
            channel.without_pixels = not needs_pixels(task)
    for task in tasks:
        wiring = task.wiring
        if wiring.branch is None:  # outlets without pixels come last, as waiting there holds no pixels
            wiring.outlets = tuple(sorted(wiring.outlets, key=lambda outlet: outlet.without_pixels))
        wiring.releases_pixels = bool(wiring.outlets) and all(outlet.without_pixels for outlet in wiring.outlets)


def _attach(producer: Task, consumer: Task, streams: frozenset[str], capacity: int, drop: Drop) -> Channel:
    """Add an edge to a consumer, under the number of a removed one if there is one."""
    wiring = consumer.wiring
    place = next((number for number, one in enumerate(wiring.producers) if one is None), None)
    channel = wiring.inlet.connect(capacity, drop, place)
    if place is None:
        wiring.streams.append(streams)
        wiring.producers.append(producer)
    else:
        wiring.streams[place], wiring.producers[place] = streams, producer
    return channel


def _open_outlet(producer: Task, channel: Channel) -> None:
    producer.wiring.outlets = (*producer.wiring.outlets, channel)


def _detach(consumer: Task, channel: Channel) -> None:
    wiring, losses = consumer.wiring, consumer.meter.losses
    wiring.inlet.remove(channel.number)
    losses.update(channel.losses)  # they stay counted
    channel.losses, channel.dropped = Counter(), 0
    wiring.streams[channel.number], wiring.producers[channel.number] = frozenset(), None
