"""Readers of a running pipeline's results: an iterator, the newest result, and an iterator for asyncio."""

import asyncio
import math
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

from edgert.errors import StageError
from edgert.runtime import Result, Runner, Task
from edgert.runtime.frame import has_pixels
from edgert.stages.gpu.download import Downloader

_POLL_S = 0.1


class ResultTimeout(StageError, TimeoutError):  # noqa: N818 - reads as what it is
    """No result came within the timeout."""


def checked_timeout(timeout: float | None) -> float | None:
    """Return a timeout that threads can wait for: at least 0, as what is left until a deadline; None without an end.

    Raises:
        StageError: it is no number.
    """
    if timeout is None:
        return None
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        seconds = math.nan
    if math.isnan(seconds):
        fix = "timeout=5.0, in seconds, or None to wait without an end"
        raise StageError(f"cannot wait for timeout={timeout!r}", why="it is no number", fix=fix)
    return max(seconds, 0.0) if seconds < threading.TIMEOUT_MAX else None


def timeout_error(stages: Sequence[str], timeout: float | None) -> ResultTimeout:
    """Return the error for a missing result."""
    named = " or ".join(map(repr, stages))
    fix = "use a longer timeout; pipeline.summary() shows the slowest stage"
    return ResultTimeout(f"no result from {named} within {timeout or 0:g} s", fix=fix)


class Tap:
    """A reader outside the pipeline, connected to stages whose results it takes.

    Args:
        task: task whose inlet receives the results.
        stages: names of the stages, in the order in which they were connected.
        runner: runner of the pipeline.
        leave: function that disconnects the reader.
    """

    def __init__(self, task: Task, stages: Sequence[str], runner: Runner, leave: Callable[[], None]) -> None:
        self.stages, self._inlet, self._runner, self._leave = tuple(stages), task.wiring.inlet, runner, leave
        self._downloader = Downloader()

    def take(self, timeout: float | None) -> Result | None:
        """Return the next result with a lease of its frame and a drawn image on the host; None after the last.

        Raises:
            ResultTimeout: no result came within ``timeout`` seconds.
            EdgertError: the first error of any stage.
        """
        try:
            item = self._inlet.get(timeout)
            while item is not None and not has_pixels(item[1].frame):  # released before this reader was connected
                item = self._inlet.get(timeout)
        except queue.Empty:
            self._runner.raise_error()
            raise timeout_error(self.stages, timeout) from None
        if item is None:
            self._runner.raise_error()
            return None
        result = self._downloader.with_host_image(item[1])
        return Result(result.frame, result.outputs, result.image, self.stages[item[0]])  # `replace` is slower

    def close(self) -> None:
        """Disconnect: the pipeline no longer waits for this reader. May be called twice."""
        self._runner.forget(self._inlet)
        self._leave()


class Results(Iterator[Result], AbstractContextManager["Results"]):
    """An iterator over results; see :meth:`edgert.Pipeline.results`.

    To stop early, close it, use it as a context manager, or delete it. Several threads may read: each result goes to
    one thread and is valid until that thread requests the next.
    """

    def __init__(self, tap: Tap, timeout: float | None) -> None:
        self._tap, self._timeout = tap, timeout
        # Reentrant, as in NewestResult: Ctrl-C may come after the lock was acquired and before the try block.
        self._held, self._turn = dict[int, Result](), threading.RLock()

    def __del__(self) -> None:
        self.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __next__(self) -> Result:
        _release(self._held.pop(threading.get_ident(), None))
        if not self._turn.acquire(timeout=-1 if self._timeout is None else self._timeout):
            raise timeout_error(self._tap.stages, self._timeout)
        try:
            result = self._tap.take(self._timeout)
            if result is None:
                raise StopIteration
            self._held[threading.get_ident()] = result
            return result
        finally:
            self._turn.release()

    def close(self) -> None:
        """Disconnect: the pipeline no longer waits for this reader."""
        while self._held:
            _release(self._held.popitem()[1])
        self._tap.close()


class NewestResult:
    """The newest result of one stage; see :meth:`edgert.Pipeline.latest`."""

    def __init__(self, tap: Tap) -> None:
        self._tap, self._turn = tap, threading.RLock()
        self._newest: Result | None = None

    def get(self, timeout: float | None) -> Result:
        """Return the newest result; wait for the first.

        Raises:
            ResultTimeout: no result came within ``timeout`` seconds.
            StageError: the pipeline ended before there was one.
            EdgertError: the first error of any stage.
        """
        if not self._turn.acquire(timeout=-1 if timeout is None else timeout):
            raise timeout_error(self._tap.stages, timeout)
        try:
            while (newer := self._take(0.0 if self._newest is not None else timeout)) is not None:
                _release(self._newest)
                self._newest = newer
            if self._newest is None:
                why = "the pipeline ended before there was one, or before it was first asked for"
                raise StageError(f"there is no result from {self._tap.stages[0]!r}", why=why)
            return self._newest
        finally:
            self._turn.release()

    def _take(self, timeout: float | None) -> Result | None:
        try:
            return self._tap.take(timeout)
        except ResultTimeout:
            if self._newest is None:
                raise
            return None

    def close(self) -> None:
        """Disconnect, and release the frame of the newest result."""
        self._tap.close()
        with self._turn:
            _release(self._newest)
            self._newest = None


async def stream(connect: Callable[[], Tap], timeout: float | None) -> AsyncIterator[Result]:
    """Yield results for asyncio; a separate thread waits for them, so that the event loop is never blocked.

    It connects at the first iteration, because a file waits for every connected reader.
    """
    tap, closed, held = connect(), threading.Event(), None

    def take() -> Result | None:
        until = None if timeout is None else time.monotonic() + timeout
        while not closed.is_set():
            left = _POLL_S if until is None else min(until - time.monotonic(), _POLL_S)
            try:
                return tap.take(max(left, 0.0))
            except ResultTimeout:
                if until is not None and time.monotonic() >= until:
                    raise timeout_error(tap.stages, timeout) from None
        return None

    pool = ThreadPoolExecutor(1, "edgert:aresults")
    future = None
    try:
        while True:
            future = pool.submit(take)
            held = await asyncio.wrap_future(future)
            if held is None:
                return
            yield held
            _release(held)
            held = None
    finally:
        closed.set()
        _release(held)
        if held is None and future is not None:  # canceled while the thread waited, which may still get a result
            future.add_done_callback(_release_result)
        tap.close()
        pool.shutdown(wait=False)


def _release_result(future: Future[Result | None]) -> None:
    if not future.cancelled() and future.exception() is None:
        _release(future.result())


def _release(held: Result | None) -> None:
    if held is not None:
        held.frame.lease.release()
