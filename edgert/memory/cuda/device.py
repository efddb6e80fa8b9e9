"""A GPU: its context, and everything that is made on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from edgert.errors import DeviceError, StageError
from edgert.memory.counter import Counter
from edgert.memory.cuda.block import Block, DeviceBlock, MappedBlock, StagedBlock
from edgert.memory.cuda.graph import Graph, GraphDriver, capture
from edgert.memory.cuda.kernel import Module
from edgert.memory.cuda.kind import MemoryKind, Traits, memory_kind
from edgert.memory.cuda.library import failed, initialise, is_lost, pycuda_driver
from edgert.memory.cuda.stream import Event, Stream
from edgert.units import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

MadeT = TypeVar("MadeT", bound=Block)


class CudaDevice:
    """A GPU and its primary context, the one that PyTorch, CuPy and ONNX Runtime use as well.

    ``with device:`` makes the context current in this thread, inside other such blocks too; all methods of all
    objects made here do so themselves. The stack of contexts is left as it was found, so that libraries with contexts
    of their own are not disturbed, and a thread may end at any time.

    Attributes:
        driver: PyCUDA's driver module.
        counter: where allocations and copies between host and GPU are counted.
        kind: memory that host and GPU share tensors in here; see :func:`~edgert.memory.cuda.kind.memory_kind`.
    """

    def __init__(self, driver: Any, ordinal: int, counter: Counter | None = None) -> None:
        self.driver, self.ordinal, self.counter = driver, ordinal, counter or Counter()
        self._device = driver.Device(ordinal)
        self.name = str(self._device.name())
        attribute = driver.device_attribute
        self.traits = Traits(
            bool(self._device.get_attribute(attribute.INTEGRATED)),
            bool(self._device.get_attribute(attribute.CAN_MAP_HOST_MEMORY)),
            tuple(self._device.compute_capability()),
        )
        self.kind: MemoryKind = memory_kind(self.traits)
        self._context = self._device.retain_primary_context()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._live: dict[int, int] = {}
        self.leaked = 0
        """Blocks that were forgotten instead of released."""

    @property
    def architecture(self) -> str:
        """What kernels are compiled for: ``sm_87``."""
        major, minor = self.traits.compute
        return f"sm_{major}{minor}"

    @property
    def cuda_major(self) -> int:
        """Of the newest CUDA that the driver runs: 12."""
        return int(self.driver.get_driver_version()) // 1000

    @property
    def context_handle(self) -> int:
        """The ``CUcontext``, for libraries that are told which to use. Raises DeviceError once closed."""
        if self._context is None:
            raise DeviceError(f"{self.name} was closed", why="its context was given back")
        return int(self._context.handle)

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
        return self._context is not None

    @property
    def live_bytes(self) -> int:
        """Bytes of all blocks that were not released."""
        return sum(self._live.values())

    def __enter__(self) -> Self:
        depth = getattr(self._local, "depth", 0)
        if not depth:
            if self._context is None:
                raise DeviceError(f"{self.name} was closed", why="its context was given back")
            self._context.push()
        self._local.depth = depth + 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._local.depth -= 1
        if not self._local.depth:
            self._context.pop()

    def stream(self) -> Stream:
        """A new stream."""
        return Stream(self)

    def event(self, timed: bool = False) -> Event:
        """A new event."""
        return Event(self, timed)

    def block(self, nbytes: int, kind: MemoryKind | None = None) -> Block:
        """New memory for host and GPU, filled with zeros, of the device's own kind unless told otherwise.

        Raises:
            DeviceError: there is not enough.
        """
        if (kind or self.kind) == "mapped":
            return self._allocate(MappedBlock, nbytes)
        return self._allocate(StagedBlock, nbytes)

    def device_block(self, nbytes: int) -> DeviceBlock:
        """New memory for the GPU alone, filled with zeros. Raises DeviceError when there is not enough."""
        return self._allocate(DeviceBlock, nbytes)

    def load(self, binary: bytes) -> Module:
        """Compiled kernels, a cubin or PTX. Raises DeviceError when they are not for this GPU."""
        try:
            with self:
                return Module(self, self.driver.module_from_buffer(binary))
        except self.driver.Error as error:
            raise failed(error, "loading kernels") from error

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Graph:
        """Records what ``enqueue`` puts on the stream as a CUDA graph; returns what launches it there.

        ``enqueue`` must have run before, must not allocate or wait, and must use no DLA. Raises DeviceError.
        """
        return capture(self, stream, enqueue, GraphDriver.load())

    def free_bytes(self) -> tuple[int, int]:
        """Free and total memory of the GPU."""
        with self:
            free, total = self.driver.mem_get_info()
        return int(free), int(total)

    def synchronize(self) -> None:
        """Blocks until all work of all streams is done. Raises DeviceError when some of it failed."""
        try:
            with self:
                self._context.synchronize()
        except self.driver.Error as error:
            raise failed(error, "work on the GPU") from error

    def settle(self) -> None:
        """Like :meth:`synchronize`, before memory is freed: on a GPU that is lost there is nothing to wait for."""
        try:
            with self:
                self._context.synchronize()
        except self.driver.Error as error:
            if not is_lost(str(error)):
                raise failed(error, "work on the GPU") from error

    def close(self) -> None:
        """Gives the context back. Raises StageError, and does so nevertheless, when blocks were not released."""
        live = dict(self._live)
        context, self._context = self._context, None
        if context is not None:
            context.detach()
        if live:
            raise StageError(
                f"{len(live)} blocks of GPU memory were not released",
                why=f"{format_bytes(sum(live.values()))} on {self.name}",
                fix="release every block, and close pools, before the device",
            )

    def _allocate(self, make: Callable[[CudaDevice, int], MadeT], nbytes: int) -> MadeT:
        if nbytes <= 0:
            raise DeviceError(f"a block of {nbytes} bytes", why="memory has at least one byte")
        try:
            with self:
                made = make(self, nbytes)
        except self.driver.Error as error:
            raise failed(error, "allocating", free_bytes=self.free_bytes()[0], asked_bytes=nbytes) from error
        self.counter.allocated()
        with self._lock:
            self._live[id(made)] = nbytes
        return made

    def forget(self, block: object, *, leaked: bool = False) -> None:
        """A block was released, or, ``leaked``, collected without that."""
        with self._lock:
            self._live.pop(id(block), None)
            self.leaked += leaked


def open_device(ordinal: int = 0, *, counter: Counter | None = None, driver: Any = None) -> CudaDevice:
    """The GPU with that number.

    Args:
        driver: something like PyCUDA's driver module, for tests.

    Raises:
        DeviceError: there is no PyCUDA, driver or such GPU, or the driver is too old.
    """
    if driver is None:
        driver = pycuda_driver()
    else:
        initialise(driver)
    count = int(driver.Device.count())
    if not 0 <= ordinal < count:
        raise DeviceError(f"there is no GPU {ordinal}", why=f"this machine has {count}", fix="the first has number 0")
    try:
        return CudaDevice(driver, ordinal, counter)
    except driver.Error as error:
        raise failed(error, f"opening GPU {ordinal}") from error
