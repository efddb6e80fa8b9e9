"""Evidence rewards answers that another view confirms and the control does not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgert.runtime import Classification, Detections, Embedding, Segmentation
from edgert.stages.crop import Geometry
from edgert.wiring.evidence import NOTHING, Answers, Evidence, record_similarity, relative_to_best, weigh
from edgert.wiring.photos import make_photo

GEOMETRY = Geometry(1.0, 1.0, 0.0, 0.0, (64, 64), (0.0, 0.0, 64.0, 64.0))
IMAGE = np.zeros((64, 64, 3), np.uint8)
PHOTO, SHIFTED = make_photo(Path("p"), IMAGE, IMAGE, "detect"), make_photo(Path("p"), IMAGE, IMAGE, "classify")
NOWHERE: list[list[float]] = []


def boxes(rows: list[list[float]], score: float = 0.8, classes: int = 3) -> Detections:
    count = len(rows)
    return Detections(
        np.array(rows, np.float32).reshape(-1, 4), np.full(count, score, np.float32), np.full(count, classes, np.int32)
    )


def seen(first: object, second: object, control: object, maps: list[np.ndarray] | None = None) -> Evidence:
    raw = [((array,), GEOMETRY) for array in maps or [np.zeros(1)] * 3]
    photo = replace(PHOTO, views=PHOTO.views[:2])
    return weigh(Answers((first, second), control, tuple(raw[:2]), raw[2]), photo)


def test_an_object_that_the_mirror_image_shows_too_is_confirmed() -> None:
    found = seen(boxes([[10, 10, 30, 30]]), boxes([[34, 10, 54, 30]]), boxes(NOWHERE))
    assert found.confirmed == pytest.approx(0.8**3)
    assert found.value == pytest.approx(0.8**3)


def test_objects_that_do_not_move_with_the_image_are_not() -> None:
    assert seen(boxes([[10, 10, 30, 30]]), boxes([[10, 10, 30, 30]]), boxes(NOWHERE)).value == 0


def test_another_class_confirms_nothing() -> None:
    assert seen(boxes([[10, 10, 30, 30]]), boxes([[34, 10, 54, 30]], classes=4), boxes(NOWHERE)).value == 0


def test_a_model_that_finds_as_much_in_the_control_finds_nothing() -> None:
    everywhere = [[0.0, 0.0, 64.0, 64.0]] * 20
    found = seen(boxes(everywhere), boxes(everywhere), boxes(everywhere))
    assert found.confirmed == pytest.approx(20 * 0.8**3)
    assert found.value == 0


def test_one_object_in_the_control_is_an_accident() -> None:
    first, second = boxes([[10, 10, 30, 30]]), boxes([[34, 10, 54, 30]])
    assert seen(first, second, boxes([[40, 0, 60, 20]])).value == seen(first, second, boxes(NOWHERE)).value


def test_unconfirmed_objects_lower_the_value() -> None:
    two = boxes([[10, 10, 30, 30], [40, 40, 60, 60]])
    one = boxes([[34, 10, 54, 30]])
    assert seen(two, one, boxes(NOWHERE)).value < seen(one, boxes([[10, 10, 30, 30]]), boxes(NOWHERE)).value


def test_numbers_beyond_1_are_no_scores_but_angles_or_logits_read_as_some() -> None:
    pairs = [(boxes([[10, 10, 30, 30]], score), boxes([[34, 10, 54, 30]], score)) for score in (1.01, 1.1)]
    rounded, angles = (seen(*pair, boxes(NOWHERE)) for pair in pairs)
    assert rounded.value == pytest.approx(1)
    assert angles.value == 0


def classes(*scores: float) -> Classification:
    return Classification(np.array(scores, np.float32), np.arange(len(scores), dtype=np.int32))


def test_classes_are_wanted_that_views_share_and_the_control_does_not() -> None:
    sure, other, flat = classes(0.9, 0.05, 0.05), classes(0.05, 0.05, 0.9), classes(0.34, 0.33, 0.33)
    raw = (((np.zeros(3),), GEOMETRY),) * 5
    good = weigh(Answers((sure,) * 5, other, raw, raw[0]), SHIFTED)
    stuck = weigh(Answers((sure,) * 5, sure, raw, raw[0]), SHIFTED)
    unsure = weigh(Answers((flat,) * 5, flat, raw, raw[0]), SHIFTED)
    assert good.confirmed == pytest.approx(1) and good.value > 0.5
    assert stuck.value == pytest.approx(0, abs=1e-6) and unsure.value == pytest.approx(0, abs=1e-6)


def test_heads_that_tell_only_what_scores_enough_are_weighed_too() -> None:
    raw = (((np.zeros(3),), GEOMETRY),) * 5
    views = (classes(0.9), classes(0.9, 0.1), *(classes(0.9),) * 3)
    some = weigh(Answers(views, classes(0.1, 0.1, 0.8), raw, raw[0]), SHIFTED)
    assert some.value > 0.5
    assert record_similarity(classes(0.9), classes(0.9, 0.1)) == pytest.approx(0.9)


def test_vectors_are_compared_by_their_direction() -> None:
    record, control = Embedding(np.array([3, 4], np.float32)), Embedding(np.array([4, -3], np.float32))
    found = seen(record, Embedding(np.array([6, 8], np.float32)), control)
    assert found.value == pytest.approx(1)


def masks() -> tuple[np.ndarray, np.ndarray]:
    left = np.zeros((2, 32, 32), np.float32)
    left[1, :, :12] = 20
    left[0, :, 12:] = 20
    return left, np.ascontiguousarray(left[..., ::-1])


def segmentation(maps: np.ndarray) -> Segmentation:
    return Segmentation(maps.argmax(axis=0).astype(np.uint8), (0.0, 0.0, 64.0, 64.0))


def test_a_mask_that_moves_with_the_image_carries_information() -> None:
    left, right = masks()
    blank = np.stack([np.full((32, 32), 20, np.float32), np.zeros((32, 32), np.float32)])
    record = segmentation(left)
    moving = seen(record, segmentation(right), segmentation(blank), [left, right, blank])
    fixed = seen(record, record, segmentation(blank), [left, left, blank])
    empty = seen(segmentation(blank), segmentation(blank), segmentation(blank), [blank] * 3)
    share = 12 / 32
    entropy = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert moving.value == pytest.approx(entropy, abs=0.03)
    assert fixed.value < moving.value / 2
    assert empty.value == pytest.approx(0, abs=1e-6)


def test_shares_behind_a_softmax_are_taken_as_they_are() -> None:
    shares = [(maps == maps.max(axis=0)).astype(np.float32) for maps in masks()]
    blank = np.stack([np.ones((32, 32), np.float32), np.zeros((32, 32), np.float32)])
    record = segmentation(shares[0])
    assert seen(record, record, segmentation(blank), [*shares, blank]).value > 0.9


def test_channels_may_come_last() -> None:
    left, right = (np.ascontiguousarray(maps.transpose(1, 2, 0)) for maps in masks())
    record = segmentation(masks()[0])
    assert seen(record, record, record, [left, right, np.zeros_like(left)]).value > 0.9


def test_records_that_only_the_user_knows_weigh_nothing() -> None:
    assert seen({"mine": 1}, {"mine": 1}, {"mine": 1}) == NOTHING


def test_counts_are_parts_of_the_best_setting_and_never_of_less_than_one_object() -> None:
    assert relative_to_best([4.0, 2.0], "detect") == [1.0, 0.5]
    assert relative_to_best([0.15, 0.03], "detect") == pytest.approx([0.3, 0.06])
    assert relative_to_best([0.7, 0.9], "classify") == [0.7, 0.9]


def test_sameness_is_one_for_equal_records_and_zero_for_strangers() -> None:
    first, far = boxes([[10, 10, 30, 30]]), boxes([[40, 40, 60, 60]])
    assert record_similarity(first, first) == pytest.approx(1)
    assert record_similarity(first, far) == 0
    assert record_similarity(boxes(NOWHERE), boxes(NOWHERE)) == 1
    assert record_similarity(classes(1, 0), classes(0, 1)) == 0
    left, right = (segmentation(maps) for maps in masks())
    assert record_similarity(left, left) == 1 and record_similarity(left, right) == 0
    assert record_similarity(first, left) == 0
