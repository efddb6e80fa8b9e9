"""What INT8 costs in accuracy, by our default recipe and by other quantisers, on the same pictures.

    python tests/bench/bench_int8_accuracy.py [--json FILE]

Classifiers are judged two-fold: calibrated on each half of 250 ImageNet pictures (in the albums' fair order) and scored
on the other, so that all 250 are scored by a model that has not seen them. Detectors are calibrated on 128 pictures of
COCO's training set and scored on 64 of its validation set, boxes from a score of 0.01 on, overlap 0.6, by COCO's own
evaluator. Everything runs on ONNX Runtime.

The peers are onnxruntime.quantization.quantize_static (QDQ, per channel; entropy, percentile and minmax, its own
settings otherwise) and, where EDGERT_MODELOPT names a Python that has it, nvidia-modelopt (entropy and max). They get
the same pictures and the same prepared float model. The best of them by the metric, for each model, is the one we are
compared with: a paired bootstrap over the pictures. Exits 1 where the drop from FP32 is above its bar, or where the
better peer is better than us beyond that interval.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import report
from peer_model import MODELOPT, makers, peer_model
from zoo import DATA, IMAGENET, NEEDED, chosen, is_classifier, model_config, model_path, photographs, some

from edgert.accuracy import Accuracy, Dataset, Exam, compare, evaluate, open_dataset, open_exam
from edgert.accuracy.truth import ClassTruth
from edgert.album import PhotoAlbum
from edgert.bench.measure import Figure
from edgert.config import ModelConfig
from edgert.graph import load
from edgert.graph.model import Model
from edgert.precision import calibrate_section, quantize_section

DROPS = {"squeezenet_fp32": 1.0, "mobilenet_v1_025_224": 1.0, "yolox_nano_416": 0.7, "nanodet_m_320": 0.7}
"""Largest drop from FP32, in points."""
HALF = 125

Maker = Callable[["Fold"], Model]
"""Makes a model of a fold's pictures."""


@dataclass(frozen=True)
class Fold:
    """Pictures to calibrate on, ``count`` from ``first`` on, and others to be judged by."""

    name: str
    first: int
    count: int
    exam: Exam

    @property
    def album(self) -> PhotoAlbum:
        """The pictures to calibrate on."""
        return some(photographs(self.name), self.first, self.count)


def metric_of(name: str) -> str:
    """What a model is judged by."""
    return "top1" if is_classifier(name) else "map"


def folds(name: str) -> list[Fold]:
    """Both halves of ImageNet's pictures against each other, or COCO's training pictures against the others."""
    config = model_config(name)
    if is_classifier(name):
        whole = open_dataset(f"{IMAGENET}_labels.csv", config.task)
        halves = [_exam(config, _part(whole, first)) for first in (HALF, 0)]
        return [Fold(name, first, HALF, exam) for first, exam in zip((0, HALF), halves, strict=True)]
    exam = _exam(config, open_dataset(DATA / "images" / "coco_val.json", config.task))
    return [Fold(name, 0, len(photographs(name)), exam)]


def _exam(config: ModelConfig, dataset: Dataset) -> Exam:
    return open_exam(load(config.onnx), config, dataset, labels=())


def _part(whole: Dataset, first: int) -> Dataset:
    assert isinstance(whole.album, PhotoAlbum) and isinstance(whole.truth, ClassTruth)
    assert whole.album.names == photographs("squeezenet_fp32").names  # the same order: so the halves are disjoint
    truth = ClassTruth(whole.truth.classes[first : first + HALF])
    return replace(whole, album=some(whole.album, first, HALF), truth=truth)


def examined(title: str, make: Maker, parts: Sequence[Fold]) -> Accuracy:
    """One result of all parts' exams, each by the model made for it."""
    results = [evaluate(make(fold), fold.exam, name=title) for fold in parts]
    known = [one for one in results if one is not None]
    if len(known) == 1:
        return known[0]
    notes = tuple(note for one in known for note in one.notes)
    evidence = parts[0].exam.scorer.evidence(notes, None)
    values = {metric: found.value for metric, found in evidence.items()}
    return replace(known[0], images=len(notes), values=values, evidence=evidence, notes=notes)


def ours(fold: Fold) -> Model:
    """By the default recipe, on all the pictures that the peers get."""
    config = model_config(fold.name, calibrate={"images": str(fold.album.paths[0].parent), "early_stop": False})
    calibrated = calibrate_section(config, album=fold.album)
    return quantize_section(config, calibrated, judged=False).model


def peers(name: str, parts: Sequence[Fold]) -> list[Accuracy]:
    """Every peer's result, the best first."""
    found = []
    for peer in makers():
        results = examined(peer, lambda fold, peer=peer: peer_model(peer, fold.name, fold.first, fold.count), parts)
        print(f"       {name} {peer}: {metric_of(name)} {results.values[metric_of(name)]:.4f}", flush=True)
        found.append(results)
    return sorted(found, key=lambda one: -one.values[metric_of(name)])


def measure() -> Iterator[Figure]:
    """Every model's drop, and its distance from the better peer."""
    report.needs(*NEEDED)
    print(f"  ModelOpt: {'yes' if any('ModelOpt' in peer for peer in makers()) else f'no, set {MODELOPT} to a Python'}")
    for name in chosen(tuple(DROPS)):
        yield from figures(name)


def figures(name: str) -> Iterator[Figure]:
    """Of one model, in points; the intervals hold 95 %."""
    parts, metric = folds(name), metric_of(name)
    before = examined("fp32", lambda fold: load(model_path(fold.name)), parts)
    after = examined("int8", ours, parts)
    loss = compare(before, after, metric)
    told = {"fp32": loss.reference, "int8": loss.other, "low": 100 * loss.low, "high": 100 * loss.high}
    yield Figure(f"{name} {metric} drop", 100 * loss.drop, "points", DROPS[name], n=loss.images, detail=told)
    ranked = peers(name, parts)
    behind = compare(ranked[0], after, metric)
    told = {"behind": 100 * behind.drop, "low": 100 * behind.low, "high": 100 * behind.high}
    told |= {f"{one.name} drop": 100 * (before.values[metric] - one.values[metric]) for one in ranked}
    title = f"{name} {metric}, sure distance behind {ranked[0].name}"
    yield Figure(title, 100 * behind.low, "points", 0.0, n=behind.images, detail=told)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    report.main("Accuracy of INT8", measure)
