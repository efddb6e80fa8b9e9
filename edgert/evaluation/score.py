"""Scorers of a model's records, with labels or relative to another model.

``scorer.note(index, record)`` returns a note on one image, in the thread that decoded the record. It raises ConfigError
if labels and records are of different kinds. ``scorer.scores(notes, reference's notes)`` returns metric → ImageScores.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from edgert.dataset import labels
from edgert.errors import ConfigError
from edgert.evaluation import coco_metric, track_metric
from edgert.runtime import Classification, Detections, Embedding, Record, Segmentation, Text
from edgert.runtime.records import AnomalyMap, Attributes, DepthMap, OutputImage
from edgert.stages.bytetrack import ByteTrack
from edgert.stages.kinds import ByteTrackStage


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """Mean over classes of right amounts divided by counted amounts, for any resampling of images.

    Attributes:
        right: (n, C) right amount of every image and class, such as pixels; up to 1 with C = 1 for a mean over images.
        counts: (n, C) counted amount of every image and class; classes without one are left out.
    """

    right: labels.F64
    counts: labels.F64

    @property
    def value(self) -> float:
        """Value of the metric with every image counted once."""
        return float(self.values(np.ones((1, len(self.right))))[0])

    def values(self, weights: labels.F64) -> labels.F64:
        """Return the metric, 0 to 1, for every row of weights.

        A row has how often each of n images counts. The result is NaN if nothing counts.
        """
        right, counts = weights @ self.right, weights @ self.counts
        seen = counts > 0
        ratios = np.divide(right, counts, out=np.zeros_like(counts), where=seen).sum(axis=1)
        known = seen.sum(axis=1)
        mean: labels.F64 = np.divide(ratios, known, out=np.full_like(ratios, np.nan), where=known > 0)
        return mean


def mean_of(scores: labels.F64 | list[float], counts: labels.Bool | None = None) -> Ratio:
    """Return the mean of (n,) scores, 0 to 1, over the images that count; by default all."""
    array = np.asarray(scores, np.float64)
    counted = np.ones(len(array), np.bool_) if counts is None else counts
    return Ratio(np.where(counted, array, 0.0)[:, None], counted.astype(np.float64)[:, None])


ImageScores = Ratio | coco_metric.Matches | track_metric.SequenceScore
"""Metric of one model on n images."""
LOWER_IS_BETTER = frozenset({"cer", "abs_rel", "rmse"})
"""Metrics that are errors."""
Note = Any
"""Summary of one record that a scorer keeps."""
_TOP = 5

# Scorers are stateless: one serves many threads and models. ``metrics`` has the names of their metrics, main one first.

_PREFIXES: Mapping[coco_metric.Kind, str] = {"points": "oks_", "masks": "mask_", "turned": "obb_", "boxes": ""}


@dataclass(frozen=True, slots=True)
class Objects:
    """Detections of one image, and their masks as run lengths."""

    record: Detections
    outlines: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class BoxScorer:
    """Scorer of average precision by COCO's evaluator, for boxes, and for points, masks and oriented boxes if present.

    For labels of a sequence it also scores tracks by HOTA and IDF1.

    Attributes:
        tracked_from: lowest score of detections to track; None for no tracking.
        tracking: tracker with ByteTrack's settings; None for its defaults.
    """

    ground_truth: labels.GroundTruthBoxes
    tracked_from: float | None = None
    tracking: ByteTrackStage | None = None

    @property
    def kinds(self) -> tuple[coco_metric.Kind, ...]:
        """Kinds that the labels have, the main one first."""
        wanted: Mapping[coco_metric.Kind, str] = {"points": "points", "masks": "outlines", "turned": "turned"}
        return (*(kind for kind, what in wanted.items() if self.ground_truth.has(what)), "boxes")

    @property
    def metrics(self) -> tuple[str, ...]:
        precisions = tuple(f"{_PREFIXES[kind]}{name}" for kind in self.kinds for name in ("map", "map50"))
        return (*precisions, *(track_metric.METRICS if self._are_tracked else ()))

    @property
    def _are_tracked(self) -> bool:
        is_sequence = self.tracked_from is not None and self.ground_truth.has("ids")
        return is_sequence and track_metric.is_installed()

    def note(self, index: int, record: Record) -> Objects:
        """Return the detections, with masks as run lengths."""
        found: Detections = expect(record, Detections, "boxes")
        true = self.ground_truth.images[index]
        if found.points is not None and true.points is not None and len(found) and len(true.points):
            seen, labeled = found.points.shape[1], true.points.shape[1]
            if seen != labeled:
                raise ConfigError(
                    f"labels with {labeled} points do not fit this model",
                    why=f"it finds {seen} points of each object",
                    fix="give labels with the same points, or only labels of boxes",
                )
        if found.masks is None or not self.ground_truth.has("outlines"):
            return Objects(found)
        ends = np.array([one.region[2:] for one in found.masks]).reshape(-1, 2).max(axis=0, initial=1)
        size = true.size or (int(np.ceil(ends[1])), int(np.ceil(ends[0])))
        outlines = [coco_metric.run_lengths(one, size) for one in found.masks]
        return Objects(replace(found, masks=None), outlines)

    def scores(self, notes: Sequence[Note], reference: Sequence[Note] | None) -> Mapping[str, ImageScores]:
        records, found = [note.record for note in notes], dict[str, ImageScores]()
        outlines = [note.outlines or [] for note in notes]
        every = [*notes, *(reference or ())]  # so that a version that finds nothing is scored like its reference
        known: dict[coco_metric.Kind, bool] = {
            "points": any(note.record.points is not None for note in every),
            "masks": any(note.outlines is not None for note in every),
            "turned": any(note.record.corners is not None for note in every),
            "boxes": True,
        }
        for kind in filter(known.__getitem__, self.kinds):
            values = coco_metric.precision(self.ground_truth, records, kind, outlines if kind == "masks" else ())
            found |= {f"{_PREFIXES[kind]}{name}": score for name, score in values.items()}
        if self._are_tracked:
            found |= track_metric.scores(self.ground_truth, self._tracked(records))
        return found

    def _tracked(self, records: Sequence[Detections]) -> list[Detections]:
        default = ByteTrackStage.model_validate({"track": "bytetrack", "from": "model"})
        tracker = ByteTrack(self.tracking or default, self.tracked_from)
        tracks = []
        for one in records:
            some = one[one.scores >= (self.tracked_from or 0.0)]
            ids = tracker.update(some.boxes, some.scores, some.classes)
            tracks.append(replace(some[ids > 0], ids=ids[ids > 0]))
        return tracks


@dataclass(frozen=True, slots=True)
class ClassScorer:
    """Scorer of whether the true class is the best one, or among the best five."""

    ground_truth: labels.GroundTruthClasses
    metrics: tuple[str, ...] = ("top1", "top5")

    def note(self, index: int, record: Record) -> tuple[bool, bool]:
        """Return (whether the best class is true, whether one of the best five is)."""
        best = expect(record, Classification, "classes").classes[:_TOP].tolist()
        return best[:1] == [self.ground_truth.classes[index]], self.ground_truth.classes[index] in best

    def scores(self, notes: Sequence[Note], reference: Sequence[Note] | None) -> Mapping[str, ImageScores]:
        right = np.asarray(notes, np.float64).reshape(-1, 2)
        return {"top1": mean_of(right[:, 0]), "top5": mean_of(right[:, 1])}


@dataclass(frozen=True, slots=True)
class MaskScorer:
    """Scorer of mean intersection over union, at the resolution of the labels, without void pixels."""

    ground_truth: labels.GroundTruthMasks
    metrics: tuple[str, ...] = ("miou",)

    def note(self, index: int, record: Record) -> tuple[Any, Any, Any]:
        """Return the number of pixels of each class that are right, found, and true, (256,) int64 each."""
        file = self.ground_truth.files[index]
        found, true = labels.resized_mask(expect(record, Segmentation, "masks"), labels.read_mask(file), file)
        known = true != labels.VOID
        found, true = found[known], true[known]
        return tuple(np.bincount(some, minlength=256) for some in (found[found == true], found, true))  # type: ignore[return-value]

    def scores(self, notes: Sequence[Note], reference: Sequence[Note] | None) -> Mapping[str, ImageScores]:
        shared, found, true = (np.array([note[n] for note in notes], np.float64) for n in range(3))
        used = np.flatnonzero((found + true).any(axis=0))
        return {"miou": Ratio(shared[:, used], (found + true - shared)[:, used])}


@dataclass(frozen=True, slots=True)
class IdentityScorer:
    """Scorer of whether the nearest other image has the same identity, and of agreement with a reference's vectors.

    ``retrieval`` counts images whose identity has another image. ``cosine`` is the mean cosine between the vectors of
    the model and the reference, where a negative cosine counts as 0.
    """

    ground_truth: labels.GroundTruthIdentities
    metrics: tuple[str, ...] = ("retrieval", "cosine")

    def note(self, index: int, record: Record) -> Any:
        """Return the vector."""
        return expect(record, Embedding, "identities").vector

    def scores(self, notes: Sequence[Note], reference: Sequence[Note] | None) -> Mapping[str, ImageScores]:
        vectors = unit(np.asarray(notes, np.float64))
        names = np.asarray(self.ground_truth.identities[: len(vectors)])
        hits, counts = np.zeros(len(names)), np.zeros(len(names), np.bool_)
        for query, name in enumerate(names):
            likeness = vectors @ vectors[query]
            likeness[query] = -np.inf
            hits[query] = names[likeness.argmax()] == name
            counts[query] = np.count_nonzero(names == name) > 1
        found: dict[str, ImageScores] = {"retrieval": mean_of(hits, counts)}
        return found if reference is None else {**found, "cosine": cosine(vectors, reference)}


SAME_IOU = 0.5
"""Minimum overlap of two boxes of one object, as in Pascal VOC and COCO's AP50."""


@dataclass(frozen=True, slots=True)
class Found:
    """Boxes of one image: (N, 4) corners in pixels, (N,) classes, the best score first."""

    boxes: Any
    classes: Any


@dataclass(frozen=True, slots=True)
class Packed:
    """Compressed mask, so that the masks of a dataset fit in memory."""

    data: bytes
    shape: tuple[int, ...]

    def mask(self) -> Any:
        """Return the mask, (h, w) uint8."""
        return np.frombuffer(zlib.decompress(self.data), np.uint8).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Scorer of the ``agreement`` of two models, 0 to 1, as the mean over images; of vectors it is ``cosine``.

    Detections and keypoints agree by twice the boxes that both found, divided by all boxes of both; 1 without boxes.
    Such boxes have the same class, overlap by :data:`SAME_IOU` or more, and count once. Classes, those of all heads,
    and texts agree if the best ones are equal. Masks agree by the share of pixels with the same class. Depth, anomalies
    and images count as vectors, made of a small copy minus its mean.
    """

    metrics: tuple[str, ...] = ("agreement", "cosine")

    def note(self, index: int, record: Record) -> Note:
        """Return the comparable part of a record; raise ConfigError for a user's own kind."""
        if isinstance(record, Detections):
            return Found(record.boxes, record.classes)
        if isinstance(record, Classification):
            return int(record.classes[0])
        if isinstance(record, Segmentation):
            return Packed(zlib.compress(record.mask.tobytes(), 1), record.mask.shape)
        if isinstance(record, Embedding):
            return record.vector
        if isinstance(record, Text):
            return record.text
        if isinstance(record, Attributes):
            return tuple(int(one.classes[0]) for one in record.heads.values() if isinstance(one, Classification))
        if isinstance(record, (DepthMap, AnomalyMap, OutputImage)):
            return _small_copy(record)
        raise ConfigError(
            f"edgert cannot compare two {type(record).__name__}",
            why="a task: python returned them",
            fix="return a record of edgert, such as Detections, Classification, Segmentation or Embedding",
        )

    def scores(self, notes: Sequence[Note], reference: Sequence[Note] | None) -> Mapping[str, ImageScores]:
        if reference is None or not notes:
            return {}
        values = [self.of_image(*pair) for pair in zip(notes, reference, strict=True)]
        return {"cosine" if isinstance(notes[0], np.ndarray) else "agreement": mean_of(values)}

    def of_image(self, note: Note, reference: Note) -> float:
        """Return the agreement of two models on one image, 0 to 1."""
        if isinstance(note, np.ndarray):
            return float(cosine(unit(note[None].astype(np.float64)), reference[None]).value)
        return _image_agreement(note, reference)


def is_uninformative(notes: Sequence[Note]) -> str:
    """Return why agreement with these notes of a reference says little; empty if it is informative."""
    if len(notes) < 2:
        return ""
    if all(isinstance(one, Found) for one in notes):
        return "" if any(len(one.boxes) for one in notes) else f"it finds nothing on any of the {len(notes)} images"
    is_same = all(isinstance(one, int | str | tuple) and one == notes[0] for one in notes)
    return f"its result is the same on all {len(notes)} images" if is_same else ""


def _small_copy(record: DepthMap | AnomalyMap | OutputImage) -> Any:
    """Return a map or image in 64 x 64 minus its mean, flattened."""
    name = {DepthMap: "depth", AnomalyMap: "scores", OutputImage: "pixels"}[type(record)]
    copy = cv2.resize(getattr(record, name).astype(np.float32), (64, 64), interpolation=cv2.INTER_AREA)
    return (copy - copy.mean()).reshape(-1)


def _image_agreement(one: Note, other: Note) -> float:
    if isinstance(one, Packed):
        return float(np.mean(one.mask() == other.mask())) if one.shape == other.shape else 0.0
    if not isinstance(one, Found):
        return float(one == other)
    total = len(one.boxes) + len(other.boxes)
    return 2 * _same_boxes(one, other) / total if total else 1.0


def _same_boxes(one: Found, other: Found) -> int:
    overlap = overlaps(one.boxes, other.boxes)
    overlap[one.classes[:, None] != other.classes] = 0.0
    return count_pairs(overlap, SAME_IOU)


def count_pairs(overlap: Any, least: float) -> int:
    """Return the number of pairs in (N, M) overlaps: each row in turn takes the best column left from ``least`` on.

    The columns that are taken become 0.
    """
    count = 0
    for row in range(len(overlap) if overlap.size else 0):
        best = int(overlap[row].argmax())
        if overlap[row, best] >= least:
            overlap[:, best] = 0.0
            count += 1
    return count


def overlaps(one: Any, other: Any) -> Any:
    """Return the (N, M) float64 intersection over union of (N, 4) and (M, 4) corners."""
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    low, high = np.maximum(one[:, None, :2], other[:, :2]), np.minimum(one[:, None, 2:], other[:, 2:])
    shared = np.clip(high - low, 0.0, None).prod(axis=2)
    areas = [np.clip(some[:, 2:] - some[:, :2], 0.0, None).prod(axis=1) for some in (one, other)]
    union = areas[0][:, None] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


Scorer = BoxScorer | ClassScorer | MaskScorer | IdentityScorer | Agreement


def cosine(vectors: Any, reference: Sequence[Note]) -> Ratio:
    """Return the mean cosine of (n, D) unit vectors and the reference's vectors; negative ones count as 0."""
    others = unit(np.asarray(reference, np.float64))
    return mean_of(np.clip((vectors * others).sum(axis=1), 0.0, 1.0))


def unit(vectors: Any) -> Any:
    """Return (n, D) float64 vectors scaled to length 1; zero vectors stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


def expect(record: Record, kind: type[Any], what: str) -> Any:
    """Return a record of the kind that the labels are for; raise ConfigError for another kind."""
    if not isinstance(record, kind):
        raise ConfigError(
            f"labels of {what} do not fit this model",
            why=f"its task returns {type(record).__name__}, the labels are for {kind.__name__}",
            fix="give labels for what the task returns, or images without labels",
        )
    return record
