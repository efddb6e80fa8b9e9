"""A picture before it has a place in a stream, and the buffers that pictures are made in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from edgert.memory import Counter, Lease, Supply
from edgert.memory.cuda import CudaDevice
from edgert.runtime.frame import U8, Color, PixelFormat
from edgert.stages.gpu.staging import shared_supply

YUV = Color()


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """What a decoder or camera hands over; becomes a Frame once it has a number and a position.

    Attributes:
        format, width, height, planes, lease, color: as in :class:`edgert.runtime.frame.Frame`.
        timestamp_ns: monotonic clock when it was captured or decoded.
        media_ns: position by the stream's own clock, which may jump; None when it has none.
        lost: pictures known to be missing just before this one.
    """

    format: PixelFormat
    width: int
    height: int
    planes: tuple[U8, ...]
    lease: Lease
    timestamp_ns: int
    media_ns: int | None = None
    color: Color = YUV
    lost: int = 0


class Canvas:
    """BGR buffers of one size for pictures that are made here, used again once their leases end."""

    def __init__(self, width: int, height: int, counter: Counter) -> None:
        self.width, self.height = width, height
        self._make = partial(Supply, width * height * 3, counter)
        self._supply: Supply | None = None

    def share(self, device: CudaDevice) -> None:
        """From now on, in memory that this GPU reads, too."""
        self._make = partial(shared_supply, device, self.width * self.height * 3)
        self._supply = None

    def acquire(self) -> tuple[U8, Lease]:
        """A buffer (height, width, 3) uint8, contents undefined, and its lease."""
        self._supply = self._supply or self._make()
        lent = self._supply.acquire()
        assert lent is not None  # there is no limit
        return lent[0].reshape(self.height, self.width, 3), lent[1]

    def close(self) -> None:
        """Gives the memory back when the last picture is gone; whoever draws another gets new memory."""
        self._supply = None
