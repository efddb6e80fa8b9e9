"""Kinds of sinks and trackers: their keys in a pipeline file, their properties, and how each is created.

The module of a sink or tracker is imported when one is created, because reading a pipeline file needs none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from edgert.config import OutputPath, PipelineConfig, Section, SinkStage, TrackStage
from edgert.config.fields import CODE_NAME, FilePath, Fraction, PositiveBytes, Seconds
from edgert.config.flow import trackers_of
from edgert.errors import ConfigError, StageError
from edgert.kinds import import_target
from edgert.stages.sink.retention import Rules, check_pattern

if TYPE_CHECKING:
    from ssl import SSLContext

    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context

_LEAST_BYTES = 1 << 16


class Rotate(Section):
    """Conditions that end a file and begin the next one; the first that holds counts."""

    size: PositiveBytes | None = Field(default=None, description="a file of this size is ended")
    every: Seconds | None = Field(default=None, ge=1, description="a file of this length is ended")

    @model_validator(mode="after")
    def _check_keys(self) -> Rotate:
        if self.size is None and self.every is None:
            raise ValueError("expected size: or every:, like {size: 500MB, every: 1h}")
        if self.size is not None and self.size < _LEAST_BYTES:
            raise ValueError(f"size: a file takes at least 64KiB, not {self.size} bytes")
        return self


class Keep(Section):
    """Retention limits of files. The oldest files are removed."""

    age: Seconds | None = Field(default=None, ge=1, description="files older than this are removed")
    size: PositiveBytes | None = Field(default=None, description="the oldest files are removed beyond this size in all")
    free: PositiveBytes | None = Field(
        default=None, description="the oldest files are removed while less is free on the disk"
    )

    @model_validator(mode="after")
    def _check_keys(self) -> Keep:
        if self.age is None and self.size is None and self.free is None:
            raise ValueError("expected age:, size: or free:, like {age: 7d, size: 20GB, free: 2GB}")
        return self


class ShowsImages(SinkStage):
    """Properties of a sink that shows images to people, and takes them from a GPU."""

    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = True


class FileSink(SinkStage):
    """Options common to sinks that write files; see [files](files.md)."""

    fields: ClassVar[tuple[str, ...]] = ("stream", "date", "time")
    """Fields that ``path`` may contain in braces."""
    path: OutputPath
    existing: Literal["auto", "keep", "replace"] = Field(
        default="auto",
        description="files of an earlier run ([files](files.md)): keep adds or renames; auto keeps those of cameras and"
        " replaces those of recordings",
    )
    keep: Keep | None = Field(
        default=None,
        description="`{age: 7d, size: 20GB, free: 2GB}`: remove the oldest files beyond this age, total size or free "
        "disk; default: keep all",
    )

    @model_validator(mode="after")
    def _names_known_fields(self) -> FileSink:
        try:
            check_pattern(self.path, (*self.fields, "file"), "")
        except StageError as error:
            raise ValueError(f"{error.what}; {error.fix}") from error
        return self

    def rules(self, context: Context) -> Rules:
        rotate = getattr(self, "rotate", None) or Rotate.model_construct()
        keep = self.keep or Keep.model_construct()
        keeps = not context.starts_over if self.existing == "auto" else self.existing == "keep"
        return Rules(
            keeps,
            not context.starts_over,
            rotate.size or 0,
            rotate.every or 0.0,
            keep.age or 0.0,
            keep.size or 0,
            keep.free or 0,
        )


class _Rotating(FileSink):
    rotate: Rotate | None = Field(
        default=None, description="`{size: 500MB, every: 1h}`: when the next file begins; default: never"
    )

    @model_validator(mode="after")
    def _has_room(self) -> _Rotating:
        if self.keep is not None and self.rotate is None:
            raise ValueError("keep: needs rotate:, because only finished files are removed")
        if self.keep and self.keep.size and self.rotate and (self.rotate.size or 0) >= self.keep.size:
            raise ValueError(
                f"keep: {{size}} leaves no room for one file of {self.rotate.size} bytes beside those that stay"
            )
        return self


class Video(ShowsImages, _Rotating):
    """A video file that plays even after a crash."""

    path: OutputPath = Field(description="`.mp4`, `.mov` or `.mkv`; may hold `{stream}`, `{date}`, `{time}`, `{file}`")
    fps: float | None = Field(default=None, gt=0, description="frames per second; default: the source's")
    quality: int = Field(
        default=23,
        ge=0,
        le=51,
        description="H.264 CRF, or the constant quantizer of hardware; lower is better and larger",
    )
    codec: Literal["h264", "h265"] = Field(default="h264", description="h265 is smaller, and fewer players take it")
    encode: Literal["auto", "cpu", "gpu"] = Field(
        default="auto",
        description="auto: hardware where there is some; gpu: an error without hardware",
    )

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.sink.video import VideoSink

        return VideoSink(name, self.path, self.fps, self.quality, self.codec, self.encode, self.rules(context))


class Jsonl(_Rotating):
    """One JSON object per frame and line: see [results](results.md)."""

    takes_images: ClassVar[bool] = False
    shows_images: ClassVar[bool] = False
    path: OutputPath = Field(description="the file; may hold `{stream}`, `{date}`, `{time}`, `{file}`")

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.sink.results import JsonlSink

        return JsonlSink(name, self.path, self.rules(context), context.clock)


class Images(ShowsImages, FileSink):
    """A file for every image."""

    live: ClassVar[tuple[str, ...]] = ("every",)
    fields: ClassVar[tuple[str, ...]] = ("stream", "frame", "date", "time")
    path: OutputPath = Field(description="a folder, or a pattern such as `out/{date}/{stream}_{frame:06d}.png`")
    every: int = Field(default=1, ge=1, description="write every n-th frame")

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.sink.image_files import ImagesSink

        return ImagesSink(name, self.path, self.every, self.rules(context))


class PageTls(Section):
    """Certificate of the page, with its chain, and its private key; PEM files."""

    cert: FilePath = Field(description="file of the certificate, PEM")
    key: FilePath = Field(description="file of its private key, PEM")

    @model_validator(mode="after")
    def _is_usable(self) -> PageTls:
        for key, path in (("cert", self.cert), ("key", self.key)):
            if not path.is_file():
                raise ValueError(f"{key}: the file {path} does not exist")
        self.context()
        return self

    def context(self) -> SSLContext:
        """Return the TLS context. Raises ValueError for files that are not a certificate and its key."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")  # never prompts for a password
        except (ssl.SSLError, OSError) as error:
            why = "the key is of another certificate" if "KEY_VALUES_MISMATCH" in str(error) else str(error)
            raise ValueError(
                f"cert: and key: cannot be used: {why}; expected PEM files, the key unencrypted"
            ) from error
        return context


def check_token(token: str) -> None:
    """Raise ValueError for a token that could be guessed, or does not fit into a header of HTTP."""
    if not re.fullmatch(r"[!-~]{16,256}", token):
        count = f"this one has {len(token)} characters" if token else "it is empty"
        raise ValueError(f"token: expected 16 to 256 letters, digits or signs without spaces; {count}")


class _Imported(SinkStage):
    """Sink whose class is imported when one is created. The class takes the section and the context."""

    target: ClassVar[str]

    def make(self, name: str, context: Context) -> Any:
        return import_target(self.target)(name, self, context)


class Http(ShowsImages, _Imported):
    """A live page: every camera with its results, events and state."""

    target: ClassVar[str] = "edgert.stages.sink.web.http_sink:HttpSink"
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on; 0.0.0.0 opens it to the network",
    )
    port: int = Field(default=8080, ge=0, le=65535, description="0 picks a free one")
    token: str = Field(
        default="",
        repr=False,
        description="secret that visitors must know, at least 16 characters: ${VAR} ([who may "
        "look](live.md#who-may-look))",
    )
    tls: PageTls | None = Field(default=None, description="`{cert: FILE, key: FILE}` for HTTPS")
    clips: OutputPath | None = Field(
        default=None,
        description="[index](recording.md#the-index) of a record stage, whose clips are played beside their events",
    )

    @model_validator(mode="after")
    def _is_closed(self) -> Http:
        if "token" in self.model_fields_set:
            check_token(self.token)
        return self


class Display(ShowsImages, _Imported):
    """A window for each stream on this machine's screen: see [the window](window.md)."""

    target: ClassVar[str] = "edgert.stages.sink.display:DisplaySink"
    width: int = Field(default=0, ge=0, le=8192, description="width of a window in pixels; 0: the image's")
    height: int = Field(default=0, ge=0, le=8192, description="as `width`; without both, at most 1280x720")
    fullscreen: bool = Field(default=False, description="fill the screen")


class Callback(SinkStage):
    """A function of yours, called with each result."""

    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = False
    python: str | None = Field(
        default=None,
        pattern=CODE_NAME,
        description="module:function; leave it out when Python passes the function",
    )

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.python import check_function
        from edgert.stages.sink.results import CallbackSink

        where = f"stages.{name}"
        if context.function is None:
            raise ConfigError("callback needs a function", where=where, fix="add python: module:function")
        return CallbackSink(name, check_function(f"stage {name!r}", context.function, {}, where))


class Null(SinkStage):
    """No output; for measuring the rest."""

    takes_images: ClassVar[bool] = False
    shows_images: ClassVar[bool] = False

    def make(self, name: str, context: Context) -> Stage:
        from edgert.stages.sink.results import NullSink

        return NullSink()


_LEAST_HIGH = 0.25
"""Lowest default of ``high``, for models that also give uncertain boxes; the usual score of COCO's detectors."""
_ABOVE = 0.1
"""Distance from ``high`` to ``activate``, as in ByteTrack's published code."""


class ByteTrackStage(TrackStage):
    """ByteTrack (Zhang et al. 2022)."""

    tracker: ClassVar[str] = "edgert.stages.bytetrack:ByteTrack"
    high: Fraction | None = Field(
        default=None,
        description="score from which detections start and continue tracks; default: the task's `score`, at least 0.25",
    )
    low: Fraction = Field(default=0.1, description="detections between low and high may continue tracks")
    activate: Fraction | None = Field(
        default=None,
        description="score from which a track may start; default: 0.1 above high, at most halfway to 1",
    )
    match: Fraction = Field(default=0.2, description="lowest overlap (IoU) times score, of a detection with its track")
    keep: Seconds = Field(default=1.0, description="how long a lost object is remembered")
    confirm: int = Field(default=2, ge=1, description="detections in a row before a track gets its number")
    by_class: bool = Field(default=True, description="never join detections of two classes")
    predict: bool = Field(
        default=True,
        description="expect objects on frames without a model run (`every`), marked as predicted",
    )

    @model_validator(mode="after")
    def _rises(self) -> ByteTrackStage:
        high = self.high
        if high is not None and "low" in self.model_fields_set and self.low > high:
            raise ValueError(f"low: {self.low:g} is above high: {high:g}, so no detection lies between them")
        if self.activate is not None and self.activate < (high or 0.0):
            raise ValueError(f"activate: {self.activate:g} is below high: {high:g}, but tracks start at high: or above")
        return self

    def limits(self, score: float | None) -> tuple[float, float, float]:
        """Return ``low``, ``high`` and ``activate`` for detections of this lowest score; None if it is unknown."""
        high = max(score or 0.0, _LEAST_HIGH) if self.high is None else self.high
        activate = min(high + _ABOVE, (1 + high) / 2) if self.activate is None else self.activate
        return min(self.low, high), high, max(activate, high)

    def thresholds(self, score: float | None) -> str:
        low, high, activate = self.limits(score)
        follows = " (by the model's score)" if self.high is None and score is not None else ""
        return (
            f"{self.track}: tracks start at a score of {activate:.2g} and continue from "
            f"{high:.2g}{follows}, in doubt from {low:.2g}"
        )

    def make(self, name: str, context: Context) -> Any:
        return import_target(self.tracker)(self, context.score, context.rate_hz)


def tracking_of(config: PipelineConfig, model: str) -> ByteTrackStage | None:
    """Return the tracker of a model's objects; None without a tracker, or for the user's own."""
    trackers = trackers_of(config.stages, config.models, model)
    return next((one for one in trackers if isinstance(one, ByteTrackStage)), None)


class BotSortStage(ByteTrackStage):
    """BoT-SORT (Aharon et al. 2022): for moving cameras, and for objects that an `embed` model recognizes.

    The `embed` model runs on crops of the detections, in a stage before.
    """

    tracker: ClassVar[str] = "edgert.stages.botsort:BotSort"
    camera_motion: bool = Field(default=True, description="estimate the camera's motion from images")
    proximity: Fraction = Field(default=0.5, description="largest distance (1 - IoU) at which appearance counts")
    appearance: Fraction = Field(default=0.25, description="largest distance in appearance (half of 1 - cosine)")

    @property
    def reads_images(self) -> bool:
        return self.camera_motion


_SEND = "edgert.stages.sink.send"
_STREAM = "edgert.stages.sink.stream"
SINKS: dict[str, str | type[SinkStage]] = {
    "video": Video,
    "jsonl": Jsonl,
    "images": Images,
    "record": "edgert.stages.sink.record.sink:Record",
    "collect": "edgert.stages.sink.collect.collect_sink:Collect",
    "mcap": "edgert.stages.sink.mcap.mcap_sink:Mcap",
    "http": Http,
    "display": Display,
    "rtsp": f"{_STREAM}.rtsp_server:Rtsp",
    "webrtc": f"{_STREAM}.webrtc_sink:Webrtc",
    "callback": Callback,
    "null": Null,
    "mqtt": f"{_SEND}.mqtt:Mqtt",
    "nats": f"{_SEND}.nats:Nats",
    "kafka": f"{_SEND}.kafka:Kafka",
    "webhook": f"{_SEND}.webhook:Webhook",
    "ros2": "edgert.stages.ros2.ros_sink:Ros2",
}
TRACKERS = {"bytetrack": ByteTrackStage, "botsort": BotSortStage}
STAGES = {
    "zones": "edgert.stages.zones.areas:ZonesSection",
    "events": "edgert.stages.zones.rules:EventsSection",
    "privacy": "edgert.stages.privacy:PrivacySection",
    "motion": "edgert.stages.motion_gate:MotionSection",
    "distance": "edgert.stages.distance:DistanceSection",
}
