"""Reuse of memory that the GPU uses: leases that end with a stream's work, pools, and other libraries' memory.

A :class:`DevicePool` has buffers of the GPU, a :class:`SharedPool` host memory that the GPU reads. :class:`Loans` are
memory that another library owns: a decoder's surfaces, a camera's buffers.
"""

import ctypes
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary, finalize, ref

import numpy as np

from edgert.memory.buffer import U8, Counter, Lease, Pool, address_of
from edgert.memory.cuda.device import Block, CudaDevice
from edgert.memory.cuda.gpu_context import Context
from edgert.memory.cuda.stream import Event, Stream
from edgert.memory.cuda.view import DeviceView


class After(Protocol):
    """Callback that records when memory is free again: :meth:`StreamMarks.after`."""

    def __call__(self, stream: Stream, passing: Event | None = None) -> None: ...


class StreamLease(Lease):
    """A lease that the GPU holds, too: the memory is not used again before the named work is done.

    Attributes:
        copy: the argument of :meth:`share`; None before.
        copying: lock for making such a copy, so that other threads wait for it.
    """

    __slots__ = ("after", "copy", "copying")

    def __init__(self, give_back: Callable[[], None], counter: Counter, after: After) -> None:
        super().__init__(give_back, counter)
        self.copy: object = None
        self.copying = threading.Lock()
        self.after = after
        """Name work that uses this memory: all that the stream has now. Call it after enqueuing, before releasing; see
        :meth:`StreamMarks.after`."""

    def share(self, copy: object, lease: Lease) -> None:
        """Keep a copy of the bytes, such as one on the host, for the other holders of this lease.

        Args:
            copy: of the bytes.
            lease: of the copy; one hold on it ends with this lease.
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
        """Wait for all present work of the stream before the memory is free. Events are reused, one per stream.

        Args:
            stream: with the work.
            passing: an event that was recorded there just now, for several pieces of memory, and is not recorded again
                before it has passed. Then this needs no event of its own.
        """
        handle = stream.handle
        if passing is None:
            passing = self._events.get(handle)
            if passing is None:
                passing = self._events[handle] = Event(self._device, patient=True)
            passing.record(stream)
        self._waiting[handle] = passing, passing.records

    def passed(self) -> bool:
        """Return whether all of the GPU's work with it is done."""
        if self._waiting:
            waiting = self._waiting.items()
            self._waiting = {handle: mark for handle, mark in waiting if not (_is_known(*mark) or mark[0].passed())}
        return not self._waiting

    def synchronize(self) -> None:
        """Block until all of the GPU's work with it is done."""
        if self._waiting:
            for event, number in self._waiting.values():
                if not _is_known(event, number):
                    event.synchronize()
            self._waiting.clear()


def _is_known(event: Event, number: int) -> bool:
    """Return whether that record of the event has passed: it was recorded again since, or noted as passed."""
    return event.records != number or event.known == number


class Loans:
    """Leases of memory that another library owns, returned in the owner's thread.

    Leases may end in any thread, and before the GPU is done. The owner's thread calls :meth:`reclaim` now and then:
    libraries want their buffers back in the thread that gave them out, and no other thread waits for the GPU. After
    :meth:`close`, the thread that ends a lease returns the memory, and waits.

    Args:
        give_back: takes the key of the memory, such as its address.
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
        """Return a lease on the memory called ``key``, which must have no lease."""
        marks = self._marks.get(key)
        if marks is None:
            marks = self._marks[key] = StreamMarks(self._device)
        self._leased.add(key)
        return StreamLease(partial(self._end, key), self._counter, marks.after)

    def reclaim(self, timeout_s: float = 0.0) -> int:
        """Return memory that the GPU is done with; return how many pieces.

        With a timeout, wait up to that for a lease to end, where none has, and then for the GPU. Raises DeviceError
        when the GPU's work failed.
        """
        ended = self._ended
        if timeout_s:
            with self._changed:
                self._is_awaited = True
                self._changed.wait_for(lambda: ended, timeout_s)
                self._is_awaited = False
        if not ended:  # as for most images that a decoder gives: no lock is taken, and no context
            return 0
        with self._device:
            if timeout_s:
                self._marks[ended[0]].synchronize()
            keys = [ended.popleft() for _ in range(len(ended))]
            working = [key for key in keys if not self._marks[key].passed()]
            ended.extendleft(reversed(working))
            for key in keys:
                if key not in working:
                    self._returned(key)
        return len(keys) - len(working)

    def close(self) -> None:
        """Wait for the GPU and return all memory whose lease has ended; the rest when it does."""
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
            self._returned(key)

    def _returned(self, key: int) -> None:
        self._leased.discard(key)  # before: it may be leased again as soon as it is back
        self._give_back(key)


# Buffers that the host fills and the GPU reads: filled in place, and brought over once, by the first that reads them.


class _Piece:
    """One buffer's memory on both sides, and the work of the GPU that reads it."""

    def __init__(self, block: Block) -> None:
        self.block, self.marks = block, StreamMarks(block.device)
        self.host_address = int(block.host.ctypes.data)
        self.offset = block.address - self.host_address

    def root(self) -> U8:
        """Return it as an array at the end of every base chain; the last view of it frees the memory."""
        raw = (ctypes.c_uint8 * self.block.nbytes).from_address(self.host_address)
        finalize(raw, self._free).atexit = False  # the driver frees what is left then
        root: U8 = np.frombuffer(memoryview(raw), np.uint8)
        return root

    def _free(self) -> None:
        self.block.release_or_defer()


class SharedLease(StreamLease):
    """A lease on host memory that the GPU, its ``device``, can read.

    Its first holder fills it; nothing changes it later.
    """

    __slots__ = ("_offset", "_piece", "_sent", "device")

    def __init__(self, give_back: Callable[[], None], counter: Counter, piece: _Piece) -> None:
        super().__init__(give_back, counter, piece.marks.after)
        self._piece, self.device = piece, piece.block.device
        self._offset, self._sent = piece.offset, None

    _sent: Stream | None

    def send(self, stream: Stream, *, is_read: bool = False) -> Stream | None:
        """Put the copy to the GPU on the stream, the first time; return the stream that copies.

        Returns None where the GPU reads the host's memory. Does not wait. From any thread.

        Args:
            stream: for the copy.
            is_read: the caller's own work will wait for the copy, and be named by :attr:`after`, so that the copy
                itself need not be.
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
    """A :class:`~edgert.memory.Pool` of pinned or mapped memory, whichever suits the GPU; its leases are SharedLease.

    Where memory is pinned, each buffer has a buffer of the GPU behind it, so that the upload is one copy, made by the
    GPU. A buffer is used again when the GPU is done with it, too. The memory is freed when the pool, its leases and all
    arrays onto it are gone.

    Raises:
        DeviceError: there is not enough memory.
    """

    def __init__(self, device: CudaDevice, nbytes: int, count: int, counter: Counter) -> None:
        self._device = device
        self._pieces: WeakValueDictionary[int, _Piece] = WeakValueDictionary()  # by roots, whose finalizers hold them
        super().__init__(nbytes, count, counter)

    def _allocate(self) -> U8:
        if self.counter is not self._device.counter:
            self.counter.allocated()
        piece = _Piece(self._device.block(self.nbytes, self._device.frames))
        root = piece.root()
        self._pieces[id(root)] = piece
        return root

    def _lease(self, root: U8) -> Lease:
        piece = self._pieces[id(root)]
        piece.marks.synchronize()
        return SharedLease(partial(self._free.put, root), self.counter, piece)


class _Slot(StreamMarks):
    """One buffer, the streams that use it, and the arrays that look at it."""

    def __init__(self, block: Block) -> None:
        super().__init__(block.device)
        self.block = block
        self.seen: ref[DeviceView] | None = None

    @property
    def is_looked_at(self) -> bool:
        """Whether a view, or an array made from one by its CUDA array interface, still exists."""
        return self.seen is not None and self.seen() is not None


class DevicePool:
    """A fixed number of equal buffers in the GPU's own memory, allocated once, zeroed then.

    A buffer is used again when its lease was released, the events of :meth:`StreamLease.after` have passed, and no view
    of it is left. Where only views prevent that, the buffer stays with them for good, is replaced by a new one, and
    counted as *escaped*, as in :class:`~edgert.memory.Pool`, whose arguments it has.
    """

    def __init__(self, device: CudaDevice, nbytes: int, count: int, counter: Counter) -> None:
        self.nbytes, self.count, self.counter, self._device = nbytes, count, counter, device
        self._changed = threading.Condition()
        self._escaped: list[_Slot] = []
        self._all = [self._allocate() for _ in range(count)]
        self._free = deque(self._all)

    def acquire(self, timeout_s: float | None = None) -> tuple[DeviceView, StreamLease] | None:
        """Return a buffer (1-D uint8 of ``nbytes``, contents undefined) and its lease; None on a time-out.

        Waiting for the GPU, which is short, is not bounded by ``timeout_s`` unless that is 0.
        """
        slot = self._take(timeout_s)
        if slot is None:
            return None
        lease = StreamLease(lambda: self._put(slot), self.counter, slot.after)
        ordinal, dtype = self._device.ordinal, np.dtype(np.uint8)
        view = DeviceView(slot.block.address, (self.nbytes,), (1,), dtype, lease, ordinal)
        slot.seen = ref(view)
        return view, lease

    def close(self) -> None:
        """Wait for the GPU and free all buffers, escaped ones too: their views must not be used any more."""
        if self._device.is_open:
            self._device.drain()
        for slot in [*self._all, *self._escaped]:
            slot.block.release()
        self._all, self._escaped = [], []
        self._free.clear()

    def _take(self, timeout_s: float | None) -> _Slot | None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._free, timeout_s):
                return None
            slot = next((slot for slot in self._free if not slot.is_looked_at and slot.passed()), None)
            if slot is None and timeout_s != 0:
                slot = next((slot for slot in self._free if not slot.is_looked_at), None)
            if slot is not None:
                self._free.remove(slot)
                slot.synchronize()
                return slot
            return self._replaced() if self._free[0].is_looked_at else None

    def _replaced(self) -> _Slot:
        """Return a new buffer in place of one with an array in use."""
        slot = self._free.popleft()
        self._all.remove(slot)
        self._escaped.append(slot)
        self.counter.escaped()
        fresh = self._allocate()
        self._all.append(fresh)
        return fresh

    def _put(self, slot: _Slot) -> None:
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    def _allocate(self) -> _Slot:
        if self.counter is not self._device.counter:
            self.counter.allocated()
        return _Slot(self._device.device_block(self.nbytes))


class ViewPool:
    """Equal buffers in the GPU's own memory, each in use as long as a view or array of it exists.

    Nothing is released explicitly. A buffer is added whenever all are in use, so the pool grows to the number really
    held.

    Args:
        nbytes: size of each buffer.
        counter: where allocations are counted.
    """

    def __init__(self, device: CudaDevice, nbytes: int, counter: Counter) -> None:
        self.nbytes, self.counter, self._device = nbytes, counter, device
        self._slots: list[_Slot] = []

    def take(self, shape: tuple[int, ...], stream: Stream) -> DeviceView:
        """Return a uint8 view, C-contiguous, contents undefined, to be written on ``stream``.

        Its lease never ends. Readers on another stream call ``view.lease.after``. Raises DeviceError when there is not
        enough memory.
        """
        slot = next((one for one in self._slots if not one.is_looked_at and one.passed()), None)
        if slot is None:
            slot = _Slot(self._device.device_block(self.nbytes))
            self._slots.append(slot)
            if self.counter is not self._device.counter:
                self.counter.allocated()
        lease = StreamLease(_nothing, self.counter, slot.after)
        whole = (math.prod(shape),)
        root = DeviceView(slot.block.address, whole, (1,), np.dtype(np.uint8), lease, self._device.ordinal, stream)
        slot.seen = ref(root)
        return root.reshape(*shape)

    def close(self) -> None:
        """Free all buffers, those with views when these are gone."""
        for slot in self._slots:
            root = slot.seen() if slot.seen is not None else None
            if root is None:
                _release_slot(slot)
            else:
                finalize(root, _release_slot, slot).atexit = False
        self._slots = []


def _release_slot(slot: _Slot) -> None:
    if slot.block.device.is_open:
        slot.synchronize()
    slot.block.release()


def _nothing() -> None:
    """Do nothing; the release function of a lease that ends with its view."""
