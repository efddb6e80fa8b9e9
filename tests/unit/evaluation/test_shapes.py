"""Masks, points and oriented boxes against COCO's evaluator by its own means, exact geometry, and by hand."""

import contextlib
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import shapely
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from edgert.dataset.labels import GroundTruthBoxes
from edgert.errors import ConfigError
from edgert.evaluation.coco_metric import precision, run_lengths, turned_overlap
from edgert.evaluation.score import BoxScorer
from edgert.runtime import Detections, Segmentation
from tests.unit.evaluation.detections import labeled, scene

SIZE = (430, 440)


def mask_of(box: np.ndarray) -> Segmentation:
    """An ellipse in a box, as a network sees it: 28 x 28."""
    y, x = np.mgrid[0:28, 0:28] / 13.5 - 1
    x1, y1, x2, y2 = box.tolist()
    return Segmentation((x * x + y * y <= 1).astype(np.uint8), (x1, y1, x2, y2))


def ring(box: np.ndarray) -> list[float]:
    """The same ellipse, as labels have it."""
    angle = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    center, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
    return list((center + half * np.stack([np.cos(angle), np.sin(angle)], axis=1)).reshape(-1).tolist())


def body(box: np.ndarray, count: int = 17) -> np.ndarray:
    where = np.random.default_rng(3).random((count, 2))
    return np.concatenate([box[:2] + where * (box[2:] - box[:2]), np.full((count, 1), 2.0)], axis=1)


def shaped(seed: int) -> tuple[GroundTruthBoxes, list[Detections]]:
    """The scene of the tests of boxes, with an ellipse and a body in every box."""
    truth, found = scene(10, classes=2, seed=seed, crowds=False)
    images = tuple(
        replace(
            one,
            size=SIZE,
            outlines=tuple([ring(box)] for box in one.corners),
            points=np.array([body(box) for box in one.corners]).reshape(-1, 17, 3),
        )
        for one in truth.images
    )
    records = [
        replace(
            one,
            masks=tuple(map(mask_of, one.boxes)),
            points=np.array([body(box) for box in one.boxes], np.float32).reshape(-1, 17, 3),
        )
        for one in found
    ]
    return replace(truth, images=images), records


def evaluator(truth: GroundTruthBoxes, rows: list[dict[str, Any]], kind: str) -> list[float]:
    """map and map50, by pycocotools with all its own defaults."""
    annotations: list[dict[str, Any]] = []
    for image, one in enumerate(truth.images):
        assert one.outlines is not None and one.points is not None
        for place, box in enumerate(one.corners):
            shapes = {"segmentation": one.outlines[place], "keypoints": one.points[place].reshape(-1).tolist()}
            numbers = {"id": len(annotations) + 1, "image_id": image, "category_id": int(one.classes[place])}
            sides = [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()]
            annotations.append({**numbers, **shapes, "bbox": sides, "area": one.areas[place], "iscrowd": 0,
                                "num_keypoints": 17})  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        index = COCO()
        index.dataset = {
            "images": [{"id": n, "height": SIZE[0], "width": SIZE[1]} for n in range(len(truth.images))],
            "categories": [{"id": n} for n in truth.classes],
            "annotations": annotations,
        }
        index.createIndex()
        run = COCOeval(index, index.loadRes(rows), kind)
        run.evaluate()
        run.accumulate()
        run.summarize()
    return [float(run.stats[0]), float(run.stats[1])]


@pytest.mark.parametrize("seed", range(2))
def test_masks_and_points_are_the_evaluators_own(seed: int) -> None:
    truth, found = shaped(seed)
    scorer = BoxScorer(truth)
    assert scorer.metrics == ("oks_map", "oks_map50", "mask_map", "mask_map50", "map", "map50")
    notes = [scorer.note(n, one) for n, one in enumerate(found)]
    values = scorer.scores(notes, None)
    rows: dict[str, list[dict[str, Any]]] = {"segm": [], "keypoints": []}
    for image, (note, record) in enumerate(zip(notes, found, strict=True)):
        assert note.outlines is not None and record.points is not None
        for place, score in enumerate(record.scores.tolist()):
            same = {"image_id": image, "category_id": int(record.classes[place]), "score": score}
            rows["segm"].append({**same, "segmentation": note.outlines[place]})
            rows["keypoints"].append({**same, "keypoints": record.points[place].reshape(-1).astype(float).tolist()})
    for kind, prefix in (("segm", "mask_"), ("keypoints", "oks_")):
        ours = [values[f"{prefix}{name}"].value for name in ("map", "map50")]
        assert ours == pytest.approx(evaluator(truth, rows[kind], kind), abs=1e-12) and 0.05 < ours[0] < 0.9


def test_a_mask_is_put_where_its_region_is() -> None:
    from pycocotools.mask import decode

    half = np.zeros((4, 4), np.uint8)
    half[:, 2:] = 1
    whole = decode(run_lengths(Segmentation(half, (10, 20, 50, 60)), (100, 80)))
    assert whole.shape == (100, 80) and whole.sum() == 20 * 40 and whole[20:60, 30:50].all()
    outside = decode(run_lengths(Segmentation(half, (70, 90, 110, 130)), (100, 80)))
    assert outside.sum() == 0  # its right half is beyond the image


def turned(center: tuple[float, float], size: tuple[float, float], degrees: float) -> np.ndarray:
    angle, (w, h) = np.radians(degrees), size
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return np.array([[-w, -h], [w, -h], [w, h], [-w, h]]) / 2 @ turn + center


def test_oriented_boxes_overlap_by_their_exact_areas() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        one, other = (
            turned((2000 + 40 * x, 40 * y), (10 + 60 * w, 10 + 60 * h), 360 * angle)
            for x, y, w, h, angle in random.random((2, 5))
        )
        first, second = shapely.Polygon(one), shapely.Polygon(other[::-1])
        wanted = first.intersection(second).area / first.union(second).area
        assert turned_overlap(one, other[::-1]) == pytest.approx(wanted, abs=1e-4)
    assert turned_overlap(one, one) == pytest.approx(1, abs=1e-5) and turned_overlap(one, one * 0) == 0


def test_oriented_boxes_are_judged_by_their_corners_not_by_their_hulls() -> None:
    """A box turned by 90 degrees has another hull and no overlap of 0.5, one moved a little keeps it."""
    corners = np.array([turned((50, 50), (80, 8), 45)])
    hull = np.hstack([corners.min(axis=1), corners.max(axis=1)])
    truth = GroundTruthBoxes((replace(labeled(hull, [0]), turned=corners),), (0,))
    for degrees, wanted in ((45, 1.0), (135, 0.0)):
        seen = np.array([turned((50, 50), (80, 8), degrees)], np.float32)
        record = Detections(hull.astype(np.float32), np.ones(1, np.float32), np.zeros(1, np.int32), corners=seen)
        values = BoxScorer(truth).scores([BoxScorer(truth).note(0, record)], None)
        assert values["obb_map50"].value == pytest.approx(wanted) and values["map50"].value == pytest.approx(1)


def test_points_other_than_a_bodys_share_one_tolerance() -> None:
    """OKS = exp(-d² / (2 area (2 / K)²)): the fourth of four points, off so that its part is 0.3, gives 0.825."""
    box = np.array([[0.0, 0, 100, 100]])
    points = np.array([[[10.0, 10, 2], [90, 10, 2], [10, 90, 2], [90, 90, 2]]])
    truth = GroundTruthBoxes((replace(labeled(box, [0]), points=points),), (0,))
    off = points.astype(np.float32)
    off[0, 3, 0] += np.sqrt(-2 * np.log(0.3) * 1e4) * 2 / 4
    record = Detections(box.astype(np.float32), np.ones(1, np.float32), np.zeros(1, np.int32), points=off)
    judged = precision(truth, [record], "points")
    assert judged["map"].value == pytest.approx(0.7)  # 0.50 to 0.80 of ten thresholds
    assert judged["map50"].value == pytest.approx(1)
    with pytest.raises(ConfigError, match="labels with 4 points do not fit this model"):
        BoxScorer(truth).note(0, replace(record, points=off[:, :3]))


def test_detections_without_shapes_are_judged_by_their_boxes() -> None:
    truth, found = shaped(0)
    plain = [replace(one, masks=None, points=None) for one in found]
    scorer = BoxScorer(truth)
    notes = [scorer.note(n, one) for n, one in enumerate(plain)]
    assert set(scorer.scores(notes, None)) == {"map", "map50"}
    whole = [scorer.note(n, one) for n, one in enumerate(found)]
    nothing = [scorer.note(n, one[np.zeros(len(one), np.bool_)]) for n, one in enumerate(plain)]
    assert scorer.scores(nothing, whole)["mask_map"].value == 0
