"""Starts a pipeline's threads, watches them, and brings them down: on the end of the sources, on request, or on the
first error, which then stops the rest."""

import threading
from collections.abc import Callable, Sequence

from edgert.clock import REAL, Clock
from edgert.errors import EdgertError, StageError
from edgert.runtime.channel import Inlet
from edgert.runtime.node import Node
from edgert.runtime.stage import ServedSource
from edgert.runtime.worker import Worker

DRAIN_S = 1.2
"""After a stop, results under way may still arrive for so long; then they are dropped and files are closed.
Leaves 0.8 s of the promised 2 s for finishing files."""
_EXIT_S = 5.0


class Runner:
    """The threads of one pipeline. Not restartable.

    Args:
        nodes: every node after those it listens to, channels already connected.
        located: adds the place in the file to an error before it is stored.

    Attributes:
        stop_event: set once the sources were asked to end.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        clock: Clock = REAL,
        located: Callable[[EdgertError], EdgertError] = lambda error: error,
    ) -> None:
        self.nodes = tuple(nodes)
        self.clock = clock
        self._located = located
        self.stop_event = threading.Event()
        self._error: EdgertError | None = None
        self._error_lock = threading.Lock()
        self._first_stop = threading.Lock()  # taken by it, and never given back
        self._workers = [
            Worker(node, clock, self.stop_event, self.fail, [one for one in nodes if one.runs_in is node])
            for node in nodes
            if node.runs_in is None
        ]
        self._drain: threading.Timer | None = None
        self._listeners: list[Inlet] = []
        self.started_ns = self.ended_ns = 0

    @property
    def running(self) -> bool:
        """Whether any thread still runs."""
        return any(worker.is_alive() for worker in self._workers)

    @property
    def stopping(self) -> bool:
        """Whether the sources were asked to end."""
        return self.stop_event.is_set()

    def is_working(self, node: Node) -> bool:
        """Whether a node's thread still runs."""
        own = node.runs_in or node
        return any(worker.node is own and worker.is_alive() for worker in self._workers)

    def raise_error(self) -> None:
        """Raises the first error of any stage, if there was one."""
        if self._error is not None:
            raise self._error

    def start(self) -> None:
        """Starts all threads, consumers first."""
        self.started_ns = self.clock.now_ns()
        for worker in reversed(self._workers):
            worker.start()

    def stop(self) -> None:
        """Asks the sources to end; returns at once. Callable from any thread, more than once, also by the handler of a
        signal that interrupts it: so it waits for no lock."""
        if not self._first_stop.acquire(blocking=False):
            return
        self.stop_event.set()
        self._drain = threading.Timer(DRAIN_S, self._discard)
        self._drain.daemon = True
        self._drain.start()
        for node in self.nodes:
            if isinstance(node.work, ServedSource):
                node.work.wake()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until every thread has ended; False if the time ran out before.

        Raises:
            EdgertError: the first error of any stage, once all threads have ended.
        """
        deadline = None if timeout_s is None else self.clock.now_ns() + round(timeout_s * 1e9)
        for worker in self._workers:
            left_s = None if deadline is None else max(0.0, (deadline - self.clock.now_ns()) / 1e9)
            if worker.ident is not None:  # else it never started
                worker.join(left_s)
            if worker.is_alive():
                return False
        self.ended_ns = self.ended_ns or self.clock.now_ns()
        if self._drain is not None:
            self._drain.cancel()
        self.raise_error()
        return True

    def shut_down(self) -> None:
        """Stops and waits. Raises the first error, or StageError naming a stage that does not end."""
        self.stop()
        for inlet in self._listeners:
            inlet.abandon()
        if not self.wait(DRAIN_S + _EXIT_S):
            alive = [worker for worker in self._workers if worker.is_alive()]
            stuck = ", ".join(" or ".join(one.name for one in (worker.node, *worker.inline)) for worker in alive)
            raise StageError(
                f"stage {stuck} does not end",
                why=f"it is still busy {DRAIN_S + _EXIT_S:.0f} s after the stop; its thread is left behind",
            )

    def let_go(self) -> None:
        """Lets go of threads that have ended, and these of the runner: so nothing waits for Python's garbage collector,
        which frees memory of a GPU whenever it likes, also while somebody records a CUDA graph."""
        self._workers = [worker for worker in self._workers if worker.is_alive()]
        if self._drain is not None and self._drain.finished.is_set():
            self._drain.join()  # it holds the runner until it has ended
            self._drain = None

    def stop_unless_read(self) -> None:
        """Stops, unless somebody outside the pipeline reads its results."""
        if not self._listeners:
            self.stop()

    def fail(self, error: EdgertError) -> None:
        """Ends the pipeline with an error, if it is the first. Returns at once; callable from any thread."""
        with self._error_lock:
            self._error = self._error or self._located(error)
        self.stop()

    def listen(self, inlet: Inlet) -> None:
        """Notes a reader outside the pipeline, so that one who stopped reading does not hold up its end."""
        self._listeners = [*self._listeners, inlet]

    def forget(self, inlet: Inlet) -> None:
        """The reader is gone."""
        self._listeners = [other for other in self._listeners if other is not inlet]

    def _discard(self) -> None:
        for inlet in (*self._listeners, *(node.inlet for node in self.nodes)):
            inlet.abandon()
