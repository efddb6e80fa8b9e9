"""Shapes in pixels of an image, and their painting by OpenCV.

:mod:`edgert.stages.shapes` makes the shapes of each record; a GPU paints the same shapes
(:mod:`edgert.stages.gpu.overlay`).
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime.frame import U8

Bgr = tuple[int, int, int]
I32 = npt.NDArray[np.int32]

_OKABE_ITO_RGB = (0xE69F00, 0x56B4E9, 0x009E73, 0xF0E442, 0xCC79A7, 0xD55E00, 0x0072B2)
"""Okabe and Ito, "Color Universal Design", 2008, without black, ordered so that the first few differ most."""
_LIGHTER = 0.45  # towards white, for the second round

WHITE: Bgr = (255, 255, 255)
INK: Bgr = (24, 20, 18)
_BASE = tuple((rgb & 255, rgb >> 8 & 255, rgb >> 16) for rgb in _OKABE_ITO_RGB)
_COLORS: tuple[Bgr, ...] = (
    *_BASE,
    *cast("list[Bgr]", [tuple(round(part + (255 - part) * _LIGHTER) for part in color) for color in _BASE]),
)


def color_of(number: int) -> Bgr:
    """Return the color of a class or track number; colors repeat after 14."""
    return _COLORS[number % len(_COLORS)]


def code_of(number: int) -> int:
    """Return a mask value, not 0, that is painted in the color of a number."""
    return number % len(_COLORS) + len(_COLORS)


@lru_cache(maxsize=64)
def text_color(background: Bgr) -> Bgr:
    """Return black or white, whichever reads better on ``background`` (Rec. 709 luma)."""
    blue, green, red = background
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 115 else WHITE


_WEIGHT = 500  # between regular (400) and bold (700): legible when small
_HERSHEY_PX = 22  # height of OpenCV's stroke font, ascender to baseline, at scale 1
_PADDING = 0.3  # around a word, relative to the height of the letters
_WORDS = 1024  # of which the widths are cached


class Pen:
    """Text renderer of one height. OpenCV 5 has a Unicode font; older versions draw ASCII strokes only.

    Attributes:
        height_px: height of the text.
        line_px: distance of two lines of text, which is the height of a box.
    """

    def __init__(self, height_px: int) -> None:
        self.height_px, self._padding_px = height_px, max(2, round(height_px * _PADDING))
        self.line_px = height_px + 2 * self._padding_px
        self._scale, self._stroke = 0.75 * height_px / _HERSHEY_PX, max(1, round(height_px / 14))
        make_font: Any = getattr(cv2, "FontFace", None)
        self._font = make_font("sans") if make_font is not None else None
        self._word_px = lru_cache(maxsize=_WORDS)(self._text_width)

    def label(self, size: tuple[int, int], text: str, left: int, top: int, background: Bgr) -> "Label":
        """Return a box of text with its top left corner at (left, top), moved to stay inside an image of ``size``.

        ``size`` is (width, height).
        """
        width = self._word_px(text, size) + 2 * self._padding_px
        left, top = max(0, min(left, size[0] - width)), max(0, min(top, size[1] - self.line_px))
        return Label(left, top, width, text, self, background)

    def write(self, image: U8, text: str, left: int, top: int, color: Bgr | int) -> None:
        """Write the text of a box at (left, top), without the box."""
        baseline = left + self._padding_px, top + self._padding_px + round(self.height_px * 0.86)
        put: Any = cv2.putText
        if self._font is None:
            put(image, text, baseline, cv2.FONT_HERSHEY_SIMPLEX, self._scale, color, self._stroke, cv2.LINE_AA)
        else:
            put(image, text, baseline, color, self._font, self.height_px, _WEIGHT)

    def _text_width(self, text: str, size: tuple[int, int]) -> int:
        if self._font is None:
            (width, _), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, self._scale, self._stroke)
            return width
        measure: Any = cv2.getTextSize
        left, _, width, _ = measure(size, text, (0, 0), self._font, self.height_px, _WEIGHT)
        return int(left + width)


def load_font() -> None:
    """Measure a first word, so that OpenCV loads its font, which takes longer than the first frames."""
    Pen(_HERSHEY_PX).label((_HERSHEY_PX, _HERSHEY_PX), "a", 0, 0, INK)


SUBPIXEL_BITS = 4
"""Fractional bits of the coordinates of strokes and dots, OpenCV's ``shift``."""


class Box(NamedTuple):
    """Rectangle on integer pixels, with a thin dark edge that shows on any background."""

    x1: int
    y1: int
    x2: int
    y2: int
    shade: Bgr
    line_px: int

    @property
    def edge_px(self) -> int:
        """Thickness of line and dark edge together."""
        return self.line_px + 2


class Label(NamedTuple):
    """Line of text in a filled box, ``pen.line_px`` high."""

    left: int
    top: int
    width: int
    text: str
    pen: Pen
    background: Bgr


class Stroke(NamedTuple):
    """Polyline through ``points`` (N, 2), int32 sixteenths of a pixel.

    ``pieces`` are (first point, last point, thickness in pixels).
    """

    points: I32
    pieces: tuple[tuple[int, int, int], ...]
    shade: Bgr


class Dot(NamedTuple):
    """Filled circle, in sixteenths of a pixel."""

    x: int
    y: int
    radius: int
    shade: Bgr


class Mask(NamedTuple):
    """Half transparent mask with smooth edges.

    Attributes:
        classes: (h, w) uint8 class numbers.
        region: left, top, right, bottom that the mask covers, in pixels of the image.
        has_background: whether class 0 is transparent. In a heat map, greater values are then more opaque.
        is_heat: whether ``classes`` are values 0–255, painted from blue to red.
    """

    classes: U8
    region: tuple[int, int, int, int]
    has_background: bool
    is_heat: bool = False


Shape = Box | Label | Stroke | Dot | Mask
_MASK_OPACITY = 0.5
_HEAT_OPACITY = 0.8
_VOID = 255  # "no class" in common data sets


@lru_cache(maxsize=4)
def mask_tables(has_background: bool, is_heat: bool = False) -> tuple[U8, U8]:
    """Return (256, 1, 3) uint8 tables by class: the color to add, and the weight of the image in 255ths."""
    levels = np.arange(256, dtype=np.uint8)[:, None]
    if is_heat:
        opacity = _HEAT_OPACITY * (levels / 255 if has_background else np.ones((256, 1)))[..., None]
        table = np.asarray(cv2.applyColorMap(levels, cv2.COLORMAP_TURBO))
    else:
        opacity = np.full((256, 1, 1), _MASK_OPACITY)
        opacity[_VOID] = 0
        if has_background:
            opacity[0] = 0
        table = np.array([[color_of(number)] for number in range(256)])
    added = np.rint(table * opacity).astype(np.uint8)
    return added, np.rint(np.repeat(255 * (1 - opacity), 3, axis=2)).astype(np.uint8)


def mask_cut(mask: Mask, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of the part of an image that the mask covers; all 0 without overlap."""
    left, top, right, bottom = mask.region
    cut = max(left, 0), max(top, 0), min(right, width), min(bottom, height)
    return cut if cut[0] < cut[2] and cut[1] < cut[3] else (0, 0, 0, 0)


def paint(image: U8, shapes: Iterable[Shape]) -> None:
    """Paint shapes onto (h, w, 3) uint8 BGR, in order."""
    for shape in shapes:
        if isinstance(shape, Box):
            corners = (shape.x1, shape.y1), (shape.x2, shape.y2)
            cv2.rectangle(image, *corners, INK, shape.edge_px)
            cv2.rectangle(image, *corners, shape.shade, shape.line_px)
        elif isinstance(shape, Label):
            end = shape.left + shape.width - 1, shape.top + shape.pen.line_px - 1
            cv2.rectangle(image, (shape.left, shape.top), end, shape.background, cv2.FILLED)
            shape.pen.write(image, shape.text, shape.left, shape.top, text_color(shape.background))
        elif isinstance(shape, Stroke):
            for first, last, thickness in shape.pieces:
                piece = [shape.points[first : last + 1]]
                cv2.polylines(image, piece, False, shape.shade, thickness, cv2.LINE_AA, SUBPIXEL_BITS)
        elif isinstance(shape, Dot):
            center, smooth = (shape.x, shape.y), (cv2.LINE_AA, SUBPIXEL_BITS)
            cv2.circle(image, center, shape.radius, shape.shade, cv2.FILLED, *smooth)
        else:
            _paint_mask(image, shape)


def _paint_mask(image: U8, mask: Mask) -> None:
    left, top, right, bottom = mask_cut(mask, image.shape[1], image.shape[0])
    target = image[top:bottom, left:right]
    if not target.size:
        return
    x, y, end_x, end_y = mask.region
    rows, columns = slice(top - y, bottom - y), slice(left - x, right - x)
    # Color and opacity are scaled, not the classes, so that edges between classes are smooth.
    added, kept = (
        cv2.resize(cv2.applyColorMap(mask.classes, table), (end_x - x, end_y - y), interpolation=cv2.INTER_LINEAR)
        for table in mask_tables(mask.has_background, mask.is_heat)
    )
    cv2.add(cv2.multiply(target, kept[rows, columns], scale=1 / 255), added[rows, columns], dst=target)
