"""Memory of frames on their way: those of sources, pictures that are drawn on, and what decoders and encoders keep."""

from __future__ import annotations

from collections.abc import Iterator

from edgert.assemble.build import queue_of
from edgert.budget.footprint import Part
from edgert.config import DrawStage, PipelineFile, SinkStage, SourceStage, StageConfig
from edgert.config.flow import inputs_of, upstream
from edgert.stages.source.select import kind_of

_ASSUMED_PX = (1920, 1080)  # of a file or stream whose size nobody told
_SCENE_PX = (640, 480)
_POOL = 4  # buffers that a source begins with
_PICTURES = 6  # that a drawing stage or a video sink keeps
_I420, _BGR = 1.5, 3.0
_MOST_REFERENCES, _REFERENCE_PX = 16, 32_768 * 256
"""Frames that an H.264 decoder keeps, and pixels of all of them at level 4.1: ITU-T H.264, A.3.1 and table A-1."""
_LOOKAHEAD = 10 + 3 + 1
"""Frames inside x264 at preset veryfast: look-ahead, B frames and a reference (x264 --fullhelp)."""


def frame_parts(file: PipelineFile) -> Iterator[Part]:
    """Of sources, what is drawn, and videos."""
    stages = file.config.stages
    for name, stage in stages.items():
        if isinstance(stage, SourceStage):
            yield from _source(name, stage, file)
        elif isinstance(stage, DrawStage):
            width, height, note = _picture(name, file)
            yield Part(name, "cpu", "frames", round(_PICTURES * width * height * _BGR), f"{_PICTURES} pictures{note}")
        elif isinstance(stage, SinkStage) and stage.sink == "video":
            width, height, note = _picture(name, file)
            held = _PICTURES + _LOOKAHEAD
            yield Part(name, "cpu", "encoder", round(held * width * height * _I420), f"{held} frames{note}")


def _source(name: str, stage: SourceStage, file: PipelineFile) -> Iterator[Part]:
    width, height, note = _size(stage, file)
    kind = kind_of(stage.source, file.document.path.parent)
    pixel = _BGR if kind in ("synthetic", "images", "api") else _I420
    held = max(_POOL, 1 + _under_way(name, file))
    yield Part(name, "cpu", "frames", round(held * width * height * pixel), f"{held} frames of {width}x{height}{note}")
    if kind in ("file", "network"):
        kept = max(1, min(_MOST_REFERENCES, _REFERENCE_PX // (width * height)))
        yield Part(name, "cpu", "decoder", round(kept * width * height * _I420), f"{kept} reference frames{note}")


def _under_way(source: str, file: PipelineFile) -> int:
    """Frames of a source that stages and the queues before them can hold."""
    stages = file.config.stages
    fed = [stage for name, stage in stages.items() if source in upstream(stages, name)]
    return sum(1 + queue_before(stage, file) for stage in fed)


def queue_before(stage: StageConfig, file: PipelineFile) -> int:
    """The longest of the queues before a stage."""
    before = [file.config.stages[name] for name in inputs_of(stage)]
    return max((queue_of(other, stage, is_live(other, file))[0] for other in before), default=0)


def _size(stage: SourceStage, file: PipelineFile) -> tuple[int, int, str]:
    if stage.size is not None:
        return (*stage.size, "")
    kind = kind_of(stage.source, file.document.path.parent)
    width, height = _SCENE_PX if kind == "synthetic" else _ASSUMED_PX
    return width, height, "" if kind == "synthetic" else "; size assumed"


def _picture(name: str, file: PipelineFile) -> tuple[int, int, str]:
    """Of the largest source before a stage."""
    stages = file.config.stages
    before = [stages[other] for other in upstream(stages, name)]
    return max((_size(stage, file) for stage in before if isinstance(stage, SourceStage)), key=lambda one: one[0])


def is_live(stage: object, file: PipelineFile) -> bool:
    """Whether a stage is a source that does not wait."""
    if not isinstance(stage, SourceStage):
        return False
    kind = kind_of(stage.source, file.document.path.parent)
    return kind in ("camera", "network", "gst") or (kind == "synthetic" and bool(stage.realtime))
