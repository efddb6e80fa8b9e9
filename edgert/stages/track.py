"""The track stage: one tracker per stream, fed with the newest detections."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from edgert.config import TrackStage
from edgert.runtime import Detections, Result
from edgert.stages.assignment import F64
from edgert.stages.bytetrack import F32, I32, I64, UNTRACKED
from edgert.stages.context import Context, SimpleStage, made


class Tracker(Protocol):
    """Numbers the objects of one stream, in one thread. It may be :class:`Looking` and :class:`Predicting`, too."""

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        """Advance one frame, with the detections in it.

        Args:
            boxes: (N, 4) float32 x1, y1, x2, y2 in pixels; N may be 0. Nothing is modified or kept.
            scores: (N,) float32 from 0 to 1.
            classes: (N,) int32.

        Returns:
            (N,) int64, the object of each detection, from 1; -1 for a detection that belongs to none.
        """


@runtime_checkable
class Looking(Protocol):
    """A tracker that goes by more than boxes."""

    def look(self, result: Result, found: Detections) -> None:
        """Read other outputs of the result, before each update with these detections."""


@runtime_checkable
class Predicting(Protocol):
    """A tracker that knows where objects are between two updates."""

    def ahead(self, steps: float) -> tuple[I64, F64]:
        """Return where the objects of the last update are ``steps`` times the update interval later.

        The answer is numbers (N,) of objects that it saw, and (N, 4) pixels that the sides of their boxes have moved.
        """


_FARTHEST = 2.0
"""Most update intervals to predict: objects without detections for longer stay at that position."""


@dataclass(slots=True)
class _Followed:
    """One stream.

    Attributes:
        seen: what the last update made of its detections.
        at_ns, interval_ns: when that was, and how long after the one before.
    """

    tracker: Tracker
    seen: Detections | None = None
    at_ns: int = 0
    interval_ns: int = 0


class Track(SimpleStage):
    """A stage that numbers detections by object and drops those that belong to none.

    On frames without detections, objects are where the tracker expects them, marked as predicted, unless ``predict:
    false``. Masks, corners and points of objects move with their boxes.

    Args:
        name: of the stage; the key of its record.
        config: which tracker, and its settings.
        context: of the pipeline; its ``rate_hz`` is how often detections reach this stage.
    """

    def __init__(self, name: str, config: TrackStage, context: Context) -> None:
        self.name, self._config, self._context = name, config, context
        self._streams: dict[str, _Followed] = {}
        self._predicts = bool(getattr(config, "predict", False))

    def process(self, result: Result) -> Result:
        found, stream, at_ns = result.latest(Detections), result.frame.stream, result.frame.media_ns
        if stream not in self._streams:
            self._streams[stream] = _Followed(made(self._config, self.name, self._context))
        one = self._streams[stream]
        if found is None:  # an infer stage with `every` passed this frame by
            expected = self._expected(one, at_ns)
            return result if expected is None else result.with_output(self.name, expected)
        if isinstance(one.tracker, Looking):
            one.tracker.look(result, found)
        ids = one.tracker.update(found.boxes, found.scores, found.classes)
        kept = ids != UNTRACKED
        if one.seen is not None:
            one.interval_ns = at_ns - one.at_ns
        one.seen, one.at_ns = replace(found[kept], ids=ids[kept]), at_ns
        return result.with_output(self.name, one.seen)

    def _expected(self, one: _Followed, at_ns: int) -> Detections | None:
        """Return the objects of the last update, where they are now."""
        if not self._predicts or one.seen is None or not isinstance(one.tracker, Predicting):
            return None
        steps = (at_ns - one.at_ns) / one.interval_ns if one.interval_ns > 0 else 0.0
        ids, sides = one.tracker.ahead(min(max(steps, 0.0), _FARTHEST))
        moved = dict(zip(ids.tolist(), sides, strict=True))
        still = np.zeros(4)
        return carried(one.seen, np.array([moved.get(number, still) for number in _numbers(one.seen)]).reshape(-1, 4))

    def close(self) -> None:
        self._streams.clear()


def _numbers(record: Detections) -> list[int]:
    return [] if record.ids is None else record.ids.tolist()


def carried(record: Detections, sides: F64) -> Detections:
    """Return the objects with the sides of their boxes moved by (N, 4) pixels, with masks and points."""
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
