"""ByteTrack by the names and defaults of the package ``trackers``."""

from edgert.stages.bytetrack import ByteTrack


def byte_track(
    *,
    track_activation_threshold: float = 0.7,
    high_conf_det_threshold: float = 0.6,
    minimum_iou_threshold: float = 0.1,
    minimum_consecutive_frames: int = 2,
    lost_track_buffer: int = 30,
    frame_rate: float = 30.0,
    class_aware: bool = False,
) -> ByteTrack:
    """A tracker; ``lost_track_buffer`` counts frames at 30 per second."""
    return ByteTrack(
        activate=track_activation_threshold,
        high=high_conf_det_threshold,
        match=minimum_iou_threshold,
        confirm=minimum_consecutive_frames,
        keep=lost_track_buffer / 30,
        by_class=class_aware,
        rate_hz=frame_rate,
    )
