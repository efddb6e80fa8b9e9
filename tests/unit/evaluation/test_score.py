"""Scorers with labels: by hand-made records; and scores of images drawn again."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from edgert.dataset.labels import GroundTruthClasses, GroundTruthIdentities, GroundTruthMasks
from edgert.errors import ConfigError
from edgert.evaluation.score import BoxScorer, ClassScorer, IdentityScorer, MaskScorer, Ratio, mean_of
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


def draws(count: int, times: int = 20) -> tuple[list[np.ndarray], np.ndarray]:
    """Images drawn with replacement, and how often each was."""
    random = np.random.default_rng(0)
    drawn = [random.integers(0, count, count) for _ in range(times)]
    return drawn, np.array([np.bincount(one, minlength=count) for one in drawn], np.float64)


def test_a_mean_of_drawn_images() -> None:
    scores = np.random.default_rng(1).random(30)
    drawn, weights = draws(30)
    np.testing.assert_allclose(mean_of(scores).values(weights), [scores[one].mean() for one in drawn])
    assert mean_of([1.0, 0.0, 0.0, 1.0]).value == 0.5


def test_images_that_do_not_count_are_left_out() -> None:
    mean = mean_of(np.array([1.0, np.nan, 0.0]), np.array([True, False, True]))
    assert mean.value == 0.5
    np.testing.assert_array_equal(mean.values(np.array([[2.0, 5, 0], [0, 3, 0]])), [1.0, np.nan])


def test_overlap_of_drawn_images() -> None:
    random = np.random.default_rng(2)
    true, found = random.integers(0, 5, (2, 12, 40))
    true[6:, :] = np.where(true[6:] == 4, 0, true[6:])
    counts = sum(np.array([np.bincount(row, minlength=5) for row in some]) for some in (found, true))
    shared = np.array([np.bincount(t[t == f], minlength=5) for t, f in zip(true, found, strict=True)])
    overlap = Ratio(shared, counts - shared)

    def naive(images: np.ndarray) -> float:
        t, f = true[images].ravel(), found[images].ravel()
        classes = np.union1d(t, f)
        return float(np.mean([((t == c) & (f == c)).sum() / ((t == c) | (f == c)).sum() for c in classes]))

    drawn, weights = draws(12)
    np.testing.assert_allclose(overlap.values(weights), [naive(one) for one in drawn])
    assert overlap.value == pytest.approx(naive(np.arange(12)))
