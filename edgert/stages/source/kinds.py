"""The kinds of sources: which keys mean nothing to each, whether it is live, and how it is made."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from edgert.config.fields import beside
from edgert.config.stages import SourceStage
from edgert.errors import ConfigError
from edgert.runtime.stage import Source
from edgert.stages.context import Context
from edgert.stages.source import rtsp
from edgert.user_code import load_object

_OWN_SIZE = "its frames have the size they were made in; models and sinks scale for themselves"
_NO_CODEC = "its images are not decoded by edgert"
_NO_END = "a live stream has no end to start again from"
_CAMERA_S = "it is a camera's option"
_NO_OPTIONS = {"options": "its keys are its settings"}


class File:
    """A video file."""

    unused: ClassVar[dict[str, str]] = {**_NO_OPTIONS, "size": _OWN_SIZE, "format": _CAMERA_S}
    title: ClassVar[str] = "a video file"

    @staticmethod
    def is_live(config: SourceStage) -> bool:
        """It waits."""
        return False

    @staticmethod
    def make(name: str, config: SourceStage, context: Context) -> Source:
        """Raises StageError: it is missing or cannot be read."""
        from edgert.stages.source.video_file import VideoFile

        path = absolute(config.source.removeprefix("file://"), context.directory)
        return VideoFile(name, path, config, context.counter, context.clock)


class Images:
    """Image files: a folder, a glob, or one."""

    unused: ClassVar[dict[str, str]] = {
        **_NO_OPTIONS,
        "size": _OWN_SIZE,
        "format": _CAMERA_S,
        "decode": "images are decoded on the CPU",
    }
    title: ClassVar[str] = "images"

    @staticmethod
    def is_live(config: SourceStage) -> bool:
        """They wait."""
        return False

    @staticmethod
    def make(name: str, config: SourceStage, context: Context) -> Source:
        """Raises StageError: there are none."""
        from edgert.stages.source.image_folder import Images as ImageFiles

        path = absolute(config.source.removeprefix("images:"), context.directory)
        return ImageFiles(name, path, config, context.counter, context.clock)


class Network:
    """RTSP, HTTP, RTMP and UDP."""

    unused: ClassVar[dict[str, str]] = {
        **_NO_OPTIONS,
        "size": _OWN_SIZE,
        "loop": _NO_END,
        "format": "the camera's own settings decide it",
    }
    title: ClassVar[str] = "a network stream"

    @staticmethod
    def is_live(config: SourceStage) -> bool:
        """Unless it is a recording, or the file says otherwise."""
        return not rtsp.is_recording(config.source) if config.realtime is None else config.realtime

    @staticmethod
    def make(name: str, config: SourceStage, context: Context) -> Source:
        """Opens nothing yet."""
        return rtsp.network_source(name, config, context.counter, context.clock)


class Camera:
    """A camera of this machine."""

    unused: ClassVar[dict[str, str]] = {
        **_NO_OPTIONS,
        "loop": _NO_END,
        "decode": "frames go to the GPU by themselves where they can",
    }
    title: ClassVar[str] = "camera"

    @staticmethod
    def is_live(config: SourceStage) -> bool:
        """Unless the file says otherwise."""
        return True if config.realtime is None else config.realtime

    @staticmethod
    def make(name: str, config: SourceStage, context: Context) -> Source:
        """Raises ConfigError: the address names no camera."""
        from edgert.stages.source.camera import camera_source, device_path

        try:
            path = device_path(config.source)
        except ValueError as error:
            what = f"{config.source!r} is no camera"
            raise ConfigError(what, why=str(error), where=f"stages.{name}.source", fix="ls /dev/video*") from error
        return camera_source(name, path, config, context.counter, context.clock)


class Gst:
    """A GStreamer pipeline."""

    unused: ClassVar[dict[str, str]] = {
        **_NO_OPTIONS,
        "size": "write it into the pipeline, like video/x-raw,width=1280,height=720",
        "format": "write it into the pipeline, like video/x-raw,format=NV12",
        "loop": "a pipeline plays once; use a file",
        "decode": "its elements do that: nvv4l2decoder is a Jetson's",
    }
    title: ClassVar[str] = "gst"

    @staticmethod
    def is_live(config: SourceStage) -> bool:
        """Where an element is, or the file says so."""
        from edgert.stages.source.gst import names_live

        return names_live(_rest(config)) if config.realtime is None else config.realtime

    @staticmethod
    def make(name: str, config: SourceStage, context: Context) -> Source:
        """Raises DeviceError: GStreamer is missing."""
        from edgert.stages.source.gst import gst_source

        return gst_source(name, _rest(config), config, context.counter, context.clock)


class Python:
    """Images that the user's own code makes."""

    unused: ClassVar[dict[str, str]] = {
        "loop": "your code decides whether its images end",
        "format": "images of your code are bgr",
        "decode": _NO_CODEC,
    }
    title: ClassVar[str] = "python"

    @staticmethod
    def is_live(config: SourceStage) -> bool:
        """Where the file says so."""
        return bool(config.realtime)

    @staticmethod
    def make(name: str, config: SourceStage, context: Context) -> Source:
        """Raises ConfigError: there is no such code, or it does not take these options."""
        from edgert.stages.source.python_source import PythonSource

        found = load_object(_rest(config), f"stages.{name}.source", context.directory)
        return PythonSource(name, found, config, context.counter, context.clock)


class Synthetic(Python):
    """A trivial scene, for tests and measurements."""

    title: ClassVar[str] = "synthetic"
    unused: ClassVar[dict[str, str]] = {**_NO_OPTIONS, **Python.unused}

    @staticmethod
    def make(name: str, config: SourceStage, context: Context) -> Source:
        """Raises ConfigError: there is no such scene."""
        from edgert.stages.source.python_source import PythonSource
        from edgert.stages.source.synthetic import scene_named

        scene = scene_named(_rest(config), f"stages.{name}.source")
        return PythonSource(name, scene, config, context.counter, context.clock)


class Api:
    """Frames that a program submits."""

    unused: ClassVar[dict[str, str]] = {
        **_NO_OPTIONS,
        "size": _OWN_SIZE,
        "loop": _NO_END,
        "format": "each submit() says it",
        "realtime": "you set the pace",
        "decode": _NO_CODEC,
    }
    title: ClassVar[str] = "source: api"

    @staticmethod
    def is_live(config: SourceStage) -> bool:
        """It waits."""
        return False

    @staticmethod
    def make(name: str, config: SourceStage, context: Context) -> Source:
        """Waits for submit()."""
        from edgert.stages.source.api import ApiSource

        return ApiSource(name, config, context.counter, context.clock)


def absolute(text: str, directory: Path) -> Path:
    """The path of a file as a pipeline file writes it."""
    return beside(Path(text), directory).absolute()


def _rest(config: SourceStage) -> str:
    return config.source.partition(":")[2]


KINDS = {
    "file": File,
    "images": Images,
    "network": Network,
    "camera": Camera,
    "gst": Gst,
    "python": Python,
    "synthetic": Synthetic,
    "api": Api,
    **dict.fromkeys(rtsp.SCHEMES, Network),
    **dict.fromkeys(("v4l2", "usb"), Camera),
}
"""Under their own names, and under every scheme that leads to them."""
