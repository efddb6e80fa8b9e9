"""A thread that runs jobs one after the other, for threads that must not wait."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


class Worker(threading.Thread):
    """A thread that runs one job after the other. It is a daemon: a job that hangs in a driver delays no exit."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs = queue.SimpleQueue[Callable[[], object] | None]()

    def run(self) -> None:
        """Run jobs until :meth:`stop`."""
        while (job := self._jobs.get()) is not None:
            job()

    def submit(self, work: Callable[[], _T]) -> "Future[_T]":
        """Return what a function returns or raises, later."""
        future = Future[_T]()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:  # noqa: BLE001 - its future raises it
                    future.set_exception(error)

        self._jobs.put(job)
        return future

    def stop(self) -> None:
        """End the thread after the job that it runs now."""
        self._jobs.put(None)
