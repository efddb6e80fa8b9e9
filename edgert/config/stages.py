"""The sections under ``stages:``: each has one verb."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from edgert.config.fields import CODE_NAME, Inputs, Kinded, Names, Region, Seconds, Section, Size, Text, Watchdog
from edgert.errors import nearest
from edgert.kinds import SINKS, STAGES, TRACKERS
from edgert.policy import Drop, OnError
from edgert.units import parse_size

# A stage or task is identified by its one verb: the key that names its work.


def keys_of(data: Any) -> list[str]:
    """Return the keys of a mapping as read from YAML, or of a record already made from one."""
    return [str(key) for key in data] if isinstance(data, dict) else list(getattr(type(data), "model_fields", ()))


def verb_tag(data: Any, verbs: Sequence[str], first: Sequence[str] = ()) -> str | None:
    """Return ``<verb>`` of the single verb among the keys, for pydantic's tagged unions; None unless there is one.

    Args:
        data: a section as read from YAML, or a record made from one.
        verbs: all verbs.
        first: verbs that win over others, because their stages take an option of another verb's name.
    """
    found = [key for key in keys_of(data) if key in verbs]
    winners = [key for key in found if key in first] or found
    return f"<{winners[0]}>" if len(winners) == 1 else None


def explain_no_verb(data: Any, verbs: Sequence[str]) -> str:
    """Return why :func:`verb_tag` found none."""
    if not isinstance(data, dict):
        return f"expected a mapping with one of {', '.join(verbs)}; got {data!r}"
    found = [key for key in keys_of(data) if key in verbs]
    if len(found) > 1:
        return f"has {len(found)} verbs, {' and '.join(found)}; it can do only one thing"
    hint = next((near for key in keys_of(data) if (near := nearest(key, verbs))), "")
    return f"does nothing: no verb among its keys{hint}"


class _Stage(Section):
    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "restart", "drop", "log")
    """Values that ``on_error`` may have."""
    why_not: ClassVar[str] = ""
    """Why it may have no other values."""
    on_error: OnError | None = Field(
        default=None, description="when it fails: the pipeline stops, or as [troubles](troubles.md) says"
    )
    queue: int | None = Field(default=None, ge=1, le=1024, description="frames that may wait")
    drop: Drop | None = Field(default=None, description="which frame goes when the queue is full; never waits instead")

    @model_validator(mode="after")
    def _can_go_on_so(self) -> _Stage:
        if self.on_error is not None and self.on_error not in self.on_errors:
            raise ValueError(f"on_error: {self.on_error} cannot be here: {self.why_not}; {' or '.join(self.on_errors)}")
        return self


def _word(value: object) -> object:
    return str(value) if isinstance(value, int) else value


def _no_number(value: object) -> object:
    if str(value).isdecimal():  # a camera to OpenCV, and the name of a file here
        raise ValueError(f"a number is no source; the camera of that number is v4l2:///dev/video{value}")
    return value


class SourceStage(_Stage):
    """A source of frames.

    It is a file path, ``rtsp://``, ``v4l2:///dev/video0``, ``csi://0`` (a Jetson's own camera), ``images:GLOB`` or
    ``videos:GLOB`` (one after another, each with its own results). It may also be ``gst:PIPELINE``,
    ``python:module:name`` (images of your own code), ``synthetic:noise`` or ``api``. Other packages can add schemes of
    their own.
    """

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "drop")
    why_not: ClassVar[str] = "reconnect: opens a source again"
    # Not in the repr: it may hold a password.
    source: Annotated[Text, BeforeValidator(_no_number)] = Field(
        min_length=1, repr=False, description="a path, address or kind; see above"
    )
    size: Size | None = Field(default=None, description="asked of a camera, made by code")
    fps: float | None = Field(
        default=None, ge=1e-5, le=1000, description="asked of cameras and code; files are thinned out to it"
    )
    loop: bool = Field(default=False, description="start a file again at its end")
    realtime: bool | None = Field(default=None, description="give files out at their own speed; cameras always are")
    limit: int | None = Field(default=None, ge=1, description="stop after so many frames")
    seed: int = Field(default=0, ge=0, description="of what code makes at random")
    timeout: Seconds = Field(default=5.0, description="without a frame, a live source is opened again")
    reconnect: bool = Field(default=True, description="live sources: keep trying; otherwise the first loss is an error")
    start: Literal["wait", "fail"] | None = Field(
        default=None,
        description="a live source that is not there at the start. wait: the others run, and it joins them when it "
        "appears (by default, with reconnect); fail: an error, as a wrong path is either way",
    )
    required: bool = Field(default=True, description="a page's /readyz wants a frame of it")
    transport: Literal["tcp", "udp"] = Field(default="tcp", description="of RTSP")
    format: str | None = Field(
        default=None,
        description="camera pixel format to ask for, like mjpeg or yuyv422; by itself mjpeg where raw misses fps",
    )
    priority: Literal["low", "normal", "high"] = Field(
        default="normal",
        description="where budgets leave no room for all streams, those of low priority stop first and those of high "
        "priority last; among equals the last in the file first",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="settings of another package's source, further arguments of your code, or properties of "
        "nvarguscamerasrc, like {wbmode: 3}, for csi://",
    )
    sensor_mode: int | None = Field(
        default=None, ge=0, description="of csi://; by default the sensor's mode that fits size and fps"
    )
    flip: Annotated[Literal["90", "180", "270", "horizontal", "vertical"] | None, BeforeValidator(_word)] = Field(
        default=None, description="of csi://: turn by so many degrees clockwise, or mirror; costs nothing"
    )
    decode: Literal["auto", "cpu", "gpu"] = Field(
        default="auto",
        description="of files, networks and USB cameras with MJPEG or H.264. auto: by the board's own decoder, "
        "or the GPU's where a model reads the frames there; gpu: an error where that cannot be",
    )


class CropConfig(Section):
    """The detections to cut out for the next model."""

    classes: Names = Field(default=(), description="only these, by label or number; all by default")
    limit: int = Field(default=8, ge=1, le=256, description="best-scored detections per frame")
    margin: float = Field(default=0.0, ge=0, le=2, description="added on each side, as a part of the box")
    min_size: int = Field(default=8, ge=1, description="pixels; smaller boxes are left out")


class BatchConfig(Section):
    """Several frames in one run of the model.

    The model's batch size must be left open; with precision: int8 or auto it may be fixed to 1 as well. With cameras, a
    free model takes all waiting frames at once; batches form while it is busy. With files, a free model on a GPU also
    waits for a full batch, as long as frames come.
    """

    max: int = Field(ge=2, le=64, description="frames in a full batch")
    wait: Seconds = Field(
        default=0.005,
        description="the longest that a frame of a camera waits for others, while the model is busy; of a file, the "
        "longest between two frames of a batch",
    )


class _ShortFor:
    """Marks a section that may be written as its most important key's text alone."""

    def __init__(self, key: str, example: str) -> None:
        self._key, self._example = key, example

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: {self._key: value} if isinstance(value, str) else value, handler(source)
        )

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "examples": [self._example]}, handler(core)]}


_MOST_TILES = 48


def _parse_grid(value: object) -> tuple[int, int]:
    try:
        columns, rows = parse_size(value)
    except ValueError as error:
        raise ValueError("expected COLUMNSxROWS, like 2x2") from error
    if not 2 <= columns * rows <= _MOST_TILES:
        raise ValueError(f"{columns}x{rows} is {columns * rows} tiles; expected 2 to {_MOST_TILES}")
    return columns, rows


class TileConfig(Section):
    """A frame in tiles, for objects that are small in it: each is enlarged to the model's input."""

    grid: Annotated[
        tuple[int, int],
        BeforeValidator(_parse_grid),
        WithJsonSchema({"type": "string", "examples": ["2x2"]}),
    ] = Field(description="columns and rows")
    overlap: float = Field(
        default=0.2, ge=0, le=0.5, description="part of a tile that the next one shows, too; more than an object takes"
    )
    whole: bool = Field(
        default=True, description="run the model on the whole frame as well, for objects that are large"
    )
    merge: Literal["nmm", "nms"] = Field(
        default="nmm",
        description="of an object that several tiles show: nmm: its boxes become one around all; nms: the best stays",
    )
    match: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="least overlap of two boxes of one object: of both, or, where a tile cuts one off, of that",
    )

    @property
    def count(self) -> int:
        """Runs of the model for a frame."""
        return self.grid[0] * self.grid[1] + self.whole


class _Fed(_Stage):
    takes_gpu: ClassVar[bool] = False
    """Of a kind that looks at pixels: whether it takes frames and drawn images of a GPU; else it gets copies."""
    inputs: Inputs = Field(alias="from", description="the stage or stages it listens to")
    watchdog: Watchdog | None = Field(
        default=None, description="a call that takes longer is reported; the pipeline's by default"
    )


class InferStage(_Fed):
    """A model run on whole frames, or on crops of another stage's detections."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "restart", "drop")
    why_not: ClassVar[str] = "an engine that failed is tried before it is trusted again"
    infer: str = Field(description="which of the models")
    crop: CropConfig | None = Field(
        default=None, description="run on crops of the newest detections instead of the frame"
    )
    profile: str | None = Field(default=None, description="which of the model's profiles; the first by default")
    every: int = Field(default=1, ge=1, description="run on every n-th frame; the others pass through")
    batch: BatchConfig | None = Field(
        default=None, description="run on frames of several streams at once; one by one by default"
    )
    tiles: Annotated[TileConfig, _ShortFor("grid", "2x2")] | None = Field(
        default=None, description="run on tiles of the frame instead, and put their boxes together: `2x2`, or its keys"
    )

    @model_validator(mode="after")
    def _one_kind_of_batch(self) -> InferStage:
        if self.batch and self.crop:
            raise ValueError("batch cannot go with crop: the crops of a frame are run together already")
        if self.tiles and (self.batch or self.crop):
            other = "batch" if self.batch else "crop"
            raise ValueError(f"tiles cannot go with {other}: the tiles of a frame are run together already")
        return self

    @property
    def parts(self) -> int | None:
        """Crops or tiles of a frame that the model is run on at most; None: on the frame."""
        return self.crop.limit if self.crop else self.tiles.count if self.tiles else None


class TrackStage(_Fed, Kinded):
    """Numbers for detections that stay with the object; each method has keys of its own."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "drop", "log")
    why_not: ClassVar[str] = "a tracker has nothing to open again"
    track: str = Field(description="the method")

    @property
    def reads_images(self) -> bool:
        """Whether it looks at pixels."""
        return False

    def thresholds(self, score: float | None) -> str:
        """Return the score thresholds in words, for detections of a model with this lowest score; empty: not known."""
        return ""


TrackStage.family = ("track", TRACKERS)


class DrawStage(_Fed):
    """Results painted onto an image of the frame."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "drop", "log")
    why_not: ClassVar[str] = "it has nothing to open again"
    takes_gpu: ClassVar[bool] = True
    draw: Names = Field(description="boxes, labels, masks, keypoints, trails, zones, stats")
    width: int | None = Field(default=None, ge=16, description="width of the image; the frame's by default")

    @model_validator(mode="after")
    def _known(self) -> DrawStage:
        known = ("boxes", "labels", "masks", "keypoints", "trails", "zones", "stats")
        if wrong := [name for name in self.draw if name not in known]:
            raise ValueError(f"cannot draw {wrong[0]!r}; known: {', '.join(known)}")
        return self


RegionOrDetections = Annotated[
    Annotated[CropConfig, Tag("<detections>")] | Annotated[Region, Tag("<region>")],
    Discriminator(lambda data: "<detections>" if isinstance(data, (dict, CropConfig)) else "<region>"),
]


class CropStage(_Fed):
    """A fixed region, or every detection, cut out as frames of their own; no pixel is copied."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "drop", "log")
    why_not: ClassVar[str] = "it has nothing to open again"
    crop: RegionOrDetections = Field(description="[x1, y1, x2, y2] as parts 0-1 of the frame, or which detections")


class PythonStage(_Fed):
    """Your own function or class: ``module:name``, called with a Result, returning a Result or None."""

    python: str = Field(
        pattern=CODE_NAME,
        description="module:name, looked for beside the file, then among the packages; FOLDER/module:name in FOLDER",
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the class, or further ones of the function"
    )


class SinkStage(_Fed, Kinded):
    """A destination of results; each kind has keys of its own, and other packages can add kinds."""

    takes_images: ClassVar[bool]
    """Whether it looks at pixels."""
    shows_images: ClassVar[bool]
    """Whether it shows them to people; the mark of a simulated board is then painted on them."""
    sink: str = Field(description="the kind")

    @property
    def reads_images(self) -> bool:
        """Whether it looks at pixels, with these keys."""
        return self.takes_images

    def check(self, name: str, stages: Mapping[str, Any], where: Callable[[Iterable[str | int]], str]) -> None:
        """See :class:`PackageStage`."""


SinkStage.family = ("sink", SINKS)


class PackageStage(_Fed, Kinded):
    """A stage of a kind with keys of its own: edgert's, or another package's."""

    takes_images: ClassVar[bool]
    """Whether it looks at pixels."""
    detects: ClassVar[bool] = True
    """Whether it may find objects of its own, or track them."""
    hides: ClassVar[bool] = False
    """Whether stages behind it must not see images as their source made them."""
    stage: str = Field(description="the kind")

    def check(self, name: str, stages: Mapping[str, Any], where: Callable[[Iterable[str | int]], str]) -> None:
        """Check the stage against its neighbors, as far as the file alone shows.

        Args:
            name: of the stage.
            stages: all of the file, by name; each listens to existing stages, and none to itself.
            where: the place of a key in the file.

        Raises:
            ConfigError: they do not fit.
        """


PackageStage.family = ("stage", STAGES)


STAGE_VERBS = ("source", "infer", "track", "draw", "crop", "python", "stage", "sink")
_AnyStage = (
    Annotated[SourceStage, Tag("<source>")]
    | Annotated[InferStage, Tag("<infer>")]
    | Annotated[TrackStage, Tag("<track>")]
    | Annotated[DrawStage, Tag("<draw>")]
    | Annotated[CropStage, Tag("<crop>")]
    | Annotated[PythonStage, Tag("<python>")]
    | Annotated[PackageStage, Tag("<stage>")]
    | Annotated[SinkStage, Tag("<sink>")]
)


# `infer` takes an option called crop, and a callback sink one called python.
_FIRST = ("source", "infer", "sink")
StageConfig = Annotated[_AnyStage, Discriminator(lambda data: verb_tag(data, STAGE_VERBS, first=_FIRST))]
