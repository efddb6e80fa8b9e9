"""A picture before it has a place in a stream, and the buffers that pictures are made in."""

from __future__ import annotations

from dataclasses import dataclass

from edgert.memory import Counter, Lease, Pool
from edgert.runtime.frame import U8, Color, PixelFormat

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
    """BGR buffers of one size for pictures that are made here, used again once their leases end.

    Starts with ``count`` buffers and adds one whenever all are lent, so it settles at what the pipeline really
    holds, and a user who keeps every frame gets more memory instead of a standstill.
    """

    def __init__(self, width: int, height: int, counter: Counter, count: int = 4) -> None:
        self.width, self.height = width, height
        self._counter = counter
        self._pools = [Pool(width * height * 3, count, counter)]

    def acquire(self) -> tuple[U8, Lease]:
        """A buffer (height, width, 3) uint8, contents undefined, and its lease."""
        while True:
            for pool in self._pools:
                if (lent := pool.acquire(timeout_s=0)) is not None:
                    return lent[0].reshape(self.height, self.width, 3), lent[1]
            self._pools.append(Pool(self.width * self.height * 3, 1, self._counter))
