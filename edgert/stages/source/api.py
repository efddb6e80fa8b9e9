"""Images that Python code puts into the pipeline: ``source: api``."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import index
from typing import Any, TypeVar

import numpy as np

from edgert.config.stages import SourceStage
from edgert.errors import EdgertError, StageError
from edgert.memory import Lease, lend
from edgert.memory.cuda import CudaDevice, foreign
from edgert.runtime.frame import U8, Frame, PixelFormat
from edgert.runtime.stage import FrameTaker, SourceStats
from edgert.runtime.thread_loop import runs_pipeline_of
from edgert.stages.context import Context
from edgert.stages.source.planes import (
    CHANNELS,
    Planes,
    array_planes,
    batch_planes,
    checked_planes,
    host_array,
    is_batch,
    split_batch,
    split_planes,
)
from edgert.stages.source.timeline import Image, MediaClock, Timeline
from edgert.stages.source.user_memory import Buffer, Buffers, Tensors

T = TypeVar("T")
U = TypeVar("U")

DEFAULT_QUEUE = 4
_POLL_S = 0.1
_AHEAD_NS = 1_000_000_000
"""How far a capture time may be ahead of now."""
_LOG = logging.getLogger(__name__)


class ApiSource:
    """Source of frames that a program submits from any thread, in the order of submission.

    No frame is lost: :meth:`submit` waits for room. While :meth:`serve` runs, the submitting thread itself passes its
    frames on. Before that, and for readers of :meth:`frames`, frames wait in a queue.

    Without ``copy=True`` no pixel is copied. The frame *is* the caller's memory, which must not change until the
    results of that frame have been taken and released.
    """

    live = False

    def __init__(self, name: str, config: SourceStage, context: Context) -> None:
        self._where, self._counter, self._clock = f"stages.{name}", context.counter, context.clock
        self._capacity = config.queue or DEFAULT_QUEUE
        self._waiting: deque[Image] = deque()
        self._changed = threading.Condition()
        self._is_finished = self._is_over = self._is_closed = False
        self._first_ns: int | None = None
        self._submitted, self._counting = 0, threading.Lock()
        self._timeline = Timeline(name, config, context.clock, MediaClock(False), fps=config.fps, paced=False)
        self.thin = self._timeline.thin
        self._taker: FrameTaker | None = None
        self._stop = threading.Event()  # set to end serve()
        self._turn = threading.Lock()  # held while frames are passed on
        self._device: CudaDevice | None = None
        self._tensors: Tensors | None = None
        self._buffers: Buffers | None = None
        self._is_shared = self._has_advised = False

    def share(self, device: CudaDevice) -> None:
        """Copy frames to memory that this GPU reads; see :class:`~edgert.assemble.pixels.SharingSource`."""
        self._is_shared = True
        self._timeline.share(device)

    def read_by(self, device: CudaDevice) -> None:
        """Accept arrays on this GPU, too, because a model reads them there. Call it before the start."""
        self._device = device

    def submit(
        self,
        array: Any,
        format: PixelFormat | None = None,
        timestamp_ns: int | Sequence[int] | None = None,
        copy: bool = False,
        timeout_s: float | None = None,
    ) -> int:
        """Submit one frame, or a batch of them; block while the queue is full. Callable from any thread.

        See :meth:`edgert.Pipeline.submit` for arguments, result and errors.
        """
        return self.put(array, self.images(array, format, timestamp_ns, copy), timeout_s)

    def images(
        self,
        array: Any,
        format: PixelFormat | None = None,
        timestamp_ns: int | Sequence[int] | None = None,
        copy: bool = False,
    ) -> list[Image]:
        """Convert an array to images: the first half of :meth:`submit`.

        Either :meth:`put` or :func:`give_back` must follow.
        """
        own = array.format if isinstance(array, Buffer) else None
        if own is not None and format not in (None, own):
            what = f"a buffer of {own} pixels, submitted as {format}"
            raise StageError(what, where=self._where, fix=f"pipeline.buffer(…, format={format!r})")
        form: PixelFormat = format or own or "bgr"
        pictures, lease = self._pixels(array, form, copy)
        try:
            times = self._capture_times(timestamp_ns, len(pictures))
        except StageError:
            if not (isinstance(array, Buffer) and array.submitted(lease, is_taken=False)):
                lease.release()
            raise
        if len(pictures) > 1:
            lease.retain(len(pictures) - 1)
        self._first_ns = first_ns = times[0] if self._first_ns is None else self._first_ns
        return [
            Image(form, planes, lease, at_ns, at_ns - first_ns) for planes, at_ns in zip(pictures, times, strict=True)
        ]

    def put(self, array: Any, images: list[Image], timeout_s: float | None = None) -> int:
        """Queue the images and empty the list: the second half of :meth:`submit`.

        After an error the array belongs to the caller again, unless some of its frames were passed on.
        """
        return self._complete_submission(array, images, self._put, timeout_s)

    def take(self, array: Any, images: list[Image], stop: threading.Event) -> list[Frame]:
        """Convert the images to frames without the queue; for one thread, and only while :meth:`serve` does not run.

        There are fewer frames than images where the limit is reached or ``stop`` is set. Later calls then return none,
        and the array belongs to the caller again.
        """
        if self._is_over:
            give_back(array, images)
            return []
        frames = self._complete_submission(array, images, self._frames_of, stop)
        self._count_submitted(len(frames))
        return frames

    def _complete_submission(
        self, array: Any, images: list[Image], work: Callable[[list[Image], U], T], argument: U
    ) -> T:
        lease = images[0].lease
        try:
            found = work(images, argument)
        except BaseException:
            give_back(array, images)
            raise
        if isinstance(array, Buffer):
            array.submitted(lease, is_taken=True)
        return found

    def buffer(
        self,
        shape: Sequence[int],
        format: PixelFormat = "bgr",
        batch: int | None = None,
        timeout_s: float | None = None,
    ) -> Buffer:
        """Return memory for one image or a batch that a GPU reads in place; ordinary memory without a GPU.

        At most 48 single buffers of a size are in use at a time, fewer of batches, but at least 8. Then this waits for
        one to come back. Memory of the four sizes used last is kept. Callable from any thread.

        See :meth:`edgert.Pipeline.buffer` for arguments and errors.
        """
        whole = buffer_shape(tuple(map(index, shape)), format, self._where)
        if batch is not None and batch < 1:
            what = f"there is no buffer for a batch of {batch}"
            raise StageError(what, where=self._where, fix="batch=8, or leave it out for one image")
        buffers = self._open_buffers() if self._buffers is None or self._is_over else self._buffers
        return buffers.lend(whole, format, timeout_s, self._where, batch or 0)

    def finish(self) -> None:
        """Declare that no more frames will come; submitted ones are still processed. May be called twice."""
        self._is_finished = True
        self.wake()

    def frames(self, stop: threading.Event) -> Iterator[Frame]:
        """Yield frames until :meth:`finish`, the limit, or ``stop``."""
        try:
            yield from self._timeline.frames(self._images(stop), stop)
        finally:
            self._end()

    def serve(self, taker: FrameTaker, stop: threading.Event) -> None:
        """Give frames to ``taker`` until :meth:`finish`, the limit, or ``stop``; see :class:`.ServedSource`."""
        try:
            with self._turn:  # frames submitted from now on must not overtake those in the queue
                self._stop, self._taker = stop, taker
                self.wake()
                self._pass_on_waiting(taker)
            while not self._refuses_frames:
                with self._changed:
                    if not (self._waiting or self._refuses_frames):
                        # Nothing notifies this thread that a GPU has read an image, so it polls for that alone.
                        self._changed.wait(None if self._tensors is None else _POLL_S)
                with self._turn:
                    self._pass_on_waiting(taker)
                self.reclaim()
            with self._turn:  # frames submitted just before finish()
                self._pass_on_waiting(taker)
        finally:
            with self._turn:  # wait for a thread that is passing frames on
                self.close()
                self._taker = None  # breaks a reference cycle

    def wake(self) -> None:
        """Wake waiting threads; see :class:`~edgert.runtime.stage.ServedSource`."""
        with self._changed:
            self._changed.notify_all()

    def reclaim(self) -> None:
        """Release arrays that the GPU has read."""
        if self._tensors is not None:
            self._tensors.reclaim()

    def stats(self) -> SourceStats:
        return SourceStats()

    def close(self) -> None:
        """Refuse further frames and drop those still in the queue. May be called twice."""
        self._end()
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
        if not was_closed:
            self._timeline.close()

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            for image in self._waiting:
                image.lease.release()
            self._waiting.clear()
            self._changed.notify_all()
            buffers, tensors = self._buffers, self._tensors
        if buffers is not None:
            buffers.close()
        if tensors is not None:
            tensors.close()

    def _open_buffers(self) -> Buffers:
        with self._changed:
            if self._is_over:
                raise StageError("no more buffers are available", why="the pipeline has ended", where=self._where)
            if self._buffers is None:
                is_shared = self._device is not None and self._device.traits.cached  # else reads bypass the CPU's cache
                self._buffers = Buffers(self._device if is_shared else None, self._counter)
            return self._buffers

    def _capture_times(self, timestamp_ns: int | Sequence[int] | None, count: int) -> Sequence[int]:
        """Return the capture time of each of ``count`` frames. Raises StageError for times of another clock."""
        now_ns = self._clock.now_ns()
        if timestamp_ns is None:
            return [now_ns] * count
        times: Sequence[Any] = timestamp_ns if isinstance(timestamp_ns, Sequence) else [timestamp_ns] * count
        if len(times) != count:
            what = f"{len(times)} times for {count} frame{'s' * (count > 1)}"
            raise StageError(what, where=self._where, fix="timestamp_ns= one for all of them, or one for each")
        if wrong := [one for one in times if not isinstance(one, int | np.integer) or one > now_ns + _AHEAD_NS]:
            why = f"nanoseconds of the monotonic clock, a whole number, are at most {now_ns}"
            fix = "timestamp_ns=time.monotonic_ns(), less the age of the frame"
            raise StageError(f"timestamp_ns={wrong[0]} is of another clock", why=why, where=self._where, fix=fix)
        return [int(one) for one in times]

    def _put(self, images: list[Image], timeout_s: float | None) -> int:
        # A thread of the pipeline itself would wait for room that only it can make, so its images are queued.
        number = self._enqueue(images, timeout_s) if self._taker is None or runs_pipeline_of(self._stop) else None
        return self._pass_on(images, timeout_s) if number is None else number

    def _enqueue(self, images: list[Image], timeout_s: float | None) -> int | None:
        """Queue the images once there is room, and return what :meth:`submit` does; None where :meth:`serve` began."""
        with self._changed:
            may_go_on = lambda: self._taker or self._refuses_frames or len(self._waiting) < self._capacity  # noqa: E731
            if not self._changed.wait_for(may_go_on, timeout_s):
                raise self._queue_full_error(timeout_s)
            self._check_open()
            if self._taker is not None and not runs_pipeline_of(self._stop):
                return None
            count = len(images)
            self._waiting.extend(images)
            images.clear()
            self._changed.notify_all()
            return self._count_submitted(count)

    def _pass_on(self, images: list[Image], timeout_s: float | None) -> int:
        """Pass the images' frames on in this thread, and return what :meth:`submit` does."""
        if timeout_s is None:
            with self._turn:  # unlike acquire(), Ctrl-C cannot interrupt between the lock and the block
                return self._pass_on_in_turn(images, None)
        until = time.monotonic() + timeout_s
        if not self._turn.acquire(timeout=max(timeout_s, 0.0)):
            raise self._queue_full_error(timeout_s)
        try:
            return self._pass_on_in_turn(images, max(until - time.monotonic(), 0.0))
        finally:
            self._turn.release()

    def _pass_on_in_turn(self, images: list[Image], timeout_s: float | None) -> int:
        """Pass the images' frames on; the caller holds ``_turn``."""
        self._check_open()
        taker = self._taker
        assert taker is not None  # serve() unsets it only after the source has closed
        count = len(images)
        if not taker.has_room(timeout_s):
            raise self._queue_full_error(timeout_s)
        self._check_open()
        if frames := self._frames_of(images, self._stop):
            taker.give(frames)
        return self._count_submitted(count)

    def _count_submitted(self, count: int) -> int:
        with self._counting:
            self._submitted += count
            return self._submitted - count

    def _pass_on_waiting(self, taker: FrameTaker) -> None:
        while self._waiting and not (self._is_over or self._stop.is_set()) and taker.has_room(None):
            images = [self._waiting.popleft()]
            try:
                if frames := self._frames_of(images, self._stop):
                    taker.give(frames)
            except BaseException:
                give_back(None, images)
                raise

    def _frames_of(self, images: list[Image], stop: threading.Event) -> list[Frame]:
        """Convert images to frames and empty the list. After an error it has the images that still hold their lease."""
        timeline, frames = self._timeline, []
        try:
            while images and not timeline.is_over:
                if (frame := timeline.frame(images[0], stop)) is not None:
                    frames.append(frame)
                del images[0]
        except BaseException:
            for frame in frames:
                frame.lease.release()
            raise
        if timeline.is_over:
            give_back(None, images)  # those beyond the limit
            images.clear()
            self._is_over = True
            self.wake()
        return frames

    @property
    def _refuses_frames(self) -> bool:
        return self._is_over or self._is_finished or self._stop.is_set()

    def _check_open(self) -> None:
        if self._refuses_frames:
            why = "finish() was called" if self._is_finished else "the pipeline has ended"
            raise StageError("no more frames can be submitted", why=why, where=self._where)

    def _queue_full_error(self, timeout_s: float | None) -> StageError:
        return StageError(
            f"no room for a frame within {timeout_s:g} s",
            why="the queue is full: frames are submitted faster than the pipeline processes them",
            where=self._where,
            fix="submit less often, wait longer, or raise queue:",
        )

    def _pixels(self, array: Any, format: PixelFormat, copy: bool) -> tuple[list[Planes], Lease]:
        """Return the planes of each image, and the lease that all images share."""
        if isinstance(array, Buffer) and not copy:
            pixels, lease = array.hand_over()
            if array.is_batch:
                return batch_planes(pixels, format), lease
            return [array_planes(pixels, format)], lease
        array = array.array if isinstance(array, Buffer) else array
        parts = split_planes(array, format, self._where)
        if not isinstance(parts[0], np.ndarray) and foreign.is_on_gpu(parts[0]):
            return self._on_gpu(parts, format, copy)
        arrays = [host_array(part, self._where) for part in parts]
        if self._is_shared and not self._has_advised:
            self._has_advised = True
            _LOG.info(
                "%s: images in ordinary memory are copied to memory that the GPU reads; "
                "pipeline.buffer((width, height)) gives such memory, and the host then copies nothing",
                self._where,
            )
        if len(arrays) == 1 and is_batch(arrays[0].shape, format):
            return self._batch(arrays[0], format, copy)
        planes = checked_planes(arrays, format, self._where, copy)
        if copy:
            self._counter.copied(sum(plane.nbytes for plane in planes))
        return [planes], lend(planes, self._counter)

    def _batch(self, array: U8, format: PixelFormat, copy: bool) -> tuple[list[Planes], Lease]:
        """Return the images of one host array, copied to shared memory where a model reads them on a GPU."""
        images = split_batch(array, format, self._where)
        leased = self._open_buffers().acquire(array.shape, len(array)) if self._is_shared else None
        if leased is None and not copy:
            return images, lend(array, self._counter)
        whole, lease = leased or (np.empty(array.shape, np.uint8), None)
        np.copyto(whole, array)
        self._counter.copied(array.nbytes)
        return batch_planes(whole, format), lease or lend(whole, self._counter)

    def _on_gpu(self, parts: Sequence[Any], format: PixelFormat, copy: bool) -> tuple[list[Planes], Lease]:
        what = f"{type(parts[0]).__name__} on a GPU cannot be submitted"
        if self._device is None:
            raise StageError(
                f"{what} here",
                why="no model reads the frames of this pipeline on a GPU, so it would have to be copied to the host",
                where=self._where,
                fix="call tensor.cpu() first, or run the model on the GPU: engines: [tensorrt, onnxruntime-cuda]",
            )
        if copy:
            why = "a copy on the GPU would not be finished when submit() returns"
            raise StageError(f"{what} with copy=True", why=why, where=self._where, fix="submit(tensor.clone())")
        with self._changed:
            if self._tensors is None:
                self._tensors = Tensors(self._device, self._counter)
                self._changed.notify_all()
        try:
            views, lease = self._tensors.take(parts)
        except EdgertError as error:
            raise error.at(self._where)  # noqa: B904 - the same error, with its place
        try:
            if len(views) == 1 and is_batch(views[0].shape, format):
                return split_batch(views[0], format, self._where), lease
            return [checked_planes(views, format, self._where)], lease
        except StageError:
            lease.release()
            raise

    def _images(self, stop: threading.Event) -> Iterator[Image]:
        while not stop.is_set():
            with self._changed:
                self._changed.wait_for(
                    lambda: self._waiting or self._is_finished or self._is_over or stop.is_set(), _POLL_S
                )
                image = self._waiting.popleft() if self._waiting else None
                if image is not None:
                    self._changed.notify_all()
                elif self._is_finished or self._is_over:
                    return
            if image is None:
                self.reclaim()
                continue
            yield image
            del image


def is_batch_input(array: Any, format: PixelFormat | None) -> bool:
    """Return whether :meth:`ApiSource.submit` reads an array or :class:`Buffer` as a batch, even of one frame."""
    return array.is_batch if isinstance(array, Buffer) else is_batch(getattr(array, "shape", ()), format or "bgr")


def give_back(array: Any, images: Sequence[Image]) -> None:
    """Undo :meth:`ApiSource.images`: return a :class:`Buffer` to the caller, release any other array."""
    if images:
        lease = images[0].lease
        is_returned = isinstance(array, Buffer) and array.submitted(lease, is_taken=False)
        if left := len(images) - is_returned:
            lease.release(left)


@lru_cache(maxsize=16)
def buffer_shape(shape: tuple[int, ...], format: PixelFormat, where: str) -> tuple[int, ...]:
    """Return the shape of the array that holds an image of ``shape``: (width, height), or (height, width, channels).

    Raises:
        StageError: ``shape`` is neither, or the format takes several arrays.
    """
    given, channels = shape, CHANNELS.get(format, ())
    is_size = len(given) == 2
    width, height = given if is_size else given[1::-1] if len(given) == 3 else (0, 0)
    whole = (height // 2 * 3, width) if format == "nv12" else (height, width, *[one for one in channels if one > 1])
    is_odd = format == "nv12" and (width % 2 or height % 2)
    if not channels or len(channels) == 3 or is_odd or min(width, height) < 1 or (not is_size and whole != given):
        raise StageError(
            f"there is no buffer of shape {given} for {format} pixels",
            why="a buffer is one array (height, width, channels), for nv12 (height * 3 / 2, width), both even",
            where=where,
            fix="buffer((width, height), format='bgr'), or 'rgb', 'nv12', 'gray', 'yuyv'",
        )
    return whole
