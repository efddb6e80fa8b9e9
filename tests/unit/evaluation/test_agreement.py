"""Agreement of two models' records where there are no labels."""

import numpy as np
import pytest

from edgert.errors import ConfigError
from edgert.evaluation.score import Agreement, Found, is_uninformative, overlaps
from edgert.runtime import Classification, Detections, Embedding, Keypoints, Segmentation

SCORER = Agreement()


def agreement(one: list[object], other: list[object], metric: str = "agreement") -> float:
    notes, reference = ([SCORER.note(n, record) for n, record in enumerate(some)] for some in (one, other))
    return SCORER.scores(notes, reference)[metric].value


def boxes(*rows: tuple[float, float, float, float], classes: list[int] | None = None) -> Detections:
    array = np.array(rows, np.float32).reshape(-1, 4)
    kinds = np.array(classes if classes is not None else [0] * len(array), np.int32)
    return Detections(array, np.linspace(0.9, 0.5, len(array)).astype(np.float32), kinds)


def test_overlaps_by_hand() -> None:
    found = overlaps([[0, 0, 10, 10], [0, 0, 0, 0]], [[5, 0, 15, 10], [0, 0, 10, 10], [20, 20, 30, 30]])
    np.testing.assert_allclose(found, [[1 / 3, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (boxes(), boxes(), 1.0),
        (boxes((0, 0, 10, 10)), boxes(), 0.0),
        (boxes((0, 0, 10, 10)), boxes((1, 0, 11, 10)), 1.0),
        (boxes((0, 0, 10, 10)), boxes((6, 0, 16, 10)), 0.0),
        (boxes((0, 0, 10, 10), classes=[1]), boxes((0, 0, 10, 10), classes=[2]), 0.0),
        (boxes((0, 0, 10, 10), (50, 0, 60, 10)), boxes((50, 0, 60, 10)), 2 / 3),
        (boxes((0, 0, 10, 10), (1, 0, 11, 10)), boxes((0, 0, 10, 10)), 2 / 3),
    ],
)
def test_boxes_are_paired_once_and_by_class(one: Detections, other: Detections, wanted: float) -> None:
    assert agreement([one], [other]) == pytest.approx(wanted)
    assert agreement([other], [one]) == pytest.approx(wanted)


def test_images_count_alike() -> None:
    assert agreement([boxes((0, 0, 9, 9)), boxes()], [boxes((0, 0, 9, 9)), boxes((0, 0, 9, 9))]) == 0.5


def test_bodies_are_compared_by_their_boxes() -> None:
    body = Keypoints.of(np.array([[0, 0, 9, 9]], np.float32), np.ones(1, np.float32), np.zeros((1, 17, 3), np.float32))
    note = SCORER.note(0, body)
    assert isinstance(note, Found) and agreement([body], [body]) == 1


def test_the_best_class_is_what_counts() -> None:
    def of(*classes: int) -> Classification:
        return Classification(np.linspace(0.9, 0.1, len(classes), dtype=np.float32), np.array(classes, np.int32))

    assert agreement([of(3, 1), of(1, 2)], [of(3, 2), of(2, 1)]) == 0.5


def test_masks_agree_pixel_by_pixel() -> None:
    mask = np.zeros((4, 5), np.uint8)
    other = mask.copy()
    other[0] = 7
    region = (0.0, 0.0, 5.0, 4.0)
    assert agreement([Segmentation(mask, region)], [Segmentation(other, region)]) == 0.75
    assert agreement([Segmentation(mask.T, region)], [Segmentation(other.T, region)]) == 0.75


def test_vectors_by_their_cosine() -> None:
    one = [Embedding(np.array(v, np.float32)) for v in ([1, 0], [0, 2], [1, 0])]
    other = [Embedding(np.array(v, np.float32)) for v in ([3, 0], [1, 1], [-1, 0])]
    assert agreement(one, other, "cosine") == pytest.approx((1 + 0.5**0.5 + 0) / 3)


def test_without_a_reference_nothing_is_said() -> None:
    assert SCORER.scores([1, 2], None) == {}


def test_a_users_own_record_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot compare two dict"):
        SCORER.note(0, {"a": 1})


def test_a_reference_that_tells_nothing_apart_is_no_yardstick() -> None:
    nothing, something = (SCORER.note(0, boxes(*rows)) for rows in ((), ((0, 0, 9, 9),)))
    assert is_uninformative([nothing, nothing]) == "it finds nothing on any of the 2 images"
    assert is_uninformative([3, 3, 3]) == "its result is the same on all 3 images" == is_uninformative([("a", 1)] * 3)
    for notes in ([3], [3, 4], [nothing, something], [something, something], [np.ones(3), np.ones(3)], []):
        assert not is_uninformative(notes)
