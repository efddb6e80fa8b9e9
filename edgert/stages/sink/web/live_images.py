"""The newest image of every camera, for any number of viewers, without delay for the pipeline."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np

from edgert import limits
from edgert.errors import StageError
from edgert.runtime.frame import full_frame
from edgert.runtime.json_form import plain
from edgert.runtime.records import Classification, Detections, Result, without_delivery, without_outputs
from edgert.stages.draw import ImagePainter, Overlay, current_outputs
from edgert.stages.zones.areas import Zones

LARGE_PX = 1280
"""Maximum width of the image of a single camera."""
TILES_PX = {180: 480, 260: 480, 380: 640, 540: 640, 800: LARGE_PX}
"""Maximum width of a tile's image, by the tile's width on the viewer's screen."""
ELEMENTS = ("boxes", "labels", "masks", "keypoints", "zones")
"""Elements that are drawn where no draw stage did."""
_QUALITY, _TILE_QUALITY = 80, 70
_TABLE_ROWS = 50
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Camera:
    """The newest result of a camera; ``jpegs`` has, by tile, the number of the result that is shown, and the JPEG."""

    result: Result
    number: int
    at_s: float
    jpegs: dict[int, tuple[int, bytes]] = field(default_factory=dict)


class LiveImages:
    """The newest result of each camera, with its lease.

    An image is drawn and encoded once for all viewers, when the first asks for it.
    """

    def __init__(self) -> None:
        self._lock, self._encoding = threading.Lock(), threading.RLock()
        self._cameras: dict[str, _Camera] = {}
        self._newest, self._number, self._closed, self._is_full = "", 0, False, False
        self._overlays = {tile_px: Overlay(ELEMENTS, tile_px=tile_px) for tile_px in (0, *TILES_PX)}
        self._images = {tile_px: ImagePainter() for tile_px in self._overlays}

    def open(self) -> None:
        """Accept results, also after :meth:`close`."""
        self._closed = False

    def show(self, result: Result) -> None:
        """Replace the newest result of a camera, within a few microseconds."""
        stream = result.frame.stream
        if stream not in self._cameras and len(self._cameras) >= limits.PAGE_STREAMS:
            if not self._is_full:
                self._is_full = True
                _LOG.warning("the page shows at most %d cameras; %s is left out", len(self._cameras), stream)
            return
        result = without_delivery(result)
        result.frame.lease.retain()
        with self._lock:
            self._number += 1
            self._newest, before = stream, self._cameras.get(stream)
            jpegs = before.jpegs if before is not None else {}
            self._cameras[stream] = _Camera(result, self._number, time.monotonic(), jpegs)
        if before is not None:
            before.result.frame.lease.release()
        if self._closed:  # by another thread, in the meantime
            self.close()

    def forget(self, name: str) -> None:
        """Remove a camera, or the records of a stage from each camera's newest result."""
        with self._lock:
            gone = self._cameras.pop(name, None)
            self._newest = next(iter(self._cameras), "") if self._newest == name else self._newest
            for camera in self._cameras.values():
                if name in camera.result.outputs:
                    self._number += 1
                    camera.result, camera.number = without_outputs(camera.result, (name,)), self._number
        if gone is not None:
            gone.result.frame.lease.release()

    def close(self) -> None:
        """Release all frames."""
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
        """Return the number of each camera's newest result. Numbers rise with time, over all cameras."""
        with self._lock:
            return {name: camera.number for name, camera in self._cameras.items()}

    def jpegs(self, tiles_px: Mapping[str, int]) -> list[tuple[str, int, bytes]]:
        """Return name, number and JPEG of the newest image of each camera that has one.

        Args:
            tiles_px: a width of :data:`TILES_PX` by camera; 0: the image of the single camera.
        """
        return [(name, *found) for name, px in tiles_px.items() if (found := self._jpeg(name, px)) is not None]

    def _jpeg(self, stream: str, tile_px: int) -> tuple[int, bytes] | None:
        with self._lock:
            camera = self._cameras.get(stream)
            if camera is None:
                return None
            camera.result.frame.lease.retain()
        try:
            with self._encoding:
                if camera.jpegs.get(tile_px, (0,))[0] < camera.number:
                    jpeg = encode_jpeg(self.drawn(camera.result, tile_px), _TILE_QUALITY if tile_px else _QUALITY)
                    camera.jpegs[tile_px] = camera.number, jpeg
                return camera.jpegs[tile_px]
        finally:
            camera.result.frame.lease.release()

    def drawn(self, result: Result, tile_px: int = 0) -> np.ndarray:
        """Return a result as (h, w, 3) BGR, drawn for a tile of a width of :data:`TILES_PX`, or large for 0."""
        with self._encoding:
            images, overlay, drawn = self._images[tile_px], self._overlays[tile_px], result.image
            most = TILES_PX.get(tile_px, LARGE_PX)
            width = _width(result.frame.width if drawn is None else drawn.shape[1], most)
            if drawn is None:
                image = images.paint(result, width, lambda size: overlay.shapes(size, result))
                result = replace(result, image=image)
            elif width < drawn.shape[1] and most < LARGE_PX:  # a draw stage's image is not scaled to be shown large
                result = replace(result, image=images.paint(result, width, lambda _: ()))
            return images.host_image(result)

    def table(self, stream: str = "") -> Mapping[str, Any]:
        """Return the newest result of a camera, or the newest of all cameras, as plain data.

        Returns:
            ``stream``, ``frame``, ``objects`` (stage, label, score, id) and ``places``: zones and lines, with points in
            fractions of the frame's width and height.
        """
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
        """Return ``frame``, ``size`` in pixels and ``age_s`` of each camera's newest result."""
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
    """Return the width at which an image of some width is shown, at most ``most``.

    Tiles have a half or a quarter of the width, because OpenCV averages entire pixels many times faster than parts.
    """
    while most < LARGE_PX and width > most:
        width //= 2
    return min(width, most)


def encode_jpeg(image: np.ndarray, quality: int = _QUALITY) -> bytes:
    """Return an image (h, w, 3) BGR as JPEG. Raises StageError where OpenCV cannot encode it."""
    done, data = cv2.imencode(".jpg", image, (cv2.IMWRITE_JPEG_QUALITY, quality))
    if not done:
        raise StageError("cannot encode a JPEG image", why="OpenCV gives no reason")
    return data.tobytes()


def _places(result: Result) -> Iterator[dict[str, Any]]:
    """Yield the zones and lines of a result, for the page to draw."""
    found, frame = result.latest(Zones), full_frame(result.frame)
    for number, points in enumerate(found.shapes if found is not None else ()):
        names = (*found.zones, *found.lines)  # type: ignore[union-attr]
        kind = "zone" if number < len(found.zones) else "line"  # type: ignore[union-attr]
        parts = np.round(points / (frame.width, frame.height), 4).tolist()
        yield {"name": names[number], "kind": kind, "points": parts}
