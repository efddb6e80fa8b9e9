"""Host memory: pools that own buffers, leases on them, and counters of copies and allocations.

A lease is reference-counted. Every branch of a pipeline that holds a frame retains it, and the last release returns the
buffer. Memory of another owner, such as a decoder's frame, gets its lease from :func:`lend`, which keeps the owner
alive.
"""

from __future__ import annotations

import ctypes
import math
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from edgert.errors import DeviceError, ModelError, StageError
from edgert.tracing import HERE


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of a :class:`Counter` at one time; *escaped* buffers left their pool as an array of them stayed in use."""

    copies: int = 0
    bytes_copied: int = 0
    allocations: int = 0
    escaped: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.copies + other.copies,
            self.bytes_copied + other.bytes_copied,
            self.allocations + other.allocations,
            self.escaped + other.escaped,
        )

    def __neg__(self) -> Counts:
        return Counts(-self.copies, -self.bytes_copied, -self.allocations, -self.escaped)


class Counter:
    """Thread-safe counter of one pipeline's copies and allocations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies = self._bytes_copied = self._allocations = self._escaped = 0
        self._included: list[tuple[Counter, Counts]] = []

    def include(self, other: Counter) -> None:
        """Add the future counts of another counter, such as that of a GPU, to the totals of this one."""
        self._included.append((other, -other.read()))

    def copied(self, nbytes: int) -> None:
        """Count one copy of ``nbytes`` bytes of pixels or tensor data."""
        with self._lock:
            self._copies += 1
            self._bytes_copied += nbytes
        if (ring := HERE.ring) is not None:
            ring.copied(nbytes)

    def allocated(self) -> None:
        """Count one buffer allocated from the operating system."""
        with self._lock:
            self._allocations += 1

    def escaped(self) -> None:
        """Count one buffer that left its pool for good because an array of it is still in use."""
        with self._lock:
            self._escaped += 1

    def read(self) -> Counts:
        """Return the totals so far."""
        with self._lock:
            own = Counts(self._copies, self._bytes_copied, self._allocations, self._escaped)
        return sum((other.read() + before for other, before in self._included), own)


U8 = npt.NDArray[np.uint8]
TYPICAL_BUFFERS = 48
"""Number of buffers of one size that a pipeline usually holds at most: four batches of eight from the source to the
users of results, and queues."""
ALIGN_BYTES = 64  # one cache line, and the widest vector register of AVX-512


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialized C-contiguous array whose first byte is on a cache line.

    Raises DeviceError if there is too little memory, ModelError for elements that are no numbers.
    """
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.hasobject:
        raise ModelError("a tensor holds no numbers", why="its elements are text, or of an unknown type")
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        raw = np.empty(nbytes + ALIGN_BYTES, np.uint8)
    except (MemoryError, ValueError, OverflowError) as error:
        size = f"{'x'.join(map(str, shape))} of {dtype.name} is {nbytes / 2**30:.3g} GiB"
        raise DeviceError(
            "there is too little memory for a tensor", why=size, fix="use a smaller input size"
        ) from error
    start = -raw.ctypes.data % ALIGN_BYTES
    return raw[start : start + nbytes].view(dtype).reshape(shape)


_addressof: Any = ctypes.addressof
_from_buffer: Any = ctypes.c_char.from_buffer  # the stubs of ctypes do not accept NumPy arrays as buffers


def address_of(array: U8) -> int:
    """Return the address of an array's first byte."""
    try:
        return int(_addressof(_from_buffer(array)))  # ten times as fast as NumPy's attributes
    except (BufferError, TypeError, ValueError):  # gaps between rows, or read-only memory
        return int(array.__array_interface__["data"][0])


class Lease:
    """The right to use some memory until it is released. Starts with one holder.

    Thread-safe. At the last release, it calls ``give_back``: :attr:`alive` is false and the owner may reuse the memory.
    """

    __slots__ = ("_give_back", "_holders", "_lock", "counter")

    def __init__(self, give_back: Callable[[], None], counter: Counter) -> None:
        self._give_back = give_back
        self._holders = 1
        self._lock = threading.Lock()
        self.counter = counter

    def __reduce__(self) -> NoReturn:
        raise TypeError("a frame stays in its process: send the records of its result, or frame.to_bgr()")

    @property
    def alive(self) -> bool:
        """Whether the lease still has a holder."""
        return self._holders > 0

    def retain(self, holders: int = 1) -> Lease:
        """Add holders, each of which must release once. Raises StageError on a lease that has ended."""
        with self._lock:
            if self._holders <= 0:
                raise StageError("a lease was used after its release", why="its last holder has released it")
            self._holders += holders
        return self

    def release(self, holders: int = 1) -> None:
        """Remove holders. Raises StageError if the lease was released more often than retained."""
        with self._lock:
            self._holders -= holders
            left = self._holders
        if left == 0:
            # Drop the reference first: an ended lease that is still referred to must not keep its buffer in use.
            give_back, self._give_back = self._give_back, do_nothing
            give_back()
        elif left < 0:
            raise StageError("a lease was released twice", why="a lease was released more often than it was retained")


class EndedLease(Lease):
    """The lease of a frame whose pixels were released; retain and release have no effect."""

    __slots__ = ()

    def __init__(self, counter: Counter) -> None:
        self.counter, self._holders = counter, 0  # made for every frame, so without a lock

    def retain(self, holders: int = 1) -> Lease:
        """Return this lease, unchanged."""
        return self

    def release(self, holders: int = 1) -> None:
        """Do nothing."""


class Receipt:
    """Count of the leases on data from another machine, which shows when all work on it is done.

    It begins with one hold, of the code that makes the frames.

    Args:
        done: function called once, in the thread of the last release, with whether the work was refused.
    """

    __slots__ = ("_done", "_is_refused", "_left", "_lock")

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done, self._left, self._lock, self._is_refused = done, 1, threading.Lock(), False

    def cover(self, lease: Lease) -> Lease:
        """Return a lease to use in place of another one, for whose end this receipt then waits."""
        with self._lock:
            self._left += 1
        return CoveredLease(lease, self)

    def refuse(self) -> None:
        """Mark the work as failed, so that the sender sends the data again."""
        self._is_refused = True

    def release(self) -> None:
        """End one hold."""
        with self._lock:
            self._left -= 1
            is_done = not self._left
        if is_done:
            self._done(self._is_refused)


class CoveredLease(Lease):
    """A lease for whose end a :class:`Receipt` waits.

    Attributes:
        pixels: lease on only the memory, for code that keeps a frame to show it.
    """

    __slots__ = ("pixels",)

    def __init__(self, pixels: Lease, receipt: Receipt) -> None:
        def end() -> None:
            pixels.release()
            receipt.release()

        super().__init__(end, pixels.counter)
        self.pixels = pixels


def do_nothing() -> None:
    """Do nothing. Replaces the release function of an ended lease."""


def lend(owner: object, counter: Counter) -> Lease:
    """Return a lease on memory of ``owner``, such as a decoder's frame, which it refers to until its end."""
    held = [owner]
    return Lease(held.clear, counter)


class Pool:
    """Equal host buffers, to which one is added whenever none is free. It never waits.

    A returned buffer is not reused while a NumPy array of it exists. So a user's arrays never change, and a user who
    keeps every frame gets more memory instead of a deadlock. The pool grows to the number that a pipeline really holds;
    a pipeline without such arrays then never allocates.

    Args:
        nbytes: size of each buffer.
        counter: counter of allocations and escapes.
        count: number of buffers at the start.
        most: maximum number of buffers; None: no limit. Without a limit, once there are :data:`TYPICAL_BUFFERS`, one
            that an array keeps in use is left to it, replaced by a new one, and counted as *escaped*.
    """

    def __init__(self, nbytes: int, counter: Counter, count: int = 4, most: int | None = None) -> None:
        self.nbytes, self.counter, self.count, self._most = nbytes, counter, 0, most
        self._free: queue.SimpleQueue[U8] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(self._new_buffer())

    def acquire(self, shape: tuple[int, ...] | int = -1) -> tuple[U8, Lease] | None:
        """Return a buffer (uint8, by default 1-D, contents undefined) and its lease; None if ``most`` are in use."""
        root = self._unused()
        if root is None and self.count == self._most:
            return None
        if root is None and self._most is None and self.count >= TYPICAL_BUFFERS:
            with suppress(queue.Empty):
                self._free.get_nowait()  # the array that keeps it in use frees it
                self.counter.escaped()
                root = self._allocate()
        root = self._new_buffer() if root is None else root
        # NumPy chains every further view to `root`, so its reference count shows whether any array is still around.
        return root.reshape(shape), self._lease(root)

    def _unused(self) -> U8 | None:
        """Return a returned buffer that no array keeps in use; None without one."""
        for _ in range(self._free.qsize()):
            try:
                root = self._free.get_nowait()
            except queue.Empty:  # another thread has it
                return None
            if _references(root) <= _HELD_BY_NOBODY:
                return root
            self._free.put(root)
        return None

    def _new_buffer(self) -> U8:
        self.count += 1
        return self._allocate()

    def _lease(self, root: U8) -> Lease:
        return Lease(partial(self._free.put, root), self.counter)

    def _allocate(self) -> U8:
        self.counter.allocated()
        try:
            raw = np.empty(self.nbytes + ALIGN_BYTES, np.uint8)
        except MemoryError as error:
            raise DeviceError("there is too little memory for an image", why=f"it has {self.nbytes} bytes") from error
        # np.frombuffer makes `root` the end of the base chain; plain slicing would point past it.
        return np.frombuffer(raw.data[-raw.ctypes.data % ALIGN_BYTES :], np.uint8, self.nbytes)


def _references(root: U8) -> int:
    return sys.getrefcount(root)


def _count_references() -> int:
    """Return the result of :func:`_references`, on this interpreter, for an array with a single holder."""
    root = np.empty(1, np.uint8)
    return _references(root)


_HELD_BY_NOBODY = _count_references()
