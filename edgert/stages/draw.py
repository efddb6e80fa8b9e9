"""``draw:`` makes the one BGR picture of a frame and paints on it what the stages before said."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np

from edgert.clock import REAL, Clock
from edgert.config.stage import DrawStage
from edgert.runtime.color import bgr_into
from edgert.runtime.frame import U8
from edgert.runtime.record import Result
from edgert.stages.overlay import Overlay
from edgert.stages.picture import Pictures


class Draw:
    """Results come out with a ``picture``; the frame itself is never touched.

    The picture is valid as long as anybody refers to it, with or without the frame's lease. Making it is the one copy
    of this stage, and counted; at steady state nothing is allocated. With ``width`` the planes are scaled first and
    only the small picture is converted.
    """

    def __init__(self, name: str, config: DrawStage, clock: Clock = REAL) -> None:
        self.name = name
        self._width = config.width
        self._overlay = Overlay(config.draw, clock)
        self._pictures = Pictures()

    def open(self) -> None:
        """Needs nothing."""

    def process(self, result: Result) -> Result:
        """The result with its picture. One that has been drawn on is not painted over but copied: others see it."""
        picture = picture_of(result, self._width, self._pictures)
        self._overlay.paint(picture, result)
        return replace(result, picture=picture)

    def close(self) -> None:
        """Gives the buffers back; pictures still held by others stay valid."""
        self._pictures = Pictures()


def picture_of(result: Result, width: int | None, pictures: Pictures) -> U8:
    """A new BGR picture of the frame, or of what was drawn before; ``width`` pixels wide when given. Counted."""
    frame = result.frame
    source_height, source_width = (frame.height, frame.width) if result.picture is None else result.picture.shape[:2]
    width = width or source_width
    height = max(1, round(source_height * width / source_width))
    picture = pictures.take((height, width, 3), frame.lease.counter)
    if result.picture is None:
        bgr_into(frame, picture)
    else:
        _copy_into(result.picture, picture)
    frame.lease.counter.copied(picture.nbytes)
    return picture


def _copy_into(drawn: U8, picture: U8) -> None:
    if drawn.shape == picture.shape:
        np.copyto(picture, drawn)
    else:
        size = (picture.shape[1], picture.shape[0])
        cv2.resize(drawn, size, dst=picture, interpolation=cv2.INTER_AREA)
