"""The sections under ``stages:``. Each has one verb: the key that names its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import CoreSchema, core_schema

from edgert.config.fields import CODE_NAME, Inputs, Kinded, Names, Region, Seconds, Section, Size, Text, Watchdog
from edgert.errors import nearest
from edgert.kinds import SINKS, STAGES, TRACKERS
from edgert.policy import Drop, OnError
from edgert.units import parse_size

# Sections of stages and tasks are distinguished by their verb.


def keys_of(data: Any) -> list[str]:
    """Return the keys of a mapping from YAML, or of a section made from one."""
    return [str(key) for key in data] if isinstance(data, dict) else list(getattr(type(data), "model_fields", ()))


def verb_tag(data: Any, verbs: Sequence[str], first: Sequence[str] = ()) -> str | None:
    """Return ``<verb>`` as the tag for pydantic's tagged unions; None unless exactly one key is a verb.

    Verbs of ``first`` win, because their sections have an option of another verb's name.
    """
    found = [key for key in keys_of(data) if key in verbs]
    winners = [key for key in found if key in first] or found
    return f"<{winners[0]}>" if len(winners) == 1 else None


def explain_no_verb(data: Any, verbs: Sequence[str]) -> str:
    """Return the reason why :func:`verb_tag` returned None."""
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
    """Reason why ``on_error`` may not have other values."""
    on_error: OnError | None = Field(
        default=None, description="what happens when the stage fails ([troubles](troubles.md))"
    )
    queue: int | None = Field(default=None, ge=1, le=1024, description="frames that may wait")
    drop: Drop | None = Field(
        default=None, description="which frame is dropped when the queue is full; never: the sender waits"
    )

    @property
    def has_past(self) -> bool:
        """Whether its result for a frame depends on the frames before."""
        return False

    @model_validator(mode="after")
    def _can_go_on_so(self) -> _Stage:
        if self.on_error is not None and self.on_error not in self.on_errors:
            allowed = " or ".join(self.on_errors)
            raise ValueError(f"on_error: {self.on_error} is not possible here: {self.why_not}; write {allowed}")
        return self


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) else value


def _refuse_number(value: object) -> object:
    if str(value).isdecimal():  # OpenCV opens the camera of this number; here it would be the name of a file
        raise ValueError(f"a number is not a source; the camera of that number is v4l2:///dev/video{value}")
    return value


class SourceStage(_Stage):
    """A source of frames: a file, a camera, a stream, code or a program.

    It is a file path, ``rtsp://``, ``http://``, ``v4l2:///dev/video0``, ``csi://0``, ``images:GLOB``, ``videos:GLOB``,
    ``gst:PIPELINE``, ``python:module:name``, ``synthetic:noise``, ``ros2:///TOPIC``, ``ros2+zenoh://HOST/TOPIC``,
    ``bag:PATH#/TOPIC``, or ``api``, where your program submits frames.
    Packages can add schemes.
    """

    live: ClassVar[tuple[str, ...]] = ("fps", "required")
    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "drop")
    why_not: ClassVar[str] = "reconnect: opens a source again"
    # Not in the repr: it may hold a password.
    source: Annotated[Text, BeforeValidator(_refuse_number)] = Field(
        min_length=1, repr=False, description="path, address or kind, as above"
    )
    size: Size | None = Field(default=None, description="requested from a camera, or made by code")
    fps: float | None = Field(
        default=None,
        ge=1e-5,
        le=1000,
        description="requested from cameras and code; other sources are thinned out to it",
    )
    loop: bool = Field(default=False, description="start a file again at its end")
    realtime: bool | None = Field(default=None, description="play files at their own speed")
    limit: int | None = Field(default=None, ge=1, description="stop after this many frames")
    seed: int = Field(default=0, ge=0, description="seed of random numbers in code")
    timeout: Seconds = Field(default=5.0, gt=0, description="open a live source again after this time without a frame")
    reconnect: bool = Field(default=True, description="open a lost live source again; false: its loss is an error")
    start: Literal["wait", "fail"] | None = Field(
        default=None,
        description="a live source that is missing at the start. wait: it joins when it appears (default); fail: an "
        "error",
    )
    required: bool = Field(default=True, description="/readyz needs a frame of this source")
    transport: Literal["tcp", "udp"] = Field(default="tcp", description="transport of RTSP")
    format: str | None = Field(
        default=None,
        description="pixel format to request from a camera, such as mjpeg or yuyv422; default: mjpeg where raw is too "
        "slow",
    )
    priority: Literal["low", "normal", "high"] = Field(
        default="normal",
        description="which streams budgets stop first: low, then normal, then high; among equals the last in the file",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="settings of a package's source or [of topics](ros2.md), arguments of your code, or properties of "
        "nvarguscamerasrc, such as {wbmode: 3}",
    )
    sensor_mode: int | None = Field(
        default=None, ge=0, description="csi://: sensor mode; default: the one that fits size and fps"
    )
    flip: Annotated[Literal["90", "180", "270", "horizontal", "vertical"] | None, BeforeValidator(_as_text)] = Field(
        default=None, description="csi://: rotate clockwise by degrees, or mirror"
    )
    decode: Literal["auto", "cpu", "gpu"] = Field(
        default="auto",
        description="what decodes video. auto: hardware where it helps; gpu: an error where hardware cannot",
    )


class CropConfig(Section):
    """Detections to cut out for the next model."""

    classes: Names = Field(default=(), description="only these, by label or number; default: all")
    limit: int = Field(default=8, ge=1, le=256, description="maximum detections per frame, best score first")
    margin: float = Field(default=0.0, ge=0, le=2, description="added on each side, as a part of the box")
    min_size: int = Field(default=8, ge=1, description="smaller boxes are skipped; in pixels")


class BatchConfig(Section):
    """Several frames in one run of the model.

    The model's batch dimension must be open; with precision: int8 or auto it may be 1. Cameras never wait for a full
    batch; files on a GPU do.
    """

    max: int = Field(ge=2, le=64, description="frames in a full batch")
    wait: Seconds = Field(default=0.005, description="longest time that a frame waits for others")


class ShortFor:
    """Annotation for a section that may be written as only the value of its main key."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: {self._key: value} if isinstance(value, (str, list, tuple)) else value, handler(source)
        )

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core)
        return {"anyOf": [handler.resolve_ref_schema(schema)["properties"][self._key], schema]}


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
    """Tiles of a frame, each enlarged to the model's input, for small objects."""

    grid: Annotated[
        tuple[int, int], BeforeValidator(_parse_grid), WithJsonSchema({"type": "string", "examples": ["2x2"]})
    ] = Field(description="COLUMNSxROWS")
    overlap: float = Field(
        default=0.2, ge=0, le=0.5, description="part of a tile that the next one also shows; more than an object's size"
    )
    whole: bool = Field(default=True, description="also run on the full frame, for large objects")
    merge: Literal["nmm", "nms"] = Field(
        default="nmm", description="boxes of one object in several tiles. nmm: joined into one; nms: the best stays"
    )
    match: float = Field(default=0.5, gt=0, le=1, description="lowest overlap of two boxes of one object")

    @property
    def count(self) -> int:
        """Number of the model's runs for a frame."""
        return self.grid[0] * self.grid[1] + self.whole


class _StageWithInputs(_Stage):
    takes_gpu: ClassVar[bool] = False
    """Whether a stage that reads pixels accepts frames and images in GPU memory; otherwise it gets copies."""
    inputs: Inputs = Field(alias="from", description="stage or stages to listen to")
    watchdog: Watchdog | None = Field(
        default=None, description="report a call that takes longer; default: the pipeline's"
    )


class InferStage(_StageWithInputs):
    """A model, run on frames or on crops of another stage's detections."""

    live: ClassVar[tuple[str, ...]] = ("every",)
    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "restart", "drop")
    why_not: ClassVar[str] = "an engine that failed is tried before it is trusted again"
    infer: str = Field(description="name of the model")
    crop: CropConfig | None = Field(default=None, description="run on crops of the newest detections")
    profile: str | None = Field(default=None, description="one of the model's profiles; default: the first")
    every: int = Field(default=1, ge=1, description="run on every n-th frame; others pass through")
    batch: BatchConfig | None = Field(default=None, description="run on frames of several streams at once")
    tiles: Annotated[TileConfig, ShortFor("grid")] | None = Field(
        default=None, description="run on tiles of the frame: `2x2`, or its keys"
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
        """Maximum number of crops or tiles of a frame that the model runs on; None: it runs on the frame."""
        return self.crop.limit if self.crop else self.tiles.count if self.tiles else None


class TrackStage(_StageWithInputs, Kinded):
    """A tracker: it gives the detections of one object the same number."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "drop", "log")
    why_not: ClassVar[str] = "a tracker has nothing to open again"
    track: str = Field(description="tracking method")

    @property
    def has_past(self) -> bool:
        return True

    @property
    def reads_images(self) -> bool:
        """Whether this tracker reads pixels."""
        return False

    def thresholds(self, score: float | None) -> str:
        """Return the score thresholds in words, for detections from this lowest score on; empty where not known."""
        return ""


TrackStage.family = ("track", TRACKERS)


class DrawStage(_StageWithInputs):
    """An image of the frame with results drawn on it."""

    live: ClassVar[tuple[str, ...]] = ("draw", "width")
    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "drop", "log")
    why_not: ClassVar[str] = "it has nothing to open again"
    takes_gpu: ClassVar[bool] = True
    draw: Names = Field(description="boxes, labels, masks, keypoints, trails, zones, stats")
    width: int | None = Field(default=None, ge=16, description="width of the image in pixels; default: the frame's")

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


class CropStage(_StageWithInputs):
    """A region, or every detection, as frames of their own, without copying pixels."""

    on_errors: ClassVar[tuple[OnError, ...]] = ("stop", "drop", "log")
    why_not: ClassVar[str] = "it has nothing to open again"
    crop: RegionOrDetections = Field(description="[x1, y1, x2, y2] as parts 0-1 of the frame, or which detections")


class PythonStage(_StageWithInputs):
    """Your function or class: ``module:name``, called with a Result, returning a Result or None."""

    python: str = Field(
        pattern=CODE_NAME,
        description="module:name, beside the file or in a package; FOLDER/module:name in another folder",
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the class, or further ones of the function"
    )


class SinkStage(_StageWithInputs, Kinded):
    """A destination of results."""

    takes_images: ClassVar[bool]
    """Whether it reads pixels."""
    shows_images: ClassVar[bool]
    """Whether it shows images to people, so that the mark of a simulated board must be drawn on them."""
    sink: str = Field(description="kind of sink")

    @property
    def reads_images(self) -> bool:
        """Whether this sink reads pixels, given its keys."""
        return self.takes_images

    def check(self, name: str, stages: Mapping[str, Any], where: Callable[[Iterable[str | int]], str]) -> None:
        """Check the sink against its neighbors, as :meth:`PackageStage.check` does."""


SinkStage.family = ("sink", SINKS)


class PackageStage(_StageWithInputs, Kinded):
    """Stage of an installed package, with keys of that package."""

    takes_images: ClassVar[bool]
    """Whether it reads pixels."""
    detects: ClassVar[bool] = True
    """Whether it may detect or track objects."""
    hides: ClassVar[bool] = False
    """Whether stages behind it must not see images as their source made them."""
    stage: str = Field(description="kind of stage")

    @property
    def has_past(self) -> bool:
        return True

    def check(self, name: str, stages: Mapping[str, Any], where: Callable[[Iterable[str | int]], str]) -> None:
        """Check the stage against its neighbors, using only the file.

        Args:
            name: name of the stage.
            stages: all stages by name; each listens to existing stages, and none to itself.
            where: function that returns the place of a key in the file.

        Raises ConfigError: the stage cannot follow the stages before it.
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


# `infer` has an option named crop, and a callback sink one named python.
_MAIN_VERBS = ("source", "infer", "sink")
StageConfig = Annotated[_AnyStage, Discriminator(lambda data: verb_tag(data, STAGE_VERBS, first=_MAIN_VERBS))]
