"""JPEG sent with a message: the frame, the object of an event, or every object of a frame."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any, Literal, cast

import cv2

from edgert.runtime import json_form
from edgert.runtime.frame import U8
from edgert.runtime.records import Detections, Result
from edgert.stages.draw import Images

Attach = Literal["frame", "crop"]
Box = tuple[float, float, float, float]

LONGEST_PX = 640
MOST_CROPS = 32
"""Objects of a frame that are sent."""
_CROPS_BYTES = 700_000
"""Images of a message in base64; a NATS server takes 1 MiB."""
_MARGIN = 0.2
"""Margin around a crop, as a fraction of the box's longer side."""
_QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 80]


class Snapshots:
    """JPEG snapshots, encoded in the caller's thread."""

    def __init__(self, attach: Attach | None = None) -> None:
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
        return _jpeg(image, LONGEST_PX)

    def crops(self, result: Result, found: Detections) -> list[dict[str, Any]]:
        """Return the objects of a frame as plain data, each with its row and its image.

        They are the :data:`MOST_CROPS` with the best scores, smaller where they would be too large for a message.
        """
        image = self._images.shown(Result(result.frame, {}))
        found = replace(found, masks=None, points=None, corners=None)[:MOST_CROPS]
        for longest in (LONGEST_PX, LONGEST_PX // 2, LONGEST_PX // 4, LONGEST_PX // 8):
            images = [_jpeg(_cut(image, box, 0.0), longest) for box in found.boxes.tolist()]
            if sum(len(one["data"]) for one in images) <= _CROPS_BYTES:
                break
        objects = json_form.plain(found)["objects"]
        return [{"row": row, **one, "image": images[row]} for row, one in enumerate(objects)]

    def close(self) -> None:
        """Free buffers."""
        self._images.close()


def _jpeg(image: U8, longest: int) -> dict[str, Any]:
    height, width = image.shape[:2]
    scale = min(1.0, longest / max(width, height))
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        image = cast("U8", cv2.resize(image, size, interpolation=cv2.INTER_AREA))
    _, data = cv2.imencode(".jpg", image, _QUALITY)
    height, width = image.shape[:2]
    return {"type": "image/jpeg", "width": width, "height": height, "data": base64.b64encode(data.data).decode()}


def _cut(image: U8, box: Box, part: float = _MARGIN) -> U8:
    height, width = image.shape[:2]
    x1, y1, x2, y2 = box
    margin = part * max(x2 - x1, y2 - y1)
    left, top = max(0, int(x1 - margin)), max(0, int(y1 - margin))
    right, bottom = min(width, round(x2 + margin)), min(height, round(y2 + margin))
    return image[top:bottom, left:right] if right > left and bottom > top else image
