"""Pictures that live as long as somebody looks at them.

A drawn picture does not end with its frame: an encoder, a viewer of the live page or the user keeps it as long as he
likes. So its lease is given back at once, and what protects it is that a Pool never lends a buffer that any array
still refers to. Whoever holds the picture, or a view of it, is safe without doing anything.
"""

from __future__ import annotations

import math

from edgert.errors import StageError
from edgert.memory import Counter, Pool
from edgert.runtime.color import bgr_into
from edgert.runtime.frame import U8
from edgert.runtime.record import Result

_IN_FLIGHT = 6  # being painted, waiting in a queue or two, in a sink, shown to a viewer


class Pictures:
    """Lends uint8 arrays of one shape at a time from a Pool. For one thread; the arrays may go anywhere."""

    def __init__(self) -> None:
        self._pool: Pool | None = None

    def take(self, shape: tuple[int, ...], counter: Counter) -> U8:
        """A C-contiguous array of ``shape``, contents undefined. Never waits.

        Allocates when the shape changes, and when more than a handful are held at the same time.
        """
        nbytes = math.prod(shape)
        if self._pool is None or self._pool.nbytes != nbytes or self._pool.counter is not counter:
            self._pool = Pool(nbytes, _IN_FLIGHT, counter)
        lent = self._pool.acquire(0)
        if lent is None:
            raise StageError("no picture buffer is free", why="a lease on one was kept")
        buffer, lease = lent
        lease.release()
        return buffer.reshape(shape)

    def shown(self, result: Result) -> U8:
        """(h, w, 3) BGR: the drawn picture, or the frame where nothing was drawn. Converting a frame is counted."""
        if result.picture is not None:
            return result.picture
        frame = result.frame
        if frame.format == "bgr":
            return frame.planes[0]
        picture = self.take((frame.height, frame.width, 3), frame.lease.counter)
        bgr_into(frame, picture)
        frame.lease.counter.copied(picture.nbytes)
        return picture
