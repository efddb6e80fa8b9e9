"""A GPU's CUDA context, which is made current in a thread, and the kind of memory that suits the GPU."""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from edgert.errors import DeviceError, StageError
from edgert.memory.buffer import Counter
from edgert.memory.cuda.driver import copy_up, cuda_error, is_lost
from edgert.memory.cuda.holders import describe_holders, others_on
from edgert.units import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
_LOG = logging.getLogger("edgert.gpu")


MemoryKind = Literal["mapped", "staged"]
"""``mapped``: one memory that both sides see. ``staged``: pinned host memory, device memory, and copies."""

_COHERENT = (7, 2)
"""Compute capability from which an integrated GPU reads pinned memory through the CPU's caches (Xavier): NVIDIA, "CUDA
for Tegra", table of memory types."""


@dataclass(frozen=True, slots=True)
class Traits:
    """GPU properties that decide the kind of memory.

    Attributes:
        integrated: whether the GPU shares the CPU's memory (CU_DEVICE_ATTRIBUTE_INTEGRATED).
        can_map: whether pinned host memory has a device address (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY).
        compute: compute capability, such as (8, 7).
    """

    integrated: bool
    can_map: bool
    compute: tuple[int, int]

    @property
    def coherent(self) -> bool:
        """Whether the CPU caches memory that it shares with this GPU."""
        return self.integrated and self.compute >= _COHERENT

    @property
    def cached(self) -> bool:
        """Whether the CPU reads pinned memory through its caches, as fast as other memory."""
        return self.coherent or not self.integrated


def memory_kind(traits: Traits) -> MemoryKind:
    """Return ``mapped`` if sharing memory costs nothing, else ``staged``.

    A discrete GPU would read mapped memory over PCI Express at every access. An integrated one that is not coherent
    (Nano, TX2) makes the CPU bypass its caches, which is slower than a copy.
    """
    return "mapped" if traits.can_map and traits.coherent else "staged"


TENSORS = "EDGERT_GPU_TENSORS"
"""Environment variable for the memory of engines' tensors: ``mapped`` or ``device``."""


def tensor_kind(kind: MemoryKind, for_host: bool, requested: MemoryKind | None = None) -> MemoryKind:
    """Return the kind of memory for a tensor of an engine.

    On an integrated GPU, pinned memory, and so mapped memory, bypasses the GPU's caches, I/O coherent or not. NVIDIA
    advises device memory for data that only the GPU uses: "CUDA for Tegra", Memory Selection, table of memory types,
    https://docs.nvidia.com/cuda/cuda-for-tegra-appnote/#memory-selection. A tensor that the host uses stays mapped: a
    copy would move the same bytes through the same memory once more.

    Args:
        kind: kind of memory that this GPU shares with the host.
        for_host: whether the host writes or reads the tensor in every run.
        requested: choice of the user by :data:`TENSORS`; None without one.
    """
    if requested is not None:
        return requested
    return kind if for_host else "staged"


def requested_kind(value: str, kind: MemoryKind) -> MemoryKind | None:
    """Return the kind that a value of :data:`TENSORS` selects; None if it is empty.

    None as well for GPUs that share no memory with the host. Raises DeviceError for other values than ``mapped`` and
    ``device``.
    """
    if value and value not in _KINDS:
        why = f"it is {value!r}, not {' or '.join(_KINDS)}"
        raise DeviceError(f"{TENSORS} names no kind of memory", why=why, fix=f"unset {TENSORS}")
    return _KINDS.get(value) if kind == "mapped" else None


_KINDS: dict[str, MemoryKind] = {"mapped": "mapped", "device": "staged"}


def describe_memory(traits: Traits) -> str:
    """Return text on the kind of memory and the reason for it."""
    if memory_kind(traits) == "mapped":
        return "mapped memory (integrated, I/O coherent: no copies)"
    if not traits.integrated:
        return "pinned memory and copies (discrete)"
    reason = "not I/O coherent" if traits.can_map else "cannot map host memory"
    return f"pinned memory and copies (integrated, {reason})"


class _Thread(threading.local):
    """Nesting depth of a thread in a context's blocks."""

    depth = 0


_RECORDINGS: defaultdict[int, threading.RLock] = defaultdict(threading.RLock)
"""Locks by GPU, as all objects of a GPU share its context."""


class Context:
    """A GPU's primary context, which PyTorch, CuPy and ONNX Runtime also use.

    ``with context:`` makes it current in this thread; such blocks may be nested. Methods of objects made in the context
    do so, too. The stack of contexts is then restored, so that libraries with other contexts are not disturbed, and a
    thread may end at any time.

    Attributes:
        driver: PyCUDA's driver module.
        copy_up: copy to the GPU; see :func:`~edgert.memory.cuda.driver.copy_up`.
        counter: counter of allocations and of copies between host and GPU.
        recording: lock that is held while work is recorded. The driver refuses to wait for all of a context's work
            meanwhile, from any thread.
        kind: kind of memory in which host and GPU share tensors; see :func:`memory_kind`.
        frames: kind of memory for frames that the host writes and the GPU reads; a pipeline may change it.
        tensors: choice of the user for tensors of engines; see :func:`tensor_kind`.
        leaked: number of blocks that were garbage-collected without release.
    """

    def __init__(self, driver: Any, ordinal: int, counter: Counter | None = None) -> None:
        self.driver, self.ordinal, self.counter = driver, ordinal, counter or Counter()
        self._device, self.recording = driver.Device(ordinal), _RECORDINGS[ordinal]
        self.name = str(self._device.name())
        attribute = driver.device_attribute
        self.traits = Traits(
            bool(self._device.get_attribute(attribute.INTEGRATED)),
            bool(self._device.get_attribute(attribute.CAN_MAP_HOST_MEMORY)),
            tuple(self._device.compute_capability()),
        )
        self.kind: MemoryKind = memory_kind(self.traits)
        self.frames = self.kind
        self.tensors = requested_kind(os.environ.get(TENSORS, ""), self.kind)
        self._context = self._device.retain_primary_context()
        self.copy_up = copy_up(driver)
        self._local = _Thread()
        self._lock = threading.Lock()
        self._live: dict[int, int] = {}
        self._deferred: deque[Callable[[], None]] = deque()
        self.leaked = 0

    @property
    def architecture(self) -> str:
        """Architecture for which kernels are compiled, such as ``sm_87``."""
        major, minor = self.traits.compute
        return f"sm_{major}{minor}"

    @property
    def cuda_major(self) -> int:
        """Major version of the newest CUDA that the driver runs, such as 12."""
        return int(self.driver.get_driver_version()) // 1000

    @property
    def context_handle(self) -> int:
        """The ``CUcontext``, for other libraries. Raises DeviceError once closed."""
        if self._context is None:
            raise DeviceError(f"{self.name} was closed", why="its context has ended")
        return int(self._context.handle)

    @property
    def is_open(self) -> bool:
        """Whether the context was not closed."""
        return self._context is not None

    @property
    def live_bytes(self) -> int:
        """Total bytes of the blocks that were not released."""
        return sum(self._live.values())

    def __enter__(self) -> Self:
        if not self._local.depth:
            if self._context is None:
                raise DeviceError(f"{self.name} was closed", why="its context has ended")
            self._context.push()
        self._local.depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._local.depth -= 1
        if not self._local.depth:
            self._context.pop()

    def run(self, work: Callable[..., T], *arguments: Any, doing: str = "work on the GPU") -> T:
        """Call a function, such as one of PyCUDA's, with this context current; return its result.

        Raises DeviceError, which names what it was ``doing``, if the function or earlier work of the GPU failed.
        """
        try:
            if self._local.depth:  # current already, as in most calls for a frame
                return work(*arguments)
            with self:
                return work(*arguments)
        except self.driver.Error as error:
            raise cuda_error(error, doing) from error

    def free_bytes(self) -> tuple[int, int]:
        """Return the free and the total memory of the GPU, in bytes."""
        with self:
            free, total = self.driver.mem_get_info()
        return int(free), int(total)

    def describe_free_memory(self) -> str:
        """Return text on free memory and that of other processes, for an error."""
        free, total = self.free_bytes()
        number = f" (GPU {self.ordinal})" if self.ordinal else ""
        text = f"{format_bytes(free)} of {format_bytes(total)} are free on {self.name}{number}"
        return "; ".join(filter(None, (text, self.describe_other_holders())))

    def describe_other_holders(self) -> str:
        """Return text on the memory that other processes hold; empty if unknown."""
        try:
            return describe_holders(others_on(str(self._device.pci_bus_id())))
        except self.driver.Error:
            return ""

    def context_bytes(self) -> int:
        """Return the GPU memory that an empty context takes, measured by making one for a moment.

        Raises DeviceError if there is too little memory for another context.
        """

        def measured() -> int:
            before, _ = self.driver.mem_get_info()
            other = self._device.make_context()
            after, _ = self.driver.mem_get_info()
            other.pop()
            other.detach()
            return int(before) - int(after)

        return self.run(measured, doing="opening a context")

    def synchronize(self) -> None:
        """Block until all work of all streams is done. Raises DeviceError if any of it failed."""
        with self.recording:
            self.run(lambda: self._context.synchronize())

    def drain(self) -> None:
        """Synchronize before memory is freed. On a lost GPU there is nothing to wait for."""
        try:
            with self, self.recording:
                self._context.synchronize()
        except self.driver.Error as error:
            if not is_lost(str(error)):
                raise cuda_error(error, "work on the GPU") from error

    def defer(self, release: Callable[[], None]) -> None:
        """Keep the method that releases a block, as the driver refused it; :meth:`release_deferred` tries again."""
        self._deferred.append(release)

    def release_deferred(self) -> None:
        """Release the blocks of :meth:`defer`, as many as the driver accepts now. Waits for no other thread."""
        if not self._deferred or not self.recording.acquire(blocking=False):
            return
        try:
            self.drain()
            while self._deferred:
                self._deferred[0]()
                self._deferred.popleft()
        except DeviceError as error:
            _LOG.debug("%d blocks wait for their release: %s", len(self._deferred), error)
        finally:
            self.recording.release()

    def close(self) -> None:
        """Close the context. Raises StageError, after closing, if blocks were not released."""
        if self._context is not None:
            self.release_deferred()
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

    def track(self, block: object, nbytes: int) -> None:
        """Count a new block of ``nbytes`` as live until :meth:`untrack`."""
        with self._lock:
            self._live[id(block)] = nbytes

    def untrack(self, block: object, *, leaked: bool = False) -> None:
        """Count a block as released, or with ``leaked`` as garbage-collected without release."""
        with self._lock:
            self._live.pop(id(block), None)
            self.leaked += leaked
