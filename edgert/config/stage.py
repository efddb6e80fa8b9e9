"""The sections under ``stages:``: one verb each."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import Discriminator, Field, Tag, model_validator

from edgert.config.fields import Fraction, Inputs, Names, OutputPath, Seconds, Section, Size
from edgert.config.verb import verb_tag

Drop = Literal["oldest", "newest", "never"]


class _Stage(Section):
    queue: int | None = Field(None, ge=1, le=1024, description="frames that may wait")
    drop: Drop | None = Field(None, description="which frame goes when the queue is full; never waits instead")


class SourceStage(_Stage):
    """Where frames come from. A file path, ``rtsp://``, ``v4l2:///dev/video0``, ``images:GLOB``,
    ``gst:PIPELINE``, ``synthetic:conveyor`` or ``api``."""

    source: str = Field(min_length=1)
    size: Size | None = Field(None, description="asked of a camera, made by a synthetic scene")
    fps: float | None = Field(None, gt=0, le=1000)
    loop: bool = Field(False, description="start a file again at its end")
    realtime: bool | None = Field(None, description="give files out at their own speed; cameras always are")
    limit: int | None = Field(None, ge=1, description="stop after so many frames")
    seed: int = Field(0, ge=0, description="of a synthetic scene")
    timeout: Seconds = Field(5.0, description="without a frame, a live source is opened again")
    reconnect: bool = Field(True, description="live sources: keep trying; otherwise the first loss is an error")
    transport: Literal["tcp", "udp"] = "tcp"
    format: str | None = Field(None, description="camera pixel format to ask for, like mjpeg or yuyv422")


class CropConfig(Section):
    """Which detections to cut out for the next model."""

    classes: Names = ()
    limit: int = Field(8, ge=1, le=256, description="best-scored detections per frame")
    margin: float = Field(0.0, ge=0, le=2, description="added on each side, as a part of the box")
    min_size: int = Field(8, ge=1, description="pixels; smaller boxes are left out")


class _Fed(_Stage):
    inputs: Inputs = Field(alias="from", description="the stage or stages it listens to")


class InferStage(_Fed):
    """Runs a model on whole frames, or on crops of another stage's detections."""

    infer: str
    crop: CropConfig | None = None
    profile: str | None = None
    every: int = Field(1, ge=1, description="run on every n-th frame; the others pass through")


class TrackStage(_Fed):
    """Gives detections a number that stays with the object (ByteTrack, Zhang et al. 2022)."""

    track: Literal["bytetrack"]
    high: Fraction = Field(0.6, description="detections above this start and continue tracks first")
    low: Fraction = Field(0.1, description="detections between low and high may continue tracks")
    activate: Fraction = Field(0.7, description="lowest score that starts a track")
    match: Fraction = Field(0.1, description="lowest overlap (IoU) of a detection with its track")
    keep: Seconds = Field(1.0, description="how long a lost object is remembered")
    confirm: int = Field(2, ge=1, description="detections in a row before a track gets its number")
    by_class: bool = Field(True, description="never join detections of two classes")


class DrawStage(_Fed):
    """Paints results onto a picture of the frame."""

    draw: Names = Field(description="boxes, labels, masks, keypoints, trails, stats")
    width: int | None = Field(None, ge=16, description="width of the picture; the frame's by default")

    @model_validator(mode="after")
    def _known(self) -> DrawStage:
        known = ("boxes", "labels", "masks", "keypoints", "trails", "stats")
        if wrong := [name for name in self.draw if name not in known]:
            raise ValueError(f"cannot draw {wrong[0]!r}; known: {', '.join(known)}")
        return self


class CropStage(_Fed):
    """Cuts out a fixed region, or every detection, as frames of their own; no pixel is copied."""

    crop: CropConfig | tuple[float, float, float, float] = Field(
        description="[x1, y1, x2, y2] as parts 0-1 of the frame, or which detections"
    )


class PythonStage(_Fed):
    """The user's function or class: ``module:name``, called with a Result, returning a Result or None."""

    python: str = Field(pattern=r"^[\w.]+:[\w.]+$")
    args: dict[str, Any] = Field(default_factory=dict)


class SinkStage(_Fed):
    """Where results go."""

    sink: Literal["video", "jsonl", "images", "http", "callback", "null"]
    path: OutputPath | None = Field(None, description="relative to the folder edgert is run in")
    fps: float | None = Field(None, gt=0, description="video: frames per second; the source's by default")
    quality: int = Field(23, ge=0, le=51, description="video: H.264 CRF, lower is better and larger")
    host: str = Field("127.0.0.1", description="http: address to listen on; others than loopback open it to the network")
    port: int = Field(8080, ge=0, le=65535, description="http: 0 picks a free one")
    every: int = Field(1, ge=1, description="images: write every n-th frame")
    python: str | None = Field(None, pattern=r"^[\w.]+:[\w.]+$", description="callback: function called with a Result")

    @model_validator(mode="after")
    def _complete(self) -> SinkStage:
        if self.sink in ("video", "jsonl", "images") and self.path is None:
            raise ValueError(f"sink: {self.sink} needs a path")
        return self


STAGE_VERBS = ("source", "infer", "track", "draw", "crop", "python", "sink")
_AnyStage = Union[
    Annotated[SourceStage, Tag("<source>")],
    Annotated[InferStage, Tag("<infer>")],
    Annotated[TrackStage, Tag("<track>")],
    Annotated[DrawStage, Tag("<draw>")],
    Annotated[CropStage, Tag("<crop>")],
    Annotated[PythonStage, Tag("<python>")],
    Annotated[SinkStage, Tag("<sink>")],
]


# `infer` takes an option called crop, and a callback sink one called python.
_FIRST = ("source", "infer", "sink")
StageConfig = Annotated[_AnyStage, Discriminator(lambda data: verb_tag(data, STAGE_VERBS, first=_FIRST))]
FedStage = InferStage | TrackStage | DrawStage | CropStage | PythonStage | SinkStage
