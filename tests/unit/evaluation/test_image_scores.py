"""ImageScores: metrics of weighted images are those of the images drawn again."""

from __future__ import annotations

import numpy as np
import pytest

from edgert.evaluation.score import Ratio, mean_of


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
