"""Host frames to the GPU: YUV planes as they are, through pinned memory, on a stream of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from edgert.errors import StageError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, DeviceView, SharedLease, SharedPool, Stream
from edgert.runtime import Frame
from edgert.runtime.frame import U8
from edgert.stages.gpu.staging import is_shared, to_shared

_BYTES = np.dtype(np.uint8)


class Uploader:
    """Lends GPU frames made from host frames. For one thread.

    A frame that was made in memory of a :class:`~edgert.memory.cuda.SharedPool` goes up as it lies, by the GPU's own
    copy, once, however many uploaders are given it; where the GPU is integrated and coherent it is read in place. Any
    other frame is copied into such memory first. All copies are counted.

    Args:
        stream: does the copies; consumers on other streams wait for it by themselves.
        in_flight: frames of one size that may be on their way at the same time, of those that are copied first; each
            size has memory of its own.
    """

    def __init__(self, device: CudaDevice, stream: Stream, counter: Counter, in_flight: int = 4) -> None:
        self.device, self._stream, self._counter, self._in_flight = device, stream, counter, in_flight
        self._pools: dict[int, SharedPool] = {}

    def upload(self, frame: Frame, timeout_s: float | None = None) -> Frame:
        """A frame of the same pixels on the GPU, with a lease to release; the host frame may be released at once.

        Waits until one of the frames in flight is released. Raises StageError when none is in time.
        """
        if is_shared(frame, self.device):
            frame.lease.retain()
            return on_gpu(frame, self._stream)
        staged = to_shared(frame, lambda nbytes: self._pool_of(nbytes).acquire(timeout_s), self._counter)
        if staged is None:
            raise StageError("no GPU frame is free", why=f"{self._in_flight} are in use", where=frame.stream)
        return on_gpu(staged, self._stream)

    def close(self) -> None:
        """Gives the memory back, once the GPU is done with it."""
        self._pools.clear()

    def _pool_of(self, nbytes: int) -> SharedPool:
        if nbytes not in self._pools:
            self._pools[nbytes] = SharedPool(self.device, nbytes, self._in_flight, self._counter)
        return self._pools[nbytes]


def on_gpu(frame: Frame, stream: Stream) -> Frame:
    """A frame in shared memory as the GPU sees it, under the same lease; the stream brings it, if none has yet."""
    lease = cast("SharedLease", frame.lease)
    writer, ordinal = lease.send(stream), lease.device.ordinal
    planes = [
        DeviceView(lease.address_of(plane), plane.shape, plane.strides, _BYTES, lease, ordinal, writer)
        for plane in frame.planes
    ]
    return replace(frame, planes=cast("tuple[U8, ...]", tuple(planes)), root=None)
