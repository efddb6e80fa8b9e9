"""The kinds of trackers: their keys in a pipeline file, and how each is made. Of stages, edgert's own have verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from edgert.config import Fraction, Seconds, TrackStage

if TYPE_CHECKING:
    from edgert.stages.context import Context
    from edgert.stages.track import Tracker

_RATE_HZ = 30.0  # ByteTrack counts its buffer in frames at 30 per second


class ByteTrackStage(TrackStage):
    """ByteTrack (Zhang et al. 2022)."""

    high: Fraction = Field(default=0.6, description="detections above this start and continue tracks first")
    low: Fraction = Field(default=0.1, description="detections between low and high may continue tracks")
    activate: Fraction = Field(default=0.7, description="lowest score that starts a track")
    match: Fraction = Field(default=0.1, description="lowest overlap (IoU) of a detection with its track")
    keep: Seconds = Field(default=1.0, description="how long a lost object is remembered")
    confirm: int = Field(default=2, ge=1, description="detections in a row before a track gets its number")
    by_class: bool = Field(default=True, description="never join detections of two classes")

    def make(self, name: str, context: Context) -> Tracker:
        """A tracker of one stream."""
        from edgert.stages.bytetrack import ByteTrack
        from edgert.stages.track import Floor

        tracker = ByteTrack(
            track_activation_threshold=self.activate,
            high_conf_det_threshold=self.high,
            minimum_iou_threshold=self.match,
            minimum_consecutive_frames=self.confirm,
            lost_track_buffer=round(self.keep * _RATE_HZ),
            frame_rate=context.rate_hz,
            class_aware=self.by_class,
        )
        return Floor(tracker, self.low)


TRACKERS = {"bytetrack": ByteTrackStage}
STAGES: dict[str, str] = {}
