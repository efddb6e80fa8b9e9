"""Protocols of engines with tensors on a GPU, by which a pipeline keeps pixels and tensors there."""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from edgert.backend.base import Array, Engine, Session
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import Block, CudaDevice, Stream

OnHost = Literal["all", "outputs", "none"]
"""Tensors of a session that the host writes or reads in every run, which have host memory from the start. Other tensors
get it at their first use."""


@dataclass(frozen=True, eq=False)
class GpuTensor:
    """A bound tensor in memory of host and GPU, owned by its session.

    Attributes:
        block: memory of the tensor, zeroed at first; ``block.address`` on the GPU is a multiple of 256.
        scale: value of one step of an int8 tensor with real values; 0 for other tensors.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    block: Block
    strides: tuple[int, ...] = ()
    scale: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is a C-contiguous array."""
        return not self.strides

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @cached_property
    def host(self) -> Array:
        """A plain tensor on the host's side, the same array every time.

        It is the GPU's memory if that is mapped, else the target of ``block.download``.
        """
        nbytes = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        array: Array = self.block.host[:nbytes].view(self.dtype).reshape(self.shape)
        return array


class _HasHostSide(Protocol):
    @property
    def host(self) -> Array: ...


class HostSides(Mapping[str, Array]):
    """Tensors on the host's side, by name, each of which is allocated at its first use."""

    def __init__(self, tensors: Mapping[str, _HasHostSide]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Array:
        return self._tensors[name].host

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@runtime_checkable
class GpuSession(Session, Protocol):
    """A session whose tensors can be written and read on the GPU, in the order of a stream.

    Attributes:
        stream: stream of the engine's work, shared by all sessions of a queue.
        exclusive: lock to hold while enqueuing work that must not be mixed with other work, such as when recording.
        recordable: whether runs may be recorded as CUDA graphs.
    """

    device: CudaDevice
    stream: Stream
    exclusive: threading.RLock
    inputs_on_gpu: dict[str, GpuTensor]
    outputs_on_gpu: tuple[GpuTensor, ...]
    dynamic: bool
    recordable: bool

    def enqueue(self, rows: int | None = None) -> None:
        """Enqueue one run on the inputs in GPU memory. Does not wait, and copies nothing.

        The first run of a batch size may wait and allocate; later ones can be recorded as a CUDA graph. Raises as
        :meth:`~edgert.backend.base.Session.run` does.
        """


class GpuEngine(Engine, Protocol):
    """An engine of such sessions on one GPU. ``close`` frees their memory, which the GPU must no longer use."""

    device: CudaDevice

    def session(self, profile: str | None = None, on_host: OnHost = "all", queue_index: int = 0) -> GpuSession:
        """Return a new set of bound tensors. Raises ModelError for an unknown profile.

        Tensors of ``on_host`` are read or written by the host, too. Work of different queues may run at the same time,
        and that of one queue runs in order. An engine may have only one.
        """


_NICE = 10
"""Nice value of the background thread, so that frames have priority if cores are scarce."""

log = logging.getLogger("edgert.backend")


class Refinement:
    """Cancelable background work that improves an engine, at low priority on Linux.

    ``work`` returns a message, and ends early when its argument is set; ``what`` names its product.
    """

    def __init__(self, work: Callable[[threading.Event], str], what: str, where: str) -> None:
        self._work, self._what, self._where = work, what, where
        self._canceled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edgert:refine")
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the work has ended or was canceled."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Cancel the work, and wait until it has ended."""
        self._canceled.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # of this thread: setpriority(2), Notes
        started = time.perf_counter()
        try:
            message = self._work(self._canceled)
        except (BuildError, DeviceError) as error:
            if not self._canceled.is_set():
                log.warning("%s: no %s: %s (%s)", self._where, self._what, error.what, error.why)
        else:
            level = logging.DEBUG if self._canceled.is_set() else logging.INFO
            log.log(level, "%s: %s (%.1f s)", self._where, message, time.perf_counter() - started)
