"""Suppression across classes: one thing that is found as two is one, whatever the head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgert.config import DetectTask, KeypointsTask
from edgert.errors import ConfigError
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.kinds import decoder_for
from tests.helpers.known_boxes import identity

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
