"""Memory of submitted images: other libraries' arrays on a GPU, and buffers of edgert."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from edgert.errors import StageError
from edgert.memory import TYPICAL_BUFFERS, Counter, Lease, Pool
from edgert.memory.cuda import CudaDevice, DeviceView, Loans, SharedPool, Stream, StreamLease, driver, foreign
from edgert.runtime.frame import U8, PixelFormat


class Tensors:
    """Arrays of other libraries on one GPU, used in place. Callable from any thread.

    Each image in use has its own stream. That stream waits for the stream that writes the image, and readers of the
    image wait for it. Arrays are released when their lease has ended and the GPU has read them. No thread waits for
    that: it is checked with each image, and by :meth:`reclaim`.
    """

    def __init__(self, device: CudaDevice, counter: Counter) -> None:
        self.device, self._counter, self._library = device, counter, driver.load_driver()
        self._turn = threading.Lock()
        self._streams: list[Stream] = []
        self._free: list[int] = []
        self._held: dict[int, list[DeviceView]] = {}
        self._loans = Loans(device, counter, partial(_release_arrays, self._held, self._free))

    def take(self, parts: Sequence[Any]) -> tuple[list[DeviceView], StreamLease]:
        """Return views of an image's arrays, and the lease that keeps the arrays alive. Raises DeviceError."""
        self.reclaim()
        with self._turn:
            if not self._free:
                self._free.append(len(self._streams))
                self._streams.append(self.device.stream())
            slot = self._free.pop()
        held = self._held[slot] = []
        try:
            for part in parts:
                held.append(foreign.view_of(part, self._streams[slot], self._counter, self._library))
        except BaseException:
            self._streams[slot] = self.device.stream()  # the old one may now belong to a capture of a CUDA graph
            _release_arrays(self._held, self._free, slot)
            raise
        lease = self._loans.lend(slot)
        return [replace(view, lease=lease) for view in held], lease

    def reclaim(self) -> None:
        """Release arrays that are no longer in use."""
        self._loans.reclaim()

    def close(self) -> None:
        """Wait for the GPU and release what it has read; release the rest when its leases end."""
        self._loans.close()


def _release_arrays(held: dict[int, list[DeviceView]], free: list[int], slot: int) -> None:
    """Release an image's arrays to their owners."""
    for view in held.pop(slot):
        view.lease.release()
    free.append(slot)


class Buffer:
    """Memory for one image or a batch, to be filled and then submitted, or passed to a call of the pipeline.

    The memory is reused after the submitted frame is released. A buffer that is never submitted ends with
    :meth:`release`, a ``with`` block, or its last reference.

    Attributes:
        format: pixel format.
        shape: shape of :attr:`array`: (height, width, 3) for bgr and rgb, (height * 3 / 2, width) for nv12; a batch has
            the number of images before that.
        is_batch: whether the buffer is for a batch.
    """

    def __init__(self, array: U8, lease: Lease, format: PixelFormat, is_batch: bool = False) -> None:
        self._held: tuple[U8, Lease] | None = (array, lease)
        self._gone = ""
        self.format, self.shape, self.is_batch = format, array.shape, is_batch

    @property
    def array(self) -> U8:
        """Pixels, uint8, C-contiguous, contents undefined until they are written.

        While a program keeps the array after the submission, the memory is not reused. Raises StageError once the
        buffer was submitted or released.
        """
        return self._own()[0]

    def hand_over(self) -> tuple[U8, Lease]:
        """Return the pixels and their lease for a submission, which ends with :meth:`submitted`.

        Raises:
            StageError: see :attr:`array`.
        """
        held = self._own()
        self._gone = "it was submitted, and its pixels belong to the pipeline"
        return held

    def submitted(self, lease: Lease, is_taken: bool) -> bool:
        """End a submission that :meth:`hand_over` began.

        Args:
            lease: lease of the submitted frame.
            is_taken: whether the pipeline took the frame; else the buffer can be used again.

        Returns:
            Whether the lease belongs to this buffer; if not, nothing was done.
        """
        if self._held is None or self._held[1] is not lease:
            return False
        if is_taken:
            self._held = None
        else:
            self._gone = ""
        return True

    def release(self) -> None:
        """Free the memory unless it was submitted. May be called twice."""
        if self._held is not None and not self._gone:
            (_, lease), self._held, self._gone = self._held, None, "it was released"
            lease.release()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    __del__ = release

    def _own(self) -> tuple[U8, Lease]:
        if self._held is None or self._gone:
            fix = "take a new one for each frame: pipeline.buffer(…)"
            raise StageError("a buffer was used after its end", why=self._gone, fix=fix)
        return self._held


_MOST_BATCHES = 8
_SIZES = 4
"""Number of sizes for which memory is kept."""
_POLL_S = 0.0005
"""Seconds between two checks for a free buffer, while all are in use."""


class Buffers:
    """Supply of buffers that a GPU reads without a copy by the host; of ordinary aligned memory without a GPU.

    At most :func:`most_in_use` of a size are in use at a time. Memory of the four sizes used last is kept. Callable
    from any thread.

    Args:
        device: GPU that reads the buffers; None without one.
    """

    def __init__(self, device: CudaDevice | None, counter: Counter) -> None:
        self._device, self._counter, self._turn = device, counter, threading.Lock()
        self._supplies: dict[int, Pool] = {}

    def lend(
        self, shape: tuple[int, ...], format: PixelFormat, timeout_s: float | None, where: str, batch: int = 0
    ) -> Buffer:
        """Return a buffer for an image of that shape, or for ``batch`` of them; wait while all are in use.

        Raises:
            StageError: none came back in time.
            DeviceError: there is too little memory.
        """
        shape = (batch, *shape) if batch else shape
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (leased := self.acquire(shape, batch)) is None:
            if until is not None and time.monotonic() >= until:
                raise StageError(
                    f"no buffer came back within {timeout_s:g} s",
                    why=f"{most_in_use(batch)} of this size are in use: not submitted yet, in the pipeline, or kept by "
                    "the program's arrays and results",
                    where=where,
                    fix="submit or release buffers, release results, drop arrays; or set a longer timeout=",
                )
            time.sleep(_POLL_S)
        return Buffer(*leased, format, batch > 0)

    def close(self) -> None:
        """Free the memory when the last buffer is released."""
        self._supplies.clear()

    def acquire(self, shape: tuple[int, ...], batch: int = 0) -> tuple[U8, Lease] | None:
        """Return an array of that shape for ``batch`` images, and its lease; None where all are in use.

        Raises:
            DeviceError: there is too little memory.
        """
        nbytes = math.prod(shape)
        with self._turn:
            supply = self._supplies.pop(nbytes, None) or self._new_pool(nbytes, most_in_use(batch))
            self._supplies[nbytes] = supply  # keeps the order of last use
            if len(self._supplies) > _SIZES:
                del self._supplies[next(iter(self._supplies))]
            return supply.acquire(shape)

    def _new_pool(self, nbytes: int, most: int) -> Pool:
        if self._device is None:
            return Pool(nbytes, self._counter, count=1, most=most)
        return SharedPool(self._device, nbytes, most=most)


def most_in_use(batch: int) -> int:
    """Return the limit of buffers of one size in use, for batches of ``batch`` images.

    Batches may use about as much memory as single images, but at least enough to read, queue and fill some.
    """
    return TYPICAL_BUFFERS if batch < 2 else max(TYPICAL_BUFFERS // batch, _MOST_BATCHES)
