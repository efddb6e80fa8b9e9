"""Equal buffers on a GPU, lent like a :class:`~edgert.memory.Pool` lends host memory, but in the order of streams."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from time import monotonic

from edgert.memory.buffer import Counter
from edgert.memory.cuda.block import Block
from edgert.memory.cuda.current import MemoryKind
from edgert.memory.cuda.device import CudaDevice
from edgert.memory.cuda.shared import StreamLease, StreamMarks
from edgert.memory.cuda.view import DeviceView, view_of


class _Slot(StreamMarks):
    """One buffer, the streams that use it, and the arrays that look at it."""

    def __init__(self, block: Block) -> None:
        super().__init__(block.device)
        self.block = block
        self.seen: weakref.ref[DeviceView] | None = None

    @property
    def is_looked_at(self) -> bool:
        """Whether somebody still holds a view, or an array made from one by its CUDA array interface."""
        return self.seen is not None and self.seen() is not None


class DevicePool:
    """A fixed number of equal buffers, allocated once, zeroed then.

    A buffer is lent again when its lease was released, the events of :meth:`StreamLease.after` have passed, and nobody
    holds a view of it. Where only views prevent that, the buffer is left to their holder for good, replaced by a new
    one, and counted as *escaped*, as in :class:`~edgert.memory.Pool`.

    Args:
        nbytes: size of each buffer.
        count: how many may be lent at once; :meth:`acquire` waits when all are.
        counter: where allocations and escapes are counted.
        kind: None for memory of the GPU alone; else memory that the host sees too.
    """

    def __init__(
        self, device: CudaDevice, nbytes: int, count: int, counter: Counter, kind: MemoryKind | None = None
    ) -> None:
        self.nbytes, self.count, self.counter, self._device, self._kind = nbytes, count, counter, device, kind
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
        view = view_of(slot.block.address, self.nbytes, lease, self._device.ordinal, None)
        slot.seen = weakref.ref(view)
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
            if not self._wait(timeout_s):
                return None
            slot = self._first(lambda slot: not slot.is_looked_at and slot.passed())
            slot = slot or self._first(lambda slot: not slot.is_looked_at and timeout_s != 0)
            if slot is not None:
                self._free.remove(slot)
                slot.synchronize()
                return slot
            return self._replaced() if self._free[0].is_looked_at else None

    def _wait(self, timeout_s: float | None) -> bool:
        until = None if timeout_s is None else monotonic() + timeout_s
        while not self._free:
            if not self._changed.wait(None if until is None else max(until - monotonic(), 0)) and not self._free:
                return False
        return True

    def _first(self, fits: Callable[[_Slot], bool]) -> _Slot | None:
        return next((slot for slot in self._free if fits(slot)), None)

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
        if self._kind is None:
            block: Block = self._device.device_block(self.nbytes)
        else:
            block = self._device.block(self.nbytes, self._kind)
        if self.counter is not self._device.counter:
            self.counter.allocated()
        return _Slot(block)
