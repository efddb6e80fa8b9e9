"""Suppression against the plain algorithm, one box at a time; and across classes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from edgert.config import DetectTask, KeypointsTask
from edgert.errors import ConfigError
from edgert.stages.decode.detection import CANDIDATES, Detector, strongest, suppress
from edgert.stages.decode.kinds import decoder_for
from tests.helpers.known_boxes import greedy, identity

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def scene(seed: int, count: int, class_count: int, crowd: int) -> tuple[F32, F32, I32]:
    """Integer boxes, so that overlaps are exact in float32; scores with ties."""
    rng = np.random.default_rng(seed)
    corner, size = rng.integers(0, crowd, (count, 2)), rng.integers(0, 60, (count, 2))
    boxes = np.hstack([corner, corner + size]).astype(np.float32)
    return boxes, rng.integers(0, 50, count).astype(np.float32) / 50, rng.integers(0, class_count, count, np.int32)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 120),
    class_count=st.integers(1, 4),
    crowd=st.sampled_from([20, 100, 400]),
    iou=st.sampled_from([0.0, 0.31, 0.453, 0.77, 1.0]),
    limit=st.sampled_from([1, 7, 300]),
)
def test_it_keeps_what_the_plain_algorithm_keeps(
    seed: int, count: int, class_count: int, crowd: int, iou: float, limit: int
) -> None:
    boxes, scores, classes = scene(seed, count, class_count, crowd)
    expected = greedy(boxes, scores, iou, classes)[:limit]
    assert suppress(boxes, scores, classes, iou, limit).tolist() == expected


@pytest.mark.parametrize("limit", [40, 10_000])
def test_blocks_agree_with_the_plain_algorithm(limit: int) -> None:
    """More boxes than are looked at in one go."""
    boxes, scores, classes = scene(3, 900, 3, 300)
    expected = greedy(boxes, scores, 0.453, classes)[:limit]
    assert suppress(boxes, scores, classes, 0.453, limit).tolist() == expected


def test_a_chain_is_settled_link_by_link() -> None:
    """Each box overlaps its neighbors alone: the first suppresses the second, which then cannot touch the third."""
    start = np.arange(100, dtype=np.float32) * 4
    boxes = np.stack([start, 0 * start, start + 10, 0 * start + 10], axis=1)
    rows = suppress(boxes, np.linspace(0.9, 0.1, 100, dtype=np.float32), np.zeros(100, np.int32), 0.4, 300)
    assert rows.tolist() == list(range(0, 100, 2))


def test_at_exactly_the_threshold_both_stay() -> None:
    boxes = np.array([[0, 0, 2, 1], [0, 0, 1, 1]], np.float32)
    scores, classes = np.array([0.9, 0.8], np.float32), np.zeros(2, np.int32)
    assert suppress(boxes, scores, classes, 0.5, 9).tolist() == [0, 1]
    assert suppress(boxes, scores, classes, 0.499, 9).tolist() == [0]


def test_classes_stay_apart_also_below_zero() -> None:
    boxes = np.array([[0, 0, 10, 10], [-11, -11, -1, -1]], np.float32)
    assert len(suppress(boxes, np.array([0.9, 0.8], np.float32), np.array([0, 1], np.int32), 0.1, 9)) == 2


def test_only_the_best_candidates_are_looked_at() -> None:
    count = CANDIDATES + 500
    start = np.arange(count, dtype=np.float32) * 3
    boxes = np.stack([start, start, start + 1, start + 1], axis=1)
    scores = np.linspace(0, 1, count, dtype=np.float32)
    rows = suppress(boxes, scores, np.zeros(count, np.int32), 0.5, count)
    assert rows.tolist() == list(range(count - 1, 499, -1))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9) | st.just(np.nan)), st.integers(1, 12))
def test_strongest_is_the_head_of_a_stable_sort(values: list[float], limit: int) -> None:
    scores = np.array(values, np.float32)
    order = sorted(range(len(values)), key=lambda row: (values[row] != values[row], -np.nan_to_num(values[row])))
    assert strongest(scores, limit).tolist() == order[:limit]


WHOLE = identity((64, 64))


def columns(*rows: tuple[float, ...]) -> Any:
    """(numbers, 84): each row is a column, the rest nothing."""
    table = np.zeros((len(rows[0]), 84), np.float32)
    table[:, : len(rows)] = np.array(rows, np.float32).T
    return table


BOXES = {
    "yolov8": [columns((32, 32, 20, 20, 0.9, 0), (32, 32, 20, 20, 0, 0.8))],
    "yolov5": [np.pad([[32, 32, 20, 20, 1, 0.9, 0], [32, 32, 20, 20, 1, 0, 0.8]], ((0, 250), (0, 0)))],
    "yolov8-obb": [columns((32, 32, 20, 20, 0.9, 0, 0.1), (32, 32, 20, 20, 0, 0.8, 0.1))],
    "yolov8-seg": [columns((32, 32, 20, 20, 0.9, 0, 1), (32, 32, 20, 20, 0, 0.8, 1)), np.ones((1, 16, 16), np.float32)],
    "ssd": [np.array([[0, 0.9, 0], [0, 0, 0.8]], np.float32), np.array([[0.3, 0.3, 0.6, 0.6]] * 2, np.float32)],
    "yolo-nas": [np.array([[0.9, 0], [0, 0.8]], np.float32), np.array([[22, 22, 42, 42]] * 2, np.float32)],
    # Suppressed by the model itself, within each class.
    "yolov10": [np.array([[22, 22, 42, 42, 0.9, 0], [22, 22, 42, 42, 0.8, 1]] + 8 * [[0] * 6], np.float32)],
    "detr": [
        np.array([[9, -9], [-9, 8]] + 9 * [[-9, -9]], np.float32),
        np.array([[0.5, 0.5, 0.3, 0.3]] * 11, np.float32),
    ],
}


@pytest.mark.parametrize("head", BOXES)
def test_the_best_of_all_classes_stays(head: str) -> None:
    outputs = [np.asarray(one, np.float32) for one in BOXES[head]]
    apart = decoder_for(DetectTask(detect=head), ())(outputs, WHOLE)
    together = decoder_for(DetectTask(detect=head, options={"agnostic": True}), ())(outputs, WHOLE)
    assert sorted(apart.classes.tolist()) == [0, 1]  # type: ignore[union-attr]
    assert together.classes.tolist() == [0] and together.boxes.tolist() == apart.boxes[:1].tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("is_final", [False, True])
def test_bodies(is_final: bool) -> None:
    rows = (32, 32, 20, 20, 0.9, 0, 30, 30, 1), (32, 32, 20, 20, 0, 0.8, 30, 30, 1)
    final = [[22, 22, 42, 42, 0.9, 0, 30, 30, 1], [22, 22, 42, 42, 0.8, 1, 30, 30, 1]]
    outputs = [np.array(final, np.float32) if is_final else columns(*rows)]
    found = [
        decoder_for(KeypointsTask(keypoints="yolo-pose", options={"classes": 2, "agnostic": agnostic}), ())(
            outputs, WHOLE
        )
        for agnostic in (False, True)
    ]
    assert [one.classes.tolist() for one in found] == [[0, 1], [0]]  # type: ignore[union-attr]


def test_objects_that_stand_apart_stay() -> None:
    table = columns((16, 16, 20, 20, 0.9, 0), (48, 48, 20, 20, 0, 0.8))
    assert len(decoder_for(DetectTask(detect="yolov8", options={"agnostic": True}), ())([table], WHOLE)) == 2  # type: ignore[arg-type]


def test_another_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="option 'agnostic' of decoder 'yolov8' cannot be 'maybe'"):
        decoder_for(DetectTask(detect="yolov8", options={"agnostic": "maybe"}), ())
    with pytest.raises(ConfigError, match="no option 'agnostik'; did you mean 'agnostic'"):
        decoder_for(DetectTask(detect="yolov8", options={"agnostik": True}), ())
    assert isinstance(decoder_for(DetectTask(detect="yolov8"), ()), Detector)
