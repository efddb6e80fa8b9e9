"""Buffers that the host fills and the GPU reads: filled in place, and brought over once, whoever reads them first."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from weakref import WeakValueDictionary, finalize

import numpy as np

from edgert.memory.buffer import U8, Lease, Pool
from edgert.memory.counter import Counter
from edgert.memory.cuda.block import Block
from edgert.memory.cuda.device import CudaDevice
from edgert.memory.cuda.loan import Marks, StreamLease
from edgert.memory.cuda.stream import Stream


class _Piece:
    """One buffer's memory on both sides, and the work of the GPU that reads it."""

    def __init__(self, block: Block) -> None:
        self.block, self.marks = block, Marks(block.device)
        self.host_address = int(block.host.ctypes.data)

    def root(self) -> U8:
        """All of it as an array at the end of every base chain; with the last view of it, the memory goes back."""
        raw = (ctypes.c_uint8 * self.block.nbytes).from_address(self.host_address)
        finalize(raw, self._free).atexit = False  # the driver frees what is left then
        root: U8 = np.frombuffer(memoryview(raw), np.uint8)
        return root

    def _free(self) -> None:
        if self.block.device.is_open:
            self.block.device.settle()
        self.block.release()


class SharedLease(StreamLease):
    """A lease on host memory whose bytes the GPU can have. Filled by its first holder, who changes nothing later.

    Attributes:
        device: the GPU.
    """

    __slots__ = ("_offset", "_piece", "_sent", "_turn", "device")

    def __init__(self, give_back: Callable[[], None], counter: Counter, piece: _Piece) -> None:
        super().__init__(give_back, counter, piece.marks.after)
        self._piece, self.device = piece, piece.block.device
        self._offset = piece.block.address - piece.host_address
        self._turn, self._sent = threading.Lock(), None

    _sent: Stream | None

    def send(self, stream: Stream) -> Stream | None:
        """Puts the copy to the GPU on the stream, when nobody has yet. Does not wait. From any thread.

        Returns:
            The stream that brings the bytes; None where the GPU reads the host's.
        """
        if not self._piece.block.is_staged:
            return None
        with self._turn:
            if self._sent is None:
                self._piece.block.upload(stream)
                self.after(stream)
                self._sent = stream
        return self._sent

    def address_of(self, array: U8) -> int:
        """Where the GPU sees an array that lies in this memory."""
        return int(array.__array_interface__["data"][0]) + self._offset


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
        self._pieces: WeakValueDictionary[int, _Piece] = WeakValueDictionary()  # the finalizers of roots hold them
        super().__init__(nbytes, count, counter)

    def _allocate(self) -> U8:
        if self.counter is not self._device.counter:
            self.counter.allocated()
        piece = _Piece(self._device.block(self.nbytes))
        self._pieces[piece.host_address] = piece
        return piece.root()

    def _lease(self, root: U8) -> Lease:
        piece = self._pieces[int(root.__array_interface__["data"][0])]
        piece.marks.synchronize()
        return SharedLease(self._giving_back(root), self.counter, piece)
