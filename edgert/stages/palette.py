"""Colours that people with any colour vision tell apart."""

from __future__ import annotations

import numpy as np

from edgert.runtime.frame import U8

Bgr = tuple[int, int, int]

# Okabe and Ito, "Color Universal Design", 2008, without black, ordered so that the first few differ most.
_OKABE_ITO_RGB = (0xE69F00, 0x56B4E9, 0x009E73, 0xF0E442, 0xCC79A7, 0xD55E00, 0x0072B2)
_LIGHTER = 0.45  # towards white, for the second round

WHITE: Bgr = (255, 255, 255)
INK: Bgr = (24, 20, 18)
LEFT, RIGHT, MIDDLE = 1, 0, 2  # palette entries for the sides of a body


def _bgr(rgb: int) -> Bgr:
    return rgb & 255, rgb >> 8 & 255, rgb >> 16


def _light(color: Bgr) -> Bgr:
    blue, green, red = (round(value + (255 - value) * _LIGHTER) for value in color)
    return blue, green, red


_BASE = tuple(map(_bgr, _OKABE_ITO_RGB))
_COLORS = _BASE + tuple(map(_light, _BASE))


def color_of(number: int) -> Bgr:
    """The colour of a class or track number: always the same, repeating after 14."""
    return _COLORS[number % len(_COLORS)]


def text_color(background: Bgr) -> Bgr:
    """Black or white, whichever reads better on ``background`` (Rec. 709 luma)."""
    blue, green, red = background
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 115 else WHITE


def color_table() -> U8:
    """(256, 1, 3) uint8: the colour of every class number."""
    return np.array([[color_of(number)] for number in range(256)], np.uint8)
