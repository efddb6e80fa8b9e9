"""Reuse of memory that the GPU uses: leases that end with a stream's work, pools, and other libraries' memory.

A :class:`SharedPool` has host memory that the GPU reads, a :class:`ViewPool` images on the GPU. :class:`Loans` are for
memory that another library owns, such as a decoder's surfaces or a camera's buffers.
"""

import ctypes
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from weakref import finalize, ref

import numpy as np

from edgert.memory.buffer import U8, Counter, Lease, Pool, address_of, do_nothing
from edgert.memory.cuda.device import Block, CudaDevice
from edgert.memory.cuda.gpu_context import Context
from edgert.memory.cuda.stream import Event, Stream
from edgert.memory.cuda.view import DeviceView


class StreamLease(Lease):
    """A lease that the GPU holds, too: the memory is not reused before the work of :attr:`after` is done.

    Attributes:
        copy: copy of :meth:`share`; None before.
        copying: lock for making such a copy, so that other threads wait for it.
        after: function that keeps the memory in use until all present work of a stream is done. Call it after enqueuing
            and before releasing; see :meth:`StreamMarks.after`.
    """

    __slots__ = ("after", "copy", "copying")

    def __init__(self, give_back: Callable[[], None], counter: Counter, after: Callable[..., None]) -> None:
        super().__init__(give_back, counter)
        self.copy: object = None
        self.copying = threading.Lock()
        self.after = after

    def share(self, copy: object, lease: Lease) -> None:
        """Keep a copy of the memory, such as one on the host, for the other holders of this lease.

        Args:
            copy: the copy.
            lease: lease of the copy, one hold on which ends with this lease.
        """
        give_back, self.copy = self._give_back, copy

        def both() -> None:
            self.copy = None
            lease.release()
            give_back()

        self._give_back = both


class StreamMarks:
    """Points in streams, one per stream, after which a piece of memory is free again."""

    def __init__(self, device: Context) -> None:
        self._device = device
        self._events: dict[int, Event] = {}
        self._waiting: dict[int, tuple[Event, int]] = {}

    def after(self, stream: Stream, passing: Event | None = None) -> None:
        """Keep the memory in use until all present work of the stream is done.

        Args:
            stream: stream of the work.
            passing: event that was recorded on the stream just now, for several pieces of memory. It must pass before
                it is recorded again. None: one event per stream is recorded and reused.
        """
        handle = stream.handle
        if passing is None:
            passing = self._events.get(handle)
            if passing is None:
                passing = self._events[handle] = Event(self._device, patient=True)
            passing.record(stream)
        self._waiting[handle] = passing, passing.records

    def passed(self) -> bool:
        """Return whether all of the GPU's work with the memory is done."""
        if self._waiting:
            waiting = self._waiting.items()
            self._waiting = {handle: mark for handle, mark in waiting if not (_has_passed(*mark) or mark[0].passed())}
        return not self._waiting

    def synchronize(self) -> None:
        """Block until all of the GPU's work with the memory is done."""
        if self._waiting:
            for event, number in self._waiting.values():
                if not _has_passed(event, number):
                    event.synchronize()
            self._waiting.clear()


def _has_passed(event: Event, number: int) -> bool:
    """Return whether a record of the event is known to have passed: it was recorded again, or noted as passed."""
    return event.records != number or event.passed_records == number


class Loans:
    """Leases of memory that another library owns, returned in the owner's thread.

    Leases may end in any thread, and before the GPU is done. The owner's thread calls :meth:`reclaim` regularly:
    libraries expect their buffers back in the thread that got them, and no other thread then waits for the GPU. After
    :meth:`close`, the thread that ends a lease waits and returns the memory.

    Args:
        give_back: function that returns the memory with a key, such as its address.
    """

    def __init__(self, device: Context, counter: Counter, give_back: Callable[[int], None]) -> None:
        self._device, self._counter, self._give_back = device, counter, give_back
        self._marks: dict[int, StreamMarks] = {}
        self._leased: set[int] = set()
        self._ended: deque[int] = deque()
        self._changed, self._is_awaited, self._closed = threading.Condition(), False, False

    @property
    def leased(self) -> int:
        """Number of pieces that are still in use."""
        return len(self._leased)

    def lend(self, key: int) -> StreamLease:
        """Return a lease on the memory with that key, which must have none."""
        marks = self._marks.get(key)
        if marks is None:
            marks = self._marks[key] = StreamMarks(self._device)
        self._leased.add(key)
        return StreamLease(partial(self._end, key), self._counter, marks.after)

    def reclaim(self, timeout_s: float = 0.0) -> int:
        """Return memory that the GPU is done with to its owner; return the number of pieces.

        With a timeout, wait so long for a lease to end if none has, and then for the GPU. Raises DeviceError if the
        GPU's work failed.
        """
        ended = self._ended
        if timeout_s:
            with self._changed:
                self._is_awaited = True
                self._changed.wait_for(lambda: ended, timeout_s)
                self._is_awaited = False
        if not ended:  # the usual case, which needs neither a lock nor the context
            return 0
        with self._device:
            if timeout_s:
                self._marks[ended[0]].synchronize()
            keys = [ended.popleft() for _ in range(len(ended))]
            working = [key for key in keys if not self._marks[key].passed()]
            ended.extendleft(reversed(working))
            for key in keys:
                if key not in working:
                    self._return_memory(key)
        return len(keys) - len(working)

    def close(self) -> None:
        """Wait for the GPU and return all memory whose lease has ended; the rest is returned when its lease ends."""
        self._closed = True
        self._drain()

    def _end(self, key: int) -> None:
        self._ended.append(key)
        if self._is_awaited:
            with self._changed:
                self._changed.notify()
        if self._closed:
            self._drain()

    def _drain(self) -> None:
        while True:
            try:
                key = self._ended.popleft()
            except IndexError:  # none, or another thread has it
                return
            self._marks[key].synchronize()
            self._return_memory(key)

    def _return_memory(self, key: int) -> None:
        self._leased.discard(key)  # first, as it may be leased again as soon as it is returned
        self._give_back(key)


class _Piece:
    """Memory of one shared buffer on both sides, and the GPU's work that reads it."""

    def __init__(self, block: Block) -> None:
        self.block, self.marks = block, StreamMarks(block.device)
        self.host_address = int(block.host.ctypes.data)
        self.offset = block.address - self.host_address

    def root(self, pieces: "dict[int, _Piece]") -> U8:
        """Return the memory as an array that ends the chain of bases, and note the piece under the array's id.

        The end of its last view frees the memory.
        """
        raw = (ctypes.c_uint8 * self.block.nbytes).from_address(self.host_address)
        root: U8 = np.frombuffer(memoryview(raw), np.uint8)
        pieces[id(root)] = self
        finalize(raw, self._free, pieces, id(root)).atexit = False  # at exit, the driver frees the rest
        return root

    def _free(self, pieces: "dict[int, _Piece]", number: int) -> None:
        del pieces[number]
        self.block.release_or_defer()


class SharedLease(StreamLease):
    """A lease on host memory that the GPU ``device`` can read. Its first holder fills it; it does not change later."""

    __slots__ = ("_offset", "_piece", "_sent", "device")

    def __init__(self, give_back: Callable[[], None], counter: Counter, piece: _Piece) -> None:
        super().__init__(give_back, counter, piece.marks.after)
        self._piece, self.device = piece, piece.block.device
        self._offset, self._sent = piece.offset, None

    _sent: Stream | None

    def send(self, stream: Stream, *, is_read: bool = False) -> Stream | None:
        """Enqueue the copy to the GPU the first time; return the stream that copies.

        Returns None if the GPU reads host memory in place. Does not wait. Callable from any thread.

        Args:
            stream: stream for the copy.
            is_read: whether the caller will call :attr:`after` for work that waits for the copy; else this is called
                for the copy.
        """
        if not self._piece.block.is_staged:
            return None
        with self._lock:
            if self._sent is None:
                self._piece.block.upload(stream)
                if not is_read:
                    self.after(stream)
                self._sent = stream
        return self._sent

    def addresses_of(self, arrays: Sequence[U8]) -> list[int]:
        """Return the GPU's addresses of arrays in this memory."""
        offset = self._offset
        return [address_of(array) + offset for array in arrays]


class SharedPool(Pool):
    """A :class:`~edgert.memory.Pool` of pinned or mapped memory, as suits the GPU, whose leases are SharedLease.

    If memory is pinned, each buffer has a buffer on the GPU, so that the upload is one copy by the GPU. A buffer is
    reused once the GPU is done with it, too. The memory is freed when the pool, its leases and all arrays of it are
    gone.

    Raises:
        DeviceError: there is too little memory.
    """

    def __init__(self, device: CudaDevice, nbytes: int, count: int = 4, most: int | None = None) -> None:
        self._device = device
        self._pieces: dict[int, _Piece] = {}  # by the ids of roots, whose ends remove them
        super().__init__(nbytes, device.counter, count, most)

    def _allocate(self) -> U8:
        piece = _Piece(self._device.block(self.nbytes, self._device.frames))
        return piece.root(self._pieces)

    def _lease(self, root: U8) -> Lease:
        piece = self._pieces[id(root)]
        piece.marks.synchronize()
        return SharedLease(partial(self._free.put, root), self.counter, piece)


class _Slot(StreamMarks):
    """One buffer, the streams that use it, and its views."""

    def __init__(self, block: Block) -> None:
        super().__init__(block.device)
        self.block = block
        self.root_view: ref[DeviceView] | None = None

    @property
    def has_views(self) -> bool:
        """Whether a view, or an array made from one by its CUDA array interface, still exists."""
        return self.root_view is not None and self.root_view() is not None


class ViewPool:
    """Equal buffers in GPU memory, each in use as long as a view or array of it exists.

    Nothing is released explicitly. A buffer is added whenever all are in use, so the pool grows to the number really
    held.

    Args:
        nbytes: size of each buffer.
        counter: counter of allocations.
    """

    def __init__(self, device: CudaDevice, nbytes: int, counter: Counter) -> None:
        self.nbytes, self.counter, self._device = nbytes, counter, device
        self._slots: list[_Slot] = []

    def take(self, shape: tuple[int, ...], stream: Stream) -> DeviceView:
        """Return a uint8 view, C-contiguous, contents undefined, to be written on ``stream``.

        Its lease never ends. Readers on another stream call ``view.lease.after``. Raises DeviceError if there is too
        little memory.
        """
        slot = next((one for one in self._slots if not one.has_views and one.passed()), None)
        if slot is None:
            slot = _Slot(self._device.device_block(self.nbytes))
            self._slots.append(slot)
            if self.counter is not self._device.counter:
                self.counter.allocated()
        lease = StreamLease(do_nothing, self.counter, slot.after)
        whole = (math.prod(shape),)
        root = DeviceView(slot.block.address, whole, (1,), np.dtype(np.uint8), lease, self._device.ordinal, stream)
        slot.root_view = ref(root)
        return root.reshape(*shape)

    def close(self) -> None:
        """Free all buffers; those with views are freed when the views are gone."""
        for slot in self._slots:
            root = slot.root_view() if slot.root_view is not None else None
            if root is None:
                _release_slot(slot)
            else:
                finalize(root, _release_slot, slot).atexit = False
        self._slots = []


def _release_slot(slot: _Slot) -> None:
    if slot.block.device.is_open:
        slot.synchronize()
    slot.block.release()
