"""Host frames to the GPU: YUV planes as they are, through pinned memory, on a stream of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from edgert.errors import StageError
from edgert.memory import Counter
from edgert.memory.cuda import CudaDevice, DevicePool, DeviceView, Stream
from edgert.runtime import Frame
from edgert.runtime.frame import U8

_ROW_BYTES = 64


class Uploader:
    """Lends GPU frames made from host frames. For one thread.

    Where the GPU is integrated and coherent the frame is written once, into memory that both see; elsewhere it is
    written into pinned memory and copied, which is counted.

    Args:
        stream: does the copies; consumers on other streams wait for it by themselves.
        in_flight: frames of one size that may be on the GPU at the same time; each size has memory of its own.
    """

    def __init__(self, device: CudaDevice, stream: Stream, counter: Counter, in_flight: int = 4) -> None:
        self.device, self._stream, self._counter, self._in_flight = device, stream, counter, in_flight
        self._pools: dict[int, DevicePool] = {}

    def upload(self, frame: Frame, timeout_s: float | None = None) -> Frame:
        """A frame of the same pixels on the GPU, with a lease of its own; the host frame may be released at once.

        Waits until one of the frames in flight is released. Raises StageError when none is in time.
        """
        pitches = [_pitch(plane) for plane in frame.planes]
        sizes = [pitch * plane.shape[0] for pitch, plane in zip(pitches, frame.planes, strict=True)]
        pool = self._pool_of(frame.root or frame)
        lent = pool.acquire(timeout_s)
        if lent is None:
            raise StageError("no GPU frame is free", why=f"{self._in_flight} are in use", where=frame.stream)
        view, lease = lent
        block, planes, start = pool.block_of(view), [], 0
        for plane, pitch, size in zip(frame.planes, pitches, sizes, strict=True):
            rows = block.host[start : start + size].reshape(plane.shape[0], pitch)
            inner = plane.size // plane.shape[0]
            np.copyto(rows[:, :inner].reshape(plane.shape), plane)
            strides = (pitch, plane.shape[2], 1) if plane.ndim == 3 else (pitch, 1)
            at = view.pointer + start
            planes.append(
                DeviceView(at, plane.shape, strides, view.dtype, lease, view.ordinal, self._stream, base=view)
            )
            start += size
        block.upload(self._stream, start)
        lease.after(self._stream)
        return replace(frame, planes=cast("tuple[U8, ...]", tuple(planes)), lease=lease, root=None)

    def close(self) -> None:
        """Frees the memory, once the GPU is done with it."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool_of(self, whole: Frame) -> DevicePool:
        """For frames of that size, and crops of them, which come in all sizes."""
        nbytes = sum(_pitch(plane) * plane.shape[0] for plane in whole.planes)
        if nbytes not in self._pools:
            self._pools[nbytes] = DevicePool(self.device, nbytes, self._in_flight, self._counter, self.device.kind)
        return self._pools[nbytes]


def _pitch(plane: U8) -> int:
    """Bytes of a row, padded for whole sectors of the GPU's memory."""
    inner: int = plane.size // plane.shape[0]
    return -(-inner // _ROW_BYTES) * _ROW_BYTES
