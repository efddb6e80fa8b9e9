"""Scorers with labels: by hand-made records."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.dataset.labels import GroundTruthClasses, GroundTruthIdentities, GroundTruthMasks
from edgert.errors import ConfigError
from edgert.evaluation.score import BoxScorer, ClassScorer, IdentityScorer, MaskScorer
from edgert.evaluation.task_scores import scorer_for
from edgert.runtime import Classification, Embedding, Segmentation
from tests.unit.evaluation.detections import scene


def classes(*best: int) -> Classification:
    return Classification(np.linspace(0.9, 0.1, len(best), dtype=np.float32), np.array(best, np.int32))


def test_top1_and_top5() -> None:
    scorer = ClassScorer(GroundTruthClasses((3, 3, 3, 3)))
    records = [classes(3, 1, 2), classes(1, 3, 2), classes(1, 2, 4, 5, 6, 3), classes()]
    scores = scorer.scores([scorer.note(n, record) for n, record in enumerate(records)], None)
    assert {name: one.value for name, one in scores.items()} == {"top1": 0.25, "top5": 0.5}


def test_labels_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        ClassScorer(GroundTruthClasses((3,))).note(0, Embedding(np.ones(3, np.float32)))
    assert "returns Embedding, the labels are for Classification" in caught.value.why


def test_every_kind_of_truth_has_its_scorer() -> None:
    ground_truth, found = scene(3)
    scorer = scorer_for(ground_truth)
    assert isinstance(scorer, BoxScorer)
    assert set(scorer.scores([scorer.note(0, one) for one in found], None)) == set(scorer.metrics)
    assert isinstance(scorer_for(GroundTruthMasks(())), MaskScorer)


def test_mean_overlap_at_the_resolution_of_the_labels(tmp_path: Path) -> None:
    true = np.zeros((8, 12), np.uint8)
    true[:, 6:] = 2
    true[0] = 255
    assert cv2.imwrite(str(tmp_path / "a.png"), true)
    found = np.zeros((4, 6), np.uint8)
    found[:, 4:] = 2  # of 6 columns that are class 2, 4 are found: 7 rows of 4 shared, 6 true
    scorer = MaskScorer(GroundTruthMasks((tmp_path / "a.png",)))
    note = scorer.note(0, Segmentation(found, (0.0, 0.0, 12.0, 8.0)))
    wanted = np.mean([7 * 6 / (7 * 8), 7 * 4 / (7 * 6)])
    assert scorer.scores([note], None)["miou"].value == pytest.approx(wanted)


def test_only_what_a_crop_covers_is_judged(tmp_path: Path) -> None:
    true = np.ones((8, 12), np.uint8)
    true[2:6, 4:8] = 3
    assert cv2.imwrite(str(tmp_path / "a.png"), true)
    scorer = MaskScorer(GroundTruthMasks((tmp_path / "a.png",)))
    note = scorer.note(0, Segmentation(np.full((2, 2), 3, np.uint8), (4.0, 2.0, 8.0, 6.0)))
    assert scorer.scores([note], None)["miou"].value == 1


def test_a_mask_of_another_size_is_named(tmp_path: Path) -> None:
    assert cv2.imwrite(str(tmp_path / "a.png"), np.ones((8, 12), np.uint8))
    scorer = MaskScorer(GroundTruthMasks((tmp_path / "a.png",)))
    with pytest.raises(ConfigError, match=r"a\.png' is 12x8"):
        scorer.note(0, Segmentation(np.zeros((4, 4), np.uint8), (0.0, 0.0, 24.0, 16.0)))


def vectors(*rows: list[float]) -> list[np.ndarray]:
    return [np.array(row, np.float32) for row in rows]


def test_retrieval_counts_images_that_have_a_partner() -> None:
    scorer = IdentityScorer(GroundTruthIdentities(("a", "a", "b", "b", "c")))
    notes = vectors([1, 0], [0.9, 0.1], [0, 1], [1, 0.05], [0.5, 0.5])
    scores = scorer.scores(notes, None)
    assert set(scores) == {"retrieval"}
    # a: the last b stands nearer to both than they do to each other; b, b: nearest are c and a
    assert scores["retrieval"].value == 0.0
    good = scorer.scores(vectors([1, 0], [1, 0.1], [0, 1], [0.1, 1], [0.7, 0.7]), notes)
    assert good["retrieval"].value == 1.0 and 0 < good["cosine"].value < 1
