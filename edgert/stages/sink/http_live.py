"""The newest result of every camera, for any number of viewers, none of whom can hold up the pipeline."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np

from edgert import limits
from edgert.errors import StageError
from edgert.runtime.frame import full_frame
from edgert.runtime.json_form import plain
from edgert.runtime.records import Classification, Detections, Result
from edgert.stages.draw import Images, Overlay, current_outputs
from edgert.stages.zones.areas import Zones

LARGE_PX, TILE_PX, SMALL_PX = 1280, 640, 480
"""The most that images are wide: of one camera, and beside few and many others on the wall."""
ELEMENTS = ("boxes", "labels", "masks", "keypoints", "zones")
"""What is drawn for viewers when no draw stage did."""
_QUALITY = {LARGE_PX: 80, TILE_PX: 70, SMALL_PX: 70}
_LETTERS = {LARGE_PX: 1.0, TILE_PX: 2.4, SMALL_PX: 0.0}
"""How large letters are. A few tiles are shown at half their width, where large ones are read; of many none are."""
_TABLE_ROWS = 50
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Camera:
    """What is known of one; ``jpegs`` by width: the number of the result that each shows, and its bytes."""

    result: Result
    number: int
    at_s: float
    jpegs: dict[int, tuple[int, bytes]] = field(default_factory=dict)


class Live:
    """Holds the newest result of each camera, and its lease. An image is made and encoded when the first viewer asks
    for it, once for all of them."""

    def __init__(self) -> None:
        self._lock, self._encoding = threading.Lock(), threading.RLock()
        self._cameras: dict[str, _Camera] = {}
        self._newest, self._number, self._closed, self._is_full = "", 0, False, False
        self._overlays = {width: Overlay(ELEMENTS, letters=letters) for width, letters in _LETTERS.items()}
        self._images = {width: Images() for width in _QUALITY}

    def begin(self) -> None:
        """Results may come, also after it was closed."""
        self._closed = False

    def show(self, result: Result) -> None:
        """Replaces the newest result of its camera; a few microseconds whether or not anybody looks."""
        stream = result.frame.stream
        if stream not in self._cameras and len(self._cameras) >= limits.PAGE_STREAMS:
            if not self._is_full:
                self._is_full = True
                _LOG.warning("the page shows %d cameras at most; %s and others stay away", len(self._cameras), stream)
            return
        result.frame.lease.retain()
        with self._lock:
            self._number += 1
            self._newest, before = stream, self._cameras.get(stream)
            jpegs = before.jpegs if before is not None else {}
            self._cameras[stream] = _Camera(result, self._number, time.monotonic(), jpegs)
        if before is not None:
            before.result.frame.lease.release()
        if self._closed:  # in the meantime
            self.close()

    def close(self) -> None:
        """Lets all frames go."""
        self._closed = True
        with self._lock:
            before, self._cameras, self._newest = list(self._cameras.values()), {}, ""
        for camera in before:
            camera.result.frame.lease.release()
        with self._encoding:
            for images in self._images.values():
                images.close()

    @property
    def newest(self) -> str:
        """The camera whose result came last; empty before the first."""
        return self._newest

    def numbers(self) -> dict[str, int]:
        """Camera → the number of its newest result; numbers rise over all of them."""
        with self._lock:
            return {name: camera.number for name, camera in self._cameras.items()}

    def jpegs(self, streams: Sequence[str], width: int = LARGE_PX) -> list[tuple[str, int, bytes]]:
        """The newest image of each camera that has one: its name, number and JPEG, at most ``width`` wide."""
        return [(name, *found) for name in streams if (found := self._jpeg(name, width)) is not None]

    def _jpeg(self, stream: str, width: int) -> tuple[int, bytes] | None:
        with self._lock:
            camera = self._cameras.get(stream)
            if camera is None:
                return None
            camera.result.frame.lease.retain()
        try:
            with self._encoding:
                if camera.jpegs.get(width, (0,))[0] < camera.number:
                    camera.jpegs[width] = camera.number, encoded(self.painted(camera.result, width), _QUALITY[width])
                return camera.jpegs[width]
        finally:
            camera.result.frame.lease.release()

    def painted(self, result: Result, width: int) -> np.ndarray:
        """(h, w, 3) BGR of a result as viewers see it, at most ``width`` wide."""
        with self._encoding:
            return self._painted(result, width)

    def _painted(self, result: Result, most: int) -> np.ndarray:
        images, overlay, drawn = self._images[most], self._overlays[most], result.image
        width = _width(result.frame.width if drawn is None else drawn.shape[1], most)
        if drawn is None:
            image = images.painted(result, width, lambda size: overlay.shapes(size, result))
            result = replace(result, image=image)
        elif width < drawn.shape[1] and most < LARGE_PX:  # what somebody drew is shown large as it is
            result = replace(result, image=images.painted(result, width, lambda _: ()))
        return images.shown(result)

    def table(self, stream: str = "") -> Mapping[str, Any]:
        """What the newest result of a camera, or of any, holds: ``stream``, ``frame``, ``objects`` (stage, label,
        score, id) and ``places``, zones and lines as parts of the frame."""
        with self._lock:
            camera = self._cameras.get(stream or self._newest)
        if camera is None:
            return {"stream": None, "frame": None, "objects": [], "places": []}
        result, rows, shown = camera.result, [], ("label", "class", "score", "id")
        for stage, record in current_outputs(result).items():
            if isinstance(record, (Detections, Classification)):
                entries = plain(record)
                for row in entries.get("objects", entries.get("classes")):
                    rows.append({"stage": stage, **{key: row[key] for key in shown if key in row}})
        frame = result.frame
        return {
            "stream": frame.stream,
            "frame": frame.index,
            "objects": rows[:_TABLE_ROWS],
            "places": list(_places(result)),
        }

    def streams(self) -> dict[str, dict[str, Any]]:
        """Camera → ``frame``, ``size`` in pixels, and ``age_s`` of what is shown of it."""
        now = time.monotonic()
        with self._lock:
            cameras = sorted(self._cameras.items())
        return {
            name: {
                "frame": one.result.frame.index,
                "size": [one.result.frame.width, one.result.frame.height],
                "age_s": round(now - one.at_s, 2),
            }
            for name, one in cameras
        }


def _width(width: int, most: int) -> int:
    """How wide an image of this width is shown. Tiles are a half or a quarter as wide: OpenCV averages whole pixels
    many times as fast as parts of them."""
    while most < LARGE_PX and width > most:
        width //= 2
    return min(width, most)


def encoded(image: np.ndarray, quality: int = _QUALITY[LARGE_PX]) -> bytes:
    """An image (h, w, 3) BGR as JPEG. Raises StageError where OpenCV cannot."""
    done, data = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, quality))
    if not done:
        raise StageError("cannot encode a JPEG image", why="OpenCV gives no reason")
    return data.tobytes()


def _places(result: Result) -> Iterator[dict[str, Any]]:
    """The zones and lines that a stage looked at, to be drawn anew."""
    found, frame = result.latest(Zones), full_frame(result.frame)
    for number, points in enumerate(found.shapes if found is not None else ()):
        names = (*found.zones, *found.lines)  # type: ignore[union-attr]
        kind = "zone" if number < len(found.zones) else "line"  # type: ignore[union-attr]
        parts = np.round(points / (frame.width, frame.height), 4).tolist()
        yield {"name": names[number], "kind": kind, "points": parts}
