from __future__ import annotations

import numpy as np

from edgert.runtime import Classification, Detections
from tests.helpers.frames import detections, frame_of, result_of


def test_rows_are_selected_by_number_or_by_truth() -> None:
    found = detections((0, 0, 1, 1), (1, 1, 2, 2), (2, 2, 3, 3), ids=(7, 8, 9))
    for rows in (np.array([2, 0]), np.array([True, False, True])):
        some = found.select(rows)
        assert len(some) == 2 and some.ids is not None
        assert set(some.ids.tolist()) == {7, 9}
        assert some.labels == found.labels
    assert found.select(np.array([2, 0])).boxes[0].tolist() == [2, 2, 3, 3]
    assert detections((0, 0, 1, 1)).select(np.array([0])).ids is None
    assert len(found.select(np.zeros(3, bool))) == 0


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
    merged = first.merged(second).merged(painted)
    assert merged.outputs == {"a": 1, "b": 2, "c": 3}
    assert merged.image is image and painted.merged(first).image is image
    assert merged.timestamp_ns == 9
