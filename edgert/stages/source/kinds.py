"""Kinds of sources: which kind a ``source:`` line means, which keys it does not use, and how it is created."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from edgert.config.stages import SourceStage
from edgert.errors import ConfigError, StageError, nearest
from edgert.files import exists
from edgert.kinds import SOURCES, import_target
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source import rtsp
from edgert.stages.source.api import ApiSource
from edgert.stages.source.camera import camera_source, csi_source
from edgert.stages.source.files import ImageFiles, VideoFile, absolute, is_pattern, names_videos, videos_at
from edgert.stages.source.gst import gst_source, names_live
from edgert.stages.source.live import redact
from edgert.stages.source.python_images import PythonSource
from edgert.stages.source.stills import SUFFIXES

log = logging.getLogger("edgert.source")

_OWN_SIZE = "its frames keep their size; models and sinks scale them"
_NO_CODEC = "its images are not decoded by edgert"
_NO_END = "a live stream has no end to start again from"
_CAMERA_S = "it is a camera's option"
_NO_OPTIONS = "it has no settings beside its keys"
_IS_THERE = "a file that is missing at the start is an error"
_CSI = dict.fromkeys(("sensor_mode", "flip"), "it is an option of csi://")
_MADE = {"options": _NO_OPTIONS, "size": _OWN_SIZE, "format": _CAMERA_S, **_CSI}


class Make(Protocol):
    """Function that returns a source, not started. Raises an EdgertError where the source certainly cannot work."""

    def __call__(self, name: str, config: SourceStage, context: Context) -> Source: ...


def imported(target: str) -> Make:
    """Return a function that imports ``module:name`` and calls it, for kinds whose imports are slow."""

    def make(name: str, config: SourceStage, context: Context) -> Source:
        source: Source = import_target(target)(name, config, context)
        return source

    return make


def videos_pattern(config: SourceStage, directory: Path) -> Path:
    """Return the folder or glob of a source of kind ``videos``."""
    return absolute(config.source.removeprefix("videos:").removeprefix("file://"), directory)


def _first_video(name: str, config: SourceStage, context: Context) -> Source:
    """Return the source of the first video that opens: checking a pipeline needs only one."""
    failure: StageError | None = None
    for path in videos_at(videos_pattern(config, context.directory), f"stages.{name}"):
        try:
            return VideoFile(name, config, context, path, path.name)
        except StageError as error:
            failure = failure or error
    assert failure is not None
    raise failure


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of source.

    Attributes:
        title: name in messages.
        make: function that returns the source.
        unused: keys of a ``source:`` stage that have no meaning for this kind, and why.
        is_usually_live: function that returns whether it is live, as cameras are, unless the file sets ``realtime``;
            None: its frames always wait until they are taken.
        has_packets: whether it receives encoded images, which can be recorded without encoding them again.
    """

    title: str
    make: Make
    unused: dict[str, str]
    is_usually_live: Callable[[SourceStage], bool] | None = None
    has_packets: bool = False

    def is_live(self, config: SourceStage) -> bool:
        """Return whether the source will be live, as cameras are. Opens nothing."""
        if self.is_usually_live is None:
            return False
        return self.is_usually_live(config) if config.realtime is None else config.realtime


_FILE = {**_MADE, "start": _IS_THERE}
_NETWORK = Kind(
    "a network stream",
    rtsp.network_source,
    {**_MADE, "loop": _NO_END, "format": "the camera's own settings decide it"},
    lambda config: not rtsp.is_recording(config.source),
    has_packets=True,
)
_CAMERA = Kind("camera", camera_source, {**_CSI, "options": _NO_OPTIONS, "loop": _NO_END}, lambda config: True)
_PYTHON = Kind(
    "python",
    PythonSource,
    {
        **_CSI,
        "loop": "your code decides whether its images end",
        "format": "images of your code are bgr",
        "start": _IS_THERE,
        "decode": _NO_CODEC,
    },
    lambda config: False,
)
_NATS = Kind(
    "nats",
    imported("edgert.stages.source.nats_source:nats_source"),
    {
        "size": _OWN_SIZE,
        "format": _CAMERA_S,
        **_CSI,
        "fps": "every: of the sending sink sets the rate",
        "loop": _NO_END,
        "realtime": "messages wait with the server until they are taken",
        "decode": _NO_CODEC,
    },
)
_ROS2 = Kind(
    "a topic of ROS 2",
    imported("edgert.stages.ros2.ros_source:ros_source"),
    {
        **_CSI,
        "size": "its images have the size they are published in",
        "format": "its messages say it",
        "loop": _NO_END,
        "decode": "compressed images are decoded on the CPU",
    },
    lambda config: True,
)
KINDS = {
    "file": Kind("a video file", VideoFile, _FILE, has_packets=True),
    "recording": Kind(
        "a recording",
        imported("edgert.stages.source.recorded_frames:RecordedSource"),
        {
            **{key: why for key, why in _FILE.items() if key != "options"},
            "loop": "its frames have the times of one run",
            "decode": "its packets are decoded on the processor, so that each replay gives the same bits",
        },
    ),
    "images": Kind("images", ImageFiles, {**_FILE, "decode": "images are decoded on the CPU"}),
    "videos": Kind("videos", _first_video, {**_FILE, "loop": "each video is played once"}, has_packets=True),
    "csi": Kind(
        "a CSI camera",
        csi_source,
        {
            "loop": _NO_END,
            "format": "its images are NV12, made by the board's image processor",
            "decode": "its images come as pixels",
        },
        lambda config: True,
    ),
    "gst": Kind(
        "gst",
        gst_source,
        {
            **_CSI,
            "options": _NO_OPTIONS,
            "size": "write it into the pipeline, like video/x-raw,width=1280,height=720",
            "format": "write it into the pipeline, like video/x-raw,format=NV12",
            "loop": "a pipeline plays once; use a file",
            "decode": "its elements do that: nvv4l2decoder is a Jetson's",
        },
        lambda config: names_live(config.source.partition(":")[2]),
    ),
    "python": _PYTHON,
    "synthetic": replace(_PYTHON, title="synthetic", unused={**_PYTHON.unused, "options": _NO_OPTIONS}),
    "api": Kind(
        "source: api",
        ApiSource,
        {
            **_FILE,
            "loop": _NO_END,
            "format": "each submit() names it",
            "realtime": "you set the pace",
            "decode": _NO_CODEC,
        },
    ),
    "bag": Kind(
        "a bag",
        imported("edgert.stages.ros2.bag_source:bag_source"),
        {**_ROS2.unused, "loop": "a bag is played once", "start": _IS_THERE},
    ),
    **dict.fromkeys(("network", *rtsp.SCHEMES), _NETWORK),
    **dict.fromkeys(("camera", "v4l2", "usb"), _CAMERA),
    **dict.fromkeys(("nats", "tls"), _NATS),
    **dict.fromkeys(("ros2", "ros2+zenoh"), _ROS2),
}
"""Kinds by their names and by their schemes."""

_PREFIXES = {
    "v4l2:": "camera",
    "usb:": "camera",
    "/dev/": "camera",
    "csi:": "csi",
    "ros2+zenoh:": "ros2+zenoh",
    **{f"{name}:": name for name in ("recording", "videos", "images", "gst", "python", "synthetic", "ros2", "bag")},
}
"""First letters of a source that tell its kind."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):")
"""A scheme of at least two letters, because ``C:`` begins a path."""
_CAMERA_KEYS = ("size", "format", "decode", "sensor_mode", "flip", "start")
"""Keys that cause a warning, not an error, so that a file can replace a camera: --set stages.camera.source=clip.mp4."""


def source_for(name: str, config: SourceStage, context: Context | None = None) -> Source:
    """Return the source that ``config.source`` names, ready for :meth:`Source.frames`.

    Raises:
        ConfigError: unknown kind or scene, or a key that has no meaning for this kind. Keys of cameras only cause a
            warning.
        StageError: a file or folder is missing or cannot be read.
        DeviceError: a library that the kind needs is missing.
    """
    context = context or Context()
    kind, where = kind_of(config.source, context.directory), f"stages.{name}"
    if not kind:
        unknown = config.source.partition(":")[0]
        others = (f"{one}://" for one in (*rtsp.SCHEMES, "nats"))
        own = (f"{one}//" if one in ("v4l2:", "csi:", "ros2:", "ros2+zenoh:") else one for one in _PREFIXES)
        known = (*own, "file:", *others, *(f"{one.name}:" for one in SOURCES.foreign()))
        raise ConfigError(
            f"unknown source {redact(config.source)!r}{nearest(unknown, (one.partition(':')[0] for one in known))}",
            why=f"no source is called {unknown}:",
            where=f"{where}.source",
            fix=f"use a path, api, or one of {', '.join(known)}",
        )
    scheme = _SCHEME.match(config.source)
    if scheme and scheme[1].lower() in SOURCES.own:
        SOURCES.vet(scheme[1].lower())  # raises where another package claims one of edgert's schemes
    found = SOURCES.get(kind)
    title = getattr(found, "title", kind)
    for option, why in found.unused.items():
        value = getattr(config, option)
        if not value or value == SourceStage.model_fields[option].default:
            continue
        if option in _CAMERA_KEYS:
            log.warning("%s.%s: has no meaning for %s; %s", where, option, title, why)
        else:
            what = f"{option}: has no meaning for {title}"
            raise ConfigError(what, why=why, where=f"{where}.{option}", fix=f"leave {option}: out")
    source: Source = found.make(name, config, context)
    return source


def kind_of(source: str, directory: Path = Path()) -> str:
    """Return the name of a source's kind; empty for unknown schemes.

    It is ``file``, ``recording``, ``videos``, ``network``, ``camera``, ``csi``, ``images``, ``gst``, ``python``,
    ``synthetic``, ``bag``, ``ros2``, ``ros2+zenoh``, ``api``, ``nats``, or the scheme of another package's source.
    """
    if source == "api":
        return "api"
    if kind := next((kind for prefix, kind in _PREFIXES.items() if source.startswith(prefix)), ""):
        return kind
    scheme = _SCHEME.match(source)
    if scheme is None or source.startswith("file://") or exists(absolute(source, directory)):
        path = absolute(source.removeprefix("file://"), directory)
        if is_own_recording(path):
            return "recording"
        if is_bag(path):
            return "bag"
        if is_pattern(path) or (exists(path) and path.is_dir()):
            return "videos" if names_videos(path) else "images"
        return "images" if path.suffix.lower() in SUFFIXES else "file"
    if scheme[1] in ("nats", "tls"):
        return "nats"
    if any(claim.name == scheme[1] for claim in SOURCES.foreign()):
        return scheme[1]
    return "network" if scheme[1].lower() in rtsp.SCHEMES and "://" in source else ""


def is_bag(path: Path) -> bool:
    """Return whether a path is a bag of ROS 2: a folder with its ``metadata.yaml``, or one of its files.

    An MCAP file counts as a bag if its profile is ``ros2``; ``bag:PATH`` also reads others.
    """
    if path.suffix.lower() != ".mcap":
        return path.suffix.lower() == ".db3" or exists(path / "metadata.yaml")
    return _head(path, 25)[17:] == b"\x04\0\0\0ros2"  # after the magic and the header's opcode and length


_OWN_HEADER = re.compile(rb"\x89MCAP0\r\n\x01.{8}\0{4}.{4}edgert ", re.DOTALL)
"""First bytes of an MCAP file whose header names edgert as its writer."""


def is_own_recording(path: Path) -> bool:
    """Return whether ``sink: mcap`` wrote a file, by its first bytes."""
    return _OWN_HEADER.match(_head(path, 64)) is not None


def _head(path: Path, count: int) -> bytes:
    """Return the first bytes of a file; none of a pipe or device, because opening it may block."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def options_unused_by(source: str, directory: Path) -> Mapping[str, str]:
    """Return the options that have no meaning for a kind of source, and why; none of an unknown kind."""
    kind = kind_of(source, directory)
    return SOURCES.get(kind).unused if kind else {}


def is_live(config: SourceStage, directory: Path = Path()) -> bool:
    """Return whether the source will be live, as cameras are. Opens no device."""
    kind = kind_of(config.source, directory)
    return bool(kind) and bool(SOURCES.get(kind).is_live(config))


def starts_over(config: SourceStage, directory: Path = Path()) -> bool:
    """Return whether every run gets the same frames and ends, as with recordings, and code with a ``limit``."""
    kind = kind_of(config.source, directory)
    if kind in ("python", "synthetic"):
        return config.limit is not None and not config.realtime
    is_recorded = kind in ("file", "recording", "videos", "images", "bag") or (
        kind == "network" and rtsp.is_recording(config.source)
    )
    return is_recorded and not (config.loop and config.limit is None)
