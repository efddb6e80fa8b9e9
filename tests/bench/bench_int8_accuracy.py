"""What INT8 costs in accuracy, by our default recipe and by other quantizers, on the same images.

Classifiers are judged two-fold: calibrated on each half of 250 ImageNet images (in the datasets' fair order) and scored
on the other, so that all 250 are scored by a model that has not seen them. Detectors are calibrated on 128 images of
COCO's training set and scored on 64 of its validation set, boxes from a score of 0.01 on, overlap 0.6, by COCO's own
evaluator. Everything runs on ONNX Runtime.

The default recipe gets no labels: what it keeps in floating point, because INT8 throughout would spoil the model, it
finds by agreement with FP32 on the calibration images, and the row names it. Detectors are also made with a budget of
as much as the bar, which is looked after on the labels of the calibration images: no bar, as it is not the default.

The peers are onnxruntime.quantization.quantize_static (QDQ, per channel; entropy, percentile and minmax, its own
settings otherwise) and, where EDGERT_MODELOPT names a Python that has it, nvidia-modelopt (entropy and max). They get
the same images and the same prepared float model. We are compared with all of them: a paired bootstrap over the
images. The best of several is best by luck as well, so the distance that is sure is taken at a level of 5 % over all
peers together (Bonferroni: 5 % divided by their number for each). Exits 1 where the drop from FP32 is above its bar, or
where some peer is surely better than us.

250 images are few: of a classifier's two points five images are all there is. So classifiers and their peers are
also scored on each image seen ten ways (the middle and four corners, and their mirror images; Krizhevsky et al. 2012,
"ImageNet Classification with Deep Convolutional Neural Networks", section 4.1), each view a verdict of its own, and
images drawn with all their views.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import report
from peer_model import MODELOPT, makers, peer_model
from views import WAYS, Views
from zoo import (
    COCO_CALIB,
    COCO_VAL,
    IMAGENET,
    NEEDED,
    chosen,
    is_classifier,
    model_config,
    model_path as path_of,
    photos,
    some,
)

from edgert.benchmark.measure import Figure
from edgert.config import ModelConfig
from edgert.dataset import FileDataset, LabeledDataset, open_dataset
from edgert.dataset.labels import GroundTruthClasses
from edgert.evaluation import Accuracy, EvaluationSetup, evaluate, open_evaluation
from edgert.graph import Model, load
from edgert.quantization.calibrated import calibrate_section
from edgert.quantization.int8_model import QuantizationResult, quantize_section

DROPS = {"squeezenet_fp32": 1.0, "mobilenet_v1_025_224": 1.0, "yolox_nano_416": 0.7, "nanodet_m_320": 0.7}
"""Largest drop from FP32, in points."""
HALF = 125
RESAMPLES, LEVEL = 4000, 5.0
"""Of the bootstrap: how often images are drawn, and how often, in per cent, a difference by luck may look sure."""
Maker = Callable[["Fold"], Model]
"""Makes a model of a fold's images."""


@dataclass(frozen=True)
class Fold:
    """Images to calibrate on, ``count`` from ``first`` on, and others to be judged by."""

    name: str
    first: int
    count: int
    setup: EvaluationSetup

    @property
    def images(self) -> FileDataset:
        return some(photos(self.name), self.first, self.count)


def metric_of(name: str) -> str:
    return "top1" if is_classifier(name) else "map"


def folds(name: str, *, all_ways: bool = False) -> list[Fold]:
    """Both halves of ImageNet's images against each other, or COCO's training images against the others."""
    config = model_config(name)
    if is_classifier(name):
        whole = open_dataset(f"{IMAGENET}_labels.csv", config.task)
        parts = [_part(whole, first) for first in (HALF, 0)]
        halves = [_setup(config, _seen_all_ways(part) if all_ways else part) for part in parts]
        return [Fold(name, first, HALF, setup) for first, setup in zip((0, HALF), halves, strict=True)]
    return [Fold(name, 0, len(photos(name)), _setup(config, open_dataset(COCO_VAL, config.task)))]


def _seen_all_ways(part: LabeledDataset) -> LabeledDataset:
    assert isinstance(part.images, FileDataset) and isinstance(part.ground_truth, GroundTruthClasses)
    classes = tuple(one for one in part.ground_truth.classes for _ in WAYS)
    return replace(part, images=Views(part.images), ground_truth=GroundTruthClasses(classes))


def _setup(config: ModelConfig, dataset: LabeledDataset) -> EvaluationSetup:
    return open_evaluation(load(config.onnx), config, dataset, labels=())


def _part(whole: LabeledDataset, first: int) -> LabeledDataset:
    assert isinstance(whole.images, FileDataset) and isinstance(whole.ground_truth, GroundTruthClasses)
    assert whole.images.names == photos("squeezenet_fp32").names  # the same order: so the halves are disjoint
    ground_truth = GroundTruthClasses(whole.ground_truth.classes[first : first + HALF])
    return replace(whole, images=some(whole.images, first, HALF), ground_truth=ground_truth)


def examined(title: str, make: Maker, parts: Sequence[Fold]) -> Accuracy:
    """One result of all parts' exams, each by the model made for it."""
    results = [evaluate(make(fold), fold.setup, name=title) for fold in parts]
    known = [one for one in results if one is not None]
    if len(known) == 1:
        return known[0]
    notes = tuple(note for one in known for note in one.notes)
    scores = parts[0].setup.scorer.scores(notes, None)
    values = {metric: found.value for metric, found in scores.items()}
    return replace(known[0], images=len(notes), values=values, scores=scores, notes=notes)


@cache
def outcome(name: str, first: int, budget: float | None = None) -> QuantizationResult:
    """Ours, on all the images that the peers get: by the default recipe, or within a budget on their labels."""
    (fold,) = (one for one in folds(name) if one.first == first)
    sections: dict[str, object] = {"calibrate": {"images": str(fold.images.paths[0].parent), "early_stop": False}}
    if budget is not None:
        sections["accuracy"] = {"dataset": f"{COCO_CALIB}.json", "metric": metric_of(name), "max_drop": budget}
    config = model_config(name, **sections)
    return quantize_section(config, calibrate_section(config, target="ort", images=fold.images))


def ours(fold: Fold) -> Model:
    return outcome(fold.name, fold.first).model


def peers(name: str) -> list[tuple[str, Maker]]:
    return [(peer, lambda fold, peer=peer: peer_model(peer, fold.name, fold.first, fold.count)) for peer in makers()]


@dataclass(frozen=True)
class Distance:
    """How far we are behind the peer furthest ahead, with a 95 % interval; ``sure``: of all peers taken together."""

    peer: str
    behind: float
    low: float
    high: float
    sure: float


def distance(mine: Accuracy, theirs: Sequence[Accuracy], metric: str) -> Distance:
    """By a paired bootstrap over images; views of one image are drawn together."""
    best = max(theirs, key=lambda one: one.values[metric])
    drawn = [_drawn(one, mine, metric) for one in theirs]
    low, high = np.percentile(drawn[theirs.index(best)], [LEVEL / 2, 100 - LEVEL / 2])
    sure = max(np.percentile(one, LEVEL / 2 / len(theirs)) for one in drawn)
    return Distance(best.name, best.values[metric] - mine.values[metric], float(low), float(high), float(sure))


def _drawn(one: Accuracy, other: Accuracy, metric: str) -> np.ndarray:
    images = min(one.images, 2 * HALF)
    weights = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), RESAMPLES)
    each = np.repeat(weights.astype(np.float64), one.images // images, axis=1)
    return one.scores[metric].values(each) - other.scores[metric].values(each)


def measure() -> Iterator[Figure]:
    report.needs(*NEEDED)
    print(f"  ModelOpt: {'yes' if any('ModelOpt' in peer for peer in makers()) else f'no, set {MODELOPT} to a Python'}")
    for name in chosen(tuple(DROPS)):
        yield from figures(name)


def figures(name: str) -> Iterator[Figure]:
    parts, metric = folds(name), metric_of(name)
    yield from _against_all(f"{name} {metric}", parts, _kept(name))
    if is_classifier(name):
        yield from _against_all(f"{name} {metric} seen ten ways", folds(name, all_ways=True), {})
        return
    budget = DROPS[name] / 100
    before = examined("fp32", _float, parts)
    within = examined("int8", lambda fold: outcome(name, fold.first, budget).model, parts)
    title = f"{name} {metric} drop, made with a budget of {DROPS[name]:g} on the calibration images' labels"
    yield _drop(title, before, within, metric, _kept(name, budget), None)


def _against_all(title: str, parts: Sequence[Fold], kept: dict[str, str]) -> Iterator[Figure]:
    name = parts[0].name
    metric = metric_of(name)
    before, after = examined("fp32", _float, parts), examined("int8", ours, parts)
    yield _drop(f"{title} drop", before, after, metric, kept, DROPS[name])
    ranked = [examined(peer, make, parts) for peer, make in peers(name)]
    yield _behind(title, before, after, ranked, metric)


def _float(fold: Fold) -> Model:
    return load(path_of(fold.name))


def _kept(name: str, budget: float | None = None) -> dict[str, str]:
    """Which layers stayed in floating point for accuracy's sake, per fold."""
    found = {}
    for fold in folds(name):
        search = outcome(name, fold.first, budget).search
        if search is not None and search.kept:
            found["kept in FP32"] = " ".join(search.kept)
            print(f"       {name}: {len(search.kept)} layers stay in FP32: {found['kept in FP32']}")
    return found


def _drop(
    title: str, before: Accuracy, after: Accuracy, metric: str, kept: dict[str, str], bar: float | None
) -> Figure:
    low, high = np.percentile(_drawn(before, after, metric), [LEVEL / 2, 100 - LEVEL / 2])
    figures = {"fp32": before.values[metric], "int8": after.values[metric], "low": 100 * low, "high": 100 * high}
    drop = before.values[metric] - after.values[metric]
    return Figure(title, 100 * drop, "points", bar, n=after.images, detail={**figures, **kept})


def _behind(title: str, before: Accuracy, after: Accuracy, ranked: Sequence[Accuracy], metric: str) -> Figure:
    found = distance(after, ranked, metric)
    figures = {f"{one.name} drop": 100 * (before.values[metric] - one.values[metric]) for one in ranked}
    own = {"behind": 100 * found.behind, "low": 100 * found.low, "high": 100 * found.high}
    title = f"{title}, sure distance behind any peer, {found.peer} the best"
    return Figure(title, 100 * found.sure, "points", 0.0, n=after.images, detail={**own, **figures})


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    report.main("Accuracy of INT8", measure)
