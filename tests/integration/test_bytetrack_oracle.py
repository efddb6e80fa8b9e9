"""Our ByteTrack tells the same story as the one of the package ``trackers``, detection by detection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgert.stages.bytetrack import UNTRACKED
from edgert.stages.kinds import ByteTrackStage
from tests.helpers.tracking import byte_track

trackers = pytest.importorskip("trackers", reason="trackers (extra 'oracle') is not installed")
supervision = pytest.importorskip("supervision", reason="supervision, which trackers needs, is not installed")

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Detected = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
Scene = Callable[[np.random.Generator], Iterator[Detected]]

FRAMES = 150
WIDTH_PX, HEIGHT_PX = 1280, 720


def _boxes(centers: F64, sizes: F64) -> F64:
    return np.concatenate((centers - sizes / 2, centers + sizes / 2), axis=1)


def _seen(rng: np.random.Generator, boxes: F64, scores: F64, *, miss: float = 0.03, noise_px: float = 1.0) -> Detected:
    """What a detector makes of the truth: jitter, some misses, any order."""
    rows = rng.permutation(len(boxes))
    rows = rows[rng.random(len(rows)) >= miss]
    jittered = boxes[rows] + rng.normal(0, noise_px, (len(rows), 4))
    return jittered.astype(np.float32), scores[rows].astype(np.float32)


def _crossing(rng: np.random.Generator) -> Iterator[Detected]:
    """Two columns of objects that walk through each other."""
    rows = np.linspace(60, HEIGHT_PX - 60, 8)
    sizes = rng.uniform(50, 90, (16, 2))
    for frame in range(FRAMES):
        left = np.stack((100 + 7.0 * frame + 0 * rows, rows), axis=1)
        right = np.stack((WIDTH_PX - 100 - 7.0 * frame + 0 * rows, rows + 15), axis=1)
        yield _seen(rng, _boxes(np.concatenate((left, right)), sizes), rng.uniform(0.65, 0.95, 16))


def _occlusion(rng: np.random.Generator) -> Iterator[Detected]:
    """Objects that vanish behind pillars: doubtful at the edge, unseen behind."""
    sizes = rng.uniform(40, 80, (12, 2))
    start, speed = rng.uniform(0, WIDTH_PX, 12), rng.uniform(3, 9, 12)
    rows = np.linspace(50, HEIGHT_PX - 50, 12)
    for frame in range(FRAMES):
        x = (start + speed * frame) % WIDTH_PX
        depth = np.abs((x % 400) - 200)  # distance from the nearest pillar's middle
        scores = np.where(depth < 70, rng.uniform(0.15, 0.55, 12), rng.uniform(0.7, 0.95, 12))
        behind = depth < 35
        yield _seen(rng, _boxes(np.stack((x, rows), axis=1), sizes)[~behind], scores[~behind])


def _low_scores(rng: np.random.Generator) -> Iterator[Detected]:
    """A detector in two minds: scores on both sides of every threshold."""
    centers, velocity = rng.uniform(0, 1, (25, 2)) * (WIDTH_PX, HEIGHT_PX), rng.normal(0, 4, (25, 2))
    sizes = rng.uniform(40, 120, (25, 2))
    for frame in range(FRAMES):
        yield _seen(rng, _boxes(centers + velocity * frame, sizes), rng.uniform(0.1, 1.0, 25))


def _births_and_deaths(rng: np.random.Generator) -> Iterator[Detected]:
    """Nobody stays for long, and frames without anybody come by."""
    centers, sizes = rng.uniform(0, 1, (30, 2)) * (WIDTH_PX, HEIGHT_PX), rng.uniform(40, 90, (30, 2))
    velocity = rng.normal(0, 3, (30, 2))
    for frame in range(FRAMES):
        centers += velocity
        reborn = rng.random(30) < 0.03
        centers[reborn] = rng.uniform(0, 1, (int(reborn.sum()), 2)) * (WIDTH_PX, HEIGHT_PX)
        present = ((frame + 10 * np.arange(30)) % 90 < 50) & (frame % 40 > 2)
        yield _seen(rng, _boxes(centers, sizes)[present], rng.uniform(0.5, 0.95, int(present.sum())))


def _clutter(rng: np.random.Generator) -> Iterator[Detected]:
    """A few objects among many false alarms."""
    centers, velocity = rng.uniform(0, 1, (10, 2)) * (WIDTH_PX, HEIGHT_PX), rng.normal(0, 4, (10, 2))
    sizes = rng.uniform(40, 90, (10, 2))
    for frame in range(FRAMES):
        false = int(rng.poisson(15))
        places = rng.uniform(0, 1, (false, 2)) * (WIDTH_PX, HEIGHT_PX)
        true = _boxes(centers + velocity * frame, sizes)
        boxes = np.concatenate((true, _boxes(places, rng.uniform(20, 200, (false, 2)))))
        yield _seen(rng, boxes, np.concatenate((rng.uniform(0.6, 0.95, 10), rng.uniform(0.1, 0.95, false))))


def _crowd(rng: np.random.Generator) -> Iterator[Detected]:
    """Fifty objects in a quarter of the image: everybody overlaps somebody, many pairings compete."""
    centers, velocity = rng.uniform(0, 350, (50, 2)), rng.normal(0, 2, (50, 2))
    sizes = rng.uniform(50, 110, (50, 2))
    for _ in range(FRAMES):
        centers += velocity
        velocity[(centers < 0) | (centers > 350)] *= -1
        yield _seen(rng, _boxes(centers, sizes), rng.uniform(0.4, 0.95, 50), miss=0.1, noise_px=3.0)


SCENES = (_crossing, _occlusion, _low_scores, _births_and_deaths, _clutter, _crowd)


def _theirs(oracle: Any, boxes: npt.NDArray[np.float32], scores: npt.NDArray[np.float32]) -> I64:
    """The reference's ids in the order of the detections; it may return them in another."""
    rows = np.arange(len(boxes))
    answer = oracle.update(supervision.Detections(xyxy=boxes, confidence=scores, data={"row": rows}))
    ids = np.full(len(boxes), -1, np.int64)
    if len(answer):
        ids[answer.data["row"]] = answer.tracker_id
    return ids


def _disagreements(ours: I64, theirs: I64) -> int:
    """Detections that no one-to-one renumbering explains, commonest partners first (a greedy bound, never too low)."""
    pairs, counts = np.unique(np.stack((ours, theirs)), axis=1, return_counts=True)
    taken: tuple[set[int], set[int]] = ({UNTRACKED}, {-1})
    agreed = int(counts[(pairs == -1).all(axis=0)].sum())
    for column in np.argsort(-counts):
        mine, other = pairs[:, column].tolist()
        if mine not in taken[0] and other not in taken[1]:
            taken[0].add(mine)
            taken[1].add(other)
            agreed += int(counts[column])
    return len(ours) - agreed


def _compare(scene: Scene, seed: int, **options: Any) -> tuple[int, int, int]:
    """Disagreeing detections, all detections, and tracks of ours."""
    ours, oracle = byte_track(**options), trackers.ByteTrackTracker(**options)
    mine, other = [], []
    for boxes, scores in scene(np.random.default_rng(seed)):
        mine.append(ours.update(boxes, scores, np.zeros(len(boxes), np.int32)))
        other.append(_theirs(oracle, boxes, scores))
    ids = np.concatenate(mine)
    return _disagreements(ids, np.concatenate(other)), len(ids), len(np.unique(ids[ids != UNTRACKED]))


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("seed", [0, 1])
def test_same_tracks_as_the_reference(scene: Scene, seed: int) -> None:
    wrong, total, tracks = _compare(scene, seed)
    assert total > 500
    assert tracks >= 10
    assert wrong <= 0.005 * total, f"{wrong} of {total} detections differ"


@pytest.mark.parametrize(
    "options",
    [
        {"lost_track_buffer": 0},
        {"lost_track_buffer": 10, "frame_rate": 12.5},
        {"minimum_consecutive_frames": 4, "minimum_iou_threshold": 0.4},
        {"track_activation_threshold": 0.5, "high_conf_det_threshold": 0.75},
    ],
)
def test_same_tracks_with_other_options(options: dict[str, Any]) -> None:
    wrong, total, _ = _compare(_births_and_deaths, seed=3, **options)
    assert wrong <= 0.005 * total, f"{wrong} of {total} detections differ"


def test_same_defaults() -> None:
    """An option that both know means the same if left out."""
    keys = {
        "track_activation_threshold": "activate",
        "high_conf_det_threshold": "high",
        "minimum_iou_threshold": "match",
        "minimum_consecutive_frames": "confirm",
    }
    ours = {name: ByteTrackStage.model_fields[key].default for name, key in keys.items()}
    theirs = trackers.ByteTrackTracker()
    named = {name: getattr(theirs, name) for name in ours if hasattr(theirs, name)}
    assert len(named) == 4
    assert named == {name: ours[name] for name in named}
    assert ByteTrackStage.model_fields["keep"].default * 30 == theirs.maximum_frames_without_update
