"""Engines whose tensors lie on a GPU: what a pipeline needs of them so that pixels and tensors stay there."""

import math
import threading
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from edgert.backend.base import Array, Engine, Session
from edgert.memory.cuda import Block, CudaDevice, Stream


@dataclass(frozen=True, slots=True, eq=False)
class GpuTensor:
    """A bound tensor in memory of host and GPU; owned by its session.

    Attributes:
        shape: static, of all rows.
        dtype: NumPy's name.
        block: its memory; ``block.address`` on the GPU, a multiple of 256. All zeros at first.
        strides: of every dimension, in numbers, where it is no C-contiguous array: the layouts of a DLA.
        scale: of an int8 tensor that stands for real numbers: what one step is worth; 0 of any other.
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
    def host(self) -> Array:
        """The host's side, of a plain tensor: the same bytes where memory is mapped, else what ``block.download``
        brought."""
        nbytes = math.prod(self.shape) * np.dtype(self.dtype).itemsize
        array: Array = self.block.host[:nbytes].view(self.dtype).reshape(self.shape)
        return array


@runtime_checkable
class GpuSession(Session, Protocol):
    """A session that can be fed and read on the GPU, in the order of a stream.

    Attributes:
        device: where the tensors are.
        stream: takes the engine's work; shared by all sessions of one engine.
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
        """Puts one run over what the GPU holds on the stream. Does not wait, and copies nothing.

        The first run of a number of rows may wait and allocate; those after it can be recorded as a CUDA graph. Raises
        as :meth:`~edgert.backend.base.Session.run`.
        """
        ...


class GpuEngine(Engine, Protocol):
    """An engine of such sessions, on one GPU. ``close`` takes their memory back; the GPU must be done with it."""

    device: CudaDevice

    def session(self, profile: str | None = None) -> GpuSession:
        """A new set of bound tensors. Raises ModelError for an unknown profile."""
        ...
