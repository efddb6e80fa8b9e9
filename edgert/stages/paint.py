"""What each record looks like on an image."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime.frame import U8
from edgert.runtime.records import Classification, Detections, Keypoints, Segmentation

Bgr = tuple[int, int, int]

# Okabe and Ito, "Color Universal Design", 2008, without black, ordered so that the first few differ most.
_OKABE_ITO_RGB = (0xE69F00, 0x56B4E9, 0x009E73, 0xF0E442, 0xCC79A7, 0xD55E00, 0x0072B2)
_LIGHTER = 0.45  # towards white, for the second round

WHITE: Bgr = (255, 255, 255)
INK: Bgr = (24, 20, 18)
LEFT, RIGHT, MIDDLE = 1, 0, 2  # palette entries for the sides of a body


_BASE = tuple((rgb & 255, rgb >> 8 & 255, rgb >> 16) for rgb in _OKABE_ITO_RGB)
_COLORS: tuple[Bgr, ...] = (
    *_BASE,
    *cast("list[Bgr]", [tuple(round(part + (255 - part) * _LIGHTER) for part in color) for color in _BASE]),
)


def color_of(number: int) -> Bgr:
    """The color of a class or track number: always the same, repeating after 14."""
    return _COLORS[number % len(_COLORS)]


def text_color(background: Bgr) -> Bgr:
    """Black or white, whichever reads better on ``background`` (Rec. 709 luma)."""
    blue, green, red = background
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 115 else WHITE


_WEIGHT = 500  # between regular (400) and bold (700): legible when small
_HERSHEY_PX = 22  # height of OpenCV's stroke font, ascender to baseline, at scale 1
_PADDING = 0.3  # around a word, in heights of the letters


class Pen:
    """Writes at one height. OpenCV 5 brings a real font that knows Unicode; older ones have strokes for ASCII only.

    Attributes:
        line_px: from one line of text in a box to the next.
    """

    def __init__(self, height_px: int) -> None:
        self.height_px, self._padding_px = height_px, max(2, round(height_px * _PADDING))
        self.line_px = height_px + 2 * self._padding_px
        self._scale, self._stroke = 0.75 * height_px / _HERSHEY_PX, max(1, round(height_px / 14))
        make_font: Any = getattr(cv2, "FontFace", None)
        self._font = make_font("sans") if make_font is not None else None

    def boxed(self, image: U8, text: str, left: int, top: int, background: Bgr) -> None:
        """A filled box with its top left corner at (left, top), moved as far as needed to stay in the image."""
        height, width = image.shape[:2]
        padding = self._padding_px
        box_width = self._width(image, text) + 2 * padding
        left, top = max(0, min(left, width - box_width)), max(0, min(top, height - self.line_px))
        right, bottom = left + box_width - 1, top + self.line_px - 1
        cv2.rectangle(image, (left, top), (right, bottom), background, cv2.FILLED)
        baseline, color = (left + padding, top + padding + round(self.height_px * 0.86)), text_color(background)
        if self._font is None:
            face = cv2.FONT_HERSHEY_SIMPLEX
            cv2.putText(image, text, baseline, face, self._scale, color, self._stroke, cv2.LINE_AA)
        else:
            put: Any = cv2.putText
            put(image, text, baseline, color, self._font, self.height_px, _WEIGHT)

    def _width(self, image: U8, text: str) -> int:
        if self._font is None:
            (width, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, self._scale, self._stroke)
            return width
        size: Any = cv2.getTextSize
        left, _, width, _ = size((image.shape[1], image.shape[0]), text, (0, 0), self._font, self.height_px, _WEIGHT)
        return int(left + width)


F32 = npt.NDArray[np.float32]
_MASK_OPACITY = 0.5
_BACKGROUNDS = ("background", "__background__", "unlabeled", "unlabeled", "void", "other")
_VOID = 255  # "no class" in the usual data sets
_POINT_SCORE = 0.3
_SUBPIXEL_BITS = 4
_BEST_CLASSES = 3

# The 17 points of COCO (nose, eyes, ears, shoulders, elbows, wrists, hips, knees, ankles; left before right).
_COCO_POINTS = 17
_BONES = (
    *((a, b, LEFT) for a, b in ((5, 7), (7, 9), (11, 13), (13, 15), (5, 11), (1, 3), (0, 1))),
    *((a, b, RIGHT) for a, b in ((6, 8), (8, 10), (12, 14), (14, 16), (6, 12), (2, 4), (0, 2))),
    *((a, b, MIDDLE) for a, b in ((5, 6), (11, 12))),
)


@dataclass(frozen=True, slots=True)
class Canvas:
    """An image to paint on, and where source pixels lie on it.

    Attributes:
        image: (h, w, 3) uint8 BGR.
        origin: source position of the image's first pixel.
        scale: image pixels per source pixel, horizontally and vertically.
        line_px: thickness of a box.
        pen: writes the text.
    """

    image: U8
    origin: tuple[float, float]
    scale: tuple[float, float]
    line_px: int
    pen: Pen

    def corners(self, boxes: F32) -> list[list[int]]:
        """(N, 4) source boxes as lists of x1, y1, x2, y2 in whole image pixels."""
        origin, scale = np.array(self.origin * 2), np.array(self.scale * 2)
        limit = 4 * max(self.image.shape)  # far outside is as good as any distance, and fits OpenCV's integers
        moved = np.nan_to_num((boxes - origin) * scale)
        return cast("list[list[int]]", np.rint(np.clip(moved, -limit, limit)).astype(int).tolist())

    def fine(self, points: npt.NDArray[np.floating]) -> npt.NDArray[np.int32]:
        """(..., 2) source points in sixteenths of an image pixel, as OpenCV's ``shift`` takes them."""
        limit = 4 * max(self.image.shape)
        moved = np.nan_to_num((points - np.array(self.origin)) * np.array(self.scale))
        fine: npt.NDArray[np.int32] = np.rint(np.clip(moved, -limit, limit) * (1 << _SUBPIXEL_BITS)).astype(np.int32)
        return fine


def colors(record: Detections) -> list[Bgr]:
    """One per row: an object that has a number keeps its color, others have their class's."""
    numbers = record.classes if record.ids is None else record.ids
    return [color_of(number) for number in numbers.tolist()]


def paint_boxes(canvas: Canvas, boxes: F32, shades: Iterable[Bgr], line_px: int) -> None:
    """Rectangles with a thin dark edge, which shows on any background."""
    edge = line_px + 2
    for (x1, y1, x2, y2), shade in zip(canvas.corners(boxes), shades, strict=True):
        cv2.rectangle(canvas.image, (x1, y1), (x2, y2), INK, edge)
        cv2.rectangle(canvas.image, (x1, y1), (x2, y2), shade, line_px)


def paint_labels(canvas: Canvas, record: Detections) -> None:
    """Class, number and score above each box, or inside where there is no room above."""
    half = canvas.line_px // 2 + 1
    ids = [""] * len(record) if record.ids is None else [f" #{number}" for number in record.ids.tolist()]
    columns = record.classes.tolist(), ids, record.scores.tolist(), colors(record)
    for (x1, y1, _, _), number, track, score, shade in reversed(
        list(zip(canvas.corners(record.boxes), *columns, strict=True))
    ):  # the best on top
        text = f"{_name(record.labels, number)}{track} {score:.2f}"
        above = y1 - half - canvas.pen.line_px
        canvas.pen.boxed(canvas.image, text, x1 - half, above if above >= 0 else y1 - half, shade)


def paint_notes(canvas: Canvas, box: F32, texts: Iterable[str], shade: Bgr) -> None:
    """Lines of text under a box: what a second model found in it."""
    ((x1, _, _, y2),) = canvas.corners(box[None])
    half = canvas.line_px // 2 + 1
    for row, text in enumerate(texts):
        canvas.pen.boxed(canvas.image, text, x1 - half, y2 + half + 1 + row * canvas.pen.line_px, shade)


def class_texts(record: Classification) -> list[str]:
    """``name score`` of the best classes."""
    rows = zip(record.classes[:_BEST_CLASSES].tolist(), record.scores[:_BEST_CLASSES].tolist(), strict=True)
    return [f"{_name(record.labels, number)} {score:.2f}" for number, score in rows]


def paint_mask(canvas: Canvas, record: Segmentation) -> None:
    """Every class in its color, half transparent, with smooth edges; background stays as it is."""
    ((left, top, right, bottom),) = canvas.corners(np.array([record.region], np.float32))
    width, height = right - left, bottom - top
    inside = slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0))
    target = canvas.image[inside]
    if width <= 0 or height <= 0 or not target.size:
        return
    opacity = np.full((256, 1, 1), _MASK_OPACITY)
    opacity[_VOID] = 0
    if not record.labels or record.labels[0].lower() in _BACKGROUNDS:
        opacity[0] = 0
    # Color and transparency are both scaled, not the classes, so that edges between classes come out smooth.
    table = np.array([[color_of(number)] for number in range(256)])
    paint = np.rint(table * opacity).astype(np.uint8)
    keep = np.rint(np.repeat(255 * (1 - opacity), 3, axis=2)).astype(np.uint8)
    cut = (
        slice(inside[0].start - top, inside[0].start - top + target.shape[0]),
        slice(inside[1].start - left, inside[1].start - left + target.shape[1]),
    )
    covered = cv2.multiply(target, _spread(record.mask, keep, (width, height))[cut], scale=1 / 255)
    cv2.add(covered, _spread(record.mask, paint, (width, height))[cut], dst=target)


def paint_keypoints(canvas: Canvas, record: Keypoints) -> None:
    """Dots, and bones between them for the 17 points of COCO; points below a score of 0.3 are left out."""
    radius = (canvas.line_px + 1) << _SUBPIXEL_BITS
    for points in record.points:
        seen = (points[:, 2] >= _POINT_SCORE).tolist()
        places = canvas.fine(points[:, :2]).tolist()
        if len(places) == _COCO_POINTS:
            for a, b, side in _BONES:
                if seen[a] and seen[b]:
                    for shade, thickness in ((INK, canvas.line_px + 2), (color_of(side), canvas.line_px)):
                        ends = places[a], places[b]
                        cv2.line(canvas.image, *ends, shade, thickness, cv2.LINE_AA, _SUBPIXEL_BITS)
        for place, visible in zip(places, seen, strict=True):
            for shade, size in ((INK, radius + (1 << _SUBPIXEL_BITS)), (WHITE, radius)) if visible else ():
                cv2.circle(canvas.image, place, size, shade, cv2.FILLED, cv2.LINE_AA, _SUBPIXEL_BITS)


def paint_trail(canvas: Canvas, places: npt.NDArray[np.floating], shade: Bgr) -> None:
    """(N, 2) source points, oldest first, as a line that grows thicker towards the newest."""
    points = canvas.fine(places)
    thirds = np.linspace(0, len(points) - 1, 4).astype(int).tolist()
    for thickness, (first, last) in enumerate(itertools.pairwise(thirds), start=canvas.line_px - 1):
        if last > first:
            piece = [points[first : last + 1]]
            cv2.polylines(canvas.image, piece, False, shade, max(1, thickness), cv2.LINE_AA, _SUBPIXEL_BITS)


def _spread(mask: U8, table: U8, size: tuple[int, int]) -> U8:
    """(h, w) class numbers through a (256, 1, 3) table, scaled to (width, height) ``size``."""
    return cast("U8", cv2.resize(cv2.applyColorMap(mask, table), size, interpolation=cv2.INTER_LINEAR))


def _name(labels: tuple[str, ...], number: int) -> str:
    return labels[number] if 0 <= number < len(labels) else f"class {number}"
