"""``draw:`` makes the one BGR image of a frame and paints on it what the stages before found."""

import math
from collections.abc import Iterable
from dataclasses import replace

import cv2
import numpy as np

from edgert.clock import REAL, Clock
from edgert.config.stages import DrawStage
from edgert.errors import StageError
from edgert.memory import Counter, Pool
from edgert.runtime.frame import U8, bgr_into
from edgert.runtime.records import Result
from edgert.runtime.stage import Stage
from edgert.stages.context import SimpleStage
from edgert.stages.overlay import Overlay
from edgert.stages.paint import INK, Pen

# Images that live as long as somebody looks at them.
#
# A drawn image does not end with its frame: an encoder, a viewer of the live page or the user keeps it as long as
# he likes. So its lease is given back at once, and what protects it is that a Pool never lends a buffer that any
# array still refers to. Whoever holds the image, or a view of it, is safe without doing anything.

_IN_FLIGHT = 6  # being painted, waiting in a queue or two, in a sink, shown to a viewer


class Images:
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
            raise StageError("no image buffer is free", why="a lease on one was kept")
        buffer, lease = lent
        lease.release()
        return buffer.reshape(shape)

    def shown(self, result: Result) -> U8:
        """(h, w, 3) BGR: the drawn image, or the frame where nothing was drawn. Converting a frame is counted."""
        if result.image is not None:
            return result.image
        frame = result.frame
        if frame.format == "bgr":
            return frame.planes[0]
        image = self.take((frame.height, frame.width, 3), frame.lease.counter)
        bgr_into(frame, image)
        frame.lease.counter.copied(image.nbytes)
        return image


class Draw(SimpleStage):
    """Results come out with a ``image``; the frame itself is never touched.

    The image is valid as long as anybody refers to it, with or without the frame's lease. Making it is the one copy
    of this stage, and counted; at steady state nothing is allocated. With ``width`` the planes are scaled first and
    only the small image is converted.
    """

    def __init__(self, name: str, config: DrawStage, clock: Clock = REAL) -> None:
        self.name = name
        self._width = config.width
        self._overlay = Overlay(config.draw, clock)
        self._images = Images()

    def process(self, result: Result) -> Result:
        """The result with its image. One that has been drawn on is not painted over but copied: others see it."""
        image = image_of(result, self._width, self._images)
        self._overlay.paint(image, result)
        return replace(result, image=image)

    def close(self) -> None:
        """Gives the buffers back; images still held by others stay valid."""
        self._images = Images()


def image_of(result: Result, width: int | None, images: Images) -> U8:
    """A new BGR image of the frame, or of what was drawn before; ``width`` pixels wide when given. Counted."""
    frame = result.frame
    source_height, source_width = (frame.height, frame.width) if result.image is None else result.image.shape[:2]
    width = width or source_width
    height = max(1, round(source_height * width / source_width))
    image = images.take((height, width, 3), frame.lease.counter)
    if result.image is None:
        bgr_into(frame, image)
    elif result.image.shape == image.shape:
        np.copyto(image, result.image)
    else:
        cv2.resize(result.image, (width, height), dst=image, interpolation=cv2.INTER_AREA)
    frame.lease.counter.copied(image.nbytes)
    return image


KEY = "simulated"
"""Among the outputs of a result: the label."""
_TEXT_SHARE, _LEAST_PX = 1 / 30, 12


class Marked:
    """Gives every result of a simulated board the label, and writes it across the foot of its image, so that nobody
    takes it for real.

    Args:
        shows: whether the sink shows images; they are copied, since others may see them, too.
    """

    def __init__(self, sink: Stage, label: str, shows: bool) -> None:
        self._sink, self._label, self._shows = sink, label, shows
        self._images = Images()

    def open(self) -> None:
        self._sink.open()

    def process(self, result: Result) -> Result | Iterable[Result] | None:
        result = result.with_output(KEY, self._label)
        if self._shows:
            image = image_of(result, None, self._images)
            height = image.shape[0]
            Pen(max(_LEAST_PX, round(height * _TEXT_SHARE))).boxed(image, self._label, 0, height, INK)
            result = replace(result, image=image)
        return self._sink.process(result)

    def close(self) -> None:
        self._sink.close()
