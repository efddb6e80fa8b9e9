"""The track stage: one tracker per stream, fed with the newest detections."""

from dataclasses import replace
from typing import Protocol

from edgert.config import TrackStage
from edgert.runtime import Detections, Result
from edgert.stages.bytetrack import F32, I32, I64, UNTRACKED
from edgert.stages.context import Context, SimpleStage, made


class Tracker(Protocol):
    """Numbers the objects of one stream, in one thread."""

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        """One frame further, with what the detector saw in it.

        Args:
            boxes: (N, 4) float32 x1, y1, x2, y2 in pixels; N may be 0. Nothing is modified or kept.
            scores: (N,) float32 from 0 to 1.
            classes: (N,) int32.

        Returns:
            (N,) int64, the object of each detection, from 1; -1 for a detection that belongs to none.
        """
        ...


class Track(SimpleStage):
    """A stage that gives detections the number of their object and drops those that belong to none.

    Args:
        name: of the stage; the key of its record.
        config: which tracker, and its settings.
        context: what the pipeline lends; its ``rate_hz`` is how often detections reach this stage.
    """

    def __init__(self, name: str, config: TrackStage, context: Context) -> None:
        self.name, self._config, self._context = name, config, context
        self._trackers: dict[str, Tracker] = {}

    def process(self, result: Result) -> Result:
        found = result.latest(Detections)
        if found is None:  # an infer stage with `every` passed this frame by; tracks wait for the next detections
            return result
        stream = result.frame.stream
        if stream not in self._trackers:
            self._trackers[stream] = made(self._config, self.name, self._context)
        ids = self._trackers[stream].update(found.boxes, found.scores, found.classes)
        kept = ids != UNTRACKED
        return result.with_output(self.name, replace(found.select(kept), ids=ids[kept]))

    def close(self) -> None:
        self._trackers.clear()
