from __future__ import annotations

import numpy as np

from edgert.stages.crop import Geometry


def test_boxes_are_clipped_to_the_image_and_points_are_not() -> None:
    geometry = Geometry(2, 2, 10, 20, (50, 50), (10, 20, 110, 120))
    assert geometry.boxes(np.array([[-5, -5, 80, 20]], np.float32)).tolist() == [[10, 20, 110, 60]]
    assert geometry.points(np.array([[-5, -5, 0.5]], np.float32)).tolist() == [[0, 10, 0.5]]


def test_nothing_in_nothing_out_and_inputs_stay() -> None:
    geometry = Geometry(2, 3, 1, 1, (5, 5), (0, 0, 9, 9))
    assert geometry.boxes(np.zeros((0, 4), np.float32)).shape == (0, 4)
    assert geometry.points(np.zeros((0, 17, 3), np.float32)).shape == (0, 17, 3)
    points = np.ones((1, 2), np.float32)
    geometry.points(points)
    assert points.tolist() == [[1, 1]]
