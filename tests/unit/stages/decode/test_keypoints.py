"""Points of bodies, from columns and from heat maps."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from edgert.errors import ModelError
from edgert.stages.decode.decoder import all_cells
from edgert.stages.decode.maps import Heatmap, peaks
from edgert.stages.decode.yolo import YoloPose
from tests.helpers.known_boxes import KnownBoxes, identity, known_boxes, letterbox

SEEDS = st.integers(0, 2**32 - 1)


def known_points(known: KnownBoxes, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(N, count, 3) points inside the boxes, in network and in source pixels."""
    place = np.random.default_rng(4).uniform(0, 1, (len(known.scores), count, 3)).astype(np.float32)
    inside, source = place.copy(), place.copy()
    inside[..., :2] = known.corners[:, None, :2] + place[..., :2] * known.sizes[:, None]
    source[..., :2] = known.source[:, None, :2] + place[..., :2] * (known.source[:, 2:] - known.source[:, :2])[:, None]
    return inside, source


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, count=st.sampled_from([1, 5, 17]), final=st.booleans(), classes=st.sampled_from([1, 4]))
def test_yolo_pose(seed: int, count: int, final: bool, classes: int) -> None:
    known = known_boxes(seed, (640, 384), classes)
    inside, source = known_points(known, count)
    points, random = inside.reshape(len(inside), -1), np.random.default_rng(1)
    scores = known.scores[:, None]
    if final:
        output = np.zeros((300, 6 + 3 * count), np.float32)
        output[: len(points)] = np.hstack([known.corners, scores, known.classes[:, None], points])
    else:
        numbers = random.uniform(0, 0.9, (len(points), classes)) * scores
        numbers[np.arange(len(points)), known.classes] = known.scores
        output = np.zeros((4 + classes + 3 * count, all_cells((640, 384), (8, 16, 32))), np.float32)
        columns = random.choice(output.shape[1], len(points), replace=False)
        output[:, columns] = np.hstack([known.centers, known.sizes, numbers, points]).T
    record = YoloPose(labels=tuple("abcdefghijklmnopq"[:count]), classes=classes)([output], known.geometry)
    np.testing.assert_array_equal(record.classes, known.classes)
    np.testing.assert_allclose(record.boxes, known.source, atol=0.05)
    np.testing.assert_allclose(record.points, source, atol=0.05)
    np.testing.assert_allclose(record.scores, known.scores, atol=1e-6)
    assert record.points.dtype == record.boxes.dtype == record.scores.dtype == np.float32


def test_bodies_of_two_classes_do_not_suppress_each_other() -> None:
    output = np.zeros((9, 84), np.float32)
    output[:, 3] = [30, 30, 20, 20, 0.9, 0.1, 30, 31, 1]
    output[:, 4] = [31, 30, 20, 20, 0.1, 0.8, 31, 31, 1]
    record = YoloPose(classes=2)([output], identity((64, 64)))
    assert record.classes.tolist() == [0, 1]


@pytest.mark.parametrize("final", [False, True])
def test_points_of_two_numbers_are_all_visible(final: bool) -> None:
    output = np.zeros((3, 12) if final else (11, 84), np.float32)
    numbers = [20, 20, 40, 40, 0.9, 0] if final else [30, 30, 20, 20, 0.9]
    output[0 if final else slice(None), slice(None) if final else 3] = [*numbers, 30, 31, 32, 33, 34, 35]
    record = YoloPose(dims=2)([output], identity((64, 64)))
    np.testing.assert_array_equal(record.boxes, [[20, 20, 40, 40]])
    np.testing.assert_array_equal(record.points, [[[30, 31, 1], [32, 33, 1], [34, 35, 1]]])
    with pytest.raises(ModelError, match=r"5 \+ 2 \* points"):
        YoloPose(dims=2).check(((12, 84),), (64, 64))


def test_two_boxes_on_one_body_become_one() -> None:
    output = np.zeros((8, 84), np.float32)
    output[:, 3] = [30, 30, 20, 20, 0.9, 30, 31, 1]
    output[:, 4] = [31, 30, 20, 20, 0.8, 31, 31, 1]
    record = YoloPose()([output], identity((64, 64)))
    assert len(record) == 1
    np.testing.assert_array_equal(record.points, [[[30, 31, 1]]])


def gaussians(centers: np.ndarray, height: int, width: int, sigma: float = 2.0) -> np.ndarray:
    y, x = np.indices((height, width))
    distance = (x - centers[:, 0, None, None]) ** 2 + (y - centers[:, 1, None, None]) ** 2
    return (0.9 * np.exp(-distance / (2 * sigma**2))).astype(np.float32)


@settings(deadline=None)
@given(seed=SEEDS)
def test_the_peak_of_a_gaussian_is_found_to_a_hundredth_of_a_cell(seed: int) -> None:
    centers = np.random.default_rng(seed).uniform([1, 1], [46, 62], (17, 2))
    found = peaks(gaussians(centers, 64, 48))
    np.testing.assert_allclose(found[:, :2], centers, atol=0.01)
    assert (found[:, 2] > 0.8).all()


def test_at_the_border_the_peak_is_a_whole_cell() -> None:
    found = peaks(gaussians(np.array([[0.3, 10.2], [20.4, 63.0]]), 64, 48))
    np.testing.assert_array_equal(found[:, :2], [[0, 10], [20, 63]])


def test_a_flat_map_has_no_step() -> None:
    assert peaks(np.zeros((2, 8, 8), np.float32)).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_heat_maps_become_one_body_in_source_pixels() -> None:
    geometry = letterbox((192, 256))
    centers = np.array([[10, 25], [30.25, 40.5], [20.5, 31]])
    record = Heatmap(labels=("a", "b", "c"))([gaussians(centers, 64, 48)], geometry)
    source = centers * 4 * geometry.scale_x + [geometry.offset_x, geometry.offset_y]
    np.testing.assert_allclose(record.points[0, :, :2], source, atol=0.2)
    np.testing.assert_allclose(record.boxes, [[*source.min(axis=0), *source.max(axis=0)]], atol=0.2)
    assert record.points.shape == (1, 3, 3) and 0.8 < record.scores[0] <= 0.9


def test_weak_maps_are_no_body() -> None:
    record = Heatmap(score=0.5)([0.1 * gaussians(np.array([[9, 9.0]]), 64, 48)], identity((192, 256)))
    assert record.points.shape == (0, 1, 3) and record.boxes.shape == (0, 4) and len(record) == 0
