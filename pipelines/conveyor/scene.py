"""Parts on a moving belt, seen by a camera above it, with the ground truth known.

A frame is a pure function of (width, height, fps, seed, index): any frame can be asked for at any time and always has
the same pixels and the same ground truth. What changes with the seed is the belt, lamp, exposure, noise, gantry and
which parts come when; the sprites of parts and the images of everything else are drawn once and cached.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from .belt import (
    UNIT_GAIN,
    draw_belt,
    draw_carriage,
    draw_gantry,
    draw_light,
    draw_noise,
    draw_rails,
    rail_px,
)
from .parts import KINDS, LABELS, MARGIN, U8, Look, Sprite, draw

__all__ = ["LABELS", "Conveyor", "GroundTruth"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_SIZES = (1.0, 0.86, 0.74)
_RADIUS = 0.080
"""Radius of the largest part as a part of the frame's shorter side."""
_NOISE_ROLL_PX = 64
_PILED = 0.16
"""How many parts come to lie against another."""
_SEEN = 0.30
"""A part counts as present when at least this much of it shows."""
_SHUTTER_HZ = 10
"""A slower camera keeps its shutter open no longer than at this rate; else parts would be smeared to nothing."""
_NOTHING = 0
_GANTRY = 255
"""Marks in the map of who covers a pixel; parts are 1, 2, … in drawing order."""


@dataclass(frozen=True)
class GroundTruth:
    """What is in a frame, in drawing order (later parts lie on top).

    Attributes:
        boxes: (N, 4) float32, x1 y1 x2 y2 in pixels, around what shows of each part.
        classes: (N,) int32, indices into LABELS.
        ids: (N,) int64, one number per part, the same in every frame it is in.
    """

    boxes: F32
    classes: I32
    ids: I64


@dataclass(frozen=True, slots=True)
class _Part:
    number: int
    kind: int
    sprite: Sprite
    x: int
    y: int


class Conveyor:
    """A seeded scene of one size and frame rate.

    Renders into the caller's memory. One instance belongs to one thread at a time: its scratch memory is reused.

    Args:
        width, height: of the frames, in pixels, at least 64 each.
        fps: frames per second; parts cross the image in 4.5 to 7 seconds whatever it is.
        seed: any integer from 0 to 2**63 - 1. Raises ValueError when it or a size is out of range.
    """

    def __init__(self, width: int, height: int, fps: float, seed: int) -> None:
        if min(width, height) < 64 or not fps > 0 or not 0 <= seed < 2**63:
            raise ValueError(
                f"conveyor needs 64x64 pixels, fps above 0, seed from 0; got {width}x{height}, {fps}, {seed}"
            )
        self.width, self.height, self.fps, self.seed = width, height, fps, seed
        rng = np.random.default_rng(seed)
        self._speed_px = width / rng.uniform(4.5, 7.0)  # per second
        self._look = _look(self._speed_px / max(fps, _SHUTTER_HZ), rng)
        self._radii_px = tuple(_RADIUS * min(width, height) * size for size in _SIZES)
        self._interval_s = width / self._speed_px / rng.uniform(11, 16)  # between two parts
        self._period_px = round(1.25 * width)
        self._belt = draw_belt(width, height, self._period_px, self._look, rng)
        self._rails = draw_rails(width, height, rng)
        self._light = draw_light(width, height, rng)
        self._noise = draw_noise(width + _NOISE_ROLL_PX, height + _NOISE_ROLL_PX, rng)
        self._gantry, self._carriage = draw_gantry(height, rng), draw_carriage(height)
        self._gantry_x = round(rng.uniform(0.3, 0.7) * width)
        self._phases = rng.uniform(0, 2 * np.pi, 3)
        self._sprites: dict[tuple[int, int], tuple[Sprite, ...]] = {}
        self._cover = np.zeros((height, width), np.uint8)

    def render(self, index: int, out: U8) -> GroundTruth:
        """Draw frame ``index`` (from 0) into ``out``, (height, width, 3) uint8 BGR, rows may be padded.

        Raises ValueError when ``out`` has another shape or type, or ``index`` is negative.
        """
        if out.shape != (self.height, self.width, 3) or out.dtype != np.uint8 or index < 0:
            wanted = (self.height, self.width, 3)
            raise ValueError(f"conveyor draws {wanted} uint8 from frame 0; got {out.shape} {out.dtype}, frame {index}")
        time_s = index / self.fps
        parts = self._parts(time_s)
        self._draw_floor(time_s, out)
        self._cover.fill(_NOTHING)
        for mark, part in enumerate(parts, 1):
            self._lay(part.sprite, part.x, part.y, mark, out)
        self._draw_gantry(time_s, out)
        self._expose(index, time_s, out)
        return self._ground_truth(parts)

    def _parts(self, time_s: float) -> list[_Part]:
        """The parts in the image at a moment, oldest first."""
        edge = MARGIN * self._radii_px[0]
        slowest_s = (self.width + 2 * edge) / (self._speed_px * 0.95)
        first = int(slowest_s / self._interval_s) + 3  # number of the part that enters at time 0
        last = int(time_s / self._interval_s) + first + 3
        numbers = np.arange(max(last - first - 6, 0), last + 1)
        chance = _chances(self.seed, numbers, 8)
        beside = chance[:, 3] < _PILED  # these lie against or on top of the part before them
        leaders = numbers - beside
        led_by = _chances(self.seed, leaders, 8)
        x = (
            self._placed(leaders - first, led_by, time_s)
            - edge
            - beside * (0.8 + 0.8 * chance[:, 7]) * self._radii_px[0]
        )
        y = self._lanes(leaders, led_by) + beside * (chance[:, 2] - 0.5) * self._radii_px[0]
        seen = np.flatnonzero((x > -edge) & (x < self.width + edge))
        return [self._part(int(numbers[i]), chance[i], float(x[i]), float(y[i])) for i in seen]

    def _placed(self, order: I64, chance: F64, time_s: float) -> F64:
        """Distance traveled. Parts slip a little on the belt, so that some catch up with others."""
        start_s = (order + 0.9 * (chance[:, 0] - 0.5)) * self._interval_s
        slip = 0.97 + 0.06 * chance[:, 1]
        return np.asarray((time_s - start_s) * slip * self._speed_px, np.float64)

    def _lanes(self, numbers: I64, chance: F64) -> F64:
        """Middle of each part across the belt; the golden ratio keeps neighbors in time apart."""
        edge = rail_px(self.height) + 1.3 * self._radii_px[0]
        place = np.mod(numbers * 0.6180339887 + 0.25 * (chance[:, 2] - 0.5), 1)
        return np.asarray(edge + place * (self.height - 2 * edge), np.float64)

    def _part(self, number: int, chance: F64, x: float, y: float) -> _Part:
        kind, size = int(chance[4] * len(KINDS)), int(chance[6] * len(_SIZES))
        drawn = self._drawn(kind, int(chance[5] * KINDS[kind].turns))[size]
        return _Part(number, kind, drawn, round(x) + drawn.corner[0], round(y) + drawn.corner[1])

    def _drawn(self, kind: int, turn: int) -> tuple[Sprite, ...]:
        """One sprite per size, drawn when first needed: a scene starts sooner and one short clip never pays for all."""
        if (kind, turn) not in self._sprites:
            self._sprites[kind, turn] = draw(KINDS[kind], turn, self._radii_px, self._look)
        return self._sprites[kind, turn]

    def _draw_floor(self, time_s: float, out: U8) -> None:
        rail, shift = rail_px(self.height), round(time_s * self._speed_px) % self._period_px
        start = self._period_px - 1 - shift
        out[rail:-rail] = self._belt[:, start : start + self.width]
        out[:rail], out[-rail:] = self._rails

    def _draw_gantry(self, time_s: float, out: U8) -> None:
        swing = 0.5 + 0.34 * np.sin(0.9 * time_s + self._phases[0])
        for sprite, y in ((self._gantry, 0), (self._carriage, round(swing * self.height))):
            self._lay(sprite, self._gantry_x + sprite.corner[0], y + sprite.corner[1], _GANTRY, out)

    def _lay(self, sprite: Sprite, x: int, y: int, mark: int, out: U8) -> None:
        """Blend a sprite into the image with its corner at (x, y), cut at the image's edges."""
        rows, columns = sprite.solid.shape
        x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + columns, self.width), min(y + rows, self.height)
        if x1 >= x2 or y1 >= y2:
            return
        here, there = np.s_[y1:y2, x1:x2], np.s_[y1 - y : y2 - y, x1 - x : x2 - x]
        under = out[here]
        cv2.multiply(under, sprite.keep[there], dst=under, scale=1 / 255)
        cv2.add(under, sprite.add[there], dst=under)
        covered = self._cover[here]
        np.maximum(covered, sprite.solid[there] * np.uint8(mark), out=covered)  # marks grow in drawing order

    def _expose(self, index: int, time_s: float, out: U8) -> None:
        """Light as it falls and flickers (mains beating with the shutter, a slow drift), then the sensor's noise."""
        flicker = 1 + 0.025 * np.sin(2 * np.pi * 3.1 * time_s + self._phases[1])
        flicker += 0.05 * np.sin(2 * np.pi * 0.11 * time_s + self._phases[2])
        cv2.multiply(out, self._light, dst=out, scale=float(flicker) / UNIT_GAIN)
        dx, dy = (int(c * _NOISE_ROLL_PX) for c in _chances(self.seed + 1, np.array([index]), 2)[0])
        cv2.subtract(out, self._noise[dy : dy + self.height, dx : dx + self.width], dst=out)

    def _ground_truth(self, parts: list[_Part]) -> GroundTruth:
        found = [(self._extent(part, mark), part) for mark, part in enumerate(parts, 1)]
        shown = [(extent, part) for extent, part in found if extent is not None]
        return GroundTruth(
            np.array([extent for extent, _ in shown], np.float32).reshape(-1, 4),
            np.array([part.kind for _, part in shown], np.int32),
            np.array([part.number for _, part in shown], np.int64),
        )

    def _extent(self, part: _Part, mark: int) -> tuple[int, int, int, int] | None:
        """The box around what shows of a part, or None when that is too little."""
        bx1, by1, bx2, by2 = part.sprite.box
        x1, y1 = max(part.x + bx1, 0), max(part.y + by1, 0)
        x2, y2 = min(part.x + bx2, self.width), min(part.y + by2, self.height)
        if x1 >= x2 or y1 >= y2:
            return None
        shows = self._cover[y1:y2, x1:x2] == mark
        if np.count_nonzero(shows) < _SEEN * part.sprite.area_px:
            return None
        columns, rows = shows.any(axis=0), shows.any(axis=1)
        return (
            x1 + int(columns.argmax()),
            y1 + int(rows.argmax()),
            x2 - int(columns[::-1].argmax()),
            y2 - int(rows[::-1].argmax()),
        )


def _look(step_px: float, rng: np.random.Generator) -> Look:
    """Lamp and exposure of a scene; ``step_px`` is how far the belt moves between two frames."""
    angle, tilt = np.deg2rad(rng.uniform(200, 340)), np.deg2rad(rng.uniform(38, 58))
    lamp = (float(np.cos(angle) * np.cos(tilt)), float(np.sin(angle) * np.cos(tilt)), float(np.sin(tilt)))
    return Look(lamp, max(round(step_px * rng.uniform(0.15, 0.5)), 1))


def _chances(seed: int, numbers: I64, count: int) -> F64:
    """(N, count) numbers in 0 to 1 that depend on nothing but the seed and each number.

    SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) used as a hash.
    """
    z = (numbers[:, None] * count + np.arange(count)).astype(np.uint64)
    z = (z + np.uint64(seed * 0x2545F4914F6CDD1D % 2**64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((z ^ (z >> np.uint64(31))) >> np.uint64(11), np.float64) / 2**53
