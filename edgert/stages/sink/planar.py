"""Pictures as the I420 that video encoders take."""

from __future__ import annotations

import cv2
import numpy as np

from edgert.runtime.color import yuv_planes
from edgert.runtime.frame import U8, Color
from edgert.runtime.record import Result
from edgert.stages.picture import Pictures


class I420Writer:
    """Writes one result after another as packed I420, each into a buffer nobody else uses any more."""

    def __init__(self) -> None:
        self._packed, self._bgr = Pictures(), Pictures()

    def write(self, result: Result) -> tuple[U8, Color]:
        """The drawn picture, or the frame where nothing was drawn.

        An i420 or nv12 frame goes over plane by plane, never through BGR. An odd last row or column is left out:
        4:2:0 has no half chroma pixels. The copy is counted.

        Returns:
            (h * 3 / 2, w) uint8, h and w even: the plane Y, then U, then V; and how its colours are to be read.
        """
        width, height = size_of(result)
        counter = result.frame.lease.counter
        packed = self._packed.take((height * 3 // 2, width), counter)
        if result.picture is None and result.frame.format in ("i420", "nv12"):
            _copy_planes(yuv_planes(result.frame), packed, height)
            color = result.frame.color
        else:
            cv2.cvtColor(self._bgr.shown(result)[:height, :width], cv2.COLOR_BGR2YUV_I420, dst=packed)
            color = Color()  # what OpenCV makes: BT.601, limited range
        counter.copied(packed.nbytes)
        return packed, color


def size_of(result: Result) -> tuple[int, int]:
    """(width, height) of the video this result belongs to: its picture's, rounded down to even."""
    if result.picture is None:
        return result.frame.width & ~1, result.frame.height & ~1
    height, width = result.picture.shape[:2]
    return width & ~1, height & ~1


def _copy_planes(planes: tuple[U8, U8, U8], packed: U8, height: int) -> None:
    width = packed.shape[1]
    chroma = packed[height:].reshape(2, height // 2, width // 2)
    np.copyto(packed[:height], planes[0][:height, :width])
    for out, plane in zip(chroma, planes[1:], strict=True):
        np.copyto(out, plane[: height // 2, : width // 2])
