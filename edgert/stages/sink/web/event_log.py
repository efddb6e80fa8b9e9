"""The newest events, for the live page, each with an image of its beginning."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import cv2
import numpy as np

from edgert.runtime.records import Result
from edgert.runtime.recovery import describe_error
from edgert.stages.sink.web.live_images import LiveImages, encode_jpeg
from edgert.stages.zones.rules import Event, Events

_LOG = logging.getLogger(__name__)
_SHOWN, _REMEMBERED = 100, 200  # browsers still ask for images of events that were just shown
_MAX_QUEUED = 4
"""Maximum number of images that wait to be made; each holds a frame."""
_SIZE_PX = 320, 200
_MIN_HEIGHT = 0.35
"""Least part of the frame's height that an image shows, to give the surroundings of small objects."""


@dataclass(slots=True)
class _ShownEvent:
    """An event as plain data, and its image as JPEG, once it is made."""

    about: dict[str, Any]
    image: bytes | None = None


class EventLog:
    """The newest events, in memory.

    Args:
        images: drawer of results.
        submit: function that queues a function for another thread, which runs one after the other.

    Attributes:
        count: number of changes since the start.
    """

    def __init__(self, images: LiveImages, submit: Callable[[Callable[[], None]], object]) -> None:
        self._images, self._submit = images, submit
        self._lock, self._shown, self._queued = threading.Lock(), dict[str, _ShownEvent](), 0
        self.count = 0

    def add(self, result: Result) -> None:
        """Add the events of a result."""
        found = result.latest(Events)
        for event in found.events if found is not None else ():
            with self._lock:
                one = self._shown.setdefault(event.id, _ShownEvent({}))
                one.about |= {**event.to_json(), "ended": event.phase == "end" or bool(event.way)}
                while len(self._shown) > _REMEMBERED:
                    del self._shown[next(iter(self._shown))]
                self.count += 1
                needs_image = one.image is None and event.phase != "end" and self._queued < _MAX_QUEUED
                self._queued += needs_image
            if needs_image:
                result.frame.lease.retain()
                self._submit(lambda event=event: self._make_image(event, result))  # type: ignore[misc]

    def newest_first(self) -> list[dict[str, Any]]:
        """Return the events in the form of ``sink: jsonl``, with ``ended``, and whether there is an ``image``."""
        with self._lock:
            return [
                {**one.about, "image": one.image is not None} for one in islice(reversed(self._shown.values()), _SHOWN)
            ]

    def image(self, event: str) -> bytes | None:
        """Return the JPEG of an event's beginning; None where there is none."""
        with self._lock:
            found = self._shown.get(event)
        return found.image if found is not None else None

    def _make_image(self, event: Event, result: Result) -> None:
        """Make the image of an event, and release its frame."""
        try:
            image = encode_jpeg(_crop(self._images.drawn(result), event, result))
            with self._lock:
                if event.id in self._shown:
                    self._shown[event.id].image = image
                    self.count += 1
        except Exception as error:  # noqa: BLE001 - nobody reads the future of this work
            _LOG.warning("event %s has no image: %s", event.rule, describe_error(error))
        finally:
            result.frame.lease.release()
            with self._lock:
                self._queued -= 1


def _crop(image: np.ndarray, event: Event, result: Result) -> np.ndarray:
    """Return the part of an image around the event's object; the complete image without an object."""
    (height, width), frame = image.shape[:2], result.frame
    shape = _SIZE_PX[0] / _SIZE_PX[1]
    wide, high, x, y = float(width), float(height), width / 2, height / 2
    if event.box is not None:
        left, top, right, bottom = np.array(event.box) * np.tile((width / frame.width, height / frame.height), 2)
        x, y, high = (left + right) / 2, (top + bottom) / 2, max(1.6 * (bottom - top), 1.6 * (right - left) / shape)
        high = max(high, _MIN_HEIGHT * height)
    high = min(high, height, width / shape)
    wide = high * shape
    left_px = int(min(max(x - wide / 2, 0), width - wide))
    top_px = int(min(max(y - high / 2, 0), height - high))
    part = image[top_px : top_px + max(1, round(high)), left_px : left_px + max(1, round(wide))]
    return cv2.resize(part, _SIZE_PX, interpolation=cv2.INTER_AREA)
