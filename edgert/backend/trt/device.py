"""What running an engine needs of a GPU: memory, a stream, a recorder of work. Given by whoever has one."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
U8 = npt.NDArray[np.uint8]


class Stream(Protocol):
    """Work for a GPU, done in order. It must not be the default stream: TensorRT would synchronise it."""

    @property
    def handle(self) -> int:
        """The ``cudaStream_t``."""
        ...

    def synchronize(self) -> None:
        """Blocks until all work is done."""
        ...


class Block(Protocol):
    """Memory that host and GPU both see, or a pair of equal size, one for each."""

    @property
    def host(self) -> U8:
        """The host's side, 1-D."""
        ...

    @property
    def address(self) -> int:
        """The GPU's side, a multiple of 256, which TensorRT asks for."""
        ...

    def upload(self, stream: Stream) -> None:
        """Enqueues the copy from host to GPU; nothing where both see the same bytes."""
        ...

    def download(self, stream: Stream) -> None:
        """Enqueues the copy from GPU to host; nothing where both see the same bytes."""
        ...

    def release(self) -> None:
        """Gives the memory back."""
        ...


class Device(Protocol):
    """A GPU that a context was made on, current in a thread inside ``with device:``. Raises DeviceError."""

    def __enter__(self) -> object:
        """Makes the context current in this thread."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the thread's contexts as they were."""
        ...

    def stream(self) -> Stream:
        """A new stream."""
        ...

    def block(self, nbytes: int) -> Block:
        """New memory, filled with zeros."""
        ...

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Records what ``enqueue`` puts on the stream as a CUDA graph; returns what launches it there."""
        ...
