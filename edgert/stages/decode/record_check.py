"""Check of decoded records: impossible boxes, and numbers which show that outputs are decoded wrongly."""

import logging
import threading
from typing import Any

import numpy as np

from edgert.runtime.records import Classification, Detections, Keypoints, Record
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Decoder
from edgert.stages.decode.detection import Bool

log = logging.getLogger("edgert.decode")

_MOST_SCORE = 1.001
"""Largest valid score: 1 may be rounded up in fp16, or in a softmax."""

_FIRST = 8
"""Number of first frames whose outputs are checked for NaN."""


class RecordCheck:
    """Check that removes and counts impossible boxes of one model, and warns once per kind of fault.

    A valid record costs a few comparisons of arrays. Threads may share the check.

    Args:
        name: name of the model.
        decoder: decoder of its outputs, for the advice in a warning.

    Attributes:
        left_out: number of boxes that were removed; with ``is_strict``, also of frames with NaN in an output.
        is_strict: whether the outputs of every frame are checked for NaN, which takes longer; for a model on trial.
    """

    def __init__(self, name: str, decoder: Decoder | None = None) -> None:
        self.left_out, self.is_strict, self._first = 0, False, _FIRST
        self._name, self._lock, self._warned = name, threading.Lock(), set[str]()
        reads = getattr(decoder, "decoder", decoder)  # of a decoder of some outputs
        has_option = hasattr(getattr(reads, "head", reads), "boxes")
        self._relative = "task: {options: {boxes: relative}}" if has_option else "export boxes in pixels of the input"

    def check_outputs(self, outputs: Any) -> None:
        """Warn once of NaN in the outputs of the first frames; for a model on trial, count every frame with NaN."""
        if not self.is_strict and self._first <= 0:
            return
        self._first -= 1
        if any(one.dtype.kind == "f" and np.isnan(one).any() for one in outputs):
            self.left_out += self.is_strict
            self._warn(
                "numbers",
                "its outputs hold NaN. Its numbers may overflow in float16: try precision: fp32. Else check mean and "
                "std of input:, and the export.",
            )

    def __call__(self, record: Record, geometry: Geometry) -> Record:
        """Return the record without boxes that are not finite, have no size, or lie outside the image."""
        if isinstance(record, Detections):
            if not len(record.scores):
                return record
            sizes = record.boxes[:, 2:] - record.boxes[:, :2]
            # Comparisons with NaN are false.
            is_plain = sizes.min() > 0 and record.scores.max() <= _MOST_SCORE
            pixel = max(geometry.scale_x, geometry.scale_y)
            return record if is_plain and sizes.max() > pixel else self._remove_impossible(record, sizes, pixel)
        if isinstance(record, Classification) and len(record.scores) and not record.scores[0] <= _MOST_SCORE:
            self._warn_of_scores(float(record.scores[0]))
        return record

    def _remove_impossible(self, record: Detections, sizes: Any, pixel: float) -> Detections:
        stays = _has_place(record, sizes)
        if not stays.all():
            count = int(len(stays) - stays.sum())
            with self._lock:
                self.left_out += count
            every = f" If all boxes are, they may be parts of the input: {self._relative}." if not stays.any() else ""
            self._warn(
                "boxes",
                f"{count} of {len(stays)} boxes are left out: not finite, without a size, or outside the image. "
                f"Further ones are counted, but not logged.{every}",
            )
            record, sizes = record[stays], sizes[stays]
        if not len(record):
            return record
        if float(sizes.max()) <= pixel:
            self._warn(
                "sizes",
                f"every box is smaller than a pixel of the model's input. Boxes may be parts of it: {self._relative}.",
            )
        if float(record.scores.max()) > _MOST_SCORE:
            self._warn_of_scores(float(record.scores.max()))
        return record

    def _warn_of_scores(self, score: float) -> None:
        self._warn(
            "scores",
            f"scores reach {score:.3g}, and should lie in 0-1. The model may have been exported without the sigmoid or "
            "softmax behind its last layer: export it with that.",
        )

    def _warn(self, what: str, text: str) -> None:
        with self._lock:
            if what in self._warned:
                return
            self._warned.add(what)
        log.warning("model %s: %s", self._name, text)


def _has_place(record: Detections, sizes: Any) -> Bool:
    """Return (N,) whether a box is finite and has a size, or is the hull of points on a line."""
    has_size: Bool = (sizes > 0).all(axis=1)
    finite: Bool = np.isfinite(record.boxes).all(axis=1) & np.isfinite(record.scores)
    if isinstance(record, Keypoints) and record.points is not None and not has_size.all():
        places, low, high = record.points[..., :2], record.boxes[:, None, :2], record.boxes[:, None, 2:]
        holds_points: Bool = np.all((places >= low) & (places <= high), axis=2).any(axis=1)
        has_size |= np.all(sizes >= 0, axis=1) & holds_points
    return has_size & finite


class CheckedRecords:
    """Decoder whose records are checked. ``decoder`` may be replaced between two frames, from any thread."""

    def __init__(self, decoder: Decoder, check: RecordCheck) -> None:
        self.decoder, self._check = decoder, check

    def __call__(self, outputs: Any, geometry: Geometry) -> Record:
        self._check.check_outputs(outputs)
        return self._check(self.decoder(outputs, geometry), geometry)
