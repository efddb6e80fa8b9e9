"""Which box is which object: ByteTrack over arrays of all tracks at once.

ByteTrack (Y. Zhang et al., "ByteTrack: Multi-Object Tracking by Associating Every Detection Box", ECCV 2022,
arXiv:2110.06864) pairs confident detections with the predicted tracks first, then gives the tracks left over a second
chance with the doubtful detections, which are often the same objects half hidden. Only confident ones start tracks.

Defaults and motion model are those of ``ByteTrackTracker`` in the Apache-2.0 package ``trackers``, so that both
give the same identities. Where it differs from the paper's authors: the Kalman filter follows the four sides of a box
with noise in pixels, not center, aspect and height with noise relative to the height; lost tracks take part in the
second pairing too; and a pair below the overlap threshold is undone after pairing instead of being forbidden before.
Two differences to the package: with ``confirm: 1`` a track has its number at its first detection, not at its second;
and boxes that do not overlap at all are never paired, even with ``match: 0``.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.errors import StageError
from edgert.stages.assignment import F64, Index, assign

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

UNTRACKED = -1
"""The id of a detection that belongs to no confirmed track."""

_REFERENCE_RATE_HZ = 30.0  # ``keep`` counts frames at this rate (ByteTrack paper, section 4.1: 30 frames)

# Variances in square pixels (of a velocity: per frame squared) of the package named above: first state I, process
# 0.01 I, measurement 0.1 I.
_FIRST_VARIANCE = 1.0
_PROCESS_VARIANCE = 0.01
_MEASUREMENT_VARIANCE = 0.1

_NONE = -1  # the detection of a track that has none
_TINY = float(np.finfo(np.float64).tiny)

# State arrays have a column per track; 11 rows of reals: 4 sides, 4 velocities, the variance of a side, its covariance
# with the velocity, the variance of the velocity; and 4 of integers: id, class, hits, missed.
_REALS, _INTEGERS, _FIRST_CAPACITY = 11, 4, 64


@dataclass(frozen=True, slots=True)
class Floor:
    """A tracker that is not shown detections of a score below ``least``; they belong to no object."""

    tracker: "ByteTrack"
    least: float

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        ids = np.full(len(scores), UNTRACKED, np.int64)
        seen = (scores >= self.least).nonzero()[0]
        ids[seen] = self.tracker.update(boxes.take(seen, axis=0), scores.take(seen), classes.take(seen))
        return ids


class ByteTrack:
    """Numbers the detections of one stream, frame by frame. Not thread-safe; one tracker per stream.

    The paper has 0.7 for ``activate`` (ε), 0.6 for ``high`` (τ), 0.2 for ``match``, 2 for ``confirm``, 30 frames for
    ``keep``, and tells no classes apart, so that an object whose class flickers between car and truck stays one object.
    An unconfirmed track ends with its first miss.

    Args:
        activate, high, match: thresholds of score, score and overlap, 0 to 1, as in a pipeline file's ``track:``.
        keep: seconds that a lost track is remembered, in frames at 30 per second, scaled by ``rate_hz``.
        confirm: detections in a row before a track gets its number.
        by_class: never joins detections of two classes.
        rate_hz: how often ``update`` is called per second.
    """

    def __init__(
        self,
        *,
        activate: float,
        high: float,
        match: float,
        keep: float,
        confirm: int,
        by_class: bool,
        rate_hz: float = _REFERENCE_RATE_HZ,
    ) -> None:
        self._activate, self._high, self._match = activate, high, match
        self._least_hits, self._by_class = confirm, by_class
        self._maximum_missed = math.ceil(round(keep * _REFERENCE_RATE_HZ) * rate_hz / _REFERENCE_RATE_HZ)
        self._next_id = 1
        self._reals: F64 = np.zeros((_REALS, _FIRST_CAPACITY))
        self._integers: I64 = np.zeros((_INTEGERS, _FIRST_CAPACITY), np.int64)
        self._resize(0)

    def __len__(self) -> int:
        """Tracks held: confirmed, lost and not yet confirmed."""
        return len(self._ids)

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        """One frame further, with what the detector saw in it.

        Args:
            boxes: (N, 4) float32 x1, y1, x2, y2 in pixels; N may be 0. Nothing is modified or kept.
            scores: (N,) float32 from 0 to 1.
            classes: (N,) int32.

        Returns:
            (N,) int64, the track of each detection, in the order given: numbers from 1 in the order of confirmation,
            never used again; ``UNTRACKED`` (-1) for a detection without a confirmed track.

        Raises:
            StageError: shapes disagree, or a box or score is NaN or infinite; no track has changed then.
        """
        seen = _checked(boxes, scores, classes)
        self.predict()
        high = scores >= self._high
        partner = self._associate(seen, classes, high)
        rows = (partner != _NONE).nonzero()[0]
        columns = partner.take(rows)
        self._correct(partner, seen)
        self._missed += 1
        self._missed[rows] = 0
        self._hits[rows] += 1
        self._confirm()
        ids = np.full(len(scores), UNTRACKED, np.int64)
        ids[columns] = self._ids.take(rows)
        self._prune()
        high &= scores >= self._activate
        high[columns] = False
        born = high.nonzero()[0]
        if len(born):
            ids[born] = self._start(seen.take(born, axis=1), classes.take(born))
        return ids

    def predict(self) -> None:
        """One frame further without asking the detector: boxes move on, nothing counts as missed."""
        # The noise is alike on all sides, so one 2x2 covariance (side, velocity) per track serves all four.
        # P becomes [[1, 1], [0, 1]] P [[1, 0], [1, 1]] + Q; each line needs the old value of the next.
        self._side += self._velocity
        self._variance += self._covariance
        self._covariance += self._velocity_variance
        self._variance += self._covariance
        self._variance += _PROCESS_VARIANCE
        self._velocity_variance += _PROCESS_VARIANCE

    def _associate(self, seen: F64, classes: I32, high: npt.NDArray[np.bool_]) -> Index:
        """Both pairings: for each track the row of its detection, or -1."""
        overlaps = _iou(self._side, seen)
        if self._by_class:
            overlaps *= self._classes[:, None] == classes
        partner = np.full(len(self), _NONE, np.intp)
        confident, doubtful = high.nonzero()[0], (~high).nonzero()[0]
        rows, columns = self._pair(overlaps.take(confident, axis=1))
        partner[rows] = confident.take(columns)
        left = (partner == _NONE).nonzero()[0]
        if not (len(left) and len(doubtful)):
            return partner
        rows, columns = self._pair(overlaps[left[:, None], doubtful])
        partner[left.take(rows)] = doubtful.take(columns)
        return partner

    def _pair(self, overlaps: F64) -> tuple[Index, Index]:
        """The pairs of tracks and detections whose overlaps add up to the most, poor ones undone."""
        rows, columns = assign(overlaps)
        good = overlaps[rows, columns] >= self._match
        return rows[good], columns[good]

    def _correct(self, partner: Index, seen: F64) -> None:
        """Kalman update of all tracks at once; a track without partner has no gain and stays as predicted."""
        if seen.shape[1] == 0:
            return
        weight = (partner != _NONE) / (self._variance + _MEASUREMENT_VARIANCE)
        gain, velocity_gain = self._variance * weight, self._covariance * weight
        surprise = seen.take(partner, axis=1)  # -1 takes the last detection, to no effect
        surprise -= self._side
        self._velocity += velocity_gain * surprise
        surprise *= gain
        self._side += surprise
        velocity_gain *= self._covariance
        self._velocity_variance -= velocity_gain
        np.subtract(1.0, gain, out=gain)
        self._variance *= gain
        self._covariance *= gain

    def _confirm(self) -> None:
        """Numbers for the tracks that have been seen often enough and have none."""
        ripe = ((self._ids == UNTRACKED) & (self._hits >= self._least_hits)).nonzero()[0]
        if len(ripe):
            self._ids[ripe] = np.arange(self._next_id, self._next_id + len(ripe))
            self._next_id += len(ripe)

    def _prune(self) -> None:
        """Drop tracks lost for too long, and unconfirmed ones at once; the others keep their order."""
        alive = (self._missed <= self._maximum_missed) & (self._ids != UNTRACKED)
        alive |= self._missed == 0
        if not alive.all():
            kept = alive.nonzero()[0]
            self._reals[:, : len(kept)] = self._reals.take(kept, axis=1)
            self._integers[:, : len(kept)] = self._integers.take(kept, axis=1)
            self._resize(len(kept))

    def _start(self, sides: F64, classes: I32) -> I64:
        """New tracks at rest where these detections are; their ids."""
        born = slice(len(self), len(self) + len(classes))
        self._resize(born.stop)
        self._side[:, born] = sides
        self._velocity[:, born] = self._covariance[born] = 0.0
        self._variance[born] = self._velocity_variance[born] = _FIRST_VARIANCE
        self._ids[born], self._classes[born], self._hits[born], self._missed[born] = UNTRACKED, classes, 1, 0
        self._confirm()
        ids: I64 = self._ids[born]
        return ids

    def _resize(self, count: int) -> None:
        """Show this many tracks; room doubles when it runs out, so that a steady scene allocates none."""
        capacity = self._reals.shape[1]
        if count > capacity:
            extra = ((0, 0), (0, max(count, 2 * capacity) - capacity))
            self._reals, self._integers = np.pad(self._reals, extra), np.pad(self._integers, extra)
        reals = self._reals[:, :count]
        self._side, self._velocity = reals[:4], reals[4:8]
        self._variance, self._covariance, self._velocity_variance = reals[8:]
        self._ids, self._classes, self._hits, self._missed = self._integers[:, :count]


def _iou(first: F64, second: F64) -> F64:
    """Intersection over union of (4, A) with (4, B) boxes as (A, B); 0 where a box has no area."""
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


def _area(sides: F64) -> F64:
    """(N,) square pixels, above 0 by next to nothing for a box without area, so that a union can divide."""
    extent = np.maximum(sides[2:] - sides[:2], 0.0)
    area: F64 = extent[0] * extent[1]
    area += _TINY
    return area


def _checked(boxes: F32, scores: F32, classes: I32) -> F64:
    """The boxes as (4, N) float64, one contiguous row per side, once they and the scores are known to be sound."""
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
