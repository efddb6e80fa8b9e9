"""Who counts: threads of this process, or processes of this machine."""

import multiprocessing
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from ctypes import c_bool
from itertools import takewhile
from typing import Protocol

from edgert.errors import CalibrationError
from edgert.quantization.calibration.observer import Observer
from edgert.quantization.calibration.shards import Feed, Shard
from edgert.quantization.calibration.value_histogram import Histogram

Counted = dict[str, Histogram]

_AHEAD = 2  # shards per worker: one being counted, one waiting, so that nobody idles while results are added up
_DEATHS = 3
"""A worker can be killed for want of memory, by chance. A shard that is alone when it takes its third is to blame."""


class Pool(Protocol):
    """Counts shards, several at a time. A shard's counts depend on its images alone.

    Attributes:
        width: how many shards to hand out at once.
    """

    width: int

    def submit(self, shard: Shard) -> None:
        """Hands out a shard. Does not block."""
        ...

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        """The counts of a shard that was handed out before all others; None when they take longer than that.

        Raises:
            EdgertError: what the counting raised, or what became of the workers.
        """
        ...

    def close(self) -> None:
        """Drops what has not begun, waits for what has, and gives everything back."""
        ...


class Threads:
    """See :class:`Pool`: threads that share one observer."""

    def __init__(self, observer: Observer, feed: Feed | None, threads: int) -> None:
        self.width = _AHEAD * threads
        self._observer, self._feed = observer, feed
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="calibrate")
        self._running: dict[int, Future[Counted]] = {}
        self._closed = threading.Event()

    def submit(self, shard: Shard) -> None:
        """See :class:`Pool`."""
        self._running[shard.start] = self._pool.submit(self._count, shard)

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        """See :class:`Pool`."""
        if not _is_done(self._running[shard.start], timeout_s):
            return None
        return self._running.pop(shard.start).result()

    def close(self) -> None:
        """See :class:`Pool`. What has begun ends with the image it is at."""
        self._closed.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _count(self, shard: Shard) -> Counted:
        return self._observer.count(takewhile(lambda _: not self._closed.is_set(), shard.images(self._feed)))


class Processes:
    """See :class:`Pool`: processes started afresh, each with an observer of its own.

    When one of them dies, whatever was handed out and is not done is done again, one shard at a time, so that a shard
    that kills its worker is found; counts stay exact, since a shard is added as a whole.
    """

    def __init__(self, observer: Observer, feed: Feed | None, workers: int) -> None:
        self.width = _AHEAD * workers
        self._workers = workers
        self._context = multiprocessing.get_context("spawn")  # a fork would copy the locks of other threads
        self._closed = self._context.RawValue(c_bool, False)  # no lock, which a killed worker could take with it
        self._work: _Work = observer, feed, self._closed
        self._pool = self._new_pool()
        self._running: dict[int, tuple[Shard, Future[Counted]]] = {}
        self._waiting: dict[int, Shard] = {}
        self._deaths: dict[int, int] = {}  # shard → workers that died while it was with one

    def submit(self, shard: Shard) -> None:
        """See :class:`Pool`. While there are suspects, they go first."""
        self._waiting[shard.start] = shard
        if not self._deaths:
            self._start_waiting()

    def take(self, shard: Shard, timeout_s: float) -> Counted | None:
        """See :class:`Pool`.

        Raises:
            CalibrationError: workers keep dying over this shard.
        """
        try:
            if shard.start in self._waiting:
                self._start(shard)
            future = self._running[shard.start][1]
            if not _is_done(future, timeout_s):
                return None
            counted = future.result()
        except BrokenProcessPool as error:
            self._begin_again(shard, error)
            return None
        del self._running[shard.start]
        self._deaths.pop(shard.start, None)
        if not self._deaths:
            self._start_waiting()
        return counted

    def close(self) -> None:
        """See :class:`Pool`. What has begun ends with the image it is at."""
        self._closed.value = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._workers, mp_context=self._context, initializer=_begin, initargs=(self._work,))

    def _start(self, shard: Shard) -> None:
        self._running[shard.start] = shard, self._pool.submit(_count, shard)
        del self._waiting[shard.start]

    def _start_waiting(self) -> None:
        try:
            for shard in list(self._waiting.values()):
                self._start(shard)
        except BrokenProcessPool:
            return  # it stays among the waiting; whoever takes the next result begins again

    def _begin_again(self, shard: Shard, cause: BrokenProcessPool) -> None:
        """New workers, and the shards of the old ones put back."""
        lost = {start: found for start, (found, future) in self._running.items() if _is_lost(future)}
        for start in {*lost, shard.start}:
            self._deaths[start] = self._deaths.get(start, 0) + 1
        if self._deaths[shard.start] >= _DEATHS:
            raise deadly(shard, f"{_DEATHS} worker processes died over them") from cause
        self._running = {start: found for start, found in self._running.items() if start not in lost}
        self._waiting = dict(sorted({**self._waiting, **lost}.items()))
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._new_pool()


def deadly(shard: Shard, why: str) -> CalibrationError:
    """The error for images that no worker survives."""
    return CalibrationError(
        f"counting {', '.join(map(repr, shard.names))} fails again and again",
        why=why,
        fix="free some memory or use fewer workers; leave these images out if they are damaged; "
        'in a script, call it below  if __name__ == "__main__":',
    )


def _is_done(future: Future[Counted], timeout_s: float) -> bool:
    return bool(wait([future], timeout_s).done)


def _is_lost(future: Future[Counted]) -> bool:
    return not future.done() or isinstance(future.exception(), BrokenProcessPool)


_Work = tuple[Observer, Feed | None, c_bool]
_work: _Work | None = None  # of a worker process


def _begin(work: _Work) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers itself
    _work = work


def _count(shard: Shard) -> Counted:
    assert _work is not None  # the initializer ran before
    observer, feed, closed = _work
    return observer.count(takewhile(lambda _: not closed.value, shard.images(feed)))
