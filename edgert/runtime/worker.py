"""Background threads for work that must not block its caller: jobs in order, or one repeated step."""

import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

_T = TypeVar("_T")


class Worker(threading.Thread):
    """Daemon thread that runs jobs in order. A job that hangs in a driver does not delay the exit of the process."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs = queue.SimpleQueue[Callable[[], object] | None]()

    def run(self) -> None:
        """Run jobs until :meth:`stop`."""
        while (job := self._jobs.get()) is not None:
            job()
            del job  # with all that it refers to, before the next wait

    def submit(self, work: Callable[[], _T]) -> "Future[_T]":
        """Queue a function; return the future of its result."""
        future = Future[_T]()
        self._jobs.put(partial(_do, work, future))
        return future

    def stop(self) -> None:
        """End the thread after its current job."""
        self._jobs.put(None)


def _do(work: Callable[[], _T], future: "Future[_T]") -> None:
    """Call a function and settle its future."""
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - its future raises it
            future.set_exception(error)
            del work, future  # the error refers to this frame, and would keep itself


class OneJobWorker(Worker):
    """A started worker that ends after its first job. Raises RuntimeError if the system refuses a thread."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.start()

    def submit(self, work: Callable[[], _T]) -> "Future[_T]":
        future = super().submit(work)
        self.stop()
        return future


class _ShortTurns:
    """Context in which Python's threads take turns of 0.5 ms instead of 5 ms; several may be in it at a time."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._usual_s = self._short_s = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(_SHORT_TURN_S, self._usual_s))
                self._short_s = sys.getswitchinterval()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and sys.getswitchinterval() == self._short_s:  # else the program has set its own
                sys.setswitchinterval(self._usual_s)


_SHORT_TURN_S = 5e-4
SHORT_TURNS = _ShortTurns()
"""Context for long work in Python beside a running pipeline, such as imports: a frame waits for several turns."""


class StepThread:
    """Thread that calls a step function each period or when woken, and another function once at the end.

    Args:
        period_s: longest time between two calls.

    Attributes:
        wake: event to set for a call at once.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s, self.wake, self._is_last = period_s, threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def start(self, name: str, step: Callable[[bool], object], end: Callable[[], object]) -> None:
        """Start the thread. Raises RuntimeError if the system refuses one.

        Args:
            name: name of the thread.
            step: function called each time, with whether this is the last call. Its error ends the thread.
            end: function called at the end, also after an error.
        """
        self._failure = None
        self._is_last.clear()
        thread = threading.Thread(target=self._run, args=(step, end), name=name, daemon=True)
        thread.start()
        self._thread = thread

    def check(self) -> None:
        """Raise the thread's error, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self) -> bool:
        """Wait for a last step and the end; return whether the thread was started."""
        thread, self._thread = self._thread, None
        self._is_last.set()
        self.wake.set()
        if thread is None:
            return False
        thread.join()
        return True

    def _run(self, step: Callable[[bool], object], end: Callable[[], object]) -> None:
        try:
            is_last = False
            while not is_last:
                self.wake.wait(self._period_s)
                self.wake.clear()
                is_last = self._is_last.is_set()
                step(is_last)
        except BaseException as error:  # noqa: BLE001 - check() raises it
            self._failure = error
        finally:
            try:
                end()
            except BaseException as error:  # noqa: BLE001 - as above; the first failure is the cause
                self._failure = self._failure or error
