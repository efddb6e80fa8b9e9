"""Frames that the user's own code brings: ``source: api``."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import StageError
from edgert.memory import Counter, lend
from edgert.runtime.frame import Frame, PixelFormat
from edgert.runtime.stage import SourceStats
from edgert.stages.source.planes import as_planes
from edgert.stages.source.timeline import Image, MediaClock, Timeline

DEFAULT_QUEUE = 4
_POLL_S = 0.1


class ApiSource:
    """Takes frames from any thread and gives them out in the order they came. Loses none: :meth:`submit` waits.

    Without ``copy=True`` no pixel is copied: the frame *is* the caller's memory, which must not change until the
    pipeline has let go of it, which is when the results of that frame have been taken and released.
    """

    live = False

    def __init__(self, name: str, config: SourceStage, counter: Counter, clock: Clock) -> None:
        self._where, self._counter, self._clock = f"stages.{name}", counter, clock
        self._capacity = config.queue or DEFAULT_QUEUE
        self._waiting: deque[Image] = deque()
        self._changed = threading.Condition()
        self._is_finished = self._is_over = False
        self._first_ns: int | None = None
        self._submitted = 0
        self._timeline = Timeline(name, config, clock, MediaClock(False), fps=config.fps, paced=False)
        self.share = self._timeline.share

    def submit(
        self,
        array: Any,
        *,
        format: PixelFormat = "bgr",
        timestamp_ns: int | None = None,
        timeout_s: float | None = None,
        copy: bool = False,
    ) -> int:
        """Hands over one frame; blocks while the queue is full. Callable from any thread.

        Args:
            array: uint8 pixels, as anything with ``__array_interface__`` or DLPack on the CPU (NumPy, PyTorch …):
                bgr, rgb (height, width, 3), gray (height, width), yuyv (height, width, 2); or for i420 and nv12 the
                sequence of their planes. Rows may be padded; pixels of one row must lie side by side.
            timestamp_ns: when it was captured, by the monotonic clock; now by default.
            timeout_s: longest wait for room; None waits until there is some.
            copy: take a copy (counted), so that the array may change at once.

        Returns:
            How many frames were submitted before this one.

        Raises:
            StageError: wrong type, shape or memory layout; no room in time; or the pipeline has ended.
        """
        planes = as_planes(array, format, self._where, copy=copy)
        if copy:
            self._counter.copied(sum(plane.nbytes for plane in planes))
        with self._changed:
            may_go_on = lambda: self._is_over or self._is_finished or len(self._waiting) < self._capacity  # noqa: E731
            if not self._changed.wait_for(may_go_on, timeout_s):
                raise StageError(
                    f"no room for a frame within {timeout_s:g} s",
                    why=f"{len(self._waiting)} frames wait already; the pipeline is slower than they come",
                    where=self._where,
                    fix="submit less often, wait longer, or raise queue:",
                )
            if self._is_over or self._is_finished:
                why = "finish() was called" if self._is_finished else "the pipeline has ended"
                raise StageError("no more frames can be submitted", why=why, where=self._where)
            now_ns = self._clock.now_ns() if timestamp_ns is None else timestamp_ns
            self._first_ns = now_ns if self._first_ns is None else self._first_ns
            lease = lend(planes, self._counter)
            self._waiting.append(Image(format, planes, lease, now_ns, now_ns - self._first_ns))
            self._changed.notify_all()
            self._submitted += 1
            return self._submitted - 1

    def finish(self) -> None:
        """No more frames will come; those already submitted are still processed. May be called twice."""
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Frames until :meth:`finish`, the limit, or ``stop``."""
        try:
            yield from self._timeline.frames(self._images(stop), stop)
        finally:
            self.close()

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None:
        """Refuses further frames and drops those that nobody took. May be called twice."""
        with self._changed:
            self._is_over = True
            for image in self._waiting:
                image.lease.release()
            self._waiting.clear()
            self._changed.notify_all()

    def _images(self, stop: threading.Event) -> Iterator[Image]:
        while not stop.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_finished or self._is_over, _POLL_S)
                if not self._waiting:
                    if self._is_finished or self._is_over:
                        return
                    continue
                image = self._waiting.popleft()
                self._changed.notify_all()
            yield image
