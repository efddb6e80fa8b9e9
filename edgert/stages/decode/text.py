"""Text detection, with rotated boxes, and text recognition.

Both follow PaddleOCR, ``ppocr/postprocess`` of github.com/PaddlePaddle/PaddleOCR (Apache 2.0).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from edgert.errors import ConfigError
from edgert.runtime.frame import U8
from edgert.runtime.records import Detections, Text
from edgert.stages.crop import Geometry, clockwise
from edgert.stages.decode.decoder import F32, Array, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.detection import Candidates, Head
from edgert.stages.decode.guess import Fit, OutputSignature, wrong_shapes
from edgert.stages.decode.maps import plane_size

_LEAST_SIDE = 3
"""Shortest side of a text box in cells; after growing it must be two more."""
_MOST_CONTOURS = 1000
_NEXT, _PREVIOUS = [1, 2, 3, 0], [3, 0, 1, 2]
"""Indices of the next and previous corners of a box; many times faster than ``numpy.roll``."""
_ARC = 0.25
"""Error of Clipper's round corners in cells: ``def_arc_tolerance`` of Angus Johnson's Clipper 6."""


@dataclass(frozen=True, slots=True)
class DB(Head):
    """Map [1, h, w] of the probability of text. Each region above ``threshold`` gets a rotated box, which then grows.

    The map shows text shrunk (Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", 2020). So
    a box grows by ``unclip`` times its area over its perimeter on all sides. Its score is the mean of the map in it.

    Attributes:
        threshold: lowest probability of a region.
        unclip: factor of the boxes' growth.
        dilate: whether regions grow by a cell before they get boxes.
    """

    threshold: float = 0.3
    unclip: float = 1.5
    dilate: bool = False

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        if signature.is_one_channel:
            yield Fit("one channel over the image can be a map of text", 2, 1)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        if len(shapes) != 1 or plane_size(shapes[0]) is None:
            raise wrong_shapes("detect: db", "one output [1, h, w]", shapes, network)
        return 1

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """Return the boxes; extras are four corners x, y, clockwise from the upper left one."""
        self.class_count(shapes_of(outputs), network)
        height, width = plane_size(outputs[0].shape) or (0, 0)
        sure = as_f32(outputs[0]).reshape(height, width)
        region: U8 = (sure > self.threshold).view(np.uint8)
        if self.dilate:
            region = cv2.dilate(region, np.ones((2, 2), np.uint8))  # type: ignore[assignment]
        contours, _ = cv2.findContours(region, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        rectangles: list[Any] = [cv2.minAreaRect(contour) for contour in contours[:_MOST_CONTOURS]]
        rectangles = [one for one in rectangles if min(one[1]) >= _LEAST_SIDE]
        around = clockwise(_corners(rectangles))
        scores = _means_in(sure, around)
        passed: list[int] = np.flatnonzero(scores >= score).tolist()
        grown: list[Any] = [cv2.minAreaRect(points) for points in offset(around[passed], self.unclip)]
        large = np.array([min(sides) >= _LEAST_SIDE + 2 for _, sides, _ in grown], np.bool_)
        boxes = clockwise(_corners(grown)[large])
        boxes *= np.array([network[0] / width, network[1] / height], np.float32)
        hulls = np.concatenate([boxes.min(axis=1), boxes.max(axis=1)], axis=1)
        kept = scores[np.array(passed, np.intp)][large]
        return Candidates(hulls, kept, np.zeros(len(kept), np.int32), boxes.reshape(len(kept), 8), False)

    def shaped(self, record: Detections, kept: Candidates, outputs: Sequence[Array], geometry: Geometry) -> Detections:
        assert kept.extras is not None
        return replace(record, corners=geometry.points(kept.extras.reshape(len(kept.extras), 4, 2)))


def offset(boxes: F32, ratio: float) -> F32:
    """Return boxes (N, 4, 2), clockwise from the upper left corner, grown by ``ratio`` times area over perimeter.

    PaddleOCR rounds the corners with Clipper, which computes in integer cells. It truncates boxes to cells before they
    grow, and rounds the points of the arcs, which moves a corner by up to a cell. This function does the same, as in
    ``OffsetPoint`` and ``DoRound`` of Clipper 6.

    Returns:
        (N, P, 2) whole numbers: the points of a polygon per box, some of them repeated.
    """
    exact = boxes.astype(np.float64)
    # Diagonals, because float32 corners are not an exact rectangle.
    down, up = exact[:, 2] - exact[:, 0], exact[:, 3] - exact[:, 1]
    area = (down[:, 0] * up[:, 1] - down[:, 1] * up[:, 0]) / 2
    away = (area * ratio / np.linalg.norm(exact[:, _NEXT] - exact, axis=2).sum(axis=1))[:, None, None]
    corners = np.trunc(exact)
    way = corners[:, _NEXT] - corners
    after = np.stack([way[..., 1], -way[..., 0]], axis=2) / np.linalg.norm(way, axis=2, keepdims=True)  # outward
    before = after[:, _PREVIOUS]
    turn = np.arctan2(before[..., 0] * after[..., 1] - before[..., 1] * after[..., 0], (before * after).sum(axis=2))
    circle = np.minimum(np.pi / np.arccos(1 - _ARC / np.maximum(away, _ARC)), away * np.pi)[..., 0]  # steps of a whole
    steps = np.maximum(np.floor(circle / (2 * np.pi) * np.abs(turn) + 0.5), 1)[..., None]
    number = np.arange(1 + int(steps.max(initial=0)))
    angle = number * (2 * np.pi / circle)[..., None]
    x, y, cos, sin = before[..., :1], before[..., 1:], np.cos(angle), np.sin(angle)
    arc = np.where(
        (number < steps)[..., None], np.stack([x * cos - y * sin, x * sin + y * cos], axis=3), after[:, :, None]
    )
    points = corners[:, :, None] + arc * away[..., None]
    whole: F32 = np.trunc(points + np.copysign(0.5, points)).astype(np.float32)
    return whole.reshape(len(boxes), 4 * len(number), 2)


def _corners(rectangles: Sequence[Any]) -> F32:
    """Return (N, 4, 2) corners of OpenCV's rotated rectangles."""
    return np.array([cv2.boxPoints(one) for one in rectangles], np.float32).reshape(len(rectangles), 4, 2)


def _are_level(boxes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Return (N,) whether the sides of (N, 4, 2), clockwise from the upper left corner, are parallel to the image's."""
    x, y = boxes[..., 0], boxes[..., 1]
    is_level: npt.NDArray[np.bool_] = (
        (x[:, 0] == x[:, 3]) & (x[:, 1] == x[:, 2]) & (y[:, 0] == y[:, 1]) & (y[:, 2] == y[:, 3])
    )
    return is_level


def _means_in(sure: F32, boxes: F32) -> F32:
    """Return (N,) the mean of the map's cells in each of (N, 4, 2) rotated boxes."""
    limit = np.array([sure.shape[1], sure.shape[0]]) - 1
    low = np.clip(np.floor(boxes.min(axis=1)), 0, limit).astype(np.int64)
    high = np.clip(np.ceil(boxes.max(axis=1)), 0, limit).astype(np.int64)
    placed, means = (boxes - low[:, None]).astype(np.int32), list[float]()
    level = _are_level(placed) & (boxes >= 0).all(axis=(1, 2)) & (boxes < limit + 1).all(axis=(1, 2))
    high = np.where(level[:, None], low + placed[:, 2], high)
    for box, is_level, (left, top), (right, bottom) in zip(
        placed, level.tolist(), low.tolist(), (high + 1).tolist(), strict=True
    ):
        if is_level:  # most text needs no mask
            means.append(cv2.mean(sure[top:bottom, left:right])[0])
            continue
        inside = np.zeros((bottom - top, right - left), np.uint8)
        cv2.fillPoly(inside, [box], (1,))
        means.append(cv2.mean(sure[top:bottom, left:right], inside)[0])
    return np.array(means, np.float32)


@dataclass(frozen=True, slots=True)
class CTC:
    """One output [T, C]: for each of T places a score per character, after its softmax.

    The best character of each place is read. A repeated one counts once, and ``blank``, which separates two equal
    characters, is removed (Graves et al., "Connectionist Temporal Classification", 2006: best path). The text's score
    is the mean score of its characters.

    Attributes:
        blank: position of the class that is not a character.
        labels: characters without the blank. One or two missing at the end are spaces, which PaddleOCR appends to its
            dictionaries. Without labels, the text is class numbers.
    """

    blank: Literal["first", "last"] = "first"
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, signature: OutputSignature) -> Iterator[Fit]:
        rows, columns = signature.table or (0, 0)
        if signature.network is not None and columns > 10:
            width, height = signature.network
            if height <= 64 and width >= 2 * height and rows in {width // step for step in (2, 4, 8)}:
                yield Fit(f"[{rows}, {columns}] has a row for every few columns of a line of text", 5)
            elif rows in {width // step for step in (2, 4, 8)}:
                yield Fit(f"[{rows}, {columns}] can be characters from left to right", 1)
        elif signature.network is None and not rows and columns > 10:
            yield Fit(f"[N, {columns}] can be characters from left to right", 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][1] < 2:
            raise wrong_shapes("text: ctc", "one output [places, characters]", shapes, network)
        classes = shapes[0][1]
        if self.labels and not classes - 3 <= len(self.labels) <= classes - 1:
            raise ConfigError(
                f"{len(self.labels)} characters for {classes} classes",
                why=f"one class is blank and {classes - 1} are characters, the last one or two of which can be spaces "
                "that are not in the file",
                fix="set labels: to the dictionary that the model was trained with, one character per line",
            )

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Text:
        self.check(shapes_of(outputs), geometry.network)
        table = as_f32(outputs[0])
        best = table.argmax(axis=1)
        blank = 0 if self.blank == "first" else table.shape[1] - 1
        new = best != blank
        new[1:] &= best[1:] != best[:-1]
        places = np.flatnonzero(new)
        scores, numbers = table[places, best[places]], (best[places] - (self.blank == "first")).tolist()
        names = (*self.labels, " ", " ") if self.labels else ()
        text = "".join([names[number] for number in numbers]) if names else " ".join(map(str, numbers))
        return Text(text, float(scores.mean()) if len(scores) else 0.0)
