"""Masking of private parts of images, in the frame itself, before other stages see or record it.

The stage passes on a copy of each frame in which fixed areas, and objects of some classes, are black, blurred or in
blocks. The stages behind it (models, drawings, recordings, live pages) never get the original pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import Field, WithJsonSchema, model_validator

from edgert.config import stages as section
from edgert.config.fields import Name, Names
from edgert.config.flow import inputs_of, upstream
from edgert.errors import ConfigError
from edgert.memory import lend
from edgert.runtime import Detections, Frame, Result
from edgert.runtime.frame import U8, full_frame, origin_of, with_planes
from edgert.stages.context import ImageBuffers, SimpleStage
from edgert.stages.crop import known_classes
from edgert.stages.preprocess import yuyv_pairs
from edgert.stages.zones import geometry
from edgert.stages.zones.areas import class_numbers
from edgert.stages.zones.section import Points

if TYPE_CHECKING:
    from edgert.runtime.stage import Stage
    from edgert.stages.context import Context

How = Literal["black", "blur", "blocks"]
F64 = npt.NDArray[np.float64]
Box = tuple[int, int, int, int]
_COARSE = 8
"""Squares along the shorter side of a blurred part: too few to recognize a face or a plate."""
_AREAS = {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "array"}}}


class PrivacySection(section.PackageStage):
    """Masking of image areas, and of objects of some classes, for all later stages.

    Models, drawings, recordings and live pages behind it cannot see them. Objects come from the stages before it.
    """

    hides: ClassVar[bool] = True
    takes_images: ClassVar[bool] = True
    detects: ClassVar[bool] = False
    areas: Annotated[dict[Name, Points], WithJsonSchema(_AREAS)] = Field(
        default_factory=dict,
        description="name: [[x, y], …], as parts 0-1 of the frame or in pixels",
    )
    classes: Names = Field(default=(), description="labels or numbers of objects, such as [face, plate]")
    how: How = Field(default="black", description="black, blur, or blocks (large squares)")
    margin: float = Field(default=0.1, ge=0, le=2, description="added around each object, as a part of its box")

    @property
    def has_past(self) -> bool:
        return bool(self.classes)

    @model_validator(mode="after")
    def _hides_something(self) -> PrivacySection:
        if not self.areas and not self.classes:
            raise ValueError("expected areas: or classes:, like {window: [[0, 0], [0.3, 0], [0.3, 0.2], [0, 0.2]]}")
        for name, points in self.areas.items():
            if len(points) > 2 and (crossing := geometry.crossing_edges(points)) is not None:
                first, second = crossing
                raise ValueError(f"the border of area {name!r} crosses itself: the edges from points {first}, {second}")
            if len(points) < 3 or not geometry.area(points):
                raise ValueError(f"area {name!r} needs three points or more that are not on one line")
        return self

    def check(self, name: str, stages: Mapping[str, Any], where: Callable[[Iterable[str | int]], str]) -> None:
        """Raise ConfigError if another stage sees the fixed areas that this one hides, or if it follows a drawing."""
        for other in upstream(stages, name):
            if isinstance(stages[other], section.DrawStage):
                raise ConfigError(
                    f"stage {name!r} comes behind {other!r}, whose images show what it hides",
                    where=where(("stages", name, "from")),
                    fix=f"set from: of {other!r} to {name!r}, or to a stage behind it",
                )
        if not self.areas:
            return
        for other, stage in stages.items():
            passed = set(inputs_of(stage)) & set(self.inputs)
            if other != name and passed and getattr(stage, "stage", "") != self.stage:
                raise ConfigError(
                    f"stage {other!r} gets the frames of {min(passed)!r} directly, and sees what {name!r} hides",
                    where=where(("stages", other, "from")),
                    fix=f"set its from: to {name!r}, or to a stage behind it",
                )

    def make(self, name: str, context: Context) -> Stage:
        return Privacy(name, self)


class Privacy(SimpleStage):
    """Stage that replaces each frame by a copy in which areas and objects are unreadable."""

    def __init__(self, name: str, section: PrivacySection) -> None:
        self.name, self._section = name, section
        self._buffers = ImageBuffers()
        self._boxes: dict[str, F64] = {}  # objects of each stream's last frame on which a model ran

    def process(self, result: Result) -> Result:
        frame = self._copy(result.frame.to_host())
        whole = full_frame(result.frame)
        for points in self._section.areas.values():
            places = geometry.in_pixels(points, (whole.width, whole.height))
            self._hide(frame, places - np.array(origin_of(frame)))
        for x1, y1, x2, y2 in (self._objects(result) - np.array(origin_of(frame) * 2)).tolist():
            self._hide(frame, np.array([(x1, y1), (x2, y1), (x2, y2), (x1, y2)]))
        return replace(result, frame=frame, image=None)

    def close(self) -> None:
        self._buffers.clear()

    def _copy(self, frame: Frame) -> Frame:
        """Return a copy of the frame, whose memory is reused only after the frame's end."""
        sizes = [math.prod(plane.shape) for plane in frame.planes]
        buffer, start, planes = self._buffers.take((sum(sizes),), frame.lease.counter), 0, list[U8]()
        for plane, size in zip(frame.planes, sizes, strict=True):
            own = buffer[start : start + size].reshape(plane.shape)
            np.copyto(own, plane)
            planes.append(own)
            start += size
        frame.lease.counter.copied(start)
        lease = lend(tuple(planes), frame.lease.counter) if frame.extra.delivery is None else frame.lease
        return with_planes(frame, tuple(planes), lease)

    def _objects(self, result: Result) -> F64:
        """Return (N, 4) boxes with margin in source pixels, from all records; the last boxes where no model ran."""
        stream, boxes, classes = result.frame.stream, [np.zeros((0, 4))], self._section.classes
        found = [record for record in result.outputs.values() if isinstance(record, Detections)]
        if not classes or not found:
            return self._boxes.get(stream, boxes[0])
        if labels := tuple({label for record in found for label in record.labels}):
            class_numbers(classes, labels, f"stages.{self.name}.classes")  # raises, as objects would stay visible
        for record in found:
            own = record.boxes[np.isin(record.classes, known_classes(classes, record.labels))].astype(np.float64)
            grown = (own[:, 2:] - own[:, :2]) * self._section.margin
            boxes.append(own + np.concatenate((-grown, grown), axis=1))
        self._boxes[stream] = np.concatenate(boxes)
        return self._boxes[stream]

    def _hide(self, frame: Frame, polygon: F64) -> None:
        """Make the polygon (N, 2), in pixels of the frame, unreadable in all planes."""
        packed = frame.format == "yuyv"
        for number, plane in enumerate(frame.planes):
            step = np.array((2.0 if packed or number else 1.0, 2.0 if number else 1.0))
            _hide_in_plane(plane, polygon / step, self._section.how, _black(frame, number), packed)


def _black(frame: Frame, plane: int) -> tuple[int, ...]:
    if frame.format in ("bgr", "rgb", "gray"):
        return (0, 0, 0)
    luma = 0 if frame.color.full_range else 16
    if frame.format == "yuyv":
        return (luma, 128, luma, 128)
    return (luma,) if plane == 0 else (128, 128)


def _hide_in_plane(plane: U8, polygon: F64, how: How, black: tuple[int, ...], packed: bool) -> None:
    """Hide the polygon in one plane, (h, w) or (h, w, C).

    In yuyv, two pixels are read as one with four channels; a last odd column becomes black.
    """
    if packed and plane.shape[1] % 2:
        if polygon[:, 0].max() >= plane.shape[1] // 2:
            plane[:, -1] = black[:2]
        plane = plane[:, :-1]
    if packed:
        plane = yuyv_pairs(plane)
    low = np.maximum(np.floor(polygon.min(axis=0)).astype(int) - 1, 0)
    high = np.minimum(np.ceil(polygon.max(axis=0)).astype(int) + 2, (plane.shape[1], plane.shape[0]))
    if (low >= high).any():
        return
    part = plane[low[1] : high[1], low[0] : high[0]]
    corners = [np.rint(polygon - low).astype(np.int32)]
    mask = np.zeros(part.shape[:2], np.uint8)
    cv2.fillPoly(mask, corners, 255)
    cv2.polylines(mask, corners, True, 255, 2)  # all pixels that the border touches
    if how == "black":
        part[mask > 0] = black[: part.shape[2]] if part.ndim == 3 else black[0]
        return
    height, width = part.shape[:2]
    square = max(2.0, min(height, width) / _COARSE)
    few = max(1, round(width / square)), max(1, round(height / square))
    coarse = cv2.resize(part, few, interpolation=cv2.INTER_AREA)
    smooth = cv2.INTER_LINEAR if how == "blur" else cv2.INTER_NEAREST
    hidden = cast("U8", cv2.resize(coarse, (width, height), interpolation=smooth))
    np.copyto(part, hidden.reshape(part.shape), where=(mask > 0) if part.ndim == 2 else (mask > 0)[..., None])
