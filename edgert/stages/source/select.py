"""Which source a ``source:`` line means."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edgert.clock import Clock
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, nearest
from edgert.kinds import SOURCES
from edgert.memory import Counter
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source import rtsp
from edgert.stages.source.kinds import absolute
from edgert.stages.source.live import redact

log = logging.getLogger("edgert.source")

_PREFIXES = (
    "v4l2://",
    "usb:",
    "images:",
    "gst:",
    "python:",
    "synthetic:",
    "file:",
    *(f"{name}://" for name in rtsp.SCHEMES),
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")  # two letters at least: C:\ is a path

# Logged but not refused, so that anything can stand in for a camera: --set stages.camera.source=clip.mp4
_ASKED_OF_CAMERAS = ("size", "format", "decode")


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
    kind, where = kind_of(config.source, directory), f"stages.{name}"
    if not kind:
        raise _unknown(config.source, where)
    if scheme := _SCHEME.match(config.source):
        _vet(scheme[1].lower())
    found = SOURCES.get(kind)
    _refuse_unused(kind, found, config, where)
    source: Source = found.make(name, config, Context(directory, clock, counter))
    return source


def _vet(scheme: str) -> None:
    """Raises ConfigError: a package claims a scheme that is edgert's."""
    if scheme in SOURCES.own:
        SOURCES.vet(scheme)


def kind_of(source: str, directory: Path = Path()) -> str:
    """``file``, ``network``, ``camera``, ``images``, ``gst``, ``python``, ``synthetic``, ``api``, or the scheme of
    another package's source; empty for unknown schemes."""
    if source == "api":
        return "api"
    for prefix in ("python", "synthetic", "images", "gst"):
        if source.startswith(f"{prefix}:"):
            return prefix
    if source.startswith(("v4l2:", "usb:", "/dev/")):
        return "camera"
    scheme = _SCHEME.match(source)
    if scheme is None or source.startswith("file://") or absolute(source, directory).exists():
        return _kind_of_path(absolute(source.removeprefix("file://"), directory))
    if any(claim.name == scheme[1] for claim in SOURCES.foreign()):
        return scheme[1]
    return "network" if scheme[1].lower() in rtsp.SCHEMES and "://" in source else ""


def is_live(config: SourceStage, directory: Path = Path()) -> bool:
    """Whether the source will call itself live, as cameras do: its newest frame counts. Opens nothing."""
    kind = kind_of(config.source, directory)
    return bool(kind) and bool(SOURCES.get(kind).is_live(config))


def _kind_of_path(path: Path) -> str:
    from edgert.stages.source.image_folder import SUFFIXES

    is_glob = not path.exists() and any(letter in path.name for letter in "*?[")
    return "images" if path.is_dir() or is_glob or path.suffix.lower() in SUFFIXES else "file"


def _refuse_unused(kind: str, found: type[Any], config: SourceStage, where: str) -> None:
    title = getattr(found, "title", kind)
    for option, why in found.unused.items():
        if not getattr(config, option):
            continue
        if option not in _ASKED_OF_CAMERAS:
            what = f"{option}: has no meaning for {title}"
            raise ConfigError(what, why=why, where=f"{where}.{option}", fix=f"leave {option}: out")
        log.warning("%s.%s: has no meaning for %s; %s", where, option, title, why)


def _unknown(source: str, where: str) -> ConfigError:
    scheme = urlsplit(source).scheme or source.partition(":")[0]
    known = (*_PREFIXES, *(f"{claim.name}:" for claim in SOURCES.foreign()))
    hint = nearest(scheme, (re.split(r":", prefix)[0] for prefix in known))
    return ConfigError(
        f"unknown source {redact(source)!r}{hint}",
        why=f"no source is called {scheme}:",
        where=f"{where}.source",
        fix=f"use a path, api, or one of {', '.join(known)}",
    )
