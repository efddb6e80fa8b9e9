from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.average_precision import average_precision, overlap

BOX = [0.0, 0.0, 10.0, 10.0]
FAR = [50.0, 50.0, 60.0, 60.0]


def test_overlap_of_shifted_and_separate_boxes() -> None:
    table = overlap(np.array([BOX, FAR]), np.array([[5.0, 0.0, 15.0, 10.0]]))
    np.testing.assert_allclose(table, [[1 / 3], [0.0]])


def test_perfect_predictions_score_one() -> None:
    truth = (np.array([BOX, FAR]), np.array([0, 1]))
    assert average_precision([(truth[0], np.array([0.9, 0.3]), truth[1])], [truth]) == 1.0


def test_a_second_box_on_the_same_part_is_wrong() -> None:
    """Ranked right, wrong (double), right: precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1 → 1/2 + 1/2 * 2/3."""
    found = (np.array([BOX, BOX, FAR]), np.array([0.9, 0.8, 0.7]), np.zeros(3))
    assert average_precision([found], [(np.array([BOX, FAR]), np.zeros(2))]) == pytest.approx(5 / 6)


def test_missing_parts_and_wrong_classes_cost() -> None:
    found = (np.array([BOX, FAR]), np.array([0.9, 0.8]), np.array([0, 0]))
    assert average_precision([found], [(np.array([BOX, FAR]), np.array([0, 1]))]) == pytest.approx(0.5)


def test_parts_of_different_images_do_not_mix() -> None:
    nothing = (np.zeros((0, 4)), np.zeros(0), np.zeros(0))
    found = (np.array([BOX]), np.array([0.9]), np.zeros(1))
    truth = (np.array([BOX]), np.zeros(1))
    assert average_precision([found, nothing], [truth, truth]) == pytest.approx(0.5)


def test_without_truth_there_is_no_number() -> None:
    with pytest.raises(ValueError, match="no true box"):
        average_precision([(np.zeros((0, 4)), np.zeros(0), np.zeros(0))], [(np.zeros((0, 4)), np.zeros(0))])
