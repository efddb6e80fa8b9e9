"""Position of each detected object, from a camera's depth image or a model's depth map."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edgert.config import stages as section
from edgert.runtime import Result
from edgert.runtime.frame import full_frame
from edgert.runtime.records import F32, DepthMap, Detections
from edgert.stages.context import Context, SimpleStage

_MIDDLE = np.linspace(0.25, 0.75, 15, dtype=np.float32)
"""Fractions of a box's side at which depth is read. Its edges show the background."""
_Camera = tuple[float, float, float, float] | None


class DistanceSection(section.PackageStage):
    """Position of each object in meters, where the camera or a model measures depth: see [robots](robots.md)."""

    takes_images: ClassVar[bool] = False
    detects: ClassVar[bool] = False

    @property
    def has_past(self) -> bool:
        return False

    def make(self, name: str, context: Context) -> Distance:
        return Distance(name)


class Distance(SimpleStage):
    """Stage that adds positions to the newest detections.

    It reads the depth image of the frame, else the newest metric depth map of a model. Without either, the result
    passes unchanged.
    """

    effort: ClassVar[str] = "little"

    def __init__(self, name: str) -> None:
        self._name = name

    def process(self, result: Result) -> Result:
        found, frame = result.latest(Detections), full_frame(result.frame)
        if found is None:
            return result
        size: tuple[float, float, float, float] = (0, 0, frame.width, frame.height)
        if (measured := frame.extra.depth) is not None:
            positions = positions_of(found.boxes, measured.values, size, measured.camera)
        elif (depth := result.latest(DepthMap)) is not None and depth.unit == "metric":
            positions = positions_of(found.boxes, depth.depth, depth.region, None)
        else:
            return result
        return result.with_output(self._name, replace(found, positions=positions))


def positions_of(
    boxes: F32, depth: npt.NDArray[Any], region: tuple[float, float, float, float], camera: _Camera
) -> F32:
    """Return the position of each box: the median depth of its middle, on the ray through its center.

    Args:
        boxes: (N, 4) float32 x1, y1, x2, y2 in pixels of the frame.
        depth: (h, w) uint16 millimeters or float32 meters; 0 and NaN are unknown.
        region: x1, y1, x2, y2 of the area that the depth covers, in pixels of the frame.
        camera: focal lengths and center in pixels of the frame; None where they are unknown.

    Returns:
        (N, 3) float32 meters; x and y are NaN without ``camera``, and all three where the depth is unknown.
    """
    count = len(boxes)
    x, y = (_samples(boxes, axis, region, depth.shape[1 - axis]) for axis in (0, 1))
    values = depth[y[:, :, None], x[:, None, :]].reshape(count, _MIDDLE.size**2).astype(np.float32)
    if depth.dtype == np.uint16:
        values /= 1000
    values[~(values > 0) | np.isinf(values)] = np.nan
    values.sort(axis=1)  # NaN last
    known = np.count_nonzero(~np.isnan(values), axis=1)
    forward = values[np.arange(count), np.maximum(known - 1, 0) // 2]
    found = np.full((count, 3), np.nan, np.float32)
    found[:, 2] = forward
    if camera is not None:
        focal, center = np.array(camera[:2], np.float32), np.array(camera[2:], np.float32)
        found[:, :2] = ((boxes[:, :2] + boxes[:, 2:]) / 2 - center) / focal * forward[:, None]
    return found


def _samples(boxes: F32, axis: int, region: tuple[float, float, float, float], length: int) -> npt.NDArray[np.intp]:
    """Return (N, 15) indices into the depth along one axis."""
    begin, end = region[axis], region[axis + 2]
    low, high = boxes[:, axis, None], boxes[:, axis + 2, None]
    places = (low + (high - low) * _MIDDLE - begin) * (length / max(end - begin, 1e-6))
    return np.clip(places, 0, length - 1).astype(np.intp)
