"""Consistency of a model's answers, which distinguishes right settings from wrong ones without labels.

A model with suitable input gives confident answers, repeats them when the image is mirrored or shifted, and gives none
for an image without objects. The measures below lie in about 0 to 1 per photo; those that count objects do so after
:func:`relative_to_best`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import combinations

import cv2
import numpy as np
import numpy.typing as npt

from edgert.evaluation.score import overlaps
from edgert.runtime import Classification, Detections, Embedding, OutputImage, Record, Segmentation, Text
from edgert.runtime.frame import U8
from edgert.stages.decode.decoder import Array
from edgert.wiring.photos import Photo, View
from edgert.wiring.trial import Answer

F32 = npt.NDArray[np.float32]

# Consistency of texts and images.
#
# A right text is read again when the edges of the photo are cut off, and no text is read in an image without content.
# A right image keeps the edges and colors of its photo, and its pixels are not clipped at black or white.

_COMPARED_SIDE = 128  # width and height at which images are compared; models may change finer texture
_WHITE = 255


def text_parts(views: Sequence[Text], control: Text) -> tuple[float, float, float]:
    """Return the first view's score, the mean agreement of the views' texts, and the control's score; 0 to 1."""
    pairs = [text_similarity(*pair) * float(np.sqrt(pair[0].score * pair[1].score)) for pair in combinations(views, 2)]
    return views[0].score, float(np.mean(pairs)), control.score if control.text else 0.0


def text_similarity(first: Text, second: Text) -> float:
    """Return the fraction of two texts' words, or class numbers, that are equal and in the same order, 0 to 1."""
    if not first.text or not second.text:
        return 0.0
    return SequenceMatcher(None, first.text.split(), second.text.split(), autojunk=False).ratio()


def image_parts(made: OutputImage, photo: U8) -> tuple[float, float, float]:
    """Compare an image with its photo, (h, w, 3) uint8 BGR.

    Return the correlation of edges, its mean with that of colors, and the fraction of pixels clipped in addition.
    """
    left, top, right, bottom = (max(round(value), 0) for value in made.region)
    small, source = _shrink(made.pixels), _shrink(photo[top:bottom, left:right])
    edges = max(_correlation(_edges(small), _edges(source)), 0.0)
    colors = max(_correlation(_colors(small), _colors(source)), 0.0)
    ends = [float(((one == 0) | (one == _WHITE)).mean()) for one in (made.pixels, photo)]
    cut = max(ends[0] - ends[1], 0.0)
    return edges, (edges + colors) / 2, cut


def image_similarity(first: OutputImage, second: OutputImage) -> float:
    """Return the correlation of two images' pixels, 0 to 1."""
    return max(_correlation(*(_shrink(one.pixels).astype(np.float32) for one in (first, second))), 0.0)


def _shrink(image: U8) -> U8:
    if not image.size:
        return np.zeros((_COMPARED_SIDE, _COMPARED_SIDE, 3), np.uint8)
    small: U8 = cv2.resize(image, (_COMPARED_SIDE, _COMPARED_SIDE), interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
    return small


def _edges(image: U8) -> F32:
    gray = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY).astype(np.float32)
    found: F32 = np.hypot(cv2.Sobel(gray, cv2.CV_32F, 1, 0), cv2.Sobel(gray, cv2.CV_32F, 0, 1)).astype(np.float32)
    return found


def _colors(image: U8) -> F32:
    """Return the two color channels of Lab, without lightness."""
    return cv2.cvtColor(image, cv2.COLOR_BGR2Lab).astype(np.float32)[..., 1:]


def _correlation(first: F32, second: F32) -> float:
    """Return Pearson's correlation; 0 where either is constant."""
    first, second = first - first.mean(), second - second.mean()
    spread = float(np.sqrt((first * first).sum() * (second * second).sum()))
    return float((first * second).sum()) / spread if spread else 0.0


_MATCH_IOU = 0.5
_SUM_ERROR = 0.01  # rounding error of FP16 or INT8 in the sum of probabilities
_GRID, _INSET = 64, 0.06  # points across and down at which segmentations are compared, and the excluded border
_SCORE_POWER = 3
"""Power of the score with which an object counts. With wrong colors and scales, a detector loses its confident objects
first; objects near the threshold appear by chance."""
_TOLERATED_CHANCE, _CHANCE_WEIGHT = 1.0, 2.0
"""One confident object in the control is tolerated; each further one counts twice against those of the photo. A decoder
that takes background for objects finds a hundred in both."""
_LARGEST_SCORE = 1.05
"""Largest possible score, with rounding. Larger outputs are angles or logits, not scores."""
_FULL_EVIDENCE = {"detect": 0.5, "keypoints": 0.5, "segment": 0.1}
"""Measures without an upper limit: the smallest value that is full evidence, 0.5 for an object of score 0.8, and 0.1
bit."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one setting to one photo. The photo itself is the first view."""

    records: tuple[Record, ...]
    control: Record
    raw: tuple[Answer, ...]
    raw_control: Answer


@dataclass(frozen=True, slots=True)
class Evidence:
    """One photo's evidence for one setting.

    Attributes:
        found: what the model finds: objects, each as the cube of its score; the probability of the best class; or the
            fraction of the image that is not background.
        confirmed: part of it that other views of the photo confirm.
        chance: part of it that the control image shows as well.
        value: combination of the three, by which settings are ranked.
    """

    found: float
    confirmed: float
    chance: float
    value: float


NOTHING = Evidence(0.0, 0.0, 0.0, 0.0)


def weigh(answers: Answers, photo: Photo) -> Evidence:
    """Return the evidence in one photo's answers; nothing for records of the user's own code."""
    first = answers.records[0]
    if isinstance(first, Detections):
        return _weigh_boxes(answers, photo)
    if isinstance(first, Classification):
        return _weigh_classes(_distributions(*answers.records, answers.control))
    if isinstance(first, Embedding):
        return _weigh_vectors([record.vector for record in (*answers.records, answers.control)])
    if isinstance(first, Segmentation):
        return _weigh_masks(answers, photo)
    if isinstance(first, Text) and isinstance(answers.control, Text):
        texts = [record for record in answers.records if isinstance(record, Text)]
        found, confirmed, chance = text_parts(texts, answers.control)
        return Evidence(found, confirmed, chance, max(confirmed - chance, 0.0))
    if isinstance(first, OutputImage):
        found, confirmed, chance = image_parts(first, photo.image)
        return Evidence(found, confirmed, chance, confirmed * (1 - chance))
    return NOTHING


def counts_objects(verb: str) -> bool:
    """Return whether evidence of a task counts objects, and is measured relative to the best setting."""
    return verb in _FULL_EVIDENCE


def relative_to_best(values: Sequence[float], verb: str) -> list[float]:
    """Return one photo's values of all settings as fractions of the best, or of full evidence if that is larger."""
    if not counts_objects(verb):
        return list(values)
    best = max([_FULL_EVIDENCE[verb], *values])
    return [value / best for value in values]


def record_similarity(first: Record, second: Record) -> float:
    """Return the agreement of two records of one photo, 0 to 1; 1 means no visible difference."""
    if isinstance(first, Detections) and isinstance(second, Detections):
        pair = _boxes(first), _boxes(second)
        total = float(pair[0][1].sum() + pair[1][1].sum())
        return 1.0 if total == 0 else 2 * _agreement(*pair) / total
    if isinstance(first, Classification) and isinstance(second, Classification):
        return float(np.sqrt(np.prod(_distributions(first, second), axis=0)).sum())
    if isinstance(first, Embedding) and isinstance(second, Embedding):
        return float(first.vector @ second.vector)
    if isinstance(first, Segmentation) and isinstance(second, Segmentation):
        return _mask_similarity(first, second)
    if isinstance(first, Text) and isinstance(second, Text):
        return text_similarity(first, second)
    if isinstance(first, OutputImage) and isinstance(second, OutputImage):
        return image_similarity(first, second)
    return 0.0


_Boxes = tuple[F32, F32, npt.NDArray[np.int32]]


def _boxes(record: Detections, view: View | None = None) -> _Boxes:
    """Return boxes in pixels of the photo, their weights, and their classes."""
    boxes = record.boxes if view is None else view.boxes(record.boxes)
    scores = np.clip(np.nan_to_num(record.scores), 0, 1)
    return boxes, scores**_SCORE_POWER, record.classes


def _weigh_boxes(answers: Answers, photo: Photo) -> Evidence:
    """Return confirmed objects, times their fraction of all objects, times the fraction that is not chance."""
    if any(np.max(record.scores, initial=0) > _LARGEST_SCORE for record in answers.records):
        return NOTHING
    views = [_boxes(record, view) for record, view in zip(answers.records, photo.views, strict=True)]
    found = float(np.mean([weights.sum() for _, weights, _ in views]))
    confirmed = float(np.mean([_agreement(first, second) for first, second in combinations(views, 2)]))
    chance = float(_boxes(answers.control)[1].sum())
    doubt = _CHANCE_WEIGHT * max(chance - _TOLERATED_CHANCE, 0.0)
    value = confirmed * (confirmed / found) * max(1 - doubt / found, 0.0) if found else 0.0
    return Evidence(found, confirmed, chance, value)


def _agreement(first: _Boxes, second: _Boxes) -> float:
    """Match boxes of one class from the best score down; return the sum of IoU times the mean weight of each pair."""
    if not len(first[1]) or not len(second[1]):
        return 0.0
    overlap = overlaps(first[0], second[0]) * (first[2][:, None] == second[2])
    total = 0.0
    for row in np.argsort(-first[1], kind="stable").tolist():
        column = int(overlap[row].argmax())
        if (shared := float(overlap[row, column])) >= _MATCH_IOU:
            total += shared * float(np.sqrt(first[1][row] * second[1][column]))
            overlap[:, column] = 0
    return total


def _distributions(*records: Record) -> list[F32]:
    """Return (C,) class probabilities of each record; missing and negative ones are 0, and the sum is at most 1.

    C covers the classes of all records, because multi-label heads return only classes with a sufficient score.
    """
    known = [record for record in records if isinstance(record, Classification)]
    count = max(int(np.max(record.classes, initial=0)) for record in known) + 1
    found = []
    for record in known:
        scores = np.clip(np.nan_to_num(record.scores), 0, None)
        whole = np.zeros(count, np.float32)
        whole[record.classes] = scores / max(float(scores.sum()), 1.0)
        found.append(whole)
    return found


def _weigh_classes(distributions: Sequence[F32]) -> Evidence:
    """Return the overlap between the views' distributions, minus their overlap with that of the control.

    The overlap is the Bhattacharyya coefficient, sum of sqrt(p q): 1 for equal distributions, 0 for disjoint ones.
    """
    *views, control = distributions
    pairs = [float(np.sqrt(first * second).sum()) for first, second in combinations(views, 2)]
    confirmed = float(np.mean(pairs))
    chance = float(np.sqrt(np.mean(views, axis=0) * control).sum())
    return Evidence(float(np.max(views[0])), confirmed, chance, confirmed - chance)


def _weigh_vectors(vectors: Sequence[F32]) -> Evidence:
    """Return the mean cosine between views, minus the mean cosine with the control."""
    *views, control = [vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in vectors]
    confirmed = float(np.mean([first @ second for first, second in combinations(views, 2)]))
    chance = float(np.mean([view @ control for view in views]))
    return Evidence(float(np.linalg.norm(vectors[0])), confirmed, chance, confirmed - chance)


def _weigh_masks(answers: Answers, photo: Photo) -> Evidence:
    """Return the mutual information, in bits, between the classes of a pixel in the photo and in its other views.

    It is 0 for a uniform mask, and for one that changes with the view. See Ji et al., "Invariant Information Clustering
    for Unsupervised Image Classification and Segmentation", ICCV 2019.
    """
    height, width = photo.image.shape[:2]
    x, y = (_INSET + (1 - 2 * _INSET) * (np.arange(_GRID) + 0.5) / _GRID for _ in range(2))
    views = zip(answers.raw, photo.views, strict=True)
    maps = [_soft_classes(answer, view.columns(x * width), y * height - view.top) for answer, view in views]
    frame = photo.control.frame
    maps.append(_soft_classes(answers.raw_control, x * frame.width, y * frame.height))
    known = [one for one in maps if one is not None]
    if len(known) < len(maps):
        return NOTHING
    first, *others, control = known
    confirmed = float(np.mean([_mutual_information(first, other) for other in others]))
    chance = _mutual_information(control, control)
    covered = float((first.argmax(axis=1) != 0).mean())
    return Evidence(covered, confirmed, chance, max(confirmed - chance, 0.0))


def _soft_classes(answer: Answer, x: Array, y: Array) -> F32 | None:
    """Return (points, C) class probabilities at a grid of view pixels; None where the output is not a map."""
    (output, *_), geometry = answer
    maps = np.squeeze(output).astype(np.float32)
    if maps.ndim not in (2, 3):
        return None
    if maps.ndim == 3:  # channels come last where that fits the network's shape better
        (first, middle, last), (width, height) = maps.shape, geometry.network
        is_last = abs(middle * height - first * width) < abs(last * height - middle * width)
        maps = maps if is_last or first == middle == last else maps.transpose(1, 2, 0)
    rows = _cell_indices(y, geometry.scale_y, geometry.offset_y, maps.shape[0] / geometry.network[1], maps.shape[0])
    columns = _cell_indices(x, geometry.scale_x, geometry.offset_x, maps.shape[1] / geometry.network[0], maps.shape[1])
    picked = np.nan_to_num(maps[rows[:, None], columns])
    if maps.ndim == 2:
        score: F32 = np.clip(picked.reshape(-1, 1), 0, 1)
        return np.concatenate([np.float32(1) - score, score], axis=1)
    flat: F32 = picked.reshape(-1, maps.shape[2])
    if flat.min() >= 0 and np.allclose(flat.sum(axis=1), 1, atol=_SUM_ERROR):
        return flat  # already probabilities
    power = np.exp(flat - flat.max(axis=1, keepdims=True))
    shares: F32 = np.divide(power, power.sum(axis=1, keepdims=True), dtype=np.float32)
    return shares


def _cell_indices(places: Array, scale: float, offset: float, per_pixel: float, count: int) -> Array:
    cells: Array = np.floor((places - offset) / scale * per_pixel).astype(int)
    return cells.clip(0, count - 1)


def _mutual_information(first: F32, second: F32) -> float:
    joint = first.T.astype(np.float64) @ second / len(first)
    joint = (joint + joint.T) / 2
    single = joint.sum(axis=0)
    independent = single[:, None] * single
    held = joint > 0
    return float((joint[held] * np.log2(joint[held] / independent[held])).sum())


def _mask_similarity(first: Segmentation, second: Segmentation) -> float:
    """Return the fraction of equal classes at grid points of the shared region where either class is not 0."""
    low = np.maximum(first.region[:2], second.region[:2])
    high = np.minimum(first.region[2:], second.region[2:])
    steps = (np.arange(_GRID) + 0.5) / _GRID
    x, y = low[0] + steps * (high[0] - low[0]), low[1] + steps * (high[1] - low[1])
    picked = []
    for record in (first, second):
        left, top, right, bottom = record.region
        height, width = record.mask.shape
        rows = np.clip(((y - top) / max(bottom - top, 1e-6) * height).astype(int), 0, height - 1)
        columns = np.clip(((x - left) / max(right - left, 1e-6) * width).astype(int), 0, width - 1)
        picked.append(record.mask[rows[:, None], columns])
    something = (picked[0] != 0) | (picked[1] != 0)
    return float((picked[0] == picked[1])[something].mean()) if something.any() else 1.0
