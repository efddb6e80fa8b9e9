import numpy as np
import pytest
from hypothesis import given, strategies as st

from edgert.config import CropConfig
from edgert.runtime import Detections
from edgert.stages.crop import CropDetections, CropRegion, crop_boxes
from tests.helpers.frames import detections, frame_of, result_of
from tests.helpers.written import opened

FRAME = frame_of(100, 80)


def rows(found: Detections, **config: object) -> list[int]:
    return crop_boxes(found, FRAME, CropConfig(**config))[0].tolist()  # type: ignore[arg-type]


def test_the_best_scored_come_first_and_the_limit_holds() -> None:
    found = detections(*[(10, 10, 30, 30)] * 5)
    found = Detections(found.boxes, np.array([0.1, 0.9, 0.5, 0.9, 0.2], np.float32), found.classes, found.labels)
    assert rows(found) == [1, 3, 2, 4, 0]
    assert rows(found, limit=2) == [1, 3]


def test_classes_by_name_and_by_number() -> None:
    found = detections(*[(10, 10, 30, 30)] * 4)  # bolt, nut, gear, bolt
    assert rows(found, classes=("bolt",)) == [0, 3]
    assert rows(found, classes=("nut", "gear")) == [1, 2]
    assert rows(found, classes=("2",)) == rows(found, classes=2) == [2]
    assert rows(found, classes=("unheard",)) == []


def test_small_boxes_are_left_out_after_the_frame_cut_them() -> None:
    found = detections((-20, 10, 5, 30), (10, 10, 14, 30), (10, 10, 30, 18), (98, 78, 200, 200))
    assert rows(found, min_size=8) == [2]
    assert rows(found, min_size=2) == [0, 1, 2, 3]


def test_the_margin_grows_the_box_up_to_the_frame() -> None:
    _, boxes = crop_boxes(detections((10, 20, 30, 40), (0, 0, 100, 80)), FRAME, CropConfig(margin=0.5))
    assert boxes.tolist() == [[0, 10, 40, 50], [0, 0, 100, 80]]


def test_boxes_are_in_the_pixels_of_the_frame_also_when_it_is_a_crop() -> None:
    crop = FRAME.crop(20, 20, 70, 70)
    _, boxes = crop_boxes(detections((30.2, 30.2, 49.5, 49.5)), crop, CropConfig())
    assert boxes.tolist() == [[10, 10, 30, 30]]


@given(
    st.lists(st.tuples(*[st.floats(-200, 300, width=32)] * 4), max_size=8),
    st.floats(0, 2),
    st.integers(1, 20),
)
def test_every_box_can_be_cut_out(corners: list[tuple[float, ...]], margin: float, least: int) -> None:
    boxes = [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]
    found = detections(*boxes)
    for form in ("bgr", "i420"):
        frame = frame_of(101, 79, form)  # type: ignore[arg-type]
        _, cut = crop_boxes(found, frame, CropConfig(margin=margin, min_size=least, limit=256))
        for box in cut.tolist():
            crop = frame.crop(*box)
            assert crop.width >= box[2] - box[0] >= 1 and crop.height >= box[3] - box[1] >= 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_boxes_that_are_no_numbers_are_left_out_or_cut(bad: float) -> None:
    _, boxes = crop_boxes(detections((bad, 0, 20, 20), (0, 0, bad, 20), (1, 1, 20, 20)), FRAME, CropConfig())
    assert [1, 1, 20, 20] in boxes.tolist()
    assert all(0 <= x1 < x2 <= 100 and 0 <= y1 < y2 <= 80 for x1, y1, x2, y2 in boxes.tolist())


def test_a_region_is_a_part_of_every_frame() -> None:
    with opened(CropRegion((0.25, 0.5, 1, 1))) as stage:
        frame = frame_of(100, 80)
        out = stage.process(result_of(frame, {"a": 1})).frame
        assert out.region == (25, 40, 100, 80)
        assert np.shares_memory(out.planes[0], frame.planes[0])


def test_one_result_per_detection_with_that_detection_alone() -> None:
    stage = CropDetections("cut", CropConfig(min_size=2))
    found = detections((10, 10, 30, 30), (50, 20, 60, 50), ids=(4, 9))
    out = list(stage.process(result_of(frame_of(100, 80), {"find": found})))
    assert [item.frame.region[:2] for item in out] == [(10, 10), (50, 20)]
    assert [item.detections.ids.tolist() for item in out if item.detections.ids is not None] == [[4], [9]]
    assert [list(item.outputs) for item in out] == [["find", "cut"]] * 2
    assert list(stage.process(result_of(frame_of(100, 80)))) == []
