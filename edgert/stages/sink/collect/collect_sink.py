"""``sink: collect``: frames worth a label are kept. A thread of its own encodes and writes them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as NotInTime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import cv2
from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from edgert.clock import rfc3339, time_of_day_ns
from edgert.config import stages as section
from edgert.config.fields import Fraction, Names, OutputPath, PositiveBytes, Seconds, Section
from edgert.config.flow import Where, sources_of, upstream
from edgert.errors import ConfigError, cause, nearest
from edgert.runtime.frame import U8
from edgert.runtime.records import Detections, Result
from edgert.runtime.worker import Worker
from edgert.stages.context import Context, SimpleStage
from edgert.stages.sink import output_file, retention
from edgert.stages.sink.collect.chooser import Chooser
from edgert.stages.sink.collect.dataset_folder import DatasetFolder
from edgert.stages.sink.collect.label_formats import Sample
from edgert.stages.zones.section import check_rules

log = logging.getLogger("edgert.sink")

_MAX_QUEUED = 4
"""Maximum number of images that wait to be written; behind a camera, further ones are left out."""
_QUALITY = [cv2.IMWRITE_JPEG_QUALITY, 95]
_TRIM_S, _REMIND_S, _CLOSE_S = 60.0, 300.0, 1.5


class Bounds(Section):
    """Section of a dataset's limits."""

    count: int = Field(default=1000, ge=1, description="the oldest images are removed beyond this number")
    size: PositiveBytes = Field(default=2 << 30, description="the oldest images are removed beyond this size in all")
    age: Seconds = Field(default=90 * 86400.0, ge=1, description="images older than this are removed")
    free: PositiveBytes = Field(default=1 << 30, description="nothing is added while less is free on the disk")


def _range(value: object) -> object:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2
    if not is_pair or not value[0] < value[1]:  # type: ignore[index]
        raise ValueError("expected two scores, the lower first, like [0.3, 0.5]")
    return value


_RANGE = WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2})
_STAGES = WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2})


class Collect(section.SinkStage):
    """Frames that are worth a label, as a dataset with the model's labels: see [collecting](collect.md)."""

    live: ClassVar[tuple[str, ...]] = ("every",)
    takes_gpu: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    shows_images: ClassVar[bool] = False
    path: OutputPath = Field(description="folder of the dataset; a later run adds to it")
    format: Literal["yolo", "coco"] = Field(default="yolo", description="layout of the dataset")
    score: Annotated[tuple[Fraction, Fraction] | None, BeforeValidator(_range), _RANGE] = Field(
        default=None, description="keep frames with a detection whose score lies between, like `[0.3, 0.5]`"
    )
    differ: Annotated[tuple[str, str] | None, _STAGES] = Field(
        default=None, description="keep frames on which these two stages disagree about an object"
    )
    rules: Names = Field(default=(), description="keep frames in which an event of these rules begins")
    every: Seconds = Field(default=0.0, description="keep a frame of each camera in this time; 0: none")
    gap: Seconds = Field(default=10.0, description="least time between two frames of a camera kept for score or differ")
    keep: Bounds = Field(
        default_factory=Bounds,
        description="`{count: 1000, size: 2GiB, age: 90d, free: 1GiB}`, the defaults: the oldest images go; nothing is "
        "added while less is free on the disk",
    )

    @model_validator(mode="after")
    def _keeps_something(self) -> Collect:
        if not (self.score or self.differ or self.rules or self.every):
            raise ValueError("it keeps no frame; add score: [0.3, 0.5], differ:, rules: or every: 10m")
        return self

    def check(self, name: str, stages: Mapping[str, Any], where: Where) -> None:
        """Raise ConfigError for stages and rules that do not come before, and for images that show what is hidden."""
        before = upstream(stages, name)
        for one in self.differ or ():
            if one not in before:
                what = f"stage {name!r} compares {one!r}, which is no stage before it{nearest(one, before)}"
                fix = f"before it: {', '.join(sorted(before))}"
                raise ConfigError(what, where=where(("stages", name, "differ")), fix=fix)
        check_rules(name, "keeps frames of", self.rules, stages, where(("stages", name, "rules")))
        sources = sources_of(stages)
        for other, stage in stages.items():
            if getattr(stage, "hides", False) and other not in before and sources[other] & sources[name]:
                what = f"stage {name!r} would keep images in which everything is seen that {other!r} hides"
                fix = f"let it listen to {other!r}, or to a stage behind it"
                raise ConfigError(what, where=where(("stages", name, "from")), fix=fix)

    def make(self, name: str, context: Context) -> CollectSink:
        """Return the sink."""
        return CollectSink(name, self, context)


class CollectSink(SimpleStage):
    """Sink that writes chosen frames, without drawings, and their detections into a dataset.

    A full or failing disk is logged, and never ends the run.

    Attributes:
        left_out: number of frames worth a label that are not in the dataset, because the disk was too slow or full.
    """

    def __init__(self, name: str, config: Collect, context: Context) -> None:
        self._where, self.every, self.left_out = f"stages.{name}", config.every, 0
        self._chooser = Chooser(config.score, config.differ, config.rules, round(1e9 * config.gap))
        self._folder = DatasetFolder(config.path, config.format, self._where, **config.keep.model_dump())
        self._clock, self._is_again = context.clock, context.starts_over
        self._waits = context.is_waited_for
        self._room = threading.BoundedSemaphore(_MAX_QUEUED)
        self._worker: Worker | None = None
        self._is_down, self._reminded, self._trimmed = False, -_REMIND_S, time.monotonic()

    def open(self) -> None:
        """Open the dataset. Raises StageError where it cannot be written, or another process writes it."""
        try:
            self._folder.open()
        except OSError as error:
            raise output_file.cannot_write(self._folder.path, error, self._where) from error
        self._worker = Worker(f"edgert:{self._where}")
        self._worker.start()

    def process(self, result: Result) -> None:
        """Copy the frame for the writer if it is worth a label."""
        reasons = self._chooser.reasons(result, round(1e9 * self.every))
        if not reasons:
            self._trim()
            return
        frame = result.frame
        time_ns = time_of_day_ns(frame.timestamp_ns, self._clock)
        sample: Sample = {
            "image": self._name(result, time_ns),
            "stream": frame.stream,
            "frame": frame.index,
            "time": rfc3339(time_ns),
            "time_s": time_ns / 1e9,
            "why": reasons,
            "size": (frame.width, frame.height),
            "objects": [],
        }
        if not self._room.acquire(blocking=self._waits):
            self._leave_out("the disk is too slow")
            return
        assert self._worker is not None, "open() comes first"
        self._worker.submit(partial(self._write, frame.to_bgr(), sample, result.detections))

    def close(self) -> None:
        """Write the queued images, and close the dataset. A slow disk may leave images out."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        closed = worker.submit(self._folder.close)
        worker.stop()
        try:
            closed.result(_CLOSE_S)
        except NotInTime:
            log.warning("%s: %s does not answer; queued images are left out", self._where, self._folder.path)
        if self.left_out:
            log.warning("%s: %d frames worth a label were left out", self._where, self.left_out)

    def _name(self, result: Result, time_ns: int) -> str:
        """Return the name of an image: with the capture time for cameras, else the same in every run."""
        frame = result.frame
        if self._is_again:
            middle = f"{Path(frame.extra.file).stem}-" if frame.extra.file else ""
            return retention.safe_name(f"{frame.stream}-{middle}{frame.index:06d}.jpg")
        stamp = rfc3339(time_ns)[:23].translate({ord(one): None for one in "-:."})
        return retention.safe_name(f"{frame.stream}-{stamp}-{frame.index}.jpg")

    def _trim(self) -> None:
        """Remove images that became too old, once a minute."""
        if self._worker is not None and time.monotonic() - self._trimmed > _TRIM_S:
            self._trimmed = time.monotonic()
            self._worker.submit(self._remove_excess)

    def _remove_excess(self) -> None:
        """Remove old images; log any error. Called in the worker's thread."""
        try:
            self._folder.remove_excess(time.time())
        except Exception as error:  # noqa: BLE001 - nobody reads the future of this work
            log.warning("%s: cannot remove old images of %s: %s", self._where, self._folder.path, cause(error) or error)

    def _write(self, image: U8, sample: Sample, found: Detections) -> None:
        """Write an image that the dataset lacks; log any error. Called in the worker's thread."""
        try:
            if not self._folder.has(sample["image"]):
                _, data = cv2.imencode(".jpg", image, _QUALITY)
                self._folder.add(data.data, sample, found)
        except Exception as error:  # noqa: BLE001 - nobody reads the future of this work
            self._is_down = True
            self._leave_out(cause(error) or type(error).__name__)
        else:
            if self._is_down:
                log.info("%s: images are written to %s again", self._where, self._folder.path)
            self._is_down = False
        finally:
            self._room.release()

    def _leave_out(self, why: str) -> None:
        """Count an image that is left out; log it, at most every five minutes."""
        self.left_out += 1
        now = time.monotonic()
        if now - self._reminded >= _REMIND_S:
            self._reminded = now
            what = f"{self._folder.path} lacks {self.left_out} images that are worth a label"
            log.warning("%s: %s: %s; the run goes on", self._where, what, why, extra={"code": "record.lost"})
