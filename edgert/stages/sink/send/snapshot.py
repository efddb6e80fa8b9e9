"""JPEG sent with a message: the frame, or the object of an event."""

from __future__ import annotations

import base64
from typing import Any, Literal, cast

import cv2

from edgert.runtime.frame import U8
from edgert.runtime.records import Result
from edgert.stages.draw import Images

Attach = Literal["frame", "crop"]
Box = tuple[float, float, float, float]

LONGEST_PX = 640
_MARGIN = 0.2
"""Margin around a crop, as a fraction of the box's longer side."""
_QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 80]


class Snapshots:
    """JPEG snapshots, encoded in the caller's thread."""

    def __init__(self, attach: Attach) -> None:
        self._attach, self._images = attach, Images()

    def of(self, result: Result, box: Box | None = None) -> dict[str, Any]:
        """Return an image as plain data: ``type``, ``width``, ``height``, ``data``.

        Args:
            result: with the image.
            box: x1, y1, x2, y2 in source pixels of a crop; the complete frame without, or where it lies outside.
        """
        if self._attach == "crop" and box is not None:
            image = _cut(self._images.shown(Result(result.frame, {})), box)
        else:
            image = self._images.shown(result)
        height, width = image.shape[:2]
        scale = min(1.0, LONGEST_PX / max(width, height))
        if scale < 1:
            size = max(1, round(width * scale)), max(1, round(height * scale))
            image = cast("U8", cv2.resize(image, size, interpolation=cv2.INTER_AREA))
        _, data = cv2.imencode(".jpg", image, _QUALITY)
        height, width = image.shape[:2]
        return {
            "type": "image/jpeg",
            "width": width,
            "height": height,
            "data": base64.b64encode(data.data).decode(),
        }

    def close(self) -> None:
        """Free buffers."""
        self._images.close()


def _cut(image: U8, box: Box) -> U8:
    height, width = image.shape[:2]
    x1, y1, x2, y2 = box
    margin = _MARGIN * max(x2 - x1, y2 - y1)
    left, top = max(0, int(x1 - margin)), max(0, int(y1 - margin))
    right, bottom = min(width, round(x2 + margin)), min(height, round(y2 + margin))
    return image[top:bottom, left:right] if right > left and bottom > top else image
