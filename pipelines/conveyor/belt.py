"""What surrounds the parts of the conveyor scene: belt, rails, gantry, light and sensor noise, drawn once per scene.

All take a seeded generator and return 8-bit arrays, so that a frame costs a few saturating passes over its bytes.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from .parts import U8, Look, Sprite, merged, sprite

F32 = npt.NDArray[np.float32]
Rng = np.random.Generator

RAIL = 0.07
"""Height of each side rail as a part of the frame's height."""
UNIT_GAIN = 150
"""The value in a light map that leaves a pixel as it is."""
_HUES = ((0.32, 0.35, 0.20), (0.34, 0.30, 0.26), (0.46, 0.32, 0.19), (0.29, 0.29, 0.30), (0.23, 0.40, 0.27))
"""Belts as sold: petrol, slate, blue, graphite, green. Blue, green, red."""


def rail_px(height: int) -> int:
    """Rows of the frame that each rail covers."""
    return round(RAIL * height)


def draw_belt(width: int, height: int, period_px: int, look: Look, rng: Rng) -> U8:
    """A strip (belt rows, period_px + width, 3) uint8 BGR that repeats every ``period_px`` columns: any window of
    ``width`` columns starting before the period is an image of the belt."""
    rows, columns = height - 2 * rail_px(height), period_px + width
    cell = max(height / 120, 2.0)  # the weave of the fabric
    x, y = np.arange(period_px, dtype=np.float32), np.arange(rows, dtype=np.float32)[:, None]
    waves = round(period_px / cell)
    weave = np.sin(x * np.float32(2 * np.pi * waves / period_px)) * np.sin(y * np.float32(2 * np.pi / cell))
    large = max(height // 9, 2)
    grain = rng.standard_normal((rows, period_px), np.float32) * 0.55 + _cloud(rows, period_px, 9, 9, rng) * 0.45
    stains, scuffs = _cloud(rows, period_px, large, large, rng), _cloud(rows, period_px, large, 2, rng)
    tone = 1 + 0.05 * weave + 0.07 * grain + 0.07 * stains + 0.05 * scuffs
    _seam(tone, period_px // 3, max(height // 90, 2))
    strip = np.tile(tone, (1, -(-columns // period_px)))[:, :columns]
    strip = cv2.blur(strip.astype(np.float32), (look.blur_px, 1), borderType=cv2.BORDER_REFLECT_101)
    hue = np.array(_HUES[int(rng.integers(len(_HUES)))], np.float32) * np.float32(rng.uniform(0.95, 1.3))
    return merged([strip * shade for shade in hue])


def _cloud(rows: int, columns: int, long_px: int, high_px: int, rng: Rng) -> F32:
    """Smooth noise of about unit spread with features of about ``long_px`` by ``high_px``, periodic along x."""
    small = rng.standard_normal((max(rows // high_px, 2), max(columns // long_px, 2)), np.float32)
    step = columns / small.shape[1]
    at = np.mod((np.arange(columns, dtype=np.float32) + 0.5) / np.float32(step) - 0.5, small.shape[1])
    across = np.repeat(((np.arange(rows, dtype=np.float32) + 0.5) / rows * len(small) - 0.5)[:, None], columns, axis=1)
    wrapped = np.concatenate((small, small[:, :2]), axis=1)
    return np.asarray(
        cv2.remap(wrapped, np.tile(at, (rows, 1)), across, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE),
        np.float32,
    )


def _seam(tone: F32, at_px: int, step_px: int) -> None:
    """The vulcanised joint of the belt, as a slanted dark and light line."""
    rows = np.arange(len(tone))
    for shift, gain in ((0, 0.72), (step_px, 1.16), (9 * step_px, 0.78), (10 * step_px, 1.12)):
        start = at_px + shift + rows // 3
        for column in range(step_px):
            tone[rows, (start + column) % tone.shape[1]] *= gain


def draw_rails(width: int, height: int, rng: Rng) -> tuple[U8, U8]:
    """The upper and lower rail, (rail rows, width, 3) uint8 BGR each: extruded aluminium with screws."""
    rows = rail_px(height)
    y = np.linspace(0, 1, rows, dtype=np.float32)[:, None]
    profile = 0.60 + 0.16 * np.sin(y * 9.0) + 0.10 * (y < 0.10) - 0.42 * np.exp(-np.square((y - 0.86) / 0.045))
    profile = profile - 0.25 * np.exp(-np.square((y - 0.30) / 0.03)) - 0.5 * (y > 0.95)
    brushed = cv2.blur(rng.standard_normal((rows, width), dtype=np.float32), (max(width // 12, 1), 1))
    metal = profile * 0.86 + 0.35 * brushed
    image = merged([metal * np.float32(shade) for shade in (1.02, 1.0, 0.97)])
    radius = max(round(rows * 0.13), 2)
    for x in range(round(width / 14), width, round(width / 7)):
        _screw(image, (x, round(rows * 0.60)), radius)
    return image, np.ascontiguousarray(image[::-1])


def _screw(image: U8, at: tuple[int, int], radius: int) -> None:
    cv2.circle(image, (at[0] + radius // 3, at[1] + radius // 3), radius + 1, (70, 70, 70), -1, cv2.LINE_AA)
    cv2.circle(image, at, radius, (176, 180, 182), -1, cv2.LINE_AA)
    cv2.circle(image, at, max(radius // 2, 1), (58, 58, 60), -1, cv2.LINE_AA)


def draw_gantry(height: int, rng: Rng) -> Sprite:
    """A bar across the belt with a cable beside it, as high as the frame; placed by the top of the bar's middle."""
    width = round(0.16 * height)
    half = 0.026 * height
    middle = round(0.36 * width)
    x = np.arange(width, dtype=np.float32) - middle
    bar = np.clip(half - np.abs(x) + 0.5, 0, 1)
    across = x / np.float32(half)
    tone = 0.46 + 0.20 * across * -1 + 0.22 * np.exp(-np.square((across + 0.62) / 0.10))
    tone -= 0.30 * np.exp(-np.square(across / 0.13)) - 0.10 * np.exp(-np.square((across - 0.2) / 0.06))
    brushed = cv2.blur(rng.standard_normal((height, width), dtype=np.float32), (1, max(height // 10, 1)))
    add = (tone * bar)[None, :] + 0.18 * brushed * bar
    shadow = 0.55 * _near(x - np.float32(1.7 * half), half * 1.1, half * 0.5)
    cover, light, dark = _cable(width, height, rng)
    keep = (1 - bar) * (1 - shadow) * (1 - 0.4 * dark)
    keep, add = keep * (1 - cover), add * (1 - cover) + light
    solid = (np.broadcast_to(bar > 0.5, cover.shape)) | (cover > 0.5)
    return sprite(keep, [add * np.float32(0.98), add, add], solid, (middle, 0))


def _near(distance: F32, half: float, soft: float) -> F32:
    return np.asarray(np.clip((half + soft - np.abs(distance)) / (2 * soft), 0, 1), np.float32)


def _cable(width: int, height: int, rng: Rng) -> tuple[F32, F32, F32]:
    """Coverage, light and shadow of a round cable that hangs in a slow curve."""
    y = np.arange(height, dtype=np.float32)[:, None] / height
    phase, turns = rng.uniform(0, 2 * np.pi), rng.uniform(1.5, 3.0)
    middle = width * (0.76 + 0.12 * np.sin(2 * np.pi * turns * y + phase)).astype(np.float32)
    distance = np.arange(width, dtype=np.float32)[None, :] - middle
    half = np.float32(0.0075 * height)
    cover = np.clip(half - np.abs(distance) + 0.5, 0, 1)
    light = cover * (0.09 + 0.30 * np.exp(-np.square(distance / half + 0.4) * 8))
    return cover, light, _near(distance - 2.2 * half, float(half), float(half))


def draw_carriage(height: int) -> Sprite:
    """The inspection head that rides on the gantry, placed by its middle: a box with warning stripes, lens and lamp."""
    w, h, pad = round(0.11 * height), round(0.14 * height), round(0.03 * height)
    y, x = np.mgrid[: h + 2 * pad, : w + 2 * pad].astype(np.float32)
    mask = np.zeros(x.shape, np.float32)
    cv2.rectangle(mask, (pad, pad), (pad + w - 1, pad + h - 1), 1.0, -1)
    mask = np.clip((cv2.GaussianBlur(mask, (0, 0), 0.06 * w) - 0.45) * 0.14 * w, 0, 1)  # round corners
    body = (0.38 - 0.16 * (y - pad) / h)[..., None] * np.array((1.0, 0.97, 0.95), np.float32)
    tape = np.abs(y - pad - h * 0.86) < h * 0.07
    stripes = tape & ((x + y) % (0.36 * w) < 0.18 * w)
    body[tape], body[stripes] = (0.07, 0.07, 0.07), (0.10, 0.66, 0.86)
    _draw_lens(body, (pad + w // 2, pad + round(h * 0.42)), w)
    cv2.circle(
        body, (pad + round(w * 0.84), pad + round(h * 0.11)), max(w // 20, 1), (0.25, 0.95, 0.35), -1, cv2.LINE_AA
    )
    edge = 0.5 * (mask - cv2.GaussianBlur(np.roll(mask, (1, 1), axis=(0, 1)), (0, 0), 0.025 * w))
    shadow = cv2.GaussianBlur(np.roll(mask, (pad // 3, pad // 2), axis=(0, 1)), (0, 0), pad * 0.3)
    keep = (1 - mask) * (1 - 0.6 * shadow)
    add = [(shade + edge) * mask for shade in cv2.split(body)]
    return sprite(keep, add, mask > 0.5, (pad + w // 2, pad + h // 2))


def _draw_lens(body: F32, center: tuple[int, int], width: int) -> None:
    rings = (
        (0.34, (0.10, 0.10, 0.10)),
        (0.30, (0.46, 0.46, 0.46)),
        (0.25, (0.09, 0.07, 0.06)),
        (0.15, (0.20, 0.12, 0.09)),
    )
    for radius, color in rings:
        cv2.circle(body, center, round(radius * width), color, -1, cv2.LINE_AA)
    glint = (center[0] - width // 12, center[1] - width // 12)
    cv2.circle(body, glint, max(width // 15, 1), (0.95, 0.78, 0.60), -1, cv2.LINE_AA)


def draw_light(width: int, height: int, rng: Rng) -> U8:
    """A light map (height, width, 3) uint8: pixels are multiplied by it over UNIT_GAIN.

    A slope across the frame, the pool of a lamp, vignetting and the rails' shade, warmer on one side than the other.
    """
    x = np.linspace(-1, 1, width, dtype=np.float32)[None, :]
    y = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    angle, slope = rng.uniform(0, 2 * np.pi), rng.uniform(0.05, 0.24)
    cx, cy, size = rng.uniform(-0.6, 0.6), rng.uniform(-0.5, 0.5), rng.uniform(0.5, 0.9)
    pool = np.exp(-(np.square(x - cx) + np.square(y - cy) * 0.7) / np.float32(2 * size**2))
    tilt = x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle))
    gain = (0.98 + slope * tilt + 0.42 * pool) * (1 - 0.14 * (x * x + y * y))
    inner = 1 - 2 * RAIL
    gain *= 1 - 0.42 * _near(np.abs(y) - np.float32(inner - 0.02), 0.004, 0.03) * (np.abs(y) < inner)
    warm = np.float32(rng.uniform(-0.06, 0.06))
    level = np.float32(UNIT_GAIN / 255 * rng.uniform(0.92, 1.12))
    return merged([gain * tint * level for tint in (1 - warm * (1 + x), 1, 1 + warm * (1 + x))])


def draw_noise(width: int, height: int, rng: Rng) -> U8:
    """Sensor noise to subtract, (height, width, 3) uint8: mean 8, spread chosen per scene, faint in color."""
    spread = rng.uniform(1.8, 4.2)
    tile = rng.standard_normal((256, 256, 1), dtype=np.float32) + 0.5 * rng.standard_normal((256, 256, 3), np.float32)
    levels = np.clip(8 + spread * tile, 0, 32).astype(np.uint8)
    return np.ascontiguousarray(np.tile(levels, (-(-height // 256), -(-width // 256), 1))[:height, :width])
