"""A class for every pixel."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime.frame import U8
from edgert.runtime.records import Segmentation
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Array, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.guess import Fit, Look, check_labels, wrong_shapes

F32 = npt.NDArray[np.float32]
Layout = Literal["chw", "hwc", "hw"]

VOID = 255
"""Class of a pixel whose scores are not numbers; the index PASCAL VOC gives to pixels without a class."""


@dataclass(frozen=True, slots=True)
class SegmentArgmax:
    """One output of class scores, [C, h, w] or [h, w, C], or of class indices [h, w] or [1, h, w].

    At most 255 classes. Which side is the classes follows from the network's shape, and by size where that fits both.
    """

    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """A channel for every class."""
        for channels, height, width, order in look.maps:
            if channels > 1 and look.covers(height, width, order):
                weight = 2 if channels == 3 and look.stride(height, width) == 1 else 3
                yield Fit(f"{channels} channels over the image, {order}", weight, channels)

    def check(self, shapes: Shapes, network: Size) -> None:
        """Raises ModelError unless the output is such a map, ConfigError for too few labels."""
        layout = _layout(shapes[0], network) if len(shapes) == 1 else None
        classes = shapes[0][0 if layout == "chw" else -1] if layout in ("chw", "hwc") else 1
        if layout is None or classes > VOID:
            raise wrong_shapes("segment: argmax", "one output [classes, h, w] or [h, w, classes]", shapes, network)
        check_labels(classes if classes > 1 else 0, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Segmentation:
        """Padding is cut off before anything is compared."""
        self.check(shapes_of(outputs), geometry.network)
        scores, layout = outputs[0], _layout(outputs[0].shape, geometry.network)
        if layout == "hwc":
            cut, region = _unpadded(scores, geometry)
            return Segmentation(argmax_channels(_channels_first(as_f32(cut))), region, self.labels)
        maps, region = _unpadded(scores.transpose(1, 2, 0) if layout == "chw" else scores, geometry)
        if layout == "hw" or maps.shape[2] == 1:
            return Segmentation(maps.reshape(maps.shape[:2]).astype(np.uint8), region, self.labels)
        return Segmentation(argmax_channels(as_f32(maps).transpose(2, 0, 1)), region, self.labels)


@dataclass(frozen=True, slots=True)
class SegmentThreshold:
    """One output of one channel, past its sigmoid: [1, h, w], [h, w, 1] or [h, w]; class 1 at or above ``threshold``.

    With two labels the mask's classes are these; with one, the label is that of class 1 and class 0 has none.
    """

    threshold: float = 0.5
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """One channel."""
        if any(channels == 1 and look.covers(height, width, order) for channels, height, width, order in look.maps):
            yield Fit("one channel over the image is a mask", 3)

    def check(self, shapes: Shapes, network: Size) -> None:
        """Raises ModelError unless the one output is a map of one channel."""
        if len(shapes) != 1 or len(shapes[0]) not in (2, 3) or (len(shapes[0]) == 3 and 1 not in shapes[0]):
            raise wrong_shapes("segment: threshold", "one output [1, h, w]", shapes, network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Segmentation:
        """Padding is cut off before anything is compared."""
        self.check(shapes_of(outputs), geometry.network)
        score = outputs[0]
        if score.ndim == 3:
            score = score.squeeze(axis=0 if score.shape[0] == 1 else 2)
        cut, region = _unpadded(score, geometry)
        labels = ("", *self.labels) if len(self.labels) == 1 else self.labels
        return Segmentation((cut >= self.threshold).astype(np.uint8), region, labels)


def argmax_channels(scores: F32) -> U8:
    """(C, h, w) float32 → (h, w) uint8 index of the greatest, the first of equals; :data:`VOID` where none is.

    Runs along memory channel by channel: several times quicker than ``argmax(axis=0)``, which walks across it.
    """
    best = scores.max(axis=0)
    code = np.zeros(best.shape, np.uint8)
    equal = np.empty(best.shape, np.bool_)
    mark = equal.view(np.uint8)
    for channel, score in enumerate(scores):
        np.equal(score, best, out=equal)
        np.multiply(mark, np.uint8(VOID - channel), out=mark)
        np.maximum(code, mark, out=code)
    np.subtract(np.uint8(VOID), code, out=code)
    return code


def _channels_first(scores: F32) -> F32:
    height, width, channels = scores.shape
    flat = np.ascontiguousarray(scores).reshape(-1, channels)
    return cv2.transpose(flat).reshape(channels, height, width).astype(np.float32, copy=False)


def _layout(shape: tuple[int, ...], network: Size) -> Layout | None:
    if len(shape) == 2:
        return "hw"
    if len(shape) != 3:
        return None
    first, last = _fits(shape[1:], network), _fits(shape[:2], network)
    if first != last:
        return "chw" if first else "hwc"
    return "chw" if shape[0] <= shape[2] else "hwc"


def _fits(size: tuple[int, ...], network: Size) -> bool:
    """Whether a map of (h, w) has the network's shape, to within a cell."""
    height, width = size
    return abs(width * network[1] - height * network[0]) <= max(network)


def _unpadded(scores: Array, geometry: Geometry) -> tuple[Array, tuple[float, float, float, float]]:
    """The part of (h, w, ...) that shows the image, to the nearest cell, and the source pixels it covers."""
    height, width = scores.shape[:2]
    x = _span(width, geometry.network[0], geometry.scale_x, geometry.offset_x, geometry.bounds[0::2])
    y = _span(height, geometry.network[1], geometry.scale_y, geometry.offset_y, geometry.bounds[1::2])
    return scores[y[0] : y[1], x[0] : x[1]], (x[2], y[2], x[3], y[3])


def _span(
    count: int, network: int, scale: float, offset: float, bounds: tuple[float, ...]
) -> tuple[int, int, float, float]:
    """First and last cell along one side, at least one, and the source pixels they cover, within the bounds."""
    per_cell = scale * network / count
    first, last = (round((bound - offset) / per_cell) for bound in bounds)
    first = min(max(first, 0), count - 1)
    last = min(max(last, first + 1), count)
    start, end = first * per_cell + offset, last * per_cell + offset
    return first, last, max(start, bounds[0]), min(end, bounds[1])
