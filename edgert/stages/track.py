"""The track stage: one ByteTrack per stream, fed with the newest detections."""

from __future__ import annotations

from dataclasses import replace

from edgert.config import TrackStage
from edgert.runtime import Detections, Result
from edgert.stages.bytetrack import UNTRACKED, ByteTrack

_RATE_HZ = 30.0  # ByteTrack counts its buffer in frames at 30 per second


class Track:
    """A stage that gives detections the number of their object and drops those that belong to none.

    Args:
        name: of the stage; the key of its record.
        config: thresholds; see :class:`~edgert.config.TrackStage`.
        rate_hz: how often per second detections reach this stage.
    """

    def __init__(self, name: str, config: TrackStage, rate_hz: float) -> None:
        self.name, self._config, self._rate_hz = name, config, rate_hz
        self._trackers: dict[str, ByteTrack] = {}

    def open(self) -> None:
        """Nothing to take: trackers start with their streams."""

    def process(self, result: Result) -> Result:
        """See :class:`~edgert.runtime.Stage`."""
        found = result.latest(Detections)
        if found is None:  # an infer stage with `every` passed this frame by; tracks wait for the next detections
            return result
        heard = found.select(found.scores >= self._config.low)
        ids = self._tracker(result.frame.stream).update(heard.boxes, heard.scores, heard.classes)
        kept = ids != UNTRACKED
        return result.with_output(self.name, replace(heard.select(kept), ids=ids[kept]))

    def close(self) -> None:
        """Forgets all tracks."""
        self._trackers.clear()

    def _tracker(self, stream: str) -> ByteTrack:
        if stream not in self._trackers:
            config = self._config
            self._trackers[stream] = ByteTrack(
                track_activation_threshold=config.activate,
                high_conf_det_threshold=config.high,
                minimum_iou_threshold=config.match,
                minimum_consecutive_frames=config.confirm,
                lost_track_buffer=round(config.keep * _RATE_HZ),
                frame_rate=self._rate_hz,
                class_aware=config.by_class,
            )
        return self._trackers[stream]
