"""A GPU's CUDA context, which is made current in a thread, and what kind of memory suits the GPU."""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from edgert.errors import DeviceError, StageError
from edgert.memory.buffer import Counter
from edgert.memory.cuda.driver import copy_up, failed, is_lost
from edgert.memory.cuda.holders import described, others_on
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
        integrated: the GPU shares the CPU's memory (CU_DEVICE_ATTRIBUTE_INTEGRATED).
        can_map: pinned host memory has a device address (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY).
        compute: compute capability, (8, 7).
    """

    integrated: bool
    can_map: bool
    compute: tuple[int, int]

    @property
    def coherent(self) -> bool:
        """Whether the CPU may keep memory that it shares with this GPU in its caches."""
        return self.integrated and self.compute >= _COHERENT

    @property
    def cached(self) -> bool:
        """Whether the CPU reads pinned memory through its caches, as fast as any other."""
        return self.coherent or not self.integrated


def memory_kind(traits: Traits) -> MemoryKind:
    """Return ``mapped`` where sharing costs nothing, else ``staged``.

    A discrete GPU would read mapped memory over PCI Express, as often as it reads it. An integrated one that is not
    coherent (Nano, TX2) makes the CPU bypass its caches, which is slower than a copy.
    """
    return "mapped" if traits.can_map and traits.coherent else "staged"


TENSORS = "EDGERT_GPU_TENSORS"
"""Environment variable that chooses where engines have their tensors: ``mapped``, or ``device``."""


def tensor_kind(kind: MemoryKind, for_host: bool, requested: MemoryKind | None = None) -> MemoryKind:
    """Return the kind of memory for a tensor of an engine.

    On an integrated GPU, pinned memory, and so mapped memory, bypasses the GPU's caches, I/O coherent or not. NVIDIA
    advises device memory for data that only the GPU uses: "CUDA for Tegra", Memory Selection, table of memory types,
    https://docs.nvidia.com/cuda/cuda-for-tegra-appnote/#memory-selection. A tensor that the host uses stays mapped: a
    copy would move the same bytes through the same memory once more.

    Args:
        kind: how this GPU shares memory with the host.
        for_host: whether the host writes or reads it in every run.
        requested: the user's choice, by :data:`TENSORS`; None without one.
    """
    if requested is not None:
        return requested
    return kind if for_host else "staged"


def requested_kind(value: str, kind: MemoryKind) -> MemoryKind | None:
    """Return the kind that a value of :data:`TENSORS` selects; None for an empty one.

    Also None on GPUs that share no memory with the host. Raises DeviceError for any other than ``mapped`` and
    ``device``.
    """
    if value and value not in _KINDS:
        why = f"it is {value!r}, and known are {' and '.join(_KINDS)}"
        raise DeviceError(f"{TENSORS} names no kind of memory", why=why, fix=f"leave {TENSORS} out")
    return _KINDS.get(value) if kind == "mapped" else None


_KINDS: dict[str, MemoryKind] = {"mapped": "mapped", "device": "staged"}


def describe(traits: Traits) -> str:
    """Return the kind of memory and the reason, in words."""
    if memory_kind(traits) == "mapped":
        return "mapped memory (integrated, I/O coherent: no copies)"
    if not traits.integrated:
        return "pinned memory and copies (discrete)"
    reason = "not I/O coherent" if traits.can_map else "cannot map host memory"
    return f"pinned memory and copies (integrated, {reason})"


class Releasable(Protocol):
    """Memory that is freed when it is no longer used."""

    def release(self) -> None:
        """Give the memory back. Raises DeviceError where the driver refuses now."""
        ...


class _Thread(threading.local):
    """Nesting depth of a thread in a context's blocks."""

    depth = 0


_RECORDINGS: defaultdict[int, threading.RLock] = defaultdict(threading.RLock)
"""Locks by GPU: its context is shared by all objects of it."""


class Context:
    """A GPU's primary context, the one that PyTorch, CuPy and ONNX Runtime use as well.

    ``with context:`` makes it current in this thread, inside other such blocks too; all methods of all
    objects made in it do so themselves. The stack of contexts is left as it was found, so that libraries with contexts
    of their own are not disturbed, and a thread may end at any time.

    Attributes:
        driver: PyCUDA's driver module.
        copy_up: see :func:`~edgert.memory.cuda.driver.copy_up`.
        counter: where allocations and copies between host and GPU are counted.
        recording: held while work is recorded. The driver refuses to wait for all of a context's work meanwhile, from
            any thread.
        kind: memory that host and GPU share tensors in here; see :func:`~edgert.memory.cuda.gpu_context.memory_kind`.
        frames: memory for frames that the host writes and the GPU reads: of :attr:`kind`, or whatever suits a pipeline.
        tensors: what the user asked for tensors of engines; see :func:`~edgert.memory.cuda.gpu_context.tensor_kind`.
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
        self._deferred: deque[Releasable] = deque()
        self.leaked = 0
        """Blocks that were dropped without release."""

    @property
    def architecture(self) -> str:
        """Architecture that kernels are compiled for, such as ``sm_87``."""
        major, minor = self.traits.compute
        return f"sm_{major}{minor}"

    @property
    def cuda_major(self) -> int:
        """Major version of the newest CUDA that the driver runs, such as 12."""
        return int(self.driver.get_driver_version()) // 1000

    @property
    def context_handle(self) -> int:
        """The ``CUcontext``, for libraries that take one. Raises DeviceError once closed."""
        if self._context is None:
            raise DeviceError(f"{self.name} was closed", why="its context was ended")
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
        if not self._local.depth:
            if self._context is None:
                raise DeviceError(f"{self.name} was closed", why="its context was ended")
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

        Raises DeviceError, which names what it was ``doing``, when the function failed, or earlier work of the GPU did.
        """
        try:
            if self._local.depth:  # current already, as it is for most of a frame's calls
                return work(*arguments)
            with self:
                return work(*arguments)
        except self.driver.Error as error:
            raise failed(error, doing) from error

    def free_bytes(self) -> tuple[int, int]:
        """Free and total memory of the GPU."""
        with self:
            free, total = self.driver.mem_get_info()
        return int(free), int(total)

    def room(self) -> str:
        """Return free memory and that of other processes in words, for an error."""
        free, total = self.free_bytes()
        number = f" (GPU {self.ordinal})" if self.ordinal else ""
        text = f"{format_bytes(free)} of {format_bytes(total)} are free on {self.name}{number}"
        return "; ".join(filter(None, (text, self.other_holders())))

    def other_holders(self) -> str:
        """Return the memory that other processes hold, in words; empty when unknown."""
        try:
            return described(others_on(str(self._device.pci_bus_id())))
        except self.driver.Error:
            return ""

    def context_bytes(self) -> int:
        """Return the GPU memory that an empty context takes, by making one for a moment.

        Raises DeviceError when there is too little for another.
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
        """Block until all work of all streams is done. Raises DeviceError when some of it failed."""
        with self.recording:
            self.run(lambda: self._context.synchronize())

    def drain(self) -> None:
        """Synchronize before memory is freed: on a GPU that is lost there is nothing to wait for."""
        try:
            with self, self.recording:
                self._context.synchronize()
        except self.driver.Error as error:
            if not is_lost(str(error)):
                raise failed(error, "work on the GPU") from error

    def defer(self, block: Releasable) -> None:
        """Keep a block that could not be released; :meth:`release_deferred` tries again."""
        self._deferred.append(block)

    def release_deferred(self) -> None:
        """Release the blocks of :meth:`defer`, as many as the driver takes now. Waits for no other thread."""
        if not self._deferred or not self.recording.acquire(blocking=False):
            return
        try:
            self.drain()
            while self._deferred:
                self._deferred[0].release()
                self._deferred.popleft()
        except DeviceError as error:
            _LOG.debug("%d blocks wait for their release: %s", len(self._deferred), error)
        finally:
            self.recording.release()

    def close(self) -> None:
        """Close the context. Raises StageError, after closing, when blocks were not released."""
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

    def hold(self, block: object, nbytes: int) -> None:
        """Count a new block of ``nbytes`` as live until :meth:`forget`."""
        with self._lock:
            self._live[id(block)] = nbytes

    def forget(self, block: object, *, leaked: bool = False) -> None:
        """Count a block as released, or, ``leaked``, as collected without release."""
        with self._lock:
            self._live.pop(id(block), None)
            self.leaked += leaked
