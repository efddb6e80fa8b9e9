"""Trackers with the authors' limits, scenes whose truth is known, and how far two tellings of one agree."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.stages.botsort import BotSort
from edgert.stages.bytetrack import UNTRACKED, ByteTrack
from edgert.stages.kinds import BotSortStage, ByteTrackStage

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

FRAMES = 150
WIDTH_PX, HEIGHT_PX = 1280, 720


_AUTHORS = {"from": "find", "high": 0.6, "activate": 0.7, "by_class": False}


def byte_track(rate_hz: float = 30.0, **keys: Any) -> ByteTrack:
    return ByteTrack(ByteTrackStage(**{**_AUTHORS, "track": "bytetrack", **keys}), rate_hz=rate_hz)


def bot_sort(rate_hz: float = 30.0, **keys: Any) -> BotSort:
    return BotSort(BotSortStage(**{**_AUTHORS, "track": "botsort", "camera_motion": False, **keys}), rate_hz=rate_hz)


@dataclass(frozen=True)
class Seen:
    """One frame: boxes (N, 4) that a detector makes of it, in any order; truth (T, 4), and its objects' numbers."""

    boxes: F32
    scores: F32
    truth: F64
    objects: I64


Scene = Callable[[np.random.Generator], Iterator[Seen]]


def _boxes(centers: F64, sizes: F64) -> F64:
    return np.concatenate((centers - sizes / 2, centers + sizes / 2), axis=1)


def _seen(
    rng: np.random.Generator,
    boxes: F64,
    scores: F64,
    there: npt.NDArray[Any] | None = None,
    false: F64 | None = None,
    *,
    miss: float = 0.03,
    noise_px: float = 1.0,
) -> Seen:
    """What a detector makes of the truth: jitter, some misses, any order, and false alarms (F, 5: box and score)."""
    objects = np.arange(len(boxes)) if there is None else np.flatnonzero(there)
    truth, false = boxes[objects], np.zeros((0, 5)) if false is None else false
    both = np.concatenate((np.column_stack((truth, scores[objects])), false))
    rows = rng.permutation(len(both))
    both = both[rows[rng.random(len(rows)) >= miss]]
    jittered = both[:, :4] + rng.normal(0, noise_px, (len(both), 4))
    # As a detector writes them, and equal on every processor: sixteenths of a pixel, thousandths of a score.
    return Seen(
        (jittered * 16).round().astype(np.float32) / 16,
        (both[:, 4] * 1000).round().astype(np.float32) / 1000,
        truth,
        objects.astype(np.int64),
    )


def crossing(rng: np.random.Generator) -> Iterator[Seen]:
    """Two columns of objects that walk through each other."""
    rows = np.linspace(60, HEIGHT_PX - 60, 8)
    sizes = rng.uniform(50, 90, (16, 2))
    for frame in range(FRAMES):
        left = np.stack((100 + 7.0 * frame + 0 * rows, rows), axis=1)
        right = np.stack((WIDTH_PX - 100 - 7.0 * frame + 0 * rows, rows + 15), axis=1)
        yield _seen(rng, _boxes(np.concatenate((left, right)), sizes), rng.uniform(0.65, 0.95, 16))


def occlusion(rng: np.random.Generator) -> Iterator[Seen]:
    """Objects that vanish behind pillars: doubtful at the edge, unseen behind."""
    sizes = rng.uniform(40, 80, (12, 2))
    start, speed = rng.uniform(0, WIDTH_PX, 12), rng.uniform(3, 9, 12)
    rows = np.linspace(50, HEIGHT_PX - 50, 12)
    for frame in range(FRAMES):
        x = (start + speed * frame) % WIDTH_PX
        depth = np.abs((x % 400) - 200)  # distance from the nearest pillar's middle
        scores = np.where(depth < 70, rng.uniform(0.15, 0.55, 12), rng.uniform(0.7, 0.95, 12))
        yield _seen(rng, _boxes(np.stack((x, rows), axis=1), sizes), scores, depth >= 35)


def low_scores(rng: np.random.Generator) -> Iterator[Seen]:
    """A detector in two minds: scores on both sides of every threshold."""
    centers, velocity = rng.uniform(0, 1, (25, 2)) * (WIDTH_PX, HEIGHT_PX), rng.normal(0, 4, (25, 2))
    sizes = rng.uniform(40, 120, (25, 2))
    for frame in range(FRAMES):
        yield _seen(rng, _boxes(centers + velocity * frame, sizes), rng.uniform(0.1, 1.0, 25))


def births_and_deaths(rng: np.random.Generator) -> Iterator[Seen]:
    """Nobody stays for long, and frames without anybody come by."""
    centers, sizes = rng.uniform(0, 1, (30, 2)) * (WIDTH_PX, HEIGHT_PX), rng.uniform(40, 90, (30, 2))
    velocity = rng.normal(0, 3, (30, 2))
    for frame in range(FRAMES):
        centers += velocity
        present = ((frame + 10 * np.arange(30)) % 90 < 50) & (frame % 40 > 2)
        yield _seen(rng, _boxes(centers, sizes), rng.uniform(0.5, 0.95, 30), present)


def clutter(rng: np.random.Generator) -> Iterator[Seen]:
    """A few objects among many false alarms."""
    centers, velocity = rng.uniform(0, 1, (10, 2)) * (WIDTH_PX, HEIGHT_PX), rng.normal(0, 4, (10, 2))
    sizes = rng.uniform(40, 90, (10, 2))
    for frame in range(FRAMES):
        false = int(rng.poisson(15))
        places = _boxes(rng.uniform(0, 1, (false, 2)) * (WIDTH_PX, HEIGHT_PX), rng.uniform(20, 200, (false, 2)))
        alarms = np.column_stack((places, rng.uniform(0.1, 0.95, false)))
        yield _seen(rng, _boxes(centers + velocity * frame, sizes), rng.uniform(0.6, 0.95, 10), None, alarms)


def crowd(rng: np.random.Generator) -> Iterator[Seen]:
    """Fifty objects in a quarter of the image: everybody overlaps somebody, many pairings compete."""
    centers, velocity = rng.uniform(0, 350, (50, 2)), rng.normal(0, 2, (50, 2))
    sizes = rng.uniform(50, 110, (50, 2))
    for _ in range(FRAMES):
        centers += velocity
        velocity[(centers < 0) | (centers > 350)] *= -1
        yield _seen(rng, _boxes(centers, sizes), rng.uniform(0.4, 0.95, 50), miss=0.1, noise_px=3.0)


SCENES: tuple[Scene, ...] = (crossing, occlusion, low_scores, births_and_deaths, clutter, crowd)


def scene(one: Scene, seed: int = 0) -> list[Seen]:
    return list(one(np.random.default_rng(seed)))


def disagreements(ours: I64, theirs: I64) -> int:
    """Detections that no one-to-one renumbering explains, commonest partners first (a greedy bound, never too low)."""
    pairs, counts = np.unique(np.stack((ours, theirs)), axis=1, return_counts=True)
    taken: tuple[set[int], set[int]] = ({UNTRACKED}, {UNTRACKED})
    agreed = int(counts[(pairs == UNTRACKED).all(axis=0)].sum())
    for column in np.argsort(-counts):
        mine, other = pairs[:, column].tolist()
        if mine not in taken[0] and other not in taken[1]:
            taken[0].add(mine)
            taken[1].add(other)
            agreed += int(counts[column])
    return len(ours) - agreed
