"""Which source a ``source:`` line means."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from urllib.parse import urlsplit

from edgert.clock import Clock
from edgert.config.fields import beside
from edgert.config.stage import SourceStage
from edgert.errors import ConfigError, nearest
from edgert.memory import Counter
from edgert.runtime.stage import Source
from edgert.stages.source import rtsp
from edgert.stages.source.redact import redact

log = logging.getLogger("edgert.source")

_PREFIXES = ("v4l2://", "usb:", "images:", "gst:", "synthetic:", "file:", *(f"{name}://" for name in rtsp.SCHEMES))
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")  # two letters at least: C:\ is a path

_OWN_SIZE = "its frames have the size they were made in; models and sinks scale for themselves"
_NO_CODEC = "its pictures are not decoded by edgert"
_NO_END = "a live stream has no end to start again from"
# Told but not refused, so that anything can stand in for a camera: --set stages.camera.source=clip.mp4
_ASKED_OF_CAMERAS = ("size", "format", "decode")
_UNUSED: dict[str, dict[str, str]] = {
    "file": {"size": _OWN_SIZE, "format": "it is a camera's option"},
    "network": {"size": _OWN_SIZE, "loop": _NO_END, "format": "the camera's own settings decide it"},
    "camera": {"loop": _NO_END, "decode": "frames go to the GPU by themselves where they can"},
    "images": {"size": _OWN_SIZE, "format": "it is a camera's option", "decode": "pictures are decoded on the CPU"},
    "gst": {
        "size": "write it into the pipeline, like video/x-raw,width=1280,height=720",
        "format": "write it into the pipeline, like video/x-raw,format=NV12",
        "loop": "a pipeline plays once; use a file",
        "decode": "its elements do that: nvv4l2decoder is a Jetson's",
    },
    "synthetic": {"loop": "a scene never ends", "format": "scenes are always bgr", "decode": _NO_CODEC},
    "api": {
        "size": _OWN_SIZE,
        "loop": _NO_END,
        "format": "each submit() says it",
        "realtime": "you set the pace",
        "decode": _NO_CODEC,
    },
}


def source_for(name: str, config: SourceStage, counter: Counter, clock: Clock, directory: Path) -> Source:
    """The source that ``config.source`` names, ready for :meth:`Source.frames`.

    Args:
        name: of the stage.
        directory: of the pipeline file; relative paths start there.

    Raises:
        ConfigError: unknown kind or scene, or an option that this kind has no use for; those that are asked of
            cameras are only warned about.
        StageError: a file or folder is missing or cannot be read.
        DeviceError: a library that the kind needs is missing.
    """
    kind = kind_of(config.source, directory)
    where = f"stages.{name}"
    _refuse_unused(kind, config, where)
    source, rest = config.source, config.source.partition(":")[2]
    if kind == "api":
        from edgert.stages.source.api import ApiSource

        return ApiSource(name, config, counter, clock)
    if kind == "synthetic":
        from edgert.stages.source.synthetic import Synthetic

        return Synthetic(name, rest, config, counter, clock)
    if kind == "gst":
        from edgert.stages.source.gst import gst_source

        return gst_source(name, rest, config, counter, clock)
    if kind == "camera":
        return _camera(name, config, counter, clock, where)
    if kind == "network":
        return rtsp.network_source(name, config, counter, clock)
    if kind == "images":
        from edgert.stages.source.images import Images

        return Images(name, _path(source.removeprefix("images:"), directory), config, counter, clock)
    if kind == "file":
        from edgert.stages.source.file import VideoFile

        return VideoFile(name, _path(source.removeprefix("file://"), directory), config, counter, clock)
    raise _unknown(source, where)


def kind_of(source: str, directory: Path = Path()) -> str:
    """``file``, ``network``, ``camera``, ``images``, ``gst``, ``synthetic`` or ``api``; empty for unknown schemes."""
    if source == "api":
        return "api"
    for prefix in ("synthetic", "images", "gst"):
        if source.startswith(f"{prefix}:"):
            return prefix
    if source.startswith(("v4l2:", "usb:", "/dev/")):
        return "camera"
    scheme = _SCHEME.match(source)
    if scheme is None or source.startswith("file://") or _path(source, directory).exists():
        return _kind_of_path(_path(source.removeprefix("file://"), directory))
    return "network" if scheme[1].lower() in rtsp.SCHEMES and "://" in source else ""


def is_live(config: SourceStage, directory: Path = Path()) -> bool:
    """Whether the source will call itself live, as cameras do: its newest frame counts. Opens nothing."""
    kind, rest = kind_of(config.source, directory), config.source.partition(":")[2]
    if kind in ("file", "images", "api", ""):
        return False
    if config.realtime is not None or kind == "synthetic":
        return bool(config.realtime)
    if kind == "gst":
        from edgert.stages.source.gst import names_live

        return names_live(rest)
    return kind == "camera" or not rtsp.is_recording(config.source)


def _kind_of_path(path: Path) -> str:
    from edgert.stages.source.images import SUFFIXES

    is_glob = not path.exists() and any(letter in path.name for letter in "*?[")
    return "images" if path.is_dir() or is_glob or path.suffix.lower() in SUFFIXES else "file"


def _path(text: str, directory: Path) -> Path:
    return beside(Path(text), directory).absolute()


def _camera(name: str, config: SourceStage, counter: Counter, clock: Clock, where: str) -> Source:
    from edgert.stages.source.camera import camera_source, device_path

    try:
        path = device_path(config.source)
    except ValueError as error:
        raise ConfigError(
            f"{config.source!r} is no camera", why=str(error), where=f"{where}.source", fix="ls /dev/video*"
        ) from error
    return camera_source(name, path, config, counter, clock)


def _refuse_unused(kind: str, config: SourceStage, where: str) -> None:
    for option, why in _UNUSED.get(kind, {}).items():
        if not getattr(config, option):
            continue
        noun = {"file": "a video file", "network": "a network stream", "api": "source: api"}.get(kind, kind)
        told = f"{option}: has no meaning for {noun}"
        if option not in _ASKED_OF_CAMERAS:
            raise ConfigError(told, why=why, where=f"{where}.{option}", fix=f"leave {option}: out")
        log.warning("%s.%s: %s; %s", where, option, told.partition(": ")[2], why)


def _unknown(source: str, where: str) -> ConfigError:
    scheme = urlsplit(source).scheme or source.partition(":")[0]
    hint = nearest(scheme, (re.split(r":", prefix)[0] for prefix in _PREFIXES))
    return ConfigError(
        f"unknown source {redact(source)!r}{hint}",
        why=f"no source is called {scheme}:",
        where=f"{where}.source",
        fix=f"use a path, api, or one of {', '.join(_PREFIXES)}",
    )
