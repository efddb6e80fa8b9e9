"""Outputs that are maps over the image: a class per pixel, or a heat map per keypoint of one body."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime.frame import U8
from edgert.runtime.records import Keypoints, Segmentation
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, check_labels, shapes_of
from edgert.stages.decode.guess import BODIES, Fit, OutputSignature, wrong_shapes

Layout = Literal["chw", "hwc", "hw"]

VOID = 255
"""Class of a pixel whose scores are NaN; PASCAL VOC's index for pixels without a class."""


@dataclass(frozen=True, slots=True)
class SegmentArgmax:
    """One output of class scores, [C, h, w] or [h, w, C], or of class indices [h, w], [1, h, w] or [h, w, 1].

    There are at most 255 classes. Which dimension they are follows from the network's proportions, or else from sizes.
    """

    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if signature.is_one_channel and signature.is_integer:
            yield Fit("one channel of whole numbers over the image is a map of classes", 4)
        for channels, height, width, order in signature.maps:
            if channels > 1 and signature.covers(height, width, order):
                weight = 2 if channels == 3 and signature.stride(height, width) == 1 else 3
                yield Fit(f"{channels} channels over the image, {order}", weight, channels)

    def check(self, shapes: Shapes, network: Size) -> None:
        layout = map_layout(shapes[0], network) if len(shapes) == 1 else None
        classes = shapes[0][0 if layout == "chw" else -1] if layout in ("chw", "hwc") else 1
        if layout is None or classes > VOID:
            raise wrong_shapes("segment: argmax", "one output [classes, h, w] or [h, w, classes]", shapes, network)
        check_labels(classes if classes > 1 else 0, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Segmentation:
        self.check(shapes_of(outputs), geometry.network)
        scores, layout = outputs[0], map_layout(outputs[0].shape, geometry.network)
        if layout == "hwc" and scores.shape[2] > 1:
            cut, region = crop_padding(scores, geometry)
            height, width, classes = cut.shape
            flat = np.ascontiguousarray(as_f32(cut)).reshape(-1, classes)
            planes: F32 = cv2.transpose(flat).reshape(classes, height, width)  # type: ignore[assignment]
            return Segmentation(argmax_channels(planes), region, self.labels)
        maps, region = crop_padding(scores.transpose(1, 2, 0) if layout == "chw" else scores, geometry)
        if layout == "hw" or maps.shape[2] == 1:
            return Segmentation(maps.reshape(maps.shape[:2]).astype(np.uint8), region, self.labels)
        return Segmentation(argmax_channels(as_f32(maps).transpose(2, 0, 1)), region, self.labels)


@dataclass(frozen=True, slots=True)
class SegmentThreshold:
    """One output of one channel, after its sigmoid: [1, h, w], [h, w, 1] or [h, w]; class 1 from ``threshold`` on.

    Two labels name both classes; one label names class 1.
    """

    threshold: float = 0.5
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if signature.is_one_channel:
            yield Fit("one channel over the image is a mask", 3)

    def check(self, shapes: Shapes, network: Size) -> None:
        if len(shapes) != 1 or len(shapes[0]) not in (2, 3) or (len(shapes[0]) == 3 and 1 not in shapes[0]):
            raise wrong_shapes("segment: threshold", "one output [1, h, w]", shapes, network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Segmentation:
        self.check(shapes_of(outputs), geometry.network)
        score = outputs[0]
        if score.ndim == 3:
            score = score.squeeze(axis=0 if score.shape[0] == 1 else 2)
        cut, region = crop_padding(score, geometry)
        return Segmentation((cut >= self.threshold).astype(np.uint8), region, self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the mask's classes."""
        return ("", *self.labels) if len(self.labels) == 1 else self.labels


def argmax_channels(scores: F32) -> U8:
    """Return the (h, w) uint8 index of the greatest of (C, h, w) float32, the first of equals; :data:`VOID` for NaN.

    It reads memory channel by channel, several times faster than ``argmax(axis=0)``, which strides across it.
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


def map_layout(shape: tuple[int, ...], network: Size) -> Layout | None:
    """Return the order of the dimensions of one image's map; None for anything else."""
    if len(shape) == 2:
        return "hw"
    if len(shape) != 3:
        return None
    # Whether the last, or the first, two dimensions have the network's proportions, to within a cell.
    sizes = shape[1:], shape[:2]
    first, last = (abs(width * network[1] - height * network[0]) <= max(network) for height, width in sizes)
    is_first = first if first != last else shape[0] <= shape[2]
    return "chw" if is_first else "hwc"


def plane_size(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return height and width of a map of one channel, [h, w], [1, h, w] or [h, w, 1]; None for anything else."""
    sizes = [size for size in shape if size != 1]
    return (sizes[0], sizes[1]) if len(shape) in (2, 3) and len(sizes) == 2 else None


def crop_padding(scores: Array, geometry: Geometry) -> tuple[Array, tuple[float, float, float, float]]:
    """Return the part of (h, w, ...) without padding, to the nearest cell, and the source pixels that it covers."""
    height, width = scores.shape[:2]
    x = _span(width, geometry.network[0], geometry.scale_x, geometry.offset_x, geometry.bounds[0::2])
    y = _span(height, geometry.network[1], geometry.scale_y, geometry.offset_y, geometry.bounds[1::2])
    return scores[y[0] : y[1], x[0] : x[1]], (x[2], y[2], x[3], y[3])


def _span(
    count: int, network: int, scale: float, offset: float, bounds: tuple[float, ...]
) -> tuple[int, int, float, float]:
    """Return the range of cells along one side, at least one cell, and the source pixels it covers, within bounds."""
    per_cell = scale * network / count
    first, last = (round((bound - offset) / per_cell) for bound in bounds)
    first = min(max(first, 0), count - 1)
    last = min(max(last, first + 1), count)
    start, end = first * per_cell + offset, last * per_cell + offset
    return first, last, max(start, bounds[0]), min(end, bounds[1])


# Keypoints from heat maps, one map per point of one body (HRNet, SimpleBaseline, Lite-HRNet).


@dataclass(frozen=True, slots=True)
class Heatmap:
    """One output [K, h, w]: each point is the peak of its map, to a fraction of a cell. An image has one body.

    A cell's index times its size is its position in the network's input, as in HRNet and SimpleBaseline.
    """

    score: float = 0.25
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        for channels, height, width, order in signature.maps:
            stride = signature.stride(height, width)
            if order == "nchw" and channels > 1 and stride is not None and 2 <= stride <= 8:
                yield Fit(f"{channels} maps at 1/{stride:g} of the image", 4 if channels in BODIES else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        if len(shapes) != 1 or len(shapes[0]) != 3 or min(shapes[0][1:]) < 3:
            raise wrong_shapes("keypoints: heatmap", "one output [points, h, w]", shapes, network)
        check_labels(shapes[0][0], self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        """Return one body, or none; its box is the hull of the points."""
        self.check(shapes_of(outputs), geometry.network)
        maps = as_f32(outputs[0])
        return self.body(peaks(maps), (maps.shape[1], maps.shape[2]), geometry)

    def body(self, points: F32, size: tuple[int, int], geometry: Geometry) -> Keypoints:
        """Return the record of (K, 3) :func:`peaks` in maps of that (height, width)."""
        points[:, :2] *= (geometry.network[0] / size[1], geometry.network[1] / size[0])
        return one_body(points, self.score, self.labels, geometry)


def one_body(points: F32, floor: float, names: tuple[str, ...], geometry: Geometry) -> Keypoints:
    """Return the record of the image's one body, or of none where its mean score is below ``floor``.

    ``points`` is (K, 3) x, y in network pixels and score; the box is the hull of those whose score is not 0.
    """
    score, places = points[:, 2].mean(), points[points[:, 2] != 0, :2]
    places = places if len(places) else points[:, :2]
    hull = np.concatenate([places.min(axis=0), places.max(axis=0)])
    found = slice(0, int(score >= floor))
    scores = np.full(1, np.clip(score, 0, 1), np.float32)
    return Keypoints.of(geometry.boxes(hull[None])[found], scores[found], geometry.points(points[None])[found], names)


def peaks(maps: F32) -> F32:
    """Return (K, 3) x, y in cells, to a fraction, and the value at the peak, of (K, h, w) maps.

    The fraction is a Newton step on the logarithm of the map, exact for a Gaussian peak. That is equation 9 of Zhang et
    al., "Distribution-Aware Coordinate Representation for Human Pose Estimation", CVPR 2020, without smoothing of the
    map. The step is at most one cell; there is none at the border or without a maximum. h and w are at least 3.
    """
    count, height, width = maps.shape
    cells = maps.reshape(count, -1).argmax(axis=1)
    y, x = _inner(cells, (height, width))
    around, each = np.arange(-1, 2), np.arange(count)
    patch = maps[each[:, None, None], y[:, None, None] + around[:, None], x[:, None, None] + around]
    return refine_peaks(cells, patch, maps.reshape(count, -1)[each, cells], (height, width))


def refine_peaks(cells: npt.NDArray[Any], patch: F32, values: F32, size: tuple[int, int]) -> F32:
    """Return the same as :func:`peaks`, from the cells of the peaks.

    ``patch`` is (K, 3, 3) values around each, or around the nearest cell that is not at the border.
    """
    y, x = np.divmod(cells, size[1])
    near_y, near_x = _inner(cells, size)
    step = _newton(np.log(np.maximum(patch, np.float32(1e-10))))
    step[(near_y != y) | (near_x != x)] = 0
    return np.stack([x + step[:, 0], y + step[:, 1], values], axis=1).astype(np.float32)


def _inner(cells: npt.NDArray[Any], size: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return rows and columns of the nearest cells that have eight neighbors."""
    y, x = np.divmod(cells, size[1])
    return np.clip(y, 1, size[0] - 2), np.clip(x, 1, size[1] - 2)


def _newton(patch: F32) -> F32:
    """Return (K, 2) steps in x and y from the middle of (K, 3, 3) to the maximum of the paraboloid through it."""
    middle = patch[:, 1, 1]
    dx, dy = (patch[:, 1, 2] - patch[:, 1, 0]) / 2, (patch[:, 2, 1] - patch[:, 0, 1]) / 2
    dxx = patch[:, 1, 2] - 2 * middle + patch[:, 1, 0]
    dyy = patch[:, 2, 1] - 2 * middle + patch[:, 0, 1]
    dxy = (patch[:, 2, 2] - patch[:, 2, 0] - patch[:, 0, 2] + patch[:, 0, 0]) / 4
    determinant = dxx * dyy - dxy * dxy
    peaked = (determinant > 1e-9) & (dxx < 0)
    safe = np.where(peaked, determinant, 1)
    step = np.stack([dxy * dy - dyy * dx, dxy * dx - dxx * dy], axis=1) / safe[:, None]
    clipped: F32 = np.where(peaked[:, None], np.clip(step, -1, 1), 0).astype(np.float32)
    return clipped
