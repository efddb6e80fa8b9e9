"""BoT-SORT: ByteTrack with the camera's motion and the appearance of objects.

N. Aharon, R. Orfaig and B. Bobrovsky, "BoT-SORT: Robust Associations Multi-Pedestrian Tracking", 2022,
arXiv:2206.14651. Steps and limits are those of the authors' published code (github.com/NirAharon/BoT-SORT, tracker).
The camera's motion is one rotation, scale and shift (their ``sparseOptFlow``). Corners are followed from the last image
into this one, and outliers, which are moving objects, are left out (RANSAC). A second model's vectors decide where
boxes are near enough to be the same object.
"""

from typing import cast

import cv2
import numpy as np
import numpy.typing as npt

from edgert.runtime import Crops, Detections, Embedding, Frame, Result
from edgert.runtime.frame import U8, origin_of
from edgert.stages.assignment import F64, Index
from edgert.stages.bytetrack import F32, I32, I64, ByteTrack, Limits
from edgert.stages.motion import WIDTH_AND_HEIGHT

_MEMORY = 0.9  # of the past in what an object looks like (section 3.3, alpha)
_CORNERS, _QUALITY, _APART_PX, _LEAST = 200, 0.01, 5, 5
_SHORT_SIDE_PX = 270  # of the image that corners are followed in


class CameraMotion:
    """Estimator of the camera's motion between consecutive frames of one stream."""

    def __init__(self) -> None:
        self._last: tuple[U8, F32] | None = None
        self._scale = 1.0

    def of(self, frame: Frame) -> F64 | None:
        """Return (2, 3) affine, pixels of the last frame → pixels of this one; None where that is not known."""
        image, scale = _small(frame)
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

    It works like :class:`ByteTrack`; call :meth:`look` with a frame's extra data before each update.

    Args:
        proximity: most that boxes may be apart (1 - IoU) for looks to count.
        appearance: most that looks may be apart (half of 1 - cosine) for two objects to be one.
        follows_camera: whether the camera's motion is found in the images.
    """

    motion = WIDTH_AND_HEIGHT

    def __init__(
        self,
        limits: Limits,
        rate_hz: float = 30.0,
        *,
        proximity: float = 0.5,
        appearance: float = 0.25,
        follows_camera: bool = True,
    ) -> None:
        self._looks: F64 = np.zeros((0, 0))  # a row per track, of length 1; NaN where nobody looked
        super().__init__(limits, rate_hz)
        self._proximity, self._appearance = proximity, appearance
        self._camera = CameraMotion() if follows_camera else None
        self._affine: F64 | None = None
        self._vectors: F64 | None = None

    def look(self, result: Result, found: Detections) -> None:
        """Read the frame of the next update: its image, and a second model's vectors of its objects."""
        self._affine = self._camera.of(result.frame) if self._camera else None
        self._vectors = vectors_of(result, found)

    def update(self, boxes: F32, scores: F32, classes: I32) -> I64:
        if self._vectors is not None:
            if self._looks.shape != (len(self), self._vectors.shape[1]):  # the first, or another model's
                self._looks = np.full((len(self), self._vectors.shape[1]), np.nan)
            self._vectors[scores < self._limits.high] = np.nan  # half hidden, they would teach wrong looks
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
        apart = (1 - self._looks @ self._vectors.take(confident, axis=0).T) / 2
        with np.errstate(invalid="ignore"):
            near = (apart <= self._appearance) & (1 - overlaps.take(confident, axis=1) <= self._proximity)
        return np.where(near, np.maximum(fused, 1 - apart), fused)

    def _learn(self, partner: Index, born: Index) -> None:
        if self._looks.shape[1] == 0:
            return
        if self._vectors is None:
            fresh = np.full((len(born), self._looks.shape[1]), np.nan)
            self._looks = np.concatenate((self._looks, fresh))
            return
        new = self._vectors.take(np.maximum(partner, 0), axis=0) if len(self._vectors) else self._looks
        seen = ((partner >= 0) & np.isfinite(new).all(axis=1)).nonzero()[0]
        old, new = self._looks.take(seen, axis=0), new.take(seen, axis=0)
        mixed = np.where(np.isfinite(old), _MEMORY * old + (1 - _MEMORY) * new, new)
        self._looks[seen] = mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
        self._looks = np.concatenate((self._looks, self._vectors.take(born, axis=0)))

    def _keep(self, alive: npt.NDArray[np.bool_]) -> Index:
        kept = super()._keep(alive)
        if self._looks.shape[1]:
            self._looks = self._looks.take(kept, axis=0)
        return kept


def vectors_of(result: Result, found: Detections) -> F64 | None:
    """Return (N, D) vectors of length 1 from a second model on crops of these detections, NaN for missing ones.

    Return None without such a model.
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


def _small(frame: Frame) -> tuple[U8, float]:
    """Return a gray image of the frame, and how many pixels of the frame one of its pixels is."""
    plane = frame.planes[0]
    if frame.format in ("bgr", "rgb", "yuyv"):
        channel = 1 if frame.format != "yuyv" else 0  # green is most of what is bright
        plane = cast("U8", cv2.extractChannel(plane, channel))
    scale = max(1.0, min(frame.width, frame.height) / _SHORT_SIDE_PX)
    size = max(1, round(frame.width / scale)), max(1, round(frame.height / scale))
    return cast("U8", cv2.resize(plane, size, interpolation=cv2.INTER_AREA)), frame.width / size[0]


def _corners(image: U8) -> F32 | None:
    found = cv2.goodFeaturesToTrack(image, _CORNERS, _QUALITY, _APART_PX)
    return None if found is None or len(found) < _LEAST else cast("F32", found)
