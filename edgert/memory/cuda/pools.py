"""Lending memory that the GPU uses: leases that end with a stream's work, pools, and loans of other libraries' memory.

A :class:`DevicePool` lends buffers of the GPU, a :class:`SharedPool` host memory that the GPU reads, and :class:`Loans`
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
    """Notes where memory is free again: :meth:`StreamMarks.after`."""

    def __call__(self, stream: Stream, passing: Event | None = None) -> None: ...


class StreamLease(Lease):
    """A lease that the GPU holds too: the memory is not lent again before the work it was named for is done.

    Attributes:
        copy: what :meth:`share` was given; None before.
        copying: lock of whoever makes such a copy, so that others wait for it.
    """

    __slots__ = ("after", "copy", "copying")

    def __init__(self, give_back: Callable[[], None], counter: Counter, after: After) -> None:
        super().__init__(give_back, counter)
        self.copy: object = None
        self.copying = threading.Lock()
        self.after = after
        """The work that the stream has now uses this memory. To be called after enqueuing, before releasing; see
        :meth:`StreamMarks.after`."""

    def share(self, copy: object, lease: Lease) -> None:
        """Keeps what a holder made of the bytes, such as a copy on the host, for the others who hold this lease.

        Args:
            lease: of the copy; one hold on it ends with this lease.
        """
        give_back, self.copy = self._give_back, copy

        def both() -> None:
            self.copy = None
            lease.release()
            give_back()

        self._give_back = both


class StreamMarks:
    """Places in streams, one per stream, behind which a piece of memory is free again."""

    def __init__(self, device: Context) -> None:
        self._device = device
        self._events: dict[int, Event] = {}
        self._waiting: dict[int, tuple[Event, int]] = {}

    def after(self, stream: Stream, passing: Event | None = None) -> None:
        """Behind all work that the stream has now. Events are made once per stream and used again.

        Args:
            passing: was recorded there just now, for several pieces of memory, and is not recorded again before it has
                passed; so this needs no event of its own.
        """
        handle = stream.handle
        if passing is None:
            passing = self._events.get(handle)
            if passing is None:
                passing = self._events[handle] = Event(self._device, patient=True)
            passing.record(stream)
        self._waiting[handle] = passing, passing.records

    def passed(self) -> bool:
        """Whether all of the GPU's work with it is done."""
        if self._waiting:
            waiting = self._waiting.items()
            self._waiting = {handle: mark for handle, mark in waiting if not (_is_known(*mark) or mark[0].passed())}
        return not self._waiting

    def synchronize(self) -> None:
        """Blocks until it is."""
        if self._waiting:
            for event, number in self._waiting.values():
                if not _is_known(event, number):
                    event.synchronize()
            self._waiting.clear()


def _is_known(event: Event, number: int) -> bool:
    """Whether that record of the event is known to have passed: it was recorded again since, or somebody noted it."""
    return event.records != number or event.known == number


class Loans:
    """Hands out memory that another library owns, and gives it back in the owner's thread.

    Leases may end in any thread, and before the GPU is done. The owner's thread calls :meth:`settle` from time to time:
    libraries want their buffers back in the thread that they gave them out in, and no other thread waits for the GPU.
    After :meth:`close`, whoever ends a lease gives back, and waits.

    Args:
        give_back: takes the key that the memory was lent by, such as its address.
    """

    def __init__(self, device: Context, counter: Counter, give_back: Callable[[int], None]) -> None:
        self._device, self._counter, self._give_back = device, counter, give_back
        self._marks: dict[int, StreamMarks] = {}
        self._lent: set[int] = set()
        self._ended: deque[int] = deque()
        self._changed, self._is_awaited, self._closed = threading.Condition(), False, False

    @property
    def lent(self) -> int:
        """How many pieces were not given back yet."""
        return len(self._lent)

    def lend(self, key: int) -> StreamLease:
        """A lease on the memory called ``key``, which must not be lent already."""
        marks = self._marks.get(key)
        if marks is None:
            marks = self._marks[key] = StreamMarks(self._device)
        self._lent.add(key)
        return StreamLease(partial(self._end, key), self._counter, marks.after)

    def settle(self, timeout_s: float = 0.0) -> int:
        """Gives back what the GPU is done with; how much that was. With a timeout, waits so long for a lease to end,
        where none has, and then for the GPU. Raises DeviceError when the GPU's work failed."""
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
        """Waits for the GPU and gives back everything whose lease has ended; the rest when it does."""
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
        self._lent.discard(key)  # before: whoever takes it back may lend it again at once
        self._give_back(key)


# Buffers that the host fills and the GPU reads: filled in place, and brought over once, whoever reads them first.


class _Piece:
    """One buffer's memory on both sides, and the work of the GPU that reads it."""

    def __init__(self, block: Block) -> None:
        self.block, self.marks = block, StreamMarks(block.device)
        self.host_address = int(block.host.ctypes.data)
        self.offset = block.address - self.host_address

    def root(self) -> U8:
        """All of it as an array at the end of every base chain; with the last view of it, the memory goes back."""
        raw = (ctypes.c_uint8 * self.block.nbytes).from_address(self.host_address)
        finalize(raw, self._free).atexit = False  # the driver frees what is left then
        root: U8 = np.frombuffer(memoryview(raw), np.uint8)
        return root

    def _free(self) -> None:
        self.block.release_or_defer()


class SharedLease(StreamLease):
    """A lease on host memory whose bytes the GPU, its ``device``, can have. Filled by its first holder, who changes
    nothing later."""

    __slots__ = ("_offset", "_piece", "_sent", "device")

    def __init__(self, give_back: Callable[[], None], counter: Counter, piece: _Piece) -> None:
        super().__init__(give_back, counter, piece.marks.after)
        self._piece, self.device = piece, piece.block.device
        self._offset, self._sent = piece.offset, None

    _sent: Stream | None

    def send(self, stream: Stream, *, is_read: bool = False) -> Stream | None:
        """Puts the copy to the GPU on the stream, when nobody has yet; returns the stream that brings the bytes, None
        where the GPU reads the host's. Does not wait. From any thread.

        Args:
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
        """Where the GPU sees arrays that lie in this memory."""
        offset = self._offset
        return [address_of(array) + offset for array in arrays]


class SharedPool(Pool):
    """A :class:`~edgert.memory.Pool` of pinned or mapped memory, whichever suits the GPU; its leases are SharedLease.

    Where memory is pinned, each buffer has memory of the GPU behind it, so that bringing it over is one copy, made by
    the GPU. A buffer is lent again when the GPU is done with it, too. The memory goes back when the pool, its
    leases and all arrays onto it are gone.

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
        """Whether somebody still holds a view, or an array made from one by its CUDA array interface."""
        return self.seen is not None and self.seen() is not None


class DevicePool:
    """A fixed number of equal buffers in the GPU's own memory, allocated once, zeroed then.

    A buffer is lent again when its lease was released, the events of :meth:`StreamLease.after` have passed, and nobody
    holds a view of it. Where only views prevent that, the buffer is left to their holder for good, replaced by a new
    one, and counted as *escaped*, as in :class:`~edgert.memory.Pool`.

    Args:
        nbytes: size of each buffer.
        count: how many may be lent at once; :meth:`acquire` waits when all are.
        counter: where allocations and escapes are counted.
    """

    def __init__(self, device: CudaDevice, nbytes: int, count: int, counter: Counter) -> None:
        self.nbytes, self.count, self.counter, self._device = nbytes, count, counter, device
        self._changed = threading.Condition()
        self._escaped: list[_Slot] = []
        self._all = [self._allocate() for _ in range(count)]
        self._free = deque(self._all)

    def acquire(self, timeout_s: float | None = None) -> tuple[DeviceView, StreamLease] | None:
        """A buffer (1-D uint8 of ``nbytes``, contents undefined) and its lease; None when none came free in time.

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
        """Waits for the GPU and frees all buffers, escaped ones too: nobody may look at them any more."""
        if self._device.is_open:
            self._device.settle()
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
        """A new buffer for one that somebody still holds an array onto."""
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
    """Equal buffers in the GPU's own memory, each lent as long as somebody refers to its view, or to a view or array
    made from that: nobody releases anything. One more is made whenever all are looked at, so the pool settles at what
    is really held.

    Args:
        nbytes: size of each buffer.
        counter: where allocations are counted.
    """

    def __init__(self, device: CudaDevice, nbytes: int, counter: Counter) -> None:
        self.nbytes, self.counter, self._device = nbytes, counter, device
        self._slots: list[_Slot] = []

    def take(self, shape: tuple[int, ...], stream: Stream) -> DeviceView:
        """A uint8 view, C-contiguous, contents undefined, that is going to be written on ``stream``.

        Its lease never ends. Who reads it on another stream says so by ``view.lease.after``. Raises DeviceError when
        there is not enough memory.
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
        """Gives back all buffers, those that somebody looks at once nobody does."""
        for slot in self._slots:
            root = slot.seen() if slot.seen is not None else None
            if root is None:
                _let_go(slot)
            else:
                finalize(root, _let_go, slot).atexit = False
        self._slots = []


def _let_go(slot: _Slot) -> None:
    if slot.block.device.is_open:
        slot.synchronize()
    slot.block.release()


def _nothing() -> None:
    """What a lease gives back that ends with its view."""
