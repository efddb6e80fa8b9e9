"""Pixels of others, such as a decoder's or a user's, brought into memory that the GPU can fetch them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from edgert.memory import SETTLED, Counter, Lease, Supply
from edgert.memory.cuda import CudaDevice, SharedLease, SharedPool
from edgert.runtime import Frame
from edgert.runtime.frame import U8

ROW_BYTES = 64
"""Rows start at multiples of this: whole sectors of the GPU's memory."""
Acquire = Callable[[int], "tuple[U8, Lease] | None"]


class Staging:
    """Takes the frames of one source as they come, in the source's own thread, so that lanes need not touch them."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._supplies: dict[int, Supply] = {}

    def taken(self, frame: Frame) -> Frame:
        """The frame in shared memory, the given one released; or the given one, where it is there already.

        Also where :data:`~edgert.memory.SETTLED` frames are held: such memory cannot be swapped, so there is an end.
        """
        if is_shared(frame, self._device):
            return frame
        shared = to_shared(frame, self._acquire, self._device.counter)
        if shared is None:
            return frame
        frame.lease.release()
        return shared

    def close(self) -> None:
        """Gives the memory back when the last frame in it is gone."""
        self._supplies.clear()

    def _acquire(self, nbytes: int) -> tuple[U8, Lease] | None:
        if nbytes not in self._supplies:
            self._supplies = {nbytes: shared_supply(self._device, nbytes, SETTLED)}  # the source has changed its size
        return self._supplies[nbytes].acquire()


def shared_supply(device: CudaDevice, nbytes: int, most: int | None = None) -> Supply:
    """Buffers that the GPU reads, too."""
    return Supply(nbytes, device.counter, most=most, make=partial(SharedPool, device))


def is_shared(frame: Frame, device: CudaDevice) -> bool:
    """Whether the GPU can have the frame without the host touching a pixel, whichever engine opened that GPU."""
    return isinstance(frame.lease, SharedLease) and frame.lease.device.ordinal == device.ordinal


def to_shared(frame: Frame, acquire: Acquire, counter: Counter) -> Frame | None:
    """The frame in memory that ``acquire`` lends for its size; the given one may be released at once.

    A copy, counted. Crops take as much memory as the whole frame, because they come in all sizes.

    Args:
        acquire: gives a buffer of so many bytes and its lease, or None.

    Returns:
        None when there is no buffer.
    """
    whole = frame.root or frame
    lent = acquire(sum(_pitch(plane) * plane.shape[0] for plane in whole.planes))
    if lent is None:
        return None
    buffer, lease = lent
    planes, start = [], 0
    for plane in frame.planes:
        stop = start + _pitch(plane) * plane.shape[0]
        planes.append(_rows(buffer[start:stop], plane))
        np.copyto(planes[-1], plane)
        start = stop
    counter.copied(sum(plane.nbytes for plane in planes))
    return replace(frame, planes=tuple(planes), lease=lease, root=None)


def _rows(memory: U8, like: U8) -> U8:
    """An array of the shape of ``like``, its rows as far apart as the memory has them."""
    rows = memory.reshape(like.shape[0], -1)[:, : like.size // like.shape[0]]
    return rows.reshape(like.shape)


def _pitch(plane: U8) -> int:
    """Bytes of a row, padded."""
    inner: int = plane.size // plane.shape[0]
    return -(-inner // ROW_BYTES) * ROW_BYTES
