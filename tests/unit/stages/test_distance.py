"""Positions of boxes from depth images."""

from dataclasses import replace

import numpy as np
import pytest

from edgert.runtime import json_form
from edgert.runtime.frame import DepthImage, FrameExtra, without_pixels
from edgert.runtime.records import DepthMap, Result
from edgert.stages.distance import Distance, positions_of
from tests.helpers.frames import frame_of, things

BOXES = np.array([[10, 10, 30, 30], [40, 20, 60, 40]], np.float32)
CAMERA = (50.0, 50.0, 32.0, 24.0)
WHOLE = (0, 0, 64, 48)


def scene() -> np.ndarray:
    """Two objects, 1.5 m and 3 m away, before a wall at 5 m; half of the first is unknown."""
    depth = np.full((48, 64), 5000, np.uint16)
    depth[10:30, 10:30], depth[20:40, 40:60] = 1500, 3000
    depth[::2, 10:30] = 0
    return depth


def result(depth: DepthImage | None, **outputs: object) -> Result:
    return Result(replace(frame_of(), extra=FrameExtra(depth=depth)), {"find": things(*BOXES), **outputs})


def test_each_box_has_the_depth_of_its_middle_on_the_ray_through_its_center() -> None:
    positions = positions_of(BOXES, scene(), WHOLE, CAMERA)
    assert positions == pytest.approx(np.array([[-0.36, -0.12, 1.5], [1.08, 0.36, 3.0]]), abs=1e-5)


def test_depth_may_have_another_size_and_unit() -> None:
    for depth in (scene()[1::2, 1::2], scene().astype(np.float32) / 1000):
        assert positions_of(BOXES, depth, WHOLE, CAMERA)[:, 2] == pytest.approx([1.5, 3.0])


def test_unknown_depth_and_an_unknown_camera_are_nan() -> None:
    assert np.isnan(positions_of(BOXES, np.zeros((48, 64), np.uint16), WHOLE, CAMERA)).all()
    wrong = np.full((48, 64), np.nan, np.float32)
    wrong[::2] = np.inf
    assert np.isnan(positions_of(BOXES, wrong, WHOLE, CAMERA)).all()
    positions = positions_of(BOXES, scene(), WHOLE, None)
    assert np.isnan(positions[:, :2]).all() and positions[:, 2].tolist() == [1.5, 3.0]


def test_boxes_beyond_the_image_and_none_at_all() -> None:
    outside = np.array([[-50, -50, -10, -10], [100, 100, 200, 200]], np.float32)
    assert positions_of(outside, scene(), WHOLE, CAMERA)[:, 2].tolist() == [5.0, 5.0]
    assert positions_of(np.zeros((0, 4), np.float32), scene(), WHOLE, CAMERA).shape == (0, 3)


def test_the_stage_adds_positions_without_pixels() -> None:
    before = result(DepthImage(scene(), CAMERA))
    after = Distance("near").process(Result(without_pixels(before.frame), before.outputs))
    assert after.detections.positions[:, 2].tolist() == [1.5, 3.0]
    assert after.detections[1].position[2] == 3.0 and after.detections[[1]].positions.shape == (1, 3)
    written = json_form.plain_result(after)["outputs"]["near"]["objects"]
    assert written[0]["position"] == [-0.36, -0.12, 1.5]


def test_a_model_can_measure_depth_too() -> None:
    metric = DepthMap(scene().astype(np.float32) / 1000, WHOLE, "metric")
    assert Distance("near").process(result(None, far=metric)).detections.positions[0, 2] == 1.5


def test_without_depth_or_detections_the_result_is_the_same() -> None:
    before = result(None, far=DepthMap(scene().astype(np.float32), WHOLE, "inverse"))
    assert Distance("near").process(before) is before
    nothing = Result(before.frame, {})
    assert Distance("near").process(nothing) is nothing
