"""Threads of a pipeline: their start, and their end with the sources, on request, or after the first error."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from edgert.clock import REAL, Clock
from edgert.errors import EdgertError, StageError
from edgert.runtime.channel import Inlet
from edgert.runtime.graph import Graph
from edgert.runtime.stage import ServedSource, Source
from edgert.runtime.station import Station
from edgert.runtime.task import Task
from edgert.runtime.thread_loop import ThreadLoop
from edgert.runtime.watchdog import Watchdog

DRAIN_S = 1.2
"""Seconds in which results in flight may still arrive after a stop; then they are dropped and files are closed. This
leaves 0.8 s of the promised 2 s for finishing files."""
_GRACE_S, _CLOSE_S = 1.8, 1.0
"""Seconds after which a stage that is still in a call counts as stuck, and seconds that the other stages then have to
close. So a process ends within 5 s of a stop, whatever hangs."""
_FINISH_S = 30.0
"""Longest time for a stage that closes files while it is seen to write or compute."""
_POLL_S = 0.1
_MORE_THREADS = "allow this process more threads (ulimit -u, pids limit) or memory"
_LOG = logging.getLogger(__name__)


class Runner:
    """The threads of one pipeline. Not restartable.

    Args:
        graph: graph of the tasks, or a list of connected tasks in topological order.
        add_place: function that adds the place in the pipeline file to an error before it is stored.

    Attributes:
        stop_event: event that is set once the sources were asked to end.
        on_end: function that the supervisor calls once all threads have ended.
    """

    def __init__(
        self,
        graph: Graph | Sequence[Task],
        clock: Clock = REAL,
        add_place: Callable[[EdgertError], EdgertError] = lambda error: error,
    ) -> None:
        self.graph = graph if isinstance(graph, Graph) else Graph(graph)
        self.clock = clock
        self._add_place = add_place
        self.stop_event = threading.Event()
        self._error: EdgertError | None = None
        self._is_released = False
        self._error_lock = threading.Lock()
        self._first_stop = threading.Lock()  # acquired by the first stop, and never released
        self._loops = tuple(self._loop(task) for task in self.graph.tasks if task.execution.carrier is None)
        self._supervisor: threading.Thread | None = None
        own = self.graph
        self._watchdog = Watchdog(lambda: own.tasks, self._loops, clock)
        self._over, self._wake = threading.Event(), threading.Event()  # _wake is set with stop_event and with _over
        self._began = threading.Event()
        self._listeners: list[Inlet] = []
        self.started_ns = self._ended_ns = 0
        self.on_end: Callable[[], object] = lambda: None
        self.graph.run_by(self)

    def _set_loops(self, loops: Sequence[ThreadLoop]) -> None:
        self._loops = tuple(loops)
        self._watchdog.loops = self._loops

    def _loop(self, task: Task) -> ThreadLoop:
        inline = [one for one in self.graph.tasks if one.execution.carrier is task]
        return ThreadLoop(task, self.clock, self.stop_event, self.fail, inline)

    @property
    def is_running(self) -> bool:
        """Whether any thread still runs, except those left behind in a call."""
        return any(loop.is_alive() and not loop.is_left for loop in self._loops)

    @property
    def has_stuck_threads(self) -> bool:
        """Whether a thread was left behind in a call that does not return."""
        return any(loop.is_alive() and loop.is_left for loop in self._loops)

    @property
    def ended_ns(self) -> int:
        """Time at which the last thread ended; 0 while one runs, and before the start."""
        if not self._ended_ns and self._began.is_set() and not self.is_running:
            self._ended_ns = max((loop.ended_ns for loop in self._loops), default=0)
        return self._ended_ns

    @property
    def is_stopping(self) -> bool:
        """Whether the sources were asked to end."""
        return self.stop_event.is_set()

    def is_working(self, task: Task) -> bool:
        """Return whether a task's thread still runs."""
        return any(loop.task is task.thread and loop.is_alive() for loop in self._loops)

    # Methods for changes of the graph; see :class:`~edgert.runtime.graph.Running`.

    def station_of(self, task: Task) -> Station | None:
        """Return the station of a task whose thread runs, or None."""
        loop = next((loop for loop in self._loops if loop.task is task.thread), None)
        if loop is None or not loop.is_alive() or task.meter.status.has_ended:
            return None
        return loop.station_of(task)

    def start_task(self, task: Task) -> None:
        """Start a thread for an added task. Raises StageError where the system refuses one."""
        if not self._began.is_set() and not self.is_stopping:  # it starts with the other threads
            self._set_loops((*self._loops, self._loop(task)))
            return
        if self.stop_event.is_set() or self._over.is_set():
            raise StageError(f"task {task.name!r} cannot be added", why="the pipeline has ended, or is stopping")
        loop = self._loop(task)
        self._set_loops((*(other for other in self._loops if other.is_alive()), loop))
        try:
            loop.start()
        except RuntimeError as error:
            self._set_loops([other for other in self._loops if other is not loop])
            raise StageError(f"task {task.name!r} cannot be started", why=str(error), fix=_MORE_THREADS) from error
        if self.stop_event.is_set():  # set meanwhile
            self.end_source(task)

    def end_source(self, task: Task) -> None:
        """Ask one source to end."""
        for loop in self._loops:
            if loop.task is task:
                loop.stop_event.set()
        if isinstance(task.stage, ServedSource):
            task.stage.wake()

    def raise_error(self) -> None:
        """Raise the first error of any stage, if there was one. See :meth:`release_threads` for its traceback."""
        if self._error is not None:
            raise self._error.again() if self._is_released else self._error

    def start(self) -> None:
        """Start all threads, consumers first. If the system refuses one, end the started ones with an error."""
        self.started_ns = self.clock.now_ns()
        self._supervisor = threading.Thread(target=self._supervise, name="edgert:supervisor", daemon=True)
        try:
            self._supervisor.start()
            for loop in reversed(self._loops):
                loop.start()
        except RuntimeError as error:
            self.fail(StageError("the pipeline's threads cannot be started", why=str(error), fix=_MORE_THREADS))
            for loop in self._loops:
                if loop.ident is None:
                    self._close_outlets(loop, ())
        finally:
            self._began.set()

    def stop(self) -> None:
        """Ask the sources to end; return at once.

        Any thread may call it, more than once. It waits for no lock, so a signal handler may call it, too.
        """
        if not self._first_stop.acquire(blocking=False):
            return
        self.stop_event.set()
        for loop in self._loops:
            loop.stop_event.set()
        self._wake.set()
        for task in self.graph.tasks:
            if isinstance(task.stage, ServedSource):
                task.stage.wake()
            task.wiring.inlet.finish()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until every thread has ended or was left behind after a stop; return False if the time ran out first.

        Raises:
            EdgertError: the first error of any stage, once all threads have ended.
        """
        deadline = None if timeout_s is None else REAL.now_ns() + round(timeout_s * 1e9)
        while (loop := next((one for one in self._loops if one.is_alive() and not one.is_left), None)) is not None:
            left_s = _POLL_S if deadline is None else min((deadline - REAL.now_ns()) / 1e9, _POLL_S)
            loop.join(max(left_s, 0.0))
            if left_s <= 0 and loop.is_alive():
                return False
        self._ended_ns = self.ended_ns or self.clock.now_ns()
        self._over.set()
        self._wake.set()
        self.raise_error()
        return True

    def shut_down(self) -> None:
        """Stop and wait. Raises the first error, or StageError naming a stage that does not end."""
        self.stop()
        for inlet in self._listeners:
            inlet.abandon()
        self.wait()

    def release_threads(self) -> None:
        """Drop references to ended threads, so that the pipeline is freed without Python's garbage collector.

        The collector could free GPU memory while another thread records a CUDA graph, which CUDA forbids. Errors raised
        after this call have no traceback of the failed stage.
        """
        self._set_loops([loop for loop in self._loops if loop.is_alive()])
        self.graph.run_by(None)
        if self._supervisor is not None and self._over.is_set():
            if self._supervisor.ident is not None:
                self._supervisor.join()  # it refers to the runner until it has ended
            self._supervisor = None
        if self._error is not None:
            self._error, self._is_released = self._error.again(), True

    def stop_unless_listened_to(self) -> None:
        """Stop, unless a reader outside the pipeline is registered."""
        if not self._listeners:
            self.stop()

    def fail(self, error: EdgertError) -> None:
        """Store an error, if it is the first, and stop; return at once. Callable from any thread."""
        with self._error_lock:
            self._error = self._error or self._add_place(error)
        self.stop()

    def listen(self, inlet: Inlet) -> None:
        """Register a reader outside the pipeline, whose inlet is abandoned at the end in case it stopped reading."""
        self._listeners = [*self._listeners, inlet]

    def forget(self, inlet: Inlet) -> None:
        """Unregister a reader."""
        self._listeners = [other for other in self._listeners if other is not inlet]

    def _supervise(self) -> None:
        """Watch the tasks until the end, and announce it. Body of the supervisor thread."""
        self._began.wait()
        self._watch()
        self.on_end()

    def _watch(self) -> None:
        """Watch the tasks until the end, and end those that do not end themselves."""
        while not self.stop_event.is_set():
            self._wake.wait(self._watchdog.every_s)
            if self._over.is_set() or not self.is_running:
                return
            self._watchdog.look()
            alive = any(loop.is_alive() for loop in self._loops if isinstance(loop.task.stage, Source))
            if not alive and self._watchdog.tasks_hung_at_end():
                self.stop()
        if self._over.wait(DRAIN_S):
            return
        for inlet in (*self._listeners, *(task.wiring.inlet for task in self.graph.tasks)):
            inlet.abandon()
        self._watchdog.look()  # notes the CPU time and bytes written so far, for finishes()
        if not self._over.wait(_GRACE_S) and self.is_running:
            if hung := [task for task in self._stuck_tasks() if self._watchdog.hangs(task)]:
                self._end_without(hung)
            self._wait_for_all_but(hung, _FINISH_S)
            if not hung and not self._over.is_set() and self.is_running:
                self._end_without(hung := self._stuck_tasks())
                self._wait_for_all_but(hung, _CLOSE_S)
            for loop in self._loops:
                loop.is_left = loop.is_alive()

    def _wait_for_all_but(self, hung: Sequence[Task], seconds: float) -> None:
        """Wait until all other tasks have closed, or none of them makes progress, or the time is over."""
        stuck = {loop for task in hung for loop in self._watchdog.loops_of(task)}
        others = [loop for loop in self._loops if loop not in stuck]
        began_ns = REAL.now_ns()
        while any(loop.is_alive() for loop in others) and not self._over.wait(_POLL_S / 2):
            waited_s = (REAL.now_ns() - began_ns) / 1e9
            if waited_s > seconds or (waited_s > _CLOSE_S and not any(map(self._watchdog.finishes, self.graph.tasks))):
                return

    def _stuck_tasks(self) -> list[Task]:
        """Return stages in a call and sources that do not end; if there are none, all tasks whose thread still runs."""
        alive = [loop for loop in self._loops if loop.is_alive()]
        busy = [task for task in self.graph.tasks if task.meter.status.since_ns]
        busy += [one.task for one in alive if isinstance(one.task.stage, Source) and not any(self._tasks_in_call(one))]
        return busy or [one.task for one in alive]

    def _tasks_in_call(self, loop: ThreadLoop) -> Iterator[Task]:
        """Yield the tasks that are in a call in a loop's thread."""
        return (one for one in self.graph.tasks if one.meter.status.since_ns and one.thread is loop.task)

    def _end_without(self, stuck: Sequence[Task]) -> None:
        """End all tasks that wait for stuck ones, and interrupt the stuck ones where they support it."""
        names, now_ns = ", ".join(task.name for task in stuck), self.clock.now_ns()
        since = [task.meter.status.since_ns for task in stuck]
        since_s = max((now_ns - since_ns) / 1e9 for since_ns in since) if all(since) else 0.0
        why = f"it has been in one call for {since_s:.1f} s" if since_s else "it still runs after the stop"
        if at := ", ".join(filter(None, map(self._watchdog.place_of, stuck))):
            why += f", at {at}"
        error = StageError(
            f"stage {names} does not end", why=f"{why}; its thread is left behind, all other stages were closed"
        )
        if self._error is not None:  # the first error is the one to raise
            _LOG.warning("%s", error)
        self.fail(error)
        for loop in self._loops:
            if loop.is_alive() and (loop.task in stuck or any(self._tasks_in_call(loop))):
                self._close_outlets(loop, stuck)
        for task in stuck:
            if (interrupt := getattr(task.stage, "interrupt", None)) is not None:
                interrupt()

    def _close_outlets(self, loop: ThreadLoop, stuck: Sequence[Task]) -> None:
        """Close the outlets of a thread's tasks, except those to stuck tasks, which another thread may be calling."""
        kept = {id(channel) for task in stuck for channel in task.wiring.inlet.channels}
        for task in (loop.task, *loop.inline):
            for outlet in task.wiring.outlets:
                if id(outlet) not in kept:
                    outlet.close()
