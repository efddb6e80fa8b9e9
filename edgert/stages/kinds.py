"""The kinds of sinks and trackers: their keys in a pipeline file, their facts, and how each is made.

A sink or tracker itself is imported when it is made: reading a pipeline file needs none. Of stages, edgert's own have
verbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from edgert.config import Fraction, OutputPath, Seconds, SinkStage, TrackStage
from edgert.config.fields import CODE_NAME
from edgert.errors import ConfigError

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context
    from edgert.stages.track import Tracker

_HERE = "relative to the folder edgert is run in"


class Video(SinkStage):
    """A video file, which plays even if the process is killed."""

    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True
    path: OutputPath = Field(description=f"`.mp4`, `.mov` or `.mkv`, with `{{stream}}` one for each stream; {_HERE}")
    fps: float | None = Field(default=None, gt=0, description="frames per second; the source's by default")
    quality: int = Field(
        default=23, ge=0, le=51, description="lower is better and larger: H.264 CRF, of hardware the constant quantizer"
    )
    codec: Literal["h264", "h265"] = Field(default="h264", description="h265 is smaller and played by fewer")
    encode: Literal["auto", "cpu", "gpu"] = Field(
        default="auto",
        description="auto: by the board's own encoder or the GPU's (NVENC) where there is one, else by the processor; "
        "cpu: by the processor; gpu: an error where hardware cannot",
    )

    def make(self, name: str, context: Context) -> Stage:
        """Raises StageError for a path that cannot be written."""
        from edgert.stages.sink.video import VideoSink

        return VideoSink(name, self.path, self.fps, self.quality, self.codec, self.encode)


class Jsonl(SinkStage):
    """One JSON object per frame and line, as [results](results.md) describes it."""

    takes_images: ClassVar[bool] = False
    shows_images: ClassVar[bool] = False
    path: OutputPath = Field(description=f"the file, with `{{stream}}` one for each stream; {_HERE}")

    def make(self, name: str, context: Context) -> Stage:
        """Raises StageError for a path with fields that are not known."""
        from edgert.stages.sink.results import JsonlSink

        return JsonlSink(name, self.path)


class Images(SinkStage):
    """A file for every image."""

    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True
    path: OutputPath = Field(description=f"a folder, or a pattern like `out/{{stream}}_{{frame:06d}}.png`; {_HERE}")
    every: int = Field(default=1, ge=1, description="write every n-th frame")

    def make(self, name: str, context: Context) -> Stage:
        """Raises StageError for a path that cannot be written."""
        from edgert.stages.sink.image_files import ImagesSink

        return ImagesSink(name, self.path, self.every)


class Http(SinkStage):
    """A live page for the browser: the image with its results, and how the pipeline is doing."""

    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; others than loopback open it to the network",
    )
    port: int = Field(default=8080, ge=0, le=65535, description="0 picks a free one")

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.sink.http import HttpSink

        return HttpSink(name, self.host, self.port, context.stats)


class Display(SinkStage):
    """A window for each stream, titled after it, on the screen of this machine: the image with its results."""

    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True
    width: int = Field(default=0, ge=0, le=8192, description="of a window, pixels; 0: as the image, or in proportion")
    height: int = Field(default=0, ge=0, le=8192, description="as `width`; without both, at most 1280x720")
    fullscreen: bool = Field(default=False, description="fill the screen; see [the display](live.md#a-window)")

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.sink.display import DisplaySink

        return DisplaySink(name, (self.width, self.height), self.fullscreen, context.leave)


class Callback(SinkStage):
    """Each result is given to a function of your own."""

    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = False
    python: str | None = Field(
        default=None,
        pattern=CODE_NAME,
        description="module:function, called with a Result; left out where Python gives the function",
    )

    def make(self, name: str, context: Context) -> Stage:
        """Raises ConfigError without a function."""
        from edgert.stages.sink.results import CallbackSink

        if context.function is None:
            raise ConfigError("callback needs a function", where=f"stages.{name}", fix="add python: module:function")
        return CallbackSink(name, context.function)


class Null(SinkStage):
    """Nothing is written; for measuring everything else."""

    takes_images: ClassVar[bool] = False
    shows_images: ClassVar[bool] = False

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.sink.results import NullSink

        return NullSink()


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
        from edgert.stages.bytetrack import ByteTrack, Floor

        settings = self.model_dump(include={"activate", "high", "match", "keep", "confirm", "by_class"})
        return Floor(ByteTrack(**settings, rate_hz=context.rate_hz), self.low)


SINKS = {
    "video": Video,
    "jsonl": Jsonl,
    "images": Images,
    "http": Http,
    "display": Display,
    "callback": Callback,
    "null": Null,
}
TRACKERS = {"bytetrack": ByteTrackStage}
STAGES: dict[str, str] = {}
