"""``track:`` stage: one tracker per stream, fed with the newest detections."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from edgert.config import TrackStage
from edgert.runtime import Detections, Result
from edgert.stages.assignment import F64
from edgert.stages.bytetrack import F32, I32, I64, UNTRACKED
from edgert.stages.context import Context, SimpleStage, make_stage


class Tracker(Protocol):
    """Tracker that numbers the objects of one stream, in one thread.

    One that uses more than boxes also has ``look(result, found)``, which is called before each update with these
    detections. One that predicts has ``ahead(steps)``. It returns where the objects of the last update are this many
    update intervals later: numbers (N,), and (N, 4) pixels by which the sides of the boxes have moved.
    """

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        """Advance by one frame, with its detections.

        Args:
            boxes: (N, 4) float32 x1, y1, x2, y2 in pixels; N may be 0. Nothing is modified or kept.
            scores: (N,) float32 from 0 to 1.
            classes: (N,) int32.

        Returns:
            (N,) int64 object numbers of the detections, from 1; -1 for a detection without an object.
        """


_FARTHEST = 2.0
"""Longest prediction, in update intervals. After that, objects stay where they were predicted last."""


@dataclass(slots=True)
class _StreamState:
    """State of one stream.

    Attributes:
        tracker: tracker of its objects.
        seen: numbered detections of the last update; None before the first.
        at_ns: media time of the last update.
        interval_ns: time between the last two updates.
    """

    tracker: Tracker
    seen: Detections | None = None
    at_ns: int = 0
    interval_ns: int = 0


class Track(SimpleStage):
    """Stage that numbers detections by object and drops those without one.

    On frames without detections, objects are at their predicted positions and marked as such, unless ``predict:
    false``. Masks, corners and points of objects move with their boxes.
    """

    def __init__(self, name: str, config: TrackStage, context: Context) -> None:
        self.name, self._config, self._context = name, config, context
        self._streams: dict[str, _StreamState] = {}
        self._predicts = bool(getattr(config, "predict", False))

    def process(self, result: Result) -> Result:
        found, stream, at_ns = result.latest(Detections), result.frame.stream, result.frame.media_ns
        if stream not in self._streams:
            self._streams[stream] = _StreamState(make_stage(self._config, self.name, self._context))
        one = self._streams[stream]
        if found is None:  # no model ran on this frame, because of `every`
            expected = self._predict(one, at_ns)
            return result if expected is None else result.with_output(self.name, expected)
        look: Callable[[Result, Detections], None] | None = getattr(one.tracker, "look", None)
        if look is not None:
            look(result, found)
        ids = one.tracker.update(found.boxes, found.scores, found.classes)
        kept = ids != UNTRACKED
        if one.seen is not None:
            one.interval_ns = at_ns - one.at_ns
        one.seen, one.at_ns = replace(found[kept], ids=ids[kept]), at_ns
        return result.with_output(self.name, one.seen)

    def _predict(self, one: _StreamState, at_ns: int) -> Detections | None:
        """Return the objects of the last update at their predicted positions; None without a prediction."""
        ahead: Callable[[float], tuple[I64, F64]] | None = getattr(one.tracker, "ahead", None)
        if not self._predicts or one.seen is None or ahead is None:
            return None
        steps = (at_ns - one.at_ns) / one.interval_ns if one.interval_ns > 0 else 0.0
        ids, sides = ahead(min(max(steps, 0.0), _FARTHEST))
        moved = dict(zip(ids.tolist(), sides, strict=True))
        still = np.zeros(4)
        return move_objects(one.seen, np.array([moved.get(number, still) for number in _ids(one.seen)]).reshape(-1, 4))

    def close(self) -> None:
        self._streams.clear()


def _ids(record: Detections) -> list[int]:
    return [] if record.ids is None else record.ids.tolist()


def move_objects(record: Detections, sides: F64) -> Detections:
    """Return the objects with the sides of their boxes moved by (N, 4) pixels; masks, corners and points move along."""
    boxes = record.boxes + sides.astype(np.float32)
    size = np.maximum(record.boxes[:, 2:] - record.boxes[:, :2], np.float32(1e-3))
    scale = (boxes[:, 2:] - boxes[:, :2]) / size

    def follow(points: F32) -> F32:
        """Move (N, K, 2) source pixels with their boxes."""
        moved: F32 = (points - record.boxes[:, None, :2]) * scale[:, None] + boxes[:, None, :2]
        return moved

    corners = None if record.corners is None else follow(record.corners)
    points = record.points
    if points is not None:
        points = np.concatenate((follow(points[..., :2]), points[..., 2:]), axis=2)
    masks = record.masks
    if masks is not None:
        regions = follow(np.array([mask.region for mask in masks], np.float32).reshape(-1, 2, 2))
        masks = tuple(
            replace(one, region=(x1, y1, x2, y2))
            for one, ((x1, y1), (x2, y2)) in zip(masks, regions.tolist(), strict=True)
        )
    return replace(record, boxes=boxes, corners=corners, masks=masks, points=points, predicted=True, positions=None)
