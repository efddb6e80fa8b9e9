"""BoT-SORT: ByteTrack with the camera's motion and the appearance of objects.

N. Aharon, R. Orfaig and B. Bobrovsky, "BoT-SORT: Robust Associations Multi-Pedestrian Tracking", 2022,
arXiv:2206.14651. Steps and limits are those of the authors' published code (github.com/NirAharon/BoT-SORT, tracker).
The camera's motion is one rotation, scale and shift (their ``sparseOptFlow``): corners are tracked from the last image
to this one, and outliers, which are moving objects, are rejected (RANSAC). Where boxes are near each other, vectors of
a second model decide whether they are the same object.
"""

from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime import Crops, Detections, Embedding, Frame, Result
from edgert.runtime.frame import U8, origin_of
from edgert.stages.assignment import F64, Index
from edgert.stages.bytetrack import F32, I32, I64, ByteTrack
from edgert.stages.kinds import BotSortStage
from edgert.stages.motion import WIDTH_AND_HEIGHT
from edgert.stages.motion_gate import small_gray_image

_MEMORY = 0.9
"""Weight of the past in an object's vector (section 3.3, alpha)."""
_CORNERS, _QUALITY, _APART_PX, _LEAST = 200, 0.01, 5, 5
_SHORT_SIDE_PX = 270
"""Shorter side of the image in which corners are tracked."""


class CameraMotion:
    """Estimator of the camera's motion between consecutive frames of one stream."""

    def __init__(self) -> None:
        self._last: tuple[U8, F32] | None = None
        self._scale = 1.0

    def estimate(self, frame: Frame) -> F64 | None:
        """Return the (2, 3) affine map from the last frame's pixels to this frame's; None where it is unknown."""
        scale = max(1.0, min(frame.width, frame.height) / _SHORT_SIDE_PX)
        image = small_gray_image(frame, max(1, round(frame.width / scale)))
        scale = frame.width / image.shape[1]
        last, corners = self._last, _corners(image)
        self._last = None if corners is None else (image, corners)
        if last is None or last[0].shape != image.shape:
            return None
        moved, is_found, _ = cv2.calcOpticalFlowPyrLK(last[0], image, last[1], cast("U8", None))
        found = is_found.ravel() == 1
        if found.sum() < _LEAST:
            return None
        affine, _ = cv2.estimateAffinePartial2D(last[1][found], moved[found], method=cv2.RANSAC)
        if affine is None:
            return None
        found_affine = np.asarray(affine, np.float64)
        origin = np.array(origin_of(frame), np.float64)  # boxes are pixels of the full image
        found_affine[:, 2] = found_affine[:, 2] * scale + origin - found_affine[:, :2] @ origin
        return found_affine


class BotSort(ByteTrack):
    """BoT-SORT tracker.

    It works like :class:`ByteTrack`; call :meth:`look` with a frame's result before each update.
    """

    motion = WIDTH_AND_HEIGHT

    def __init__(self, config: BotSortStage, score: float | None = None, rate_hz: float = 30.0) -> None:
        self._appearances: F64 = np.zeros((0, 0))  # one vector of length 1 per track; NaN where it is unknown
        super().__init__(config, score, rate_hz)
        self._proximity, self._appearance = config.proximity, config.appearance
        self._camera = CameraMotion() if config.camera_motion else None
        self._affine: F64 | None = None
        self._vectors: F64 | None = None

    def look(self, result: Result, found: Detections) -> None:
        """Read the image of the next update's frame, and a second model's vectors of its objects."""
        self._affine = self._camera.estimate(result.frame) if self._camera else None
        self._vectors = appearance_vectors(result, found)

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        if self._vectors is not None:
            if self._appearances.shape != (len(self), self._vectors.shape[1]):  # the first vectors, or another model's
                self._appearances = np.full((len(self), self._vectors.shape[1]), np.nan)
            self._vectors[scores < self._high] = np.nan  # uncertain objects may be half hidden
        try:
            return super().update(boxes, scores, classes)
        finally:
            self._affine = self._vectors = None

    def predict(self) -> None:
        super().predict()
        if self._affine is not None:
            self.motion.warp(self._state, self._affine)

    def _likeness(self, fused: F64, overlaps: F64, confident: Index) -> F64:
        if self._vectors is None:
            return fused
        apart = (1 - self._appearances @ self._vectors.take(confident, axis=0).T) / 2
        with np.errstate(invalid="ignore"):
            near = (apart <= self._appearance) & (1 - overlaps.take(confident, axis=1) <= self._proximity)
        return np.where(near, np.maximum(fused, 1 - apart), fused)

    def _learn(self, partner: Index, born: Index) -> None:
        if self._appearances.shape[1] == 0:
            return
        if self._vectors is None:
            fresh = np.full((len(born), self._appearances.shape[1]), np.nan)
            self._appearances = np.concatenate((self._appearances, fresh))
            return
        new = self._vectors.take(np.maximum(partner, 0), axis=0) if len(self._vectors) else self._appearances
        seen = ((partner >= 0) & np.isfinite(new).all(axis=1)).nonzero()[0]
        old, new = self._appearances.take(seen, axis=0), new.take(seen, axis=0)
        mixed = np.where(np.isfinite(old), _MEMORY * old + (1 - _MEMORY) * new, new)
        self._appearances[seen] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
        self._appearances = np.concatenate((self._appearances, self._vectors.take(born, axis=0)))

    def _keep(self, alive: npt.NDArray[np.bool_]) -> Index:
        kept = super()._keep(alive)
        if self._appearances.shape[1]:
            self._appearances = self._appearances.take(kept, axis=0)
        return kept


def appearance_vectors(result: Result, found: Detections) -> F64 | None:
    """Return (N, D) vectors of a second model on crops of these detections, each of length 1, NaN where missing.

    Without such a model, return None.
    """
    for crops in (one for one in reversed(list(result.outputs.values())) if isinstance(one, Crops)):
        if result.outputs.get(crops.parent) is not found:
            continue
        seen = [
            (row, one.vector)
            for row, one in zip(crops.rows.tolist(), crops.records, strict=True)
            if isinstance(one, Embedding)
        ]
        if seen:
            vectors = np.full((len(found), len(seen[0][1])), np.nan)
            vectors[[row for row, _ in seen]] = [vector for _, vector in seen]
            return vectors
    return None


def _corners(image: U8) -> F32 | None:
    found = cv2.goodFeaturesToTrack(image, _CORNERS, _QUALITY, _APART_PX)
    return None if found is None or len(found) < _LEAST else cast("F32", found)
