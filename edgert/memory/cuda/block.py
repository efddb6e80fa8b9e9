"""Allocations on a GPU: memory of the GPU alone, memory mapped by host and GPU, or a host and device pair."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from edgert.errors import DeviceError, StageError
from edgert.memory.buffer import U8
from edgert.memory.cuda.driver import failed, is_lost
from edgert.memory.cuda.gpu_context import Context
from edgert.memory.cuda.stream import Stream


class Block(ABC):
    """One piece of memory of ``nbytes``, made on ``device``. Released by its owner; one that is forgotten instead
    counts as leaked."""

    is_staged: ClassVar[bool] = False
    """Whether uploads and downloads are copies."""

    def __init__(self, device: Context, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes
        self._address: int | None = None

    @property
    def address(self) -> int:
        """Where the GPU sees it. Raises StageError after :meth:`release`.

        A multiple of 256, which TensorRT asks for and cuMemAlloc promises (CUDA C++ Programming Guide, Device Memory).
        """
        if self._address is None:
            raise StageError("GPU memory was used after its release", why=f"a block of {self.nbytes} bytes was freed")
        return self._address

    @property
    def host(self) -> U8:
        """The host's side, 1-D. Raises DeviceError for memory of the GPU alone."""
        raise DeviceError("this memory is the GPU's alone", fix="device.block() makes memory that both sides see")

    def upload(self, stream: Stream, nbytes: int | None = None) -> None:  # noqa: B027 - most memory has no copies
        """Enqueues the copy of the first ``nbytes``, by default all, to the GPU, where host and GPU have copies."""

    def download(self, stream: Stream, nbytes: int | None = None) -> None:  # noqa: B027 - as above
        """Enqueues the copy of the first ``nbytes``, by default all, to the host, where host and GPU have copies."""

    def release(self) -> None:
        """Gives the memory back. Twice is once. Work that uses it must be done."""
        if self._address is None:
            return
        self._address = None
        try:
            if self.device.is_open:  # else the context took the memory with it
                with self.device:
                    self._free()
        except self.device.driver.Error as error:
            if not is_lost(str(error)):  # else the memory is gone with the context
                raise failed(error, "freeing") from error
        self.device.forget(self)

    @abstractmethod
    def _free(self) -> None: ...

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None:
            self.release()
            self.device.forget(self, leaked=True)


class DeviceBlock(Block):
    """Memory of the GPU alone."""

    def __init__(self, device: Context, nbytes: int) -> None:
        super().__init__(device, nbytes)
        self._memory = device.driver.mem_alloc(nbytes)
        _zero(device, int(self._memory), nbytes)
        self._address = int(self._memory)

    def _free(self) -> None:
        self._memory.free()


class _PinnedBlock(Block):
    """Memory with a side of the host's, which is pinned."""

    def _pin(self, flags: int) -> None:
        """Takes zeroed pinned memory. Its owner, PyCUDA's object, frees it on request, also under arrays that somebody
        still holds: blocks are released after their use."""
        self._host: U8 = self.device.driver.pagelocked_empty(self.nbytes, np.uint8, mem_flags=flags)
        self._host.fill(0)
        self._memory: Any = self._host.base

    @property
    def host(self) -> U8:
        """The host's side; where memory is mapped, written by the GPU until the stream has passed."""
        _ = self.address
        return self._host

    def _free(self) -> None:
        self._host = np.empty(0, np.uint8)
        self._memory.free()


class MappedBlock(_PinnedBlock):
    """Pinned host memory that the GPU reads and writes in place; no copies where the GPU is integrated."""

    def __init__(self, device: Context, nbytes: int) -> None:
        super().__init__(device, nbytes)
        self._pin(device.driver.host_alloc_flags.DEVICEMAP)
        self._address = int(self._memory.get_device_pointer())


class StagedBlock(_PinnedBlock):
    """Pinned host memory and device memory of one size; the copies between them are counted."""

    is_staged = True

    def __init__(self, device: Context, nbytes: int) -> None:
        super().__init__(device, nbytes)
        self._inner = device.driver.mem_alloc(nbytes)
        try:
            self._pin(0)
        except device.driver.Error:
            self._inner.free()  # here, where the context is current; the collector may come anywhere
            raise
        _zero(device, int(self._inner), nbytes)
        self._address = int(self._inner)

    def upload(self, stream: Stream, nbytes: int | None = None) -> None:
        """Host to GPU, counted."""
        part = self.host[:nbytes]
        self.device.run(self.device.driver.memcpy_htod_async, self.address, part, stream.raw, doing="copying")
        self.device.counter.copied(part.nbytes)

    def download(self, stream: Stream, nbytes: int | None = None) -> None:
        """GPU to host, counted."""
        part = self.host[:nbytes]
        self.device.run(self.device.driver.memcpy_dtoh_async, part, self.address, stream.raw, doing="copying")
        self.device.counter.copied(part.nbytes)

    def _free(self) -> None:
        super()._free()
        self._inner.free()


def _zero(device: Context, address: int, nbytes: int) -> None:
    """Fills new memory, and waits: the GPU's own memset returns before it is done, and our streams, which do not wait
    for the default one, would overtake it; zeros would then come over what they wrote."""
    stream = Stream(device)
    device.driver.memset_d8_async(address, 0, nbytes, stream.raw)
    stream.synchronize()
