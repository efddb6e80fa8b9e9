"""A GPU: everything that is made on it is made here."""

from collections.abc import Callable
from typing import Any, TypeVar

from edgert.errors import DeviceError
from edgert.memory.buffer import Counter
from edgert.memory.cuda.block import Block, DeviceBlock, MappedBlock, StagedBlock
from edgert.memory.cuda.capture import Graph, capture
from edgert.memory.cuda.driver import failed, initialize, load_driver, pycuda_driver
from edgert.memory.cuda.gpu_context import Context, MemoryKind
from edgert.memory.cuda.nvrtc import Module
from edgert.memory.cuda.stream import Event, Stream

MadeT = TypeVar("MadeT", bound=Block)


class CudaDevice(Context):
    """A GPU: its context, in which it makes streams, events, memory, kernels and graphs."""

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self)

    def event(self, timed: bool = False) -> Event:
        """A new event."""
        return Event(self, timed)

    def block(self, nbytes: int, kind: MemoryKind | None = None) -> Block:
        """New memory for host and GPU, filled with zeros, of the device's own kind unless ``kind`` is given. Raises
        DeviceError when there is not enough."""
        if (kind or self.kind) == "mapped":
            return self._allocate(MappedBlock, nbytes)
        return self._allocate(StagedBlock, nbytes)

    def device_block(self, nbytes: int) -> DeviceBlock:
        """New memory for the GPU alone, filled with zeros. Raises DeviceError when there is not enough."""
        return self._allocate(DeviceBlock, nbytes)

    def load(self, binary: bytes) -> Module:
        """Compiled kernels, a cubin or PTX. Raises DeviceError when they are not for this GPU."""
        return self.run(lambda: Module(self, self.driver.module_from_buffer(binary)), doing="loading kernels")

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Graph:
        """Records what ``enqueue`` puts on the stream as a CUDA graph; returns what launches it there.

        ``enqueue`` must have run before, must not allocate or wait, and must use no DLA. Raises DeviceError.
        """
        return capture(self, stream, enqueue, load_driver())

    def _allocate(self, make: Callable[[Context, int], MadeT], nbytes: int) -> MadeT:
        if nbytes <= 0:
            raise DeviceError(f"a block of {nbytes} bytes", why="memory has at least one byte")
        try:
            with self:
                made = make(self, nbytes)
        except self.driver.Error as error:
            raise failed(error, "allocating", free_bytes=self.free_bytes()[0], asked_bytes=nbytes) from error
        self.counter.allocated()
        self.hold(made, nbytes)
        return made


def open_device(ordinal: int = 0, *, counter: Counter | None = None, driver: Any = None) -> CudaDevice:
    """The GPU with that number; tests give a double of PyCUDA's ``driver``. Raises DeviceError when there is no PyCUDA,
    driver or such GPU, or the driver is too old."""
    if driver is None:
        driver = pycuda_driver()
    else:
        initialize(driver)
    count = int(driver.Device.count())
    if not 0 <= ordinal < count:
        raise DeviceError(f"there is no GPU {ordinal}", why=f"this machine has {count}", fix="the first has number 0")
    try:
        return CudaDevice(driver, ordinal, counter)
    except driver.Error as error:
        raise failed(error, f"opening GPU {ordinal}") from error
