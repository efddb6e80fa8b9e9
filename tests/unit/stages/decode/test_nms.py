"""Suppression against the plain algorithm, one box at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from edgert.stages.decode.detection import CANDIDATES, strongest, suppress

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def plain(boxes: F32, scores: F32, classes: I32, iou: float, limit: int) -> list[int]:
    """Greedy suppression as in textbooks."""
    kept: list[int] = []
    corners = boxes.tolist()
    for row in sorted(range(len(scores)), key=lambda row: (-scores[row], row)):
        if all(classes[row] != classes[other] or overlap(corners[row], corners[other]) <= iou for other in kept):
            kept.append(row)
    return kept[:limit]


def overlap(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union else 0.0


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
    expected = plain(boxes, scores, classes, iou, limit)
    assert suppress(boxes, scores, classes, iou, limit).tolist() == expected


@pytest.mark.parametrize("limit", [40, 10_000])
def test_blocks_agree_with_the_plain_algorithm(limit: int) -> None:
    """More boxes than are looked at in one go."""
    boxes, scores, classes = scene(3, 900, 3, 300)
    expected = plain(boxes, scores, classes, 0.453, limit)
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


def test_classes_do_not_suppress_each_other() -> None:
    boxes = np.tile(np.array([[0, 0, 9, 9]], np.float32), (3, 1))
    rows = suppress(boxes, np.array([0.5, 0.9, 0.7], np.float32), np.array([1, 0, 1], np.int32), 0.5, 9)
    assert rows.tolist() == [1, 2]


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
