"""Average precision: COCO's evaluator's own values, and the same for images drawn again."""

import contextlib
import io
from dataclasses import replace

import numpy as np
import pytest

from edgert.dataset.labels import GroundTruthBoxes
from edgert.evaluation.coco_metric import precision
from edgert.runtime import Detections
from tests.unit.evaluation.detections import labeled, scene


def evaluator(ground_truth: GroundTruthBoxes, found: list[Detections]) -> tuple[float, float]:
    """map50 and map, by pycocotools with all its own defaults and its own summary."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations, rows = list[object](), list[list[float]]()
    for image, boxes in enumerate(ground_truth.images):
        for corners, kind, area, crowd in zip(boxes.corners, boxes.classes, boxes.areas, boxes.crowds, strict=True):
            box = [*corners[:2], *(corners[2:] - corners[:2])]
            one = {"id": len(annotations) + 1, "image_id": image, "category_id": int(kind), "bbox": box}
            annotations.append({**one, "area": area, "iscrowd": int(crowd)})
    for image, record in enumerate(found):
        for corners, score, kind in zip(record.boxes.astype(float), record.scores, record.classes, strict=True):
            rows.append([image, *corners[:2], *(corners[2:] - corners[:2]), score, kind])
    with contextlib.redirect_stdout(io.StringIO()):
        index = COCO()
        index.dataset = {
            "images": [{"id": n} for n in range(len(found))],
            "categories": [{"id": n} for n in ground_truth.classes],
            "annotations": annotations,
        }
        index.createIndex()
        run = COCOeval(index, index.loadRes(np.array(rows)), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return float(run.stats[1]), float(run.stats[0])


@pytest.mark.parametrize("seed", range(6))
def test_values_are_the_evaluators_own(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    ground_truth, found = scene(12, seed=seed)
    judged = precision(ground_truth, found)
    wanted = evaluator(ground_truth, found)
    assert (judged["map50"].value, judged["map"].value) == pytest.approx(wanted, abs=1e-12)
    assert capsys.readouterr().out == "", "pycocotools prints"


@pytest.mark.parametrize("seed", range(6))
def test_resampled_values_are_the_evaluators_on_the_drawn_images(seed: int) -> None:
    ground_truth, found = scene(12, seed=seed)
    judged = precision(ground_truth, found)
    random = np.random.default_rng(seed)
    drawn = [random.integers(0, 12, 12) for _ in range(5)]
    weights = np.array([np.bincount(one, minlength=12) for one in drawn], np.float64)
    wanted = []
    for one in drawn:
        images = tuple(ground_truth.images[n] for n in one)
        wanted.append(evaluator(replace(ground_truth, images=images), [found[n] for n in one]))
    np.testing.assert_allclose(judged["map50"].values(weights), [one[0] for one in wanted], atol=1e-12)
    np.testing.assert_allclose(judged["map"].values(weights), [one[1] for one in wanted], atol=1e-12)
    once = np.ones((1, 12))
    for matches in judged.values():
        assert matches.values(once)[0] == pytest.approx(matches.value, abs=1e-12)


def test_large_and_small_draws_are_worked_on_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    ground_truth, found = scene(20)
    judged = precision(ground_truth, found)["map"]
    weights = np.random.default_rng(0).multinomial(20, [1 / 20] * 20, size=50).astype(np.float64)
    whole = judged.values(weights)
    monkeypatch.setattr("edgert.evaluation.coco_metric._NUMBERS", 100)
    np.testing.assert_array_equal(judged.values(weights), whole)


def test_nothing_found_is_zero_and_nothing_true_is_not_a_number() -> None:
    none = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32))
    ground_truth = GroundTruthBoxes((labeled([[0, 0, 9, 9]], [0]), labeled([], [])), (0,))
    judged = precision(ground_truth, [none, none])["map"]
    assert judged.value == 0
    np.testing.assert_array_equal(judged.values(np.array([[1.0, 1], [0, 2]])), [0, np.nan])


def test_a_perfect_detector_has_one_and_foreign_classes_do_not_count() -> None:
    boxes = np.array([[0, 0, 50, 50], [60, 60, 90, 100]], np.float32)
    ground_truth = GroundTruthBoxes((labeled(boxes, [2, 5]),), (2, 5))
    extra = np.concatenate([boxes, boxes])
    found = Detections(extra, np.array([0.9, 0.8, 0.7, 0.6], np.float32), np.array([2, 5, 7, 8], np.int32))
    judged = precision(ground_truth, [found])
    assert judged["map"].value == pytest.approx(1) and judged["map50"].value == pytest.approx(1)
