"""The graph of a pipeline's tasks, and its changes while the pipeline runs.

Every change is checked first; where it raises, nothing has changed. Data that another thread uses is changed by that
thread, between two results:

- the *outlets* of a producer are one tuple, read once for each result, so that one assignment changes them;
- the *inlet* and the *stage* of a consumer are changed in the thread that calls the stage, by a
  :class:`~edgert.runtime.channel.Change` that comes through the inlet as a result does.

So the path of a result has no lock. A new listener gets every result from some point on; a removed one gets none after
some point. Changes are made one at a time; each call returns when its change is made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from edgert.errors import StageError
from edgert.policy import Drop
from edgert.runtime.channel import Change, Channel
from edgert.runtime.stage import Showing, Source, Stage
from edgert.runtime.station import Station
from edgert.runtime.task import Task
from edgert.tracing import Recorder

CHANGE_S, OPENING_S = 5.0, 120.0
"""How long a task may take to its next safe point, a call's end or a source's frame; and to open a stage there."""


class Running(Protocol):
    """The threads of a running pipeline; see :class:`~edgert.runtime.runner.Runner`."""

    def station_of(self, task: Task) -> Station | None:
        """Return the station of a task whose thread runs; else None."""

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
        tasks: in topological order.

    Attributes:
        tasks: the current tasks; replaced by a new tuple when one is added or removed.
        recorder: records what all tasks do; None: nothing is recorded.
        mark_pixel_use: called after each change, to mark which tasks need pixels; see :func:`release_pixels`.
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self.tasks: tuple[Task, ...] = tuple(tasks)
        self.mark_pixel_use: Callable[[Sequence[Task]], object] = len
        self.recorder: Recorder | None = None
        self._outside: tuple[Task, ...] = ()  # listeners that are not tasks of the pipeline
        self._running: Running | None = None
        self._turn = threading.RLock()  # one change at a time

    def record(self, recorder: Recorder | None) -> None:
        """Make all tasks record what they do, later ones as well; None: no more."""
        with self._turn:
            self.recorder = recorder
            for task in self.tasks:
                task.trace_in(recorder)

    def run_by(self, running: Running | None) -> None:
        """Set the threads that run the tasks; None: they have ended."""
        self._running = running

    def task(self, name: str) -> Task:
        """Return the task of that name. Raises StageError where there is none."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise StageError(f"no task {name!r}", fix=f"tasks: {', '.join(task.name for task in self.tasks)}")

    def add(self, task: Task) -> None:
        """Add a task and start it. Connect a stage to its producers before, by :meth:`connect`.

        Connect the listeners of a source before as well; else they miss its first frames.

        Raises:
            StageError: the name is taken, or the system has no thread for it.
        """
        with self._turn:
            if any(other.name == task.name for other in self.tasks):
                raise StageError(f"a task {task.name!r} is there already", fix="give the new one another name")
            task.trace_in(self.recorder)
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

        A consumer that is not added may take results from its inlet itself, and :meth:`leave` later. Joins behind the
        consumer include these streams from then on.

        Raises:
            StageError: they are connected already; it would make a cycle; one of them shares a thread or has branches;
                or the consumer hangs.
        """
        with self._turn:
            self._check_connection(producer, consumer)
            self._carry(consumer, streams)
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
        """Disconnect a listener that was never added; its inlet ends. May be called twice."""
        with self._turn:
            for producer in dict.fromkeys(producer for producer, _ in listener.wiring.edges()):
                self.disconnect(producer, listener)
            listener.wiring.inlet.finish()
            self._outside = tuple(other for other in self._outside if other is not listener)
            self._mark_changed()

    def disconnect(self, producer: Task, consumer: Task) -> None:
        """Undo :meth:`connect`. The consumer still processes the results that it has.

        A consumer without another edge waits for a new one until the pipeline stops.

        Raises:
            StageError: they are not connected; the two share a thread; or the consumer hangs.
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

        A stage passes on the results that it holds, and is closed. Its listeners wait for a new edge.

        Raises:
            StageError: it is not a task of this pipeline; it shares its thread or has branches; or it hangs.
        """
        with self._turn:
            self._check_there(task)
            self._check_alone(task, "removed")
            listeners = [other for other in (*self.tasks, *self._outside) if other.wiring.listens_to(task)]
            for listener in listeners:  # they do not end with it
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

    def replace(self, task: Task, stage: Stage) -> None:
        """Replace the stage of a task, which keeps its name, place, thread and meter.

        The old stage passes on the results that it holds. Then the new one is opened in the task's thread, and the old
        one is closed. During opening, the task processes nothing, and both stages are in memory.

        Raises:
            StageError: the task is a source, or it hangs.
            Exception: what opening raises; the old stage stays.
        """
        with self._turn:
            self._check_there(task)
            if isinstance(task.stage, Source) or isinstance(stage, Source):
                why, fix = "a source is no stage", "remove the source and add another"
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
            self._check_there(task)
            station = self._station(task)

            def noted() -> None:
                change()
                if station is not None:
                    station.note_replaced()

            self._apply(task, noted)

    # Changes that are made in a task's own thread.

    def _apply(self, task: Task, change: Callable[[], None], timeout_s: float | None = None) -> None:
        """Run a change in a task's thread; at once where no thread runs."""
        if self._station(task) is None:
            change()
            return
        change_request, timeout_s = Change(change), timeout_s or CHANGE_S
        task.thread.wiring.inlet.announce(change_request)
        if change_request.wait(lambda: self._has_ended(task), timeout_s):
            return
        if not self._has_ended(task):
            why = f"its thread has been in one call, or without a frame, for {timeout_s:g} s"
            raise StageError(f"task {task.name!r} was not changed", why=why, fix="try again once it goes on")
        change()

    def _carry(self, producer: Task, streams: frozenset[str]) -> None:
        """Add streams to the edges behind a task."""
        for task in self.tasks:
            carried = task.wiring.streams
            for number, other in enumerate(task.wiring.producers):
                if other is producer and not streams <= carried[number]:
                    self._apply(task, partial(self._widen, task, number, streams))
                    self._carry(task, streams)

    def _widen(self, task: Task, edge: int, streams: frozenset[str]) -> None:
        task.wiring.streams[edge] |= streams
        if (station := self._station(task)) is not None:
            station.rewire()

    def _station(self, task: Task) -> Station | None:
        return None if self._running is None else self._running.station_of(task)

    def _has_ended(self, task: Task) -> bool:
        """Return whether the task's thread has run and ended."""
        return self._running is not None and task.meter.status.has_ended

    def _end(self, task: Task) -> None:
        """Wait until a task's thread has ended; ask a source to end before."""
        if self._running is None:
            return
        if isinstance(task.stage, Source):
            self._running.end_source(task)
        for _ in range(round(CHANGE_S / _POLL_S)):
            if not self._running.is_working(task):
                return
            time.sleep(_POLL_S)
        raise StageError(f"task {task.name!r} does not end", why=f"it goes on {CHANGE_S:g} s after it was asked to")

    def _forget(self, task: Task) -> None:
        self.tasks = tuple(other for other in self.tasks if other is not task)
        self._mark_changed()
        self._no_longer_show(task)

    def _no_longer_show(self, task: Task) -> None:
        for other in self.tasks:
            if isinstance(other.stage, Showing):
                other.stage.forget(task.name)

    def _mark_changed(self) -> None:
        self.mark_pixel_use((*self.tasks, *self._outside))

    # Checks.

    def _check_connection(self, producer: Task, consumer: Task) -> None:
        what = f"task {consumer.name!r} cannot listen to {producer.name!r}"
        if isinstance(consumer.stage, Source):
            raise StageError(what, why="it is a source")
        if consumer.wiring.listens_to(producer):
            raise StageError(what, why="it does already")
        if consumer.execution.carrier is not None:
            raise StageError(what, why=f"it runs in the thread of {consumer.execution.carrier.name!r}")
        if producer.wiring.branch is not None:
            raise StageError(what, why="each result goes to one of its branches")
        ahead = [producer]
        while ahead:
            task = ahead.pop()
            if task is consumer:
                raise StageError(what, why="results would go round in a circle")
            ahead += [other for other, _ in task.wiring.edges()]

    def _check_there(self, task: Task) -> None:
        if task not in self.tasks:
            raise StageError(f"no task {task.name!r}", why="it was removed, or never added")

    def _check_alone(self, task: Task, done: str) -> None:
        carried = [other.name for other in self.tasks if other.execution.carrier is task]
        branches = task.wiring.branch is not None or task.wiring.reorders or not task.wiring.joins
        if task.execution.carrier is not None or carried or branches:
            why = f"{' and '.join(carried)} run in its thread" if carried else "it is a part of another task's stage"
            raise StageError(f"task {task.name!r} cannot be {done}", why=why)


_POLL_S = 0.002


def connect(producer: Task, consumer: Task, streams: frozenset[str], capacity: int, drop: Drop) -> Channel:
    """Connect ``consumer`` to ``producer`` before the consumer starts; return the channel between them.

    Args:
        producer: the task whose results are passed on.
        consumer: the task that gets them.
        streams: sources whose frames pass through.
        capacity: the most results that wait.
        drop: which result is lost when the channel is full; see :class:`~edgert.runtime.channel.Channel`.
    """
    channel = _attach(producer, consumer, streams, capacity, drop)
    _open_outlet(producer, channel)
    return channel


def release_pixels(tasks: Sequence[Task]) -> None:
    """Set the edges on which frames pass without their pixels, because no later stage reads them.

    Args:
        tasks: all connected tasks; may be running.
    """
    listeners: dict[int, list[Task]] = {}
    for task in tasks:
        for producer, _ in task.wiring.edges():
            listeners.setdefault(id(producer), []).append(task)
    wants: dict[int, bool] = {}

    def is_wanting(task: Task) -> bool:  # pixels, for itself or for others
        if id(task) not in wants:
            is_own = task.execution.reads in ("host", "anywhere")
            wants[id(task)] = is_own or any(map(is_wanting, listeners.get(id(task), ())))
        return wants[id(task)]

    for task in tasks:
        for _, channel in task.wiring.edges():
            channel.without_pixels = not is_wanting(task)
    for task in tasks:
        wiring = task.wiring
        if wiring.branch is None:  # outlets without pixels come last, as waiting there holds no pixels
            wiring.outlets = tuple(sorted(wiring.outlets, key=lambda outlet: outlet.without_pixels))
        wiring.releases_pixels = bool(wiring.outlets) and all(outlet.without_pixels for outlet in wiring.outlets)


def _attach(producer: Task, consumer: Task, streams: frozenset[str], capacity: int, drop: Drop) -> Channel:
    """Add an edge to a consumer, in the place of a removed one where there is one."""
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
    for key, count in channel.losses.items():  # what was lost stays counted
        losses[key] = losses.get(key, 0) + count
    channel.losses, consumer.meter.lost = {}, consumer.meter.lost + channel.dropped
    channel.dropped = 0
    wiring.streams[channel.number], wiring.producers[channel.number] = frozenset(), None
