"""Upload of host frames, such as a decoder's or a user's, to memory that the GPU reads."""

from collections.abc import Callable

import numpy as np

from edgert.memory import TYPICAL_BUFFERS
from edgert.memory.cuda import CudaDevice, SharedLease, SharedPool
from edgert.runtime import Frame
from edgert.runtime.frame import U8, full_frame, with_planes

ROW_BYTES = 64
"""Alignment of rows: whole sectors of the GPU's memory."""


class Staging:
    """Upload of one source's frames in the thread that delivers them, so that inference does not wait."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._supplies: dict[int, SharedPool] = {}

    def shared_frame(self, frame: Frame) -> Frame:
        """Return a copy of the frame in shared memory, and release the frame.

        Return the frame itself if it is there or on a GPU already, or if :data:`~edgert.memory.TYPICAL_BUFFERS` copies
        are held, as shared memory cannot be swapped.
        """
        if is_shared(frame, self._device) or frame.is_on_gpu:
            return frame

        shared = to_shared(frame, self._pool)
        if shared is None:
            return frame
        frame.lease.release()
        return shared

    def close(self) -> None:
        """Free the memory when the last frame in it is released."""
        self._supplies.clear()

    def _pool(self, nbytes: int) -> SharedPool:
        if nbytes not in self._supplies:  # the first frame, or the source has changed its size
            self._supplies = {nbytes: SharedPool(self._device, nbytes, most=TYPICAL_BUFFERS)}
        return self._supplies[nbytes]


def is_shared(frame: Frame, device: CudaDevice) -> bool:
    """Return whether the GPU can read or copy the frame without a host copy, whichever engine opened that GPU."""
    return isinstance(frame.lease, SharedLease) and frame.lease.device.ordinal == device.ordinal


def to_shared(frame: Frame, pool_of: Callable[[int], SharedPool]) -> Frame | None:
    """Copy the frame into a buffer of a pool, and return the copy. The given frame may be released at once.

    ``pool_of`` returns the pool of a size. A crop takes as much memory as its full frame, because crops come in all
    sizes. Return None if all buffers of the pool are in use.
    """
    full = full_frame(frame)
    pool = pool_of(sum(_pitch(plane) * plane.shape[0] for plane in full.planes))
    if (leased := pool.acquire()) is None:
        return None
    buffer, lease = leased
    planes, start = [], 0
    for plane in frame.planes:
        height, stop = plane.shape[0], start + _pitch(plane) * plane.shape[0]
        rows = buffer[start:stop].reshape(height, -1)[:, : plane.size // height]
        planes.append(rows.reshape(plane.shape))
        np.copyto(planes[-1], plane)
        start = stop
    pool.counter.copied(sum(plane.nbytes for plane in planes))
    return with_planes(frame, tuple(planes), lease)


def _pitch(plane: U8) -> int:
    inner: int = plane.size // plane.shape[0]
    return -(-inner // ROW_BYTES) * ROW_BYTES


class Uploader:
    """Copy of host frames into memory of a :class:`~edgert.memory.cuda.SharedPool`, and a stream that uploads it.

    Such a frame is uploaded once, by the GPU's copy engine, for all uploaders. An integrated, coherent GPU reads it in
    place. All copies are counted. For one thread.

    Args:
        in_flight: usual number of frames of one size in flight, whose memory is allocated at once.
    """

    def __init__(self, device: CudaDevice, in_flight: int = 4) -> None:
        self.device, self.stream, self._in_flight = device, device.stream(), in_flight
        self._pools: dict[int, SharedPool] = {}

    def shared_frame(self, frame: Frame) -> Frame:
        """Return the frame in shared memory, with a lease to release: itself or a copy."""
        if is_shared(frame, self.device):
            frame.lease.retain()
            return frame
        shared = to_shared(frame, self._pool)
        assert shared is not None  # the pool has no limit
        return shared

    def close(self) -> None:
        """Free the memory once the GPU is done with it."""
        self._pools.clear()

    def _pool(self, nbytes: int) -> SharedPool:
        if nbytes not in self._pools:
            self._pools[nbytes] = SharedPool(self.device, nbytes, self._in_flight)
        return self._pools[nbytes]
