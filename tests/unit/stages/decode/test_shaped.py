"""Oriented boxes and instance masks."""

import math
from typing import Any

import cv2
import numpy as np
from hypothesis import given, settings, strategies as st

from edgert.stages.crop import Geometry
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.instances import YoloV8Seg
from edgert.stages.decode.shaped import YoloV8Obb, gaussian_overlap, gaussians
from tests.helpers.known_boxes import identity

NETWORK = (160, 96)
WHOLE = identity(NETWORK)
LETTERBOX = Geometry(4.0, 4.0, 0.0, -64.0, NETWORK, (0.0, 0.0, 640.0, 256.0))


def oriented(*rows: tuple[float, ...], classes: int = 2, columns: int = 84) -> Any:
    """(4 + classes + 1, columns) of (x, y, w, h, angle, score, class)."""
    output = np.zeros((5 + classes, columns), np.float32)
    for column, (x, y, w, h, angle, score, kind) in enumerate(rows):
        output[[0, 1, 2, 3, -1], 2 * column] = x, y, w, h, angle
        output[4 + int(kind), 2 * column] = score
    return output


def test_corners_are_those_of_the_turned_box_and_the_box_lies_around_them() -> None:
    record = Detector(YoloV8Obb(), labels=("a", "b"))([oriented((80, 50, 40, 10, 0.5, 0.9, 1))], LETTERBOX)
    wanted = cv2.boxPoints(((80, 50), (40, 10), math.degrees(0.5)))
    assert record.corners is not None and record.corners.shape == (1, 4, 2)
    network = (record.corners[0] - [0, -64]) / 4
    for corner in wanted:
        assert np.abs(network - corner).sum(axis=1).min() < 1e-3
    np.testing.assert_allclose(record.boxes[0, :2], record.corners[0].min(axis=0), atol=1e-3)
    np.testing.assert_allclose(record.boxes[0, 2:], record.corners[0].max(axis=0), atol=1e-3)
    assert record.classes.tolist() == [1] and record.labels == ("a", "b")


def test_crossing_boxes_stay_and_the_same_box_turned_by_half_a_turn_goes() -> None:
    across, down = (80, 50, 60, 6, 0, 0.9, 0), (80, 50, 60, 6, math.pi / 2, 0.8, 0)
    again, other = (80, 50, 60, 6, math.pi, 0.7, 0), (80, 50, 60, 6, 0, 0.6, 1)
    record = Detector(YoloV8Obb())([oriented(across, down, again, other)], WHOLE)
    np.testing.assert_allclose(record.scores, [0.9, 0.8, 0.6], atol=1e-6)
    assert not len(Detector(YoloV8Obb())([oriented()], WHOLE))


def probiou(one: Any, other: Any) -> float:
    """Llerena et al. 2021, equations 9 to 13, of two (x, y, w, h, angle), in double precision."""

    def gaussian(x: float, y: float, w: float, h: float, angle: float) -> tuple[Any, Any]:
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        return np.array([x, y]), turn @ np.diag([w * w / 12, h * h / 12]) @ turn.T

    (first, p), (second, q) = gaussian(*one), gaussian(*other)
    mean, apart = (p + q) / 2, first - second
    distance = apart @ np.linalg.inv(mean) @ apart / 8
    distance += 0.5 * math.log(np.linalg.det(mean) / math.sqrt(np.linalg.det(p) * np.linalg.det(q)))
    return 1 - math.sqrt(max(1 - math.exp(-distance), 0))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), iou=st.sampled_from([0.1, 0.45, 0.7, 0.95]))
def test_overlap_is_that_of_gaussians(seed: int, iou: float) -> None:
    random = np.random.default_rng(seed)
    rows = np.hstack([random.uniform(0, 60, (9, 2)), random.uniform(2, 50, (9, 2)), random.uniform(-4, 4, (9, 1))])
    every = np.arange(9)
    over = gaussian_overlap(gaussians(rows.astype(np.float32)), np.zeros(9, np.int32), every, every, iou)
    exact = np.array([[probiou(one, other) for other in rows] for one in rows])
    assert np.array_equal(over, exact > iou) or np.abs(exact - iou)[over != (exact > iou)].max() < 1e-3


def test_boxes_without_a_side_or_a_number_harm_nobody() -> None:
    rows = [(80, 50, 0, 0, 0, 0.9, 0), (80, 50, 20, 9, np.nan, 0.8, 0), (80, 50, 20, 9, 0, 0.7, 0)]
    record = Detector(YoloV8Obb())([oriented(*rows)], WHOLE)
    assert len(record) == 3


def prototypes(count: int = 3, height: int = 24, width: int = 40) -> Any:
    """The first is 1 left of the middle and -1 right of it; others are noise that no box has a part of."""
    maps = np.random.default_rng(2).standard_normal((count, height, width)).astype(np.float32)
    maps[0] = np.where(np.arange(width) < width // 2, 1, -1)
    return maps


def instances(*rows: tuple[float, ...], masks: int = 3) -> Any:
    """(4 + 2 + masks, 84) of (x, y, w, h, score, class, share of the first prototype)."""
    output = np.zeros((6 + masks, 84), np.float32)
    for column, (x, y, w, h, score, kind, share) in enumerate(rows):
        output[:4, 3 * column], output[4 + int(kind), 3 * column] = (x, y, w, h), score
        output[6, 3 * column] = share
    return output


def test_objects_of_which_nothing_is_seen_go() -> None:
    """Outside of the image, of no size, of no number, or where their mask is empty."""
    rows = (300, 300, 9, 9, 0.95, 0, 1.0), (40, 40, 0, 0, 0.9, 0, 1.0), (np.nan, 40, 9, 9, 0.8, 0, 1.0)
    for table in (instances(*rows, (40, 40, 9, 9, 0.6, 0, -1.0)), instances()):
        record = Detector(YoloV8Seg())([table, prototypes()], WHOLE)
        assert record.masks == () and len(record) == 0


def test_rows_that_are_selected_bring_their_shapes() -> None:
    table = instances((40, 48, 20, 20, 0.9, 1, 1.0), (120, 48, 20, 20, 0.8, 0, -1.0))
    record = Detector(YoloV8Seg())([table, prototypes()], WHOLE)
    assert record.masks is not None
    for rows in (np.array([1]), np.array([False, True])):
        assert record[rows].masks == (record.masks[1],)
    boxes = Detector(YoloV8Obb())([oriented((30, 30, 9, 9, 1, 0.9, 0), (90, 50, 9, 9, 2, 0.8, 0))], WHOLE)
    assert boxes.corners is not None
    np.testing.assert_array_equal(boxes[np.array([1])].corners, boxes.corners[1:])  # type: ignore[arg-type]
