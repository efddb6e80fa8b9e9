"""Boxes that cannot be are left out and counted; what is odd is said once."""

import logging
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from edgert import Pipeline
from edgert.runtime import Classification, Detections, Keypoints
from edgert.stages.crop import Geometry
from edgert.stages.decode.classify import Classify
from edgert.stages.decode.decoded import Decoded, PpYoloe
from edgert.stages.decode.detection import Detector
from edgert.stages.decode.instances import YoloV8Seg
from edgert.stages.decode.record_check import CheckedRecords, RecordCheck
from edgert.stages.decode.shaped import YoloV8Obb
from edgert.stages.decode.yolo import YoloPose, YoloV8
from tests.helpers.models import constant, yolo_columns

IMAGE = Geometry(2.0, 2.0, 0.0, 0.0, (64, 64), (0.0, 0.0, 128.0, 128.0))
NAN, INF = float("nan"), float("inf")


def found(*boxes: Any, scores: Any = None, kind: Any = Detections, **more: Any) -> Any:
    count = len(boxes)
    table = np.array(boxes, np.float32).reshape(count, 4)
    numbers = np.full(count, 0.5, np.float32) if scores is None else np.array(scores, np.float32)
    return kind(table, numbers, np.arange(count, dtype=np.int32), **more)


GOOD = (10, 10, 30, 30)


@pytest.mark.parametrize(
    "box", [(NAN, 1, 9, 9), (NAN,) * 4, (9, 9, 5, 5), (9, 9, 30, 9), (128, 20, 128, 40), (5, 0, 9, 0)]
)
def test_a_box_without_a_place_is_left_out(box: Any, caplog: pytest.LogCaptureFixture) -> None:
    check = RecordCheck("m")
    corners = np.zeros((2, 4, 2), np.float32)
    for n in range(3):
        record = check(found(box, GOOD, corners=corners), IMAGE)
        assert isinstance(record, Detections) and record.corners is not None
        assert record.boxes.tolist() == [[*GOOD]] and record.classes.tolist() == [1] and len(record.corners) == 1
        assert check.left_out == n + 1
    assert [one.getMessage().startswith("model m: 1 of 2 boxes are left out") for one in caplog.records] == [True]


def test_a_score_that_is_no_number_is_left_out() -> None:
    check = RecordCheck("m")
    record = check(found(GOOD, GOOD, GOOD, scores=[INF, NAN, 0.5]), IMAGE)
    assert isinstance(record, Detections) and record.classes.tolist() == [2] and check.left_out == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("head", [YoloV8(), YoloV8Obb(), Decoded(), Decoded(background="first")])
def test_rows_that_cannot_be_boxes_are_left_out_without_a_word_of_numpy(head: Any) -> None:
    places = [[32, 32, 20, 20], [NAN, 32, 20, 20], [32, INF, 20, 20], [10, 10, -5, -5]]
    rows = [[22, 22, 42, 42, 0.9, 0], [10, 10, 5, 5, 0.9, 0], [22, NAN, 42, 42, 0.9, 0], [22, 22, 42, 42, 0.9, NAN]]
    table = np.zeros((5 + isinstance(head, YoloV8Obb), 84), np.float32)
    table[:4, :4], table[4, :4] = np.array(places, np.float32).T, 0.9
    first = np.array([0, 0, 0, 0, 0, getattr(head, "background", "") == "first"], np.float32)
    output = np.array(rows, np.float32) + first if isinstance(head, Decoded) else table
    geometry = Geometry(1, 1, 0, 0, (64, 64), (0, 0, 64, 64))
    record: Any = RecordCheck("m")(Detector(head)([output], geometry), geometry)
    assert record.boxes.tolist() == [[22, 22, 42, 42]] and record.classes.tolist() == [0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("decoder", "columns", "more"),
    [
        (Detector(Decoded()), [0, 1, 2, 3, 4, 5], ()),
        (Detector(PpYoloe()), [5, 4, 0, 1, 2, 3], ()),
        (Detector(YoloV8Obb()), [0, 1, 2, 3, 4, 5, 6], ()),
        (Detector(YoloV8Seg()), [0, 1, 2, 3, 4, 5, 6], [np.ones((1, 16, 16), np.float32)]),
        (YoloPose(), [0, 1, 2, 3, 4, 5, 6, 6, 6], ()),
    ],
)
def test_final_boxes_without_a_class_are_left_out(decoder: Any, columns: list[int], more: Any) -> None:
    classes = (2, NAN, INF, -INF, 1e30, -1, 0, 3)
    rows = np.array([[22, 22, 42, 42, 0.9, one, 1] for one in classes], np.float32)
    geometry = Geometry(1, 1, 0, 0, (64, 64), (0, 0, 64, 64))
    assert decoder([rows[:, columns], *more], geometry).classes.tolist() == [2, 0, 3]


def test_points_on_a_line_have_a_place(caplog: pytest.LogCaptureFixture) -> None:
    points = np.array([[[10, 20, 1], [10, 40, 1]], [[-9, -9, 1], [-8, -4, 1]]], np.float32)
    check = RecordCheck("m")
    record = check(found((10, 20, 10, 40), (0, 0, 0, 0), kind=Keypoints, points=points), IMAGE)
    assert isinstance(record, Keypoints) and record.boxes.tolist() == [[10, 20, 10, 40]] and check.left_out == 1


def test_what_is_as_it_should_be_stays_the_same_record(caplog: pytest.LogCaptureFixture) -> None:
    check = RecordCheck("m")
    for record in (
        found(GOOD, (1, 1, 2, 2), scores=[1.0004, 0.3]),
        found(),
        Classification(np.array([1.0], np.float32), np.zeros(1, np.int32)),
        Classification(np.zeros(0, np.float32), np.zeros(0, np.int32)),
    ):
        assert check(record, IMAGE) is record
    assert not caplog.records and not check.left_out


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (found(GOOD, scores=[3.0]), "scores reach 3, and should lie in 0-1"),
        (Classification(np.array([7.5, 2], np.float32), np.arange(2, dtype=np.int32)), "scores reach 7.5"),
        (found((0.2, 0.2, 1.1, 1.1), (0, 0, 2, 2)), "every box is smaller than a pixel of the model's input"),
        (found((9, 9, 9, 9)), "If all boxes are, they may be parts of the input"),
    ],
)
def test_what_is_odd_is_said_once(record: Any, words: str, caplog: pytest.LogCaptureFixture) -> None:
    check = RecordCheck("m", YoloV8())  # type: ignore[arg-type]
    for _ in range(3):
        check(record, IMAGE)
    assert [words in one.getMessage() for one in caplog.records] == [True]
    assert all(one.levelno == logging.WARNING for one in caplog.records)


def test_outputs_of_nan_are_said_once_and_counted_on_trial(caplog: pytest.LogCaptureFixture) -> None:
    check = RecordCheck("m")
    decoder = CheckedRecords(Classify(), check)
    for values in ((1, 2), (NAN, 2), (NAN, NAN)):
        decoder([np.array(values, np.float32)], IMAGE)
    assert caplog.text.count("outputs hold NaN") == 1 and check.left_out == 0
    check.is_strict = True
    decoder([np.array([NAN, 2], np.float16)], IMAGE)
    decoder([np.array([1, 2])], IMAGE)
    assert check.left_out == 1
    late = CheckedRecords(Classify(), RecordCheck("late"))
    for number in range(99):
        late([np.array([1, NAN if number == 98 else 2], np.float32)], IMAGE)
    assert "late" not in caplog.text


@pytest.mark.parametrize("tracker", [False, True])
def test_a_pipeline_goes_on_and_counts(tracker: bool, tmp_path: Path) -> None:
    boxes = (32, 32, 20, 20, 0.9, 0), (NAN, 32, 20, 20, 0.8, 0), (10, 10, -5, -5, 0, 0.6), (32, 32, INF, 20, 0.7, 0)
    outside = (200, 32, 20, 20, 0.5, 0)
    onnx.save(constant({"o": yolo_columns(*boxes, outside)}).proto, tmp_path / "m.onnx")
    for n in range(4):
        cv2.imwrite(str(tmp_path / f"{n}.png"), np.full((64, 64, 3), n, np.uint8))
    track = "  t: {track: bytetrack, from: i}\n" if tracker else ""
    (tmp_path / "p.yaml").write_text(
        "models: {m: {onnx: m.onnx, task: {detect: yolov8}, input: {std: 255}}}\n"
        "stages:\n"
        "  s: {source: 'images:*.png'}\n"
        f"  i: {{infer: m, from: s}}\n{track}"
        f"  o: {{sink: callback, from: {'t' if tracker else 'i'}}}\n"
    )
    seen = list[Any]()
    with Pipeline(
        tmp_path / "p.yaml", callbacks={"o": lambda result: seen.append(result.detections.boxes.tolist())}
    ) as one:
        summary = one.run()
    assert seen == [[[22, 22, 42, 42]]] * 4
    assert summary.notes.left_out == {"m": 16} and summary.to_json()["left_out"] == {"m": 16}
