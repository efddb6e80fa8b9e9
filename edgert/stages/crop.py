"""Crops of frames: a fixed region, or one frame per detection. They are views; only :func:`upright` copies pixels."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.config import CropConfig
from edgert.errors import ConfigError, nearest
from edgert.memory import lend
from edgert.runtime import Detections, Frame, Result
from edgert.runtime.frame import U8, origin_of, separate_image
from edgert.stages.context import SimpleStage
from edgert.units import whole_number

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The affine map from network pixels to source pixels: ``source = network * scale + offset``.

    Attributes:
        scale_x, scale_y: source pixels per network pixel.
        offset_x, offset_y: source position of the network's pixel (0, 0); negative under a letterbox border.
        network: (width, height) of the network input.
        bounds: (x1, y1, x2, y2) of the frame or crop in source pixels; boxes are clipped to it.
    """

    scale_x: float
    scale_y: float
    offset_x: float
    offset_y: float
    network: tuple[int, int]
    bounds: tuple[float, float, float, float]

    def boxes(self, boxes: F32) -> F32:
        """Convert (N, 4) x1, y1, x2, y2 in network pixels to a new array in source pixels, clipped to the image.

        A box with a number that is not finite becomes NaN: clipped, an infinite box would cover the image.
        """
        scale, offset, low, high = _rows(self)
        mapped: F32 = boxes.astype(np.float32)
        mapped *= scale
        mapped += offset
        if not (finite := np.isfinite(mapped)).all():
            mapped[~finite.all(axis=1)] = np.nan
        np.maximum(mapped, low, out=mapped)
        return np.minimum(mapped, high, out=mapped)

    def points(self, points: F32) -> F32:
        """Convert (..., 2 or 3) x, y[, score] in network pixels to a new array in source pixels, not clipped."""
        mapped = points.astype(np.float32, copy=True)
        mapped[..., 0] = mapped[..., 0] * self.scale_x + self.offset_x
        mapped[..., 1] = mapped[..., 1] * self.scale_y + self.offset_y
        return mapped


@lru_cache(maxsize=64)
def _rows(geometry: Geometry) -> tuple[F32, F32, F32, F32]:
    """Return scale, offset, minimum and maximum of x1, y1, x2, y2; the same for every image of a camera."""
    scale, offset = (geometry.scale_x, geometry.scale_y), (geometry.offset_x, geometry.offset_y)
    low, high = geometry.bounds[:2], geometry.bounds[2:]
    one, two, three, four = (np.array(pair * 2, np.float32) for pair in (scale, offset, low, high))
    return one, two, three, four


I32 = npt.NDArray[np.int32]


def clockwise(corners: F32) -> F32:
    """Return a new array of (N, 4, 2) corners of rotated boxes, clockwise from the upper left one.

    The first corner is the upper of the two leftmost, as in PaddleOCR.
    """
    rows = np.arange(len(corners))[:, None]
    by_x = corners[rows, np.argsort(corners[..., 0], axis=1, kind="stable")]
    left, right = (pair[rows, _by_y(pair)] for pair in (by_x[:, :2], by_x[:, 2:]))
    return np.stack([left[:, 0], right[:, 0], right[:, 1], left[:, 1]], axis=1)


def _by_y(pairs: F32) -> npt.NDArray[np.intp]:
    return np.argsort(pairs[..., 1], axis=1, kind="stable")


_TALL = 1.5
"""Ratio of height to width from which a box holds vertical text."""


def upright(frame: Frame, corners: F32, margin: float = 0.0) -> Frame:
    """Return the content of a rotated box as an upright frame; a tall box is turned by 90°.

    PaddleOCR crops text this way (``get_rotate_crop_image`` of its ``tools/infer/utility.py``). The copy is counted.
    ``corners`` is (4, 2) float32 x, y in source pixels; ``margin`` is a part of the box.
    """
    box = clockwise(corners[None])[0] - np.array(origin_of(frame), np.float32)
    center = box.mean(axis=0)
    box = center + (box - center) * np.float32(1 + 2 * margin)
    width, height = (max(round(float(np.linalg.norm(box[end] - box[0]))), 1) for end in (1, 3))
    edges = np.floor(box.min(axis=0)) - 2, np.ceil(box.max(axis=0)) + 3  # cubic interpolation reads two pixels beyond
    x1, y1, x2, y2 = np.concatenate(edges).astype(int).tolist()
    limit_x, limit_y = frame.width - 1, frame.height - 1
    part = frame.to_host().crop(min(max(x1, 0), limit_x), min(max(y1, 0), limit_y), max(x2, 1), max(y2, 1))
    box = (box + np.array(origin_of(frame)) - np.array(origin_of(part))).astype(np.float32)
    target = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    image = cv2.warpPerspective(
        part.to_bgr(),
        cv2.getPerspectiveTransform(box, target),
        (width, height),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )
    if height >= _TALL * width:
        image = cv2.rotate(image, cv2.ROTATE_90_COUNTERCLOCKWISE)
    planes = (cast("U8", image),)
    return separate_image(part, planes, lend(planes, frame.lease.counter))


def crop_boxes(detections: Detections, frame: Frame, config: CropConfig) -> tuple[I32, I32]:
    """Return the detections to crop, and their boxes.

    Returns:
        rows (M,) of the detections, best score first, and boxes (M, 4) x1, y1, x2, y2 in integer pixels of the frame,
        with margin. Boxes are clipped to the frame; those that are then too small are left out.
    """
    origin, corner = np.array(origin_of(frame) * 2, np.float32), np.array([frame.width, frame.height] * 2, np.float32)
    boxes = np.clip(detections.boxes - origin, 0, corner)
    size = boxes[:, 2:] - boxes[:, :2]
    wanted = (size >= config.min_size).all(axis=1)
    if config.classes:
        wanted &= np.isin(detections.classes, known_classes(config.classes, detections.labels))
    rows = np.flatnonzero(wanted)
    rows = rows[np.argsort(-detections.scores[rows], kind="stable")[: config.limit]]
    margin = np.tile(size[rows] * config.margin, 2) * np.array([-1, -1, 1, 1], np.float32)
    grown = np.clip(boxes[rows] + margin, 0, corner)
    grown[:, :2], grown[:, 2:] = np.floor(grown[:, :2]), np.ceil(grown[:, 2:])
    return rows.astype(np.int32), grown.astype(np.int32)


def known_classes(classes: Sequence[str], labels: Sequence[str]) -> list[int]:
    """Return the numbers of classes that are given by label or number; other labels belong to another model."""
    found = (labels.index(one) if one in labels else whole_number(one) for one in classes)
    return [number for number in found if number is not None]


def check_classes(classes: Sequence[str], labels: Collection[str], where: str) -> None:
    """Raise ConfigError for a class that no model before a stage has, because the stage would never find it."""
    for name in classes:
        if name in labels or whole_number(name) is not None:
            continue
        raise ConfigError(
            f"no class {name!r}{nearest(name, labels)}",
            why=f"the models before this stage have {len(labels)} named classes" if labels else "no model names any",
            where=where,
            fix="write a name of the labels file, or a class number" if labels else "give the model task: {labels: …}",
        )


class CropRegion(SimpleStage):
    """Stage that crops every frame to a fixed part of it. ``region`` is x1, y1, x2, y2 as parts 0–1 of the frame."""

    def __init__(self, region: tuple[float, float, float, float]) -> None:
        self._region = region

    def process(self, result: Result) -> Result:
        frame = result.frame
        x1, y1, x2, y2 = self._region
        w, h = frame.width, frame.height
        return replace(result, frame=frame.crop(round(x1 * w), round(y1 * h), round(x2 * w), round(y2 * h)))


class CropDetections(SimpleStage):
    """Stage that makes one result per detection, with the frame cropped to its box and that detection alone."""

    def __init__(self, name: str, config: CropConfig) -> None:
        self.name, self._config = name, config

    def process(self, result: Result) -> Iterator[Result]:
        detections, frame = result.detections, result.frame
        rows, boxes = crop_boxes(detections, frame, self._config)
        for row, box in zip(rows.tolist(), boxes.tolist(), strict=True):
            cut = frame.crop(*box)
            one = detections[np.array([row])]
            yield replace(result, frame=cut).with_output(self.name, one)
