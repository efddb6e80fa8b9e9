"""Scorers of multiple labels, texts, depth and images, and the choice of a scorer for labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from edgert.config import DetectTask, TaskConfig
from edgert.dataset import labels
from edgert.errors import ConfigError
from edgert.evaluation import coco_metric, score
from edgert.runtime import Classification, DepthMap, OutputImage, Record, Text
from edgert.stages.kinds import ByteTrackStage
from edgert.stages.source.stills import read_image

Scores = Mapping[str, score.ImageScores]


@dataclass(frozen=True, slots=True)
class MultiLabelScorer:
    """Scorer of multiple labels: mean average precision over classes at COCO's 101 recalls, and top-1 accuracy.

    Top-1 accuracy is the share of labeled images whose best class is one of their labels.
    """

    ground_truth: labels.GroundTruthLabels
    metrics: tuple[str, ...] = ("map", "top1")

    def note(self, index: int, record: Record) -> Classification:
        found: Classification = score.expect(record, Classification, "classes")
        return found

    def scores(self, notes: Sequence[score.Note], reference: Sequence[score.Note] | None) -> Scores:
        true = self.ground_truth.classes[: len(notes)]
        best = [bool(len(note.classes)) and int(note.classes[0]) in one for note, one in zip(notes, true, strict=True)]
        every = tuple(
            _class_matches(number, true, notes) for number in sorted({number for one in true for number in one})
        )
        matches = coco_metric.Matches(float("nan"), every)
        value = float(matches.values(np.ones((1, len(notes))))[0])
        labeled = np.array([bool(one) for one in true])
        return {"map": coco_metric.Matches(value, every), "top1": score.mean_of(np.array(best, np.float64), labeled)}


def _class_matches(
    number: int, true: Sequence[tuple[int, ...]], notes: Sequence[Classification]
) -> coco_metric.ClassMatches:
    found = [(float(some.scores[place]), image) for image, some in enumerate(notes)
             for place in np.flatnonzero(some.classes == number)]  # fmt: skip
    found.sort(key=lambda one: -one[0])
    images = np.array([image for _, image in found], np.int64)
    wanted = np.array([float(number in one) for one in true])
    right = wanted[images][None] > 0
    return coco_metric.ClassMatches(images, right, np.ones_like(right), wanted)


@dataclass(frozen=True, slots=True)
class TextScorer:
    """Scorer of texts: character error rate, and the share of texts without an error.

    The rate is the number of insertions, deletions and substitutions divided by the number of true characters.
    """

    ground_truth: labels.GroundTruthTexts
    metrics: tuple[str, ...] = ("cer", "exact")

    def note(self, index: int, record: Record) -> tuple[int, int]:
        """Return the number of edits and of true characters."""
        true = self.ground_truth.texts[index]
        return edits(score.expect(record, Text, "texts").text, true), len(true)

    def scores(self, notes: Sequence[score.Note], reference: Sequence[score.Note] | None) -> Scores:
        counts = np.array(notes, np.float64).reshape(-1, 2)
        return {"cer": score.Ratio(counts[:, :1], counts[:, 1:]), "exact": score.mean_of(counts[:, 0] == 0)}


def edits(one: str, other: str) -> int:
    """Return the Levenshtein distance (V. Levenshtein, 1966)."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        before, row[0] = row[0], number
        for place, wanted in enumerate(other, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (letter != wanted))
    return row[-1]


_NEAR = 1.25


@dataclass(frozen=True, slots=True)
class DepthScorer:
    """Scorer of depth where it is known, as means over images (D. Eigen et al. 2014, arXiv:1406.2283).

    Metrics are the mean relative error, the root mean square error in meters, and the share within a factor of 1.25.
    Depth without a unit, or its inverse, is scaled and shifted to fit each image best (R. Ranftl et al. 2020,
    arXiv:1907.01341).
    """

    ground_truth: labels.GroundTruthDepth
    metrics: tuple[str, ...] = ("abs_rel", "rmse", "delta1")

    def note(self, index: int, record: Record) -> tuple[float, float, float]:
        """Return the three metrics of an image; NaN if no depth is known."""
        file = self.ground_truth.files[index]
        found: DepthMap = score.expect(record, DepthMap, "depth")
        true = labels.covered_part(found.region, labels.read_depth(file), file)
        size = true.shape[1], true.shape[0]
        guess = cv2.resize(found.depth, size, interpolation=cv2.INTER_LINEAR)
        known = np.isfinite(true) & (true > 0) & np.isfinite(guess)
        if not known.any():
            return (np.nan,) * 3
        real, made = true[known].astype(np.float64), guess[known].astype(np.float64)
        made = np.maximum(_to_meters(made, real, found.unit), 1e-3)
        ratio = np.maximum(made / real, real / made)
        off = made - real
        return float(np.mean(np.abs(off) / real)), float(np.sqrt(np.mean(off**2))), float(np.mean(ratio < _NEAR))

    def scores(self, notes: Sequence[score.Note], reference: Sequence[score.Note] | None) -> Scores:
        table = np.array(notes, np.float64).reshape(-1, 3)
        known: labels.Bool = np.all(np.isfinite(table), axis=1)
        return {name: score.mean_of(column, known) for name, column in zip(self.metrics, table.T, strict=True)}


def _to_meters(made: Any, real: Any, unit: str) -> Any:
    """Return found depth in meters, fitted to the real depth if it has no unit."""
    if unit == "metric":
        return made
    wanted = 1 / real if unit == "inverse" else real
    if np.ptp(made) == 0:
        return np.full_like(real, np.median(real))
    scale, shift = np.polyfit(made, wanted, 1)
    line = scale * made + shift
    return 1 / np.maximum(line, 1 / (10 * real.max())) if unit == "inverse" else line


_MOST_DB = 100.0


@dataclass(frozen=True, slots=True)
class ImageScorer:
    """Scorer of the similarity of images to target images, as means over images.

    Metrics are PSNR in dB, 100 at most, and SSIM per color channel with an 11x11 Gaussian (Z. Wang et al. 2004).
    """

    ground_truth: labels.GroundTruthPictures
    metrics: tuple[str, ...] = ("psnr", "ssim")

    def note(self, index: int, record: Record) -> tuple[float, float]:
        file = self.ground_truth.files[index]
        found: OutputImage = score.expect(record, OutputImage, "images")
        true = read_image(file)
        if true is None:
            raise ConfigError(f"cannot read {str(file)!r}", why="it is missing, damaged or not an image")
        if max(found.region[:2]) > 1:
            raise ConfigError(
                "cannot compare a part of an image with the complete target",
                why=f"the model gets its images from {found.region[0]:g},{found.region[1]:g} on",
                fix="set input: {resize: letterbox} or stretch, which keep the complete image",
            )
        size = true.shape[1], true.shape[0]
        made = found.pixels
        if made.shape != true.shape:
            made = cv2.resize(made, size, interpolation=cv2.INTER_LINEAR).astype(np.uint8, copy=False)
        return min(cv2.PSNR(made, true), _MOST_DB), ssim(made, true)

    def scores(self, notes: Sequence[score.Note], reference: Sequence[score.Note] | None) -> Scores:
        table = np.array(notes, np.float64).reshape(-1, 2)
        return {name: score.mean_of(column) for name, column in zip(self.metrics, table.T, strict=True)}


def ssim(one: Any, other: Any) -> float:
    """Return the mean structural similarity of two (h, w, C) uint8 images with sides of at least 11 pixels."""
    first, second = one.astype(np.float64), other.astype(np.float64)

    def mean(image: Any) -> Any:
        return cv2.GaussianBlur(image, (11, 11), 1.5)[5:-5, 5:-5]

    low, high = mean(first), mean(second)
    spread, others = mean(first * first) - low * low, mean(second * second) - high * high
    shared = mean(first * second) - low * high
    small, large = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    top = (2 * low * high + small) * (2 * shared + large)
    found = top / ((low * low + high * high + small) * (spread + others + large))
    return float(found.mean()) if found.size else 1.0


Scorer = score.Scorer | MultiLabelScorer | TextScorer | DepthScorer | ImageScorer


_SCORERS: Mapping[type[Any], type[Any]] = {
    labels.GroundTruthClasses: score.ClassScorer,
    labels.GroundTruthMasks: score.MaskScorer,
    labels.GroundTruthIdentities: score.IdentityScorer,
    labels.GroundTruthLabels: MultiLabelScorer,
    labels.GroundTruthTexts: TextScorer,
    labels.GroundTruthDepth: DepthScorer,
    labels.GroundTruthPictures: ImageScorer,
}


def scorer_for(
    ground_truth: labels.GroundTruth, task: TaskConfig | None = None, tracking: ByteTrackStage | None = None
) -> Scorer:
    """Return the scorer of a kind of labels."""
    if isinstance(ground_truth, labels.GroundTruthBoxes):
        return score.BoxScorer(ground_truth, task.score if isinstance(task, DetectTask) else None, tracking)
    scorer: Scorer = _SCORERS[type(ground_truth)](ground_truth)
    return scorer
