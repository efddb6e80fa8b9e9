from typing import Any

import numpy as np
import pytest

from edgert.runtime import Classification, Detections, Keypoints
from edgert.runtime.records import merge_results
from tests.helpers.frames import detections, frame_of, result_of


def test_rows_are_selected_by_number_or_by_truth() -> None:
    found = detections((0, 0, 1, 1), (1, 1, 2, 2), (2, 2, 3, 3), ids=(7, 8, 9))
    for rows in (np.array([2, 0]), np.array([True, False, True])):
        some = found[rows]
        assert len(some) == 2 and some.ids is not None
        assert set(some.ids.tolist()) == {7, 9}
        assert some.labels == found.labels
    assert found[np.array([2, 0])].boxes[0].tolist() == [2, 2, 3, 3]
    assert detections((0, 0, 1, 1))[np.array([0])].ids is None
    assert len(found[np.zeros(3, bool)]) == len(found[[]]) == 0
    assert found[1:].ids.tolist() == found[[1, 2]].ids.tolist() == [8, 9]  # type: ignore[union-attr]
    assert found[[True, False, False]].ids.tolist() == [7]  # type: ignore[union-attr]


def test_one_detection_is_a_record_of_its_own() -> None:
    found = detections((0, 0, 1, 1), (1, 1, 2, 2), ids=(7, 8))
    second = found[1]
    assert (second.box.tolist(), second.id, second.label) == ([1, 1, 2, 2], 8, found.labels[found.classes[1]])
    assert (second.corners, second.mask, second.points) == (None, None, None)
    assert [one.id for one in found] == [7, 8] and found[-1].id == found[np.int64(1)].id == 8
    points = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    assert Keypoints.of(found.boxes, found.scores, points)[1].points is not None
    assert list(detections()) == []


@pytest.mark.parametrize("rows", [3, -4, np.array([3]), np.ones(2, bool), [True] * 4, [0.5], "a"])
def test_rows_that_are_not_there_are_an_index_error(rows: Any) -> None:
    with pytest.raises(IndexError):
        detections((0, 0, 1, 1), (1, 1, 2, 2), (2, 2, 3, 3))[rows]


def test_the_newest_record_of_a_kind() -> None:
    old, new, other = (
        detections((0, 0, 1, 1)),
        detections(),
        Classification(np.ones(1, np.float32), np.ones(1, np.int32)),
    )
    result = result_of().with_output("a", old).with_output("b", other).with_output("c", new)
    assert result.latest(Detections) is new and result.detections is new
    assert result.latest(Classification) is other
    assert result_of().latest(Detections) is None


def test_no_detections_are_an_empty_record() -> None:
    none = result_of().detections
    assert (len(none), none.boxes.shape, none.classes.dtype) == (0, (0, 4), np.int32)


def test_adding_an_output_leaves_the_result_as_it_was() -> None:
    before = result_of(outputs={"a": 1})
    after = before.with_output("b", 2)
    assert before.outputs == {"a": 1} and after.outputs == {"a": 1, "b": 2}
    assert after.frame is before.frame


def test_merging_keeps_what_either_knows() -> None:
    frame, image = frame_of(timestamp_ns=9), np.zeros((2, 2, 3), np.uint8)
    first, second = result_of(frame, {"a": 1}), result_of(frame, {"b": 2})
    painted = type(first)(frame, {"c": 3}, image)
    one = merge_results(merge_results(first, second), painted)
    assert one.outputs == {"a": 1, "b": 2, "c": 3}
    assert one.image is image and merge_results(painted, first).image is image
    assert one.timestamp_ns == 9


def test_records_are_printed_in_a_line() -> None:
    found = detections((0, 0, 1, 1), (9.6, 20, 30, 40), ids=(7, 8))
    label = found.labels[found.classes[1]]
    assert str(found[1]) == f"#8 {label} {found.scores[1]:.2f} [10 20 30 40]"
    assert repr(found) == f"Detections(2; {found[0]}; {found[1]})"
    assert repr(found[[]]) == "Detections(0)" and repr(found[[0] * 6]).endswith(f"{found[0]}; …)")
    best = Classification(np.array([0.75, 0.2], np.float32), np.array([1, 9], np.int32), ("cat", "dog"))
    assert repr(best) == "Classification(dog 0.75; 9 0.20)"
