"""Engines whose tensors lie on a GPU: what a pipeline needs of them so that pixels and tensors stay there."""

import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from edgert.backend.base import Array, Engine, Session
from edgert.errors import BuildError, DeviceError
from edgert.memory.cuda import Block, CudaDevice, Stream

OnHost = Literal["all", "outputs", "none"]
"""Tensors of a session with host memory, too: those that the host writes or reads in every run. Other tensors get their
host side on first use."""


@dataclass(frozen=True, eq=False)
class GpuTensor:
    """A bound tensor in memory of host and GPU; owned by its session.

    Attributes:
        shape: static, of all rows.
        dtype: NumPy's name.
        block: its memory; ``block.address`` on the GPU, a multiple of 256. All zeros at first.
        strides: of every dimension, in numbers, where it is no C-contiguous array: the layouts of a DLA.
        scale: of an int8 tensor with real values: the value of one step; 0 of any other.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    block: Block
    strides: tuple[int, ...] = ()
    scale: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it is a C-contiguous array."""
        return not self.strides

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @cached_property
    def host(self) -> Array:
        """The host's side of a plain tensor, the same array every time.

        It is the GPU's memory where that is mapped, else the target of ``block.download``.
        """
        nbytes = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        array: Array = self.block.host[:nbytes].view(self.dtype).reshape(self.shape)
        return array


class _HasHostSide(Protocol):
    @property
    def host(self) -> Array: ...


class HostSides(Mapping[str, Array]):
    """The host's sides of tensors, by name; each made when it is asked for, where it is not there yet."""

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
    """A session that can be fed and read on the GPU, in the order of a stream.

    Attributes:
        device: where the tensors are.
        stream: takes the engine's work; shared by all sessions of a queue.
        exclusive: lock to hold while enqueuing work that must not be mixed with others', as when recording.
        inputs_on_gpu: by name.
        outputs_on_gpu: in the model's order.
        dynamic: whether fewer rows than all can be run.
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
        """Put one run over the GPU's inputs on the stream. Does not wait, and copies nothing.

        The first run of a batch size may wait and allocate; later ones can be recorded as a CUDA graph. Raises as
        :meth:`~edgert.backend.base.Session.run`.
        """


class GpuEngine(Engine, Protocol):
    """An engine of such sessions, on one GPU. ``close`` takes their memory back; the GPU must be done with it."""

    device: CudaDevice

    def session(self, profile: str | None = None, on_host: OnHost = "all", queue_index: int = 0) -> GpuSession:
        """Return a new set of bound tensors. Raises ModelError for an unknown profile.

        Args:
            profile: by default the first.
            on_host: which tensors the host reads or writes, too.
            queue_index: work of different queues may run at the same time, that of one queue runs in order. An engine
                may have only one.
        """


_NICE = 10
"""Nice value of the background thread: frames come first where cores are scarce."""

log = logging.getLogger("edgert.backend")


class Refinement:
    """Cancelable background work that improves an engine, at low priority on Linux.

    Args:
        make: makes and hands it over; returns a message. Its argument's ``terminate`` becomes true to cancel it.
        what: is made, for messages.
        where: the model.
        options: that argument, such as ONNX Runtime's run options.
    """

    def __init__(self, make: Callable[[Any], str], what: str, where: str, options: Any = None) -> None:
        self._make, self._what, self._where = make, what, where
        self._options = options or SimpleNamespace(terminate=False)
        self._thread = threading.Thread(target=self._run, name="edgert:refine")
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it has ended or was canceled."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Cancel it, and wait until it has ended."""
        self._options.terminate = True
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # of this thread: setpriority(2), Notes
        started = time.perf_counter()
        try:
            became = self._make(self._options)
        except (BuildError, DeviceError) as error:
            if not self._options.terminate:
                log.warning("%s: no %s: %s (%s)", self._where, self._what, error.what, error.why)
        else:
            level = logging.DEBUG if self._options.terminate else logging.INFO
            log.log(level, "%s: %s (%.1f s)", self._where, became, time.perf_counter() - started)
