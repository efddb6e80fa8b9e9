"""A 1080p H.264 file to measure with, made here so that anyone has the same."""

from __future__ import annotations

import threading
from pathlib import Path

from edgert.clock import REAL
from edgert.config.stage import SourceStage
from edgert.memory import Counter
from edgert.runtime import Result
from edgert.stages.sink.video import VideoSink
from edgert.stages.source.select import source_for


def write_scene(path: Path, width: int, height: int, frames: int, seed: int = 5) -> Path:
    """Encodes frames of the conveyor scene, H.264 CRF 23; returns ``path``."""
    size = f"{width}x{height}"
    config = SourceStage(source="synthetic:conveyor", size=size, fps=30, seed=seed, limit=frames)  # type: ignore[arg-type]
    source = source_for("scene", config, Counter(), REAL, Path())
    sink = VideoSink("clip", path)
    sink.open()
    try:
        for frame in source.frames(threading.Event()):
            sink.process(Result(frame))
            frame.lease.release()
    finally:
        sink.close()
        source.close()
    return path
