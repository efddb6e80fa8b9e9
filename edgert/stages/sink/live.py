"""The newest result, for any number of viewers, none of whom can hold up the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import cv2

from edgert.errors import StageError
from edgert.runtime.plain import plain
from edgert.runtime.record import Classification, Detections, Keypoints, Result
from edgert.stages.draw import picture_of
from edgert.stages.overlay import Overlay, current_outputs
from edgert.stages.picture import Pictures

_ELEMENTS = ("boxes", "labels", "masks", "keypoints")  # drawn here when no draw stage did
_MAX_WIDTH = 1280
_JPEG_QUALITY = 80
_TABLE_ROWS = 50


class Live:
    """Holds the newest result. Its picture is made and encoded by the viewer who asks first, and only then."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._encoding = threading.Lock()
        self._newest: Result | None = None
        self._number = 0
        self._closed = False
        self._jpeg: tuple[int, bytes] = (0, b"")
        self._overlay, self._pictures = Overlay(_ELEMENTS), Pictures()

    def show(self, result: Result) -> None:
        """Replaces the newest result; a few microseconds whether or not anybody looks."""
        result.frame.lease.retain()
        with self._changed:
            before, self._newest = self._newest, result
            self._number += 1
            self._changed.notify_all()
        _release(before)

    def close(self) -> None:
        """Wakes every viewer for good and lets the frame go."""
        with self._changed:
            self._closed = True
            before, self._newest = self._newest, None
            self._changed.notify_all()
        _release(before)

    def jpeg_after(self, number: int, timeout_s: float) -> tuple[int, bytes] | None:
        """The newest picture as JPEG and its number, once that is above ``number``; None when none came in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > number or self._closed, timeout_s)
            result, newest = self._newest, self._number
            if result is None or newest <= number:
                return None
            result.frame.lease.retain()
        try:
            return self._encoded(result, newest)
        finally:
            result.frame.lease.release()

    def table(self) -> Mapping[str, Any]:
        """What the newest result says: ``stream``, ``frame`` and ``objects`` (stage, label, score, id)."""
        with self._changed:
            result = self._newest
        if result is None:
            return {"stream": None, "frame": None, "objects": []}
        rows = [row for stage, record in current_outputs(result).items() for row in _rows(stage, record)]
        return {"stream": result.frame.stream, "frame": result.frame.index, "objects": rows[:_TABLE_ROWS]}

    def _encoded(self, result: Result, number: int) -> tuple[int, bytes]:
        with self._encoding:
            if self._jpeg[0] < number:
                self._jpeg = (number, self._encode(result))
            return self._jpeg

    def _encode(self, result: Result) -> bytes:
        picture = result.picture
        if picture is None:
            picture = picture_of(result, min(result.frame.width, _MAX_WIDTH), self._pictures)
            self._overlay.paint(picture, result)
        done, data = cv2.imencode(".jpg", picture, (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))
        if not done:
            raise StageError("cannot encode a JPEG picture", why="OpenCV gives no reason")
        return data.tobytes()


def _release(result: Result | None) -> None:
    if result is not None:
        result.frame.lease.release()


def _rows(stage: str, record: object) -> list[dict[str, Any]]:
    if not isinstance(record, (Detections, Classification, Keypoints)):
        return []
    entries = plain(record)
    kept = ("label", "class", "score", "id")
    rows = entries["objects"] if "objects" in entries else entries["classes"]
    return [{"stage": stage, **{key: row[key] for key in kept if key in row}} for row in rows]
