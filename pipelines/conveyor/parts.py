"""Sprites of machined parts for the conveyor scene: height maps under a lamp, shaded as metal.

A kind of part is a function from coordinates in part radii to a height map (0 = belt, or nothing there). Normals of
that map give diffuse light, a reflected soft box and a sharp highlight, so every angle is lit from the same lamp.
Angles differ in the sprite, not at run time; a symmetric part needs few (a washer one, a nut four).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

LABELS: tuple[str, ...] = ("bolt", "nut", "washer", "gear", "bracket")
MARGIN = 1.4
"""Half the side of a sprite in part radii: room for shadow and motion blur around the part."""

_MOST_PX = 256
"""No sprite is drawn larger, only scaled up: drawing time must not grow with the frame."""
_STEEL, _DARK, _ZINC, _BRASS, _BLUE, _RED = (
    (0.80, 0.78, 0.75),
    (0.40, 0.37, 0.36),
    (0.42, 0.72, 0.80),
    (0.33, 0.66, 0.86),
    (0.72, 0.40, 0.13),
    (0.16, 0.20, 0.70),
)  # blue, green, red


@dataclass(frozen=True, slots=True, eq=False)
class Sprite:
    """An image to lay over another: ``under * keep / 255 + add``.

    Attributes:
        keep: (h, w, 3) uint8, how much of what lies beneath shows; below 255 in shadow, 0 under the part.
        add: (h, w, 3) uint8 BGR, the part's own light, already weighted by its coverage.
        solid: (h, w) uint8, 1 where the part itself is, not its shadow; 0 elsewhere.
        corner: (x, y) of the first pixel, from the point the sprite is placed at.
        box: (x1, y1, x2, y2) of ``solid`` in the sprite's own pixels.
        area_px: how many pixels are solid.
    """

    keep: U8
    add: U8
    solid: U8
    corner: tuple[int, int]
    box: tuple[int, int, int, int]
    area_px: int


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of part: its shape, the angle after which it looks the same, how many angles are drawn, its finishes."""

    shape: Callable[[F32, F32], F32]
    period_deg: float
    turns: int
    finishes: tuple[tuple[float, float, float], ...]
    shine: float


@dataclass(frozen=True, slots=True)
class Look:
    """What all sprites of one scene share: lamp direction (unit x, y, z; y points down), motion blur, shadow length."""

    lamp: tuple[float, float, float]
    blur_px: int
    shadow: float = 0.16


def _ramp(low: float, high: float, value: F32) -> F32:
    t = np.clip((value - low) / (high - low), 0, 1)
    return np.asarray(t * t * (3 - 2 * t), np.float32)


def _hexagon(u: F32, v: F32) -> F32:
    """Distance from the center in apothems' units: equal on all six sides."""
    a, b = np.abs(u), np.abs(v)
    return np.asarray(np.maximum(b, a * np.float32(0.8660254) + b * np.float32(0.5)), np.float32)


def _bevel(inside: F32, height: float, width: float) -> F32:
    """Height of a plate whose edge is ``inside`` part radii away: a quarter-round edge, then flat."""
    t = np.clip(inside / width, 0, 1)
    return np.asarray(height * np.sqrt(t * (2 - t)), np.float32)


def _bolt(u: F32, v: F32) -> F32:
    across = np.abs(v)
    thread = 0.035 * np.abs(2 * np.mod(u * 9 + v * 0.9, 1) - 1) * (u > -0.2)
    radius = 0.235 - thread - 0.6 * np.clip(u - 0.9, 0, 1)
    shank = np.sqrt(np.clip(radius * radius - v * v, 0, None)) * ((u > -0.7) & (u < 1.0))
    dome = np.sqrt(np.clip(1 - np.square((u + 0.58) / 0.42), 0, 1))  # the turned chamfer of a hexagon head
    head = np.minimum(np.clip((0.52 - across) * 1.3, 0, 0.36), 0.42 * dome) * ((u < -0.56) & (across < 0.50))
    return np.asarray(np.maximum(shank, head), np.float32)


def _nut(u: F32, v: F32) -> F32:
    r = np.hypot(u, v)
    top = np.minimum(0.42, np.minimum((0.80 - _hexagon(u, v)) * 6, 0.42 + (0.80 - r) * 0.7))
    chamfer = 0.42 - np.clip(0.54 - r, 0, 1) * 1.6
    wall = 0.18 + 0.05 * np.sin(r * 110)
    height = np.where(r < 0.46, wall, np.minimum(top, chamfer))
    return np.where(r < 0.38, 0, np.clip(height, 0, None)).astype(np.float32)


def _washer(u: F32, v: F32) -> F32:
    r = np.hypot(u, v)
    return _bevel(np.minimum(0.78 - r, r - 0.38).astype(np.float32), 0.10, 0.07)


def _gear(u: F32, v: F32) -> F32:
    r, angle = np.hypot(u, v), np.arctan2(v, u)
    tooth = np.clip(np.cos(angle * 14) * 1.6, -1, 1)
    rim = _bevel((0.91 + 0.09 * tooth - r).astype(np.float32), 0.30, 0.06)
    web = 0.16 * (_ramp(0.30, 0.34, r) - _ramp(0.66, 0.70, r))
    ring = np.mod(angle, np.pi * 0.4) - np.pi * 0.2
    hole = np.hypot(r * np.cos(ring) - 0.50, r * np.sin(ring)) < 0.105
    bore = (r < 0.17) | ((np.abs(v) < 0.05) & (u > 0) & (u < 0.24))
    return np.where(hole | bore, 0, np.clip(rim - web, 0, None)).astype(np.float32)


def _bracket(u: F32, v: F32) -> F32:
    foot = np.minimum(0.86 - np.abs(u), 0.27 - np.abs(v - 0.56))
    arm = np.minimum(0.27 - np.abs(u + 0.59), 0.83 - np.abs(v))
    fillet = np.minimum(np.minimum(u + 0.4, 0.36 - v), np.hypot(u - 0.02, v + 0.06) - 0.36)
    plate = np.maximum(np.maximum(foot, arm), np.where((u < 0.02) & (v > -0.06), fillet, -1))
    for x, y in ((0.56, 0.56), (-0.59, -0.52), (-0.59, 0.56)):
        plate = np.minimum(plate, np.hypot(u - x, v - y) - 0.13)
    slot = np.hypot(np.clip(np.abs(u - 0.02) - 0.14, 0, None), v - 0.56) - 0.075
    return _bevel(np.minimum(plate, slot).astype(np.float32), 0.14, 0.06)


KINDS: tuple[Kind, ...] = (
    Kind(_bolt, 360, 16, (_STEEL, _ZINC, _DARK), 1.0),
    Kind(_nut, 60, 4, (_STEEL, _BRASS, _DARK), 1.0),
    Kind(_washer, 360, 1, (_STEEL, _ZINC, _STEEL), 1.0),
    Kind(_gear, 360 / 14, 2, (_BRASS, _STEEL, _DARK), 0.9),
    Kind(_bracket, 360, 16, (_BLUE, _RED, _ZINC), 0.45),
)
"""In the order of LABELS."""


def draw(kind: Kind, turn: int, radii_px: tuple[float, ...], look: Look) -> tuple[Sprite, ...]:
    """Sprites of one kind at one angle: for each radius one, in that radius' finish.

    ``turn`` counts angles from 0 to ``kind.turns``; radii are half the longest extent of a part, in pixels.
    """
    side = min(2 * round(1.5 * MARGIN * max(radii_px)), _MOST_PX)  # drawn larger, then averaged down: smooth edges
    x, y = _grid(side)
    angle = np.deg2rad(kind.period_deg * (turn + 0.35) / kind.turns)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    height = kind.shape(x * cos + y * sin, y * cos - x * sin)
    dull, gloss = _shade(height, x, y, look, kind.shine)
    cover = (height > 0.004).astype(np.float32)
    shadow = _shadow(height, look)
    layers = np.dstack((dull * cover, gloss * cover, cover, shadow))
    finishes = (kind.finishes[i % len(kind.finishes)] for i in range(len(radii_px)))
    return tuple(_finish(layers, radius, color, look.blur_px) for radius, color in zip(radii_px, finishes, strict=True))


def _grid(side: int) -> tuple[F32, F32]:
    axis = ((np.arange(side, dtype=np.float32) + 0.5) / side * 2 - 1) * np.float32(MARGIN)
    return np.tile(axis, (side, 1)), np.repeat(axis[:, None], side, axis=1)


def _shade(height: F32, x: F32, y: F32, look: Look, shine: float) -> tuple[F32, F32]:
    """Light colored by the part (diffuse, reflected) and white light (highlight), from the normals of ``height``."""
    smooth = cv2.GaussianBlur(height, (0, 0), 1.2)
    step = 2 * MARGIN / len(height)
    nx = cv2.Sobel(smooth, cv2.CV_32F, 1, 0, scale=-1 / (8 * step))
    ny = cv2.Sobel(smooth, cv2.CV_32F, 0, 1, scale=-1 / (8 * step))
    nz = 1 / np.sqrt(nx * nx + ny * ny + 1)
    nx, ny = nx * nz, ny * nz
    lx, ly, lz = look.lamp
    facing = np.clip(nx * lx + ny * ly + nz * lz, 0, 1)
    # a mirror sees the room: bend flat faces a little so that they show a gradient, as rolled metal does
    rx, ry, rz = 2 * nz * nx + 0.36 * x, 2 * nz * ny + 0.36 * y, 2 * nz * nz - 1
    lamp = np.clip((rx * lx + ry * ly + rz * lz) / np.sqrt(rx * rx + ry * ry + rz * rz), 0, 1)
    box = _ramp(0.42, 0.92, lamp)
    turned = np.square(x * ly - y * lx) / (x * x + y * y + 0.02)  # lathe marks shine across the lamp's direction
    dull = 0.15 + 0.42 * facing + shine * box * (0.42 + 0.42 * turned)
    crevice = 1 + 1.4 * (smooth - cv2.blur(height, (len(height) // 20 | 1,) * 2))  # rims brighter, corners darker
    return dull * np.clip(crevice, 0.3, 1.6), 0.75 * shine * _sixteenth(lamp)


def _sixteenth(value: F32) -> F32:
    for _ in range(4):
        value = value * value
    return value


def _shadow(height: F32, look: Look) -> F32:
    """What the part hides from the lamp, soft, and a darker seam where it touches the belt. Drawn at half the size."""
    side = len(height) // 2
    cover = cv2.resize((height > 0).astype(np.float32), (side, side), interpolation=cv2.INTER_AREA)
    dx, dy = (-round(look.shadow * axis * side / (2 * MARGIN)) for axis in look.lamp[:2])
    moved = cv2.warpAffine(cover, np.array([[1, 0, dx], [0, 1, dy]], np.float32), (side, side))
    soft, contact = cv2.GaussianBlur(moved, (0, 0), side * 0.025), cv2.GaussianBlur(cover, (0, 0), side * 0.012)
    return np.asarray(cv2.resize(np.maximum(0.66 * soft, 0.5 * contact), height.shape[::-1]), np.float32)


def _finish(layers: F32, radius_px: float, color: tuple[float, float, float], blur_px: int) -> Sprite:
    """Scale to size, color, smear along the belt's motion."""
    side = 2 * round(MARGIN * radius_px)
    small = cv2.resize(layers, (side, side), interpolation=cv2.INTER_AREA)
    small = cv2.blur(small, (blur_px, 1), borderType=cv2.BORDER_CONSTANT)
    dull, gloss, cover, shadow = cv2.split(small)
    add = [dull * np.float32(shade) * 1.15 + gloss for shade in color]
    return sprite((1 - cover) * (1 - shadow), add, cover > 0.5, (side // 2, side // 2))


def merged(channels: Sequence[npt.NDArray[np.floating]]) -> U8:
    """(h, w, channels) uint8 of (h, w) arrays in 0 to 1; what is outside is cut off."""
    return np.asarray(cv2.merge([np.clip(one * 255 + 0.5, 0, 255).astype(np.uint8) for one in channels]), np.uint8)


def sprite(keep: F32, add: Sequence[F32], solid: npt.NDArray[np.bool_], center: tuple[int, int]) -> Sprite:
    """A Sprite, cut to what it changes.

    Args:
        keep: what is left of each channel of what is beneath, (h, w), 0 to 1.
        add: to each channel, (h, w), 0 to 1; what is outside is cut off.
        solid: its mask, (h, w), not empty.
        center: the (x, y) pixel that will lie at the point the sprite is placed at.
    """
    keep8, add8 = merged([keep] * 3), merged(add)
    x1, y1, x2, y2 = _extent(solid | (keep8[..., 0] < 254))
    cut = np.s_[y1:y2, x1:x2]
    keep8, add8, solid = (np.ascontiguousarray(layer[cut]) for layer in (keep8, add8, solid))
    return Sprite(
        keep8,
        add8,
        solid.view(np.uint8),
        (x1 - center[0], y1 - center[1]),
        _extent(solid),
        int(np.count_nonzero(solid)),
    )


def _extent(mask: npt.NDArray[np.bool_]) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
