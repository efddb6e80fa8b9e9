"""ByteTrack, computed on arrays of all tracks at once.

ByteTrack pairs confident detections with the predicted tracks first. Then it pairs the remaining tracks with the
uncertain detections, which are often the same objects half hidden. Only confident ones start tracks. Source: Y. Zhang
et al., "ByteTrack: Multi-Object Tracking by Associating Every Detection Box", ECCV 2022, arXiv:2110.06864.

Steps, limits and motion are those of the authors' published code (github.com/ifzhang/ByteTrack, yolox/tracker), so that
both find the same tracks. Hence an object of the first frame counts as seen twice, and a lost track is kept one frame
longer than its time. One thing differs: scores are fused with overlaps in proportion to ``high``. That is the same at
the authors' 0.6, and keeps the pairs of a model with low scores.
"""

import math

import numpy as np
import numpy.typing as npt

from edgert.errors import StageError
from edgert.stages.assignment import F64, Index, assign
from edgert.stages.kinds import ByteTrackStage
from edgert.stages.motion import ASPECT_AND_HEIGHT, ROWS, Motion

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

UNTRACKED = -1
"""Id of a detection without a confirmed track."""

_REFERENCE_RATE_HZ = 30.0  # ``keep`` counts frames at this rate (ByteTrack paper, section 4.1: 30 frames)

_DOUBTFUL_MATCH, _FRESH_MATCH, _SAME = 0.5, 0.3, 0.85
"""Limits of the authors' code: lowest overlap with an uncertain detection, lowest fused overlap of a track that was
seen once, and overlap above which a lost and a visible track are the same."""
_REFERENCE_HIGH = 0.6
"""``high`` of the authors' code."""

_NONE = -1  # the detection of a track without one
_TINY = float(np.finfo(np.float64).tiny)
_INTEGERS, _FIRST_CAPACITY = 5, 64  # id, class, hits, missed, born; columns


class ByteTrack:
    """Tracker that numbers the objects of one stream, frame by frame. Not thread-safe.

    An unconfirmed track ends with its first miss. ``keep`` of the section counts frames at 30 per second, scaled by the
    rate. Detections in the first frame count twice for ``confirm``.

    Args:
        score: lowest score of the detections; None if unknown.
    """

    motion: Motion = ASPECT_AND_HEIGHT

    def __init__(self, config: ByteTrackStage, score: float | None = None, rate_hz: float = _REFERENCE_RATE_HZ) -> None:
        self._config = config
        self._low, self._high, self._activate = config.limits(score)
        frames = round(config.keep * _REFERENCE_RATE_HZ) * rate_hz / _REFERENCE_RATE_HZ
        self._maximum_missed = math.ceil(frames) + 1
        # An overlap counts fully at score 1, and by the published 0.6 at score `high`.
        self._slope = (1 - _REFERENCE_HIGH) / max(1 - self._high, 1e-9)
        self._next_id, self._frame = 1, 0
        self._reals: F64 = np.zeros((ROWS, _FIRST_CAPACITY))
        self._integers: I64 = np.zeros((_INTEGERS, _FIRST_CAPACITY), np.int64)
        self._resize(0)

    def __len__(self) -> int:
        """Return the number of tracks: confirmed, lost and not yet confirmed."""
        return len(self._ids)

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        """Advance by one frame; see :meth:`edgert.stages.track.Tracker.update`. Numbers follow confirmation.

        Raises StageError: shapes disagree, or a box or score is NaN or infinite. Tracks are unchanged then.
        """
        sides = _checked(boxes, scores, classes)
        self.predict()
        seen, high = self.motion.numbers(sides), scores >= self._high
        partner = self._associate(sides, scores, classes, high)
        rows = (partner != _NONE).nonzero()[0]
        columns = partner.take(rows)
        if len(scores):  # a track without a detection takes the last one by index -1, which correct() ignores
            self.motion.correct(self._state, seen.take(partner, axis=1), partner != _NONE)
        self._missed += 1
        self._missed[rows] = 0
        self._hits[rows] += 1
        self._confirm()
        ids = np.full(len(scores), UNTRACKED, np.int64)
        ids[columns] = self._ids.take(rows)
        kept = self._prune()
        high &= (scores >= self._activate) & (sides[2:] > sides[:2]).all(axis=0)
        high[columns] = False
        born = high.nonzero()[0]
        if len(born):
            ids[born] = self._start(seen.take(born, axis=1), classes.take(born))
        self._learn(partner.take(kept), born)
        self._drop_duplicates(ids)
        return ids

    def predict(self) -> None:
        """Advance by one frame without detections: boxes move on, and nothing counts as missed."""
        self._frame += 1
        self.motion.predict(self._state, self._missed > 0, ~self._is_fresh())

    def ahead(self, steps: float) -> tuple[I64, F64]:
        """Predict where the objects of the last update are later, at constant velocity.

        Args:
            steps: number of update intervals; may be a fraction.

        Returns:
            numbers (N,) of the objects, and (N, 4) pixels by which the sides of their boxes have moved.
        """
        rows = ((self._missed == 0) & (self._ids != UNTRACKED)).nonzero()[0]
        state = self._state.take(rows, axis=1)
        moved = self.motion.sides(state[:4] + steps * state[4:8]) - self.motion.sides(state[:4])
        return self._ids.take(rows), moved.T

    def _is_fresh(self) -> Mask:
        """Return a mask of the tracks that were seen once and have no number yet."""
        fresh: Mask = (self._hits == 1) & (self._ids == UNTRACKED)
        return fresh

    def _associate(self, sides: F64, scores: F32, classes: I32, high: Mask) -> Index:
        """Pair tracks and detections in three steps; return the row of each track's detection, or -1."""
        overlaps = iou(self.motion.sides(self._state[:4]), sides)
        if self._config.by_class:
            overlaps *= self._classes[:, None] == classes
        partner, fresh = np.full(len(self), _NONE, np.intp), self._is_fresh()
        known, confident = (~fresh).nonzero()[0], high.nonzero()[0]
        doubtful = ((scores >= self._low) & ~high).nonzero()[0]
        fused = overlaps.take(confident, axis=1)
        fused *= 1 - self._slope * (1 - scores.take(confident))
        fused = self._likeness(fused, overlaps, confident)
        rows, columns = pair(fused.take(known, axis=0), self._config.match)
        partner[known.take(rows)] = confident.take(columns)
        if len(doubtful):
            left = ((partner == _NONE) & ~fresh & (self._missed == 0)).nonzero()[0]
            rows, columns = pair(overlaps[left[:, None], doubtful], _DOUBTFUL_MATCH)
            partner[left.take(rows)] = doubtful.take(columns)
        if fresh.any():
            once, taken = fresh.nonzero()[0], np.zeros(len(scores), np.bool_)
            taken[partner[partner != _NONE]] = True
            free = (~taken.take(confident)).nonzero()[0]
            rows, columns = pair(fused[once[:, None], free], _FRESH_MATCH)
            partner[once.take(rows)] = confident.take(free.take(columns))
        return partner

    def _likeness(self, fused: F64, overlaps: F64, confident: Index) -> F64:
        """Return the similarity of tracks and confident detections; subclasses with more than boxes override it."""
        return fused

    def _learn(self, partner: Index, born: Index) -> None:
        """Store further features of the detections, first for the existing, then for the new tracks, in order."""

    def _confirm(self) -> None:
        """Assign numbers to the tracks that were seen often enough."""
        ripe = ((self._ids == UNTRACKED) & (self._hits >= self._config.confirm)).nonzero()[0]
        if len(ripe):
            self._ids[ripe] = np.arange(self._next_id, self._next_id + len(ripe))
            self._next_id += len(ripe)

    def _prune(self) -> Index:
        """Drop lost tracks that are unconfirmed or lost for too long; return the rows that stay, in order."""
        alive = (self._missed <= self._maximum_missed) & (self._ids != UNTRACKED)
        return self._keep(alive | (self._missed == 0))

    def _keep(self, alive: Mask) -> Index:
        kept: Index = alive.nonzero()[0]
        if len(kept) < len(alive):
            self._reals[:, : len(kept)] = self._state.take(kept, axis=1)
            self._integers[:, : len(kept)] = self._integers.take(kept, axis=1)
            self._resize(len(kept))
        return kept

    def _drop_duplicates(self, ids: I64) -> None:
        """Drop the younger of a lost and a visible track at the same place."""
        lost = (self._missed > 0).nonzero()[0]
        if not len(lost):
            return
        here = (self._missed == 0).nonzero()[0]
        sides = self.motion.sides(self._state[:4])
        first, second = (iou(sides.take(here, axis=1), sides.take(lost, axis=1)) > _SAME).nonzero()
        if not len(first):
            return
        age = self._frame - self._missed - self._born
        is_older = age.take(here.take(first)) > age.take(lost.take(second))
        alive = np.ones(len(self), np.bool_)
        alive[lost.take(second[is_older])] = alive[here.take(first[~is_older])] = False
        ids[np.isin(ids, self._ids[~alive])] = UNTRACKED
        self._keep(alive)

    def _start(self, numbers: F64, classes: I32) -> I64:
        """Start tracks at rest at these detections; return their numbers."""
        born = slice(len(self), len(self) + len(classes))
        self._resize(born.stop)
        started = np.empty((ROWS, len(classes)))
        self.motion.start(started, numbers)
        self._state[:, born] = started
        self._ids[born], self._classes[born], self._missed[born], self._born[born] = UNTRACKED, classes, 0, self._frame
        self._hits[born] = 2 if self._frame == 1 else 1
        self._confirm()
        ids: I64 = self._ids[born]
        return ids

    def _resize(self, count: int) -> None:
        """Set the number of tracks. Capacity doubles when it runs out, so that a steady scene allocates nothing."""
        capacity = self._reals.shape[1]
        if count > capacity:
            extra = ((0, 0), (0, max(count, 2 * capacity) - capacity))
            self._reals, self._integers = np.pad(self._reals, extra), np.pad(self._integers, extra)
        self._state = self._reals[:, :count]
        self._ids, self._classes, self._hits, self._missed, self._born = self._integers[:, :count]


def pair(likeness: F64, least: float) -> tuple[Index, Index]:
    """Return the pairs of rows and columns with the largest sum of likeness above ``least``."""
    return assign(np.maximum(likeness - least, 0.0))


def iou(first: F64, second: F64) -> F64:
    """Return the (A, B) intersection over union of (4, A) with (4, B) boxes; 0 where a box has no area.

    A box includes its last pixel, as in the published code, which matters for small boxes.
    """
    first, second = _closed(first), _closed(second)
    extent = np.minimum(first[2:, :, None], second[2:, None, :])
    extent -= np.maximum(first[:2, :, None], second[:2, None, :])
    np.maximum(extent, 0.0, out=extent)
    overlap: F64 = extent[0]
    union: F64 = extent[1]
    overlap *= union
    np.add(_area(first)[:, None], _area(second), out=union)
    union -= overlap
    overlap /= union
    return overlap


def _closed(sides: F64) -> F64:
    """Return the boxes including their last row and column of pixels; boxes without area are unchanged."""
    closed: F64 = sides.copy()
    closed[2:] += (sides[2:] > sides[:2]).all(axis=0)
    return closed


def _area(sides: F64) -> F64:
    """Return (N,) areas in square pixels; a tiny number for boxes without area, so that a union is never 0."""
    extent = np.maximum(sides[2:] - sides[:2], 0.0)
    area: F64 = extent[0] * extent[1]
    area += _TINY
    return area


def _checked(boxes: F32, scores: F32, classes: I32) -> F64:
    """Check the detections, and return their boxes as (4, N) float64, one contiguous row per side."""
    count = len(scores)
    if boxes.shape != (count, 4) or scores.shape != (count,) or classes.shape != (count,):
        raise StageError(
            "tracker got detections whose shapes disagree",
            why=f"boxes {boxes.shape}, scores {scores.shape}, classes {classes.shape}; expected (N, 4), (N,), (N,)",
            fix="give one box, score and class per detection",
        )
    sides = np.ascontiguousarray(boxes.T, dtype=np.float64)
    if not (np.isfinite(sides).all() and np.isfinite(scores).all()):
        wrong = np.flatnonzero(~(np.isfinite(boxes).all(axis=1) & np.isfinite(scores)))
        row = int(wrong[0])
        raise StageError(
            f"tracker got {len(wrong)} of {count} detections with NaN or infinite numbers",
            why=f"first at row {row}: box {boxes[row].tolist()}, score {float(scores[row])}",
            fix="check the model's decoder and its precision: FP16 overflow and a wrong output order look like this",
        )
    return sides
