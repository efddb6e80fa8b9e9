"""Quick probe of sources: size and rate of a video file, size of an image, modes of a camera."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from edgert.config import PipelineFile, SourceStage
from edgert.errors import EdgertError
from edgert.stages.source.files import absolute, matched, videos_at
from edgert.stages.source.frame_times import usual_rate
from edgert.stages.source.kinds import kind_of, videos_pattern
from edgert.stages.source.stills import read_image

_LIMIT_S = 2.0
_MOST_FPS = 1000.0
"""Highest plausible rate; a container without one shows its time base instead."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Size and rate of the frames that a source will give. A still image has no rate."""

    size: tuple[int, int]
    fps: float | None
    name: str


def as_delivered(file: PipelineFile) -> tuple[PipelineFile, tuple[str, ...]]:
    """Return the pipeline with the sizes and rates that its file omits and a probe finds, and a note on each source."""
    stages, notes = dict(file.config.stages), list[str]()
    for name, stage in file.config.stages.items():
        if not isinstance(stage, SourceStage) or (stage.size is not None and stage.fps is not None):
            continue
        if (found := delivered(stage, file.document.path.parent)) is None:
            continue
        update = {"size": stage.size or found.size, "fps": stage.fps or found.fps}
        stages[name] = stage.model_copy(update=update)
        size = "" if stage.size else "{}x{}".format(*found.size)
        fps = "" if stage.fps or not found.fps else f"{found.fps:g} fps"
        notes.append(f"{name}: {', '.join(filter(None, (size, fps)))}, from {found.name}")
    changed = replace(file, config=file.config.model_copy(update={"stages": stages})) if notes else file
    return changed, tuple(notes)


def delivered(stage: SourceStage, directory: Path) -> Delivered | None:
    """Return size and rate of a source's frames; None where a quick probe cannot find them."""
    kind = kind_of(stage.source, directory)
    try:
        if kind == "file":
            return _of_video([absolute(stage.source.removeprefix("file://"), directory)])
        if kind in ("images", "videos"):
            if kind == "videos":
                return _of_video(videos_at(videos_pattern(stage, directory), ""))
            return _of_image(matched(absolute(stage.source.removeprefix("images:"), directory)))
        return _of_camera(stage) if kind == "camera" else None
    except (EdgertError, OSError):  # a run of the pipeline reports it
        return None


def _of_video(paths: Iterable[Path]) -> Delivered | None:
    import av

    for path in paths:
        if not path.is_file():  # opening a named pipe would block
            continue
        try:
            with av.open(str(path), timeout=_LIMIT_S) as container:
                stream = next(iter(container.streams.video), None)
                if stream is None or stream.codec_context is None or not stream.codec_context.width:
                    continue
                rate = float(usual_rate(container, stream) or stream.base_rate or 0)
                size = stream.codec_context.width, stream.codec_context.height
                return Delivered(size, rate if 0 < rate <= _MOST_FPS else None, path.name)
        except (av.FFmpegError, UnicodeError):
            continue
    return None


def _of_image(paths: Iterable[Path]) -> Delivered | None:
    for path in paths:
        image = read_image(path) if path.is_file() else None
        if image is not None:
            return Delivered((image.shape[1], image.shape[0]), None, path.name)
    return None


def _of_camera(stage: SourceStage) -> Delivered | None:
    from edgert.stages.source.camera import device_path
    from edgert.stages.source.v4l2 import Kernel
    from edgert.stages.source.v4l2_modes import fastest, offers

    path = device_path(stage.source, "")
    size, offered = offers(path, stage.size, Kernel()) if Path(path).exists() else (None, {})
    fps = max((fastest(offered, letters) for letters in offered), default=0.0)
    return None if size is None or not offered else Delivered(size, fps or None, f"{path} of this machine")
