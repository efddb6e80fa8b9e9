"""Masks against NumPy written from the formulas; final boxes with masks or angles; masks of queries."""

from typing import Any

import cv2
import numpy as np
import pytest

from edgert.stages.crop import Geometry
from edgert.stages.decode.detection import Detector, suppress_at_once
from edgert.stages.decode.instances import DetrSeg, YoloV5Seg, YoloV8Seg
from edgert.stages.decode.shaped import YoloV8Obb, gaussian_overlap, gaussians
from tests.helpers.known_boxes import identity, linear_weights, whole_masks

NETWORK = (160, 96)
WHOLE = identity(NETWORK)


def between(maps: Any, width: int, height: int) -> Any:
    """(N, h, w) → (N, height, width): linear between the middles of cells, the outermost going on to the edge."""
    return np.einsum(
        "yh,nhw,xw->nyx",
        linear_weights(height, maps.shape[1]),
        maps.astype(np.float64),
        linear_weights(width, maps.shape[2]),
        optimize=True,
    )


def inside(boxes: Any) -> Any:
    """(N, height, width): pixels that begin in a box."""
    y, x = np.indices(NETWORK[::-1])
    x1, y1, x2, y2 = np.asarray(boxes, np.float64).T[:, :, None, None]
    return (x >= x1) & (x < x2) & (y >= y1) & (y < y2)


def smooth(random: np.random.Generator, count: int, size: tuple[int, int]) -> Any:
    coarse = random.standard_normal((count, 5, 6)).astype(np.float32)
    return np.stack([cv2.resize(one, size, interpolation=cv2.INTER_CUBIC) for one in coarse])


@pytest.mark.parametrize("size", [(40, 24), (80, 48), (20, 12), (45, 25), (160, 96)])
@pytest.mark.parametrize("kind", ["columns", "rows with objectness", "end to end"])
def test_masks_are_those_of_the_formulas(size: tuple[int, int], kind: str) -> None:
    random = np.random.default_rng(sum(size))
    maps = smooth(random, 5, size)
    centers, sizes = random.uniform(0, NETWORK, (30, 2)), random.uniform(2, 90, (30, 2))
    scores, shares = np.linspace(0.95, 0.3, 30), random.standard_normal((30, 5))
    corners = np.hstack([centers - sizes / 2, centers + sizes / 2]).astype(np.float32)
    head = YoloV5Seg() if kind == "rows with objectness" else YoloV8Seg()
    if kind == "rows with objectness":
        table = np.zeros((3 * 315, 5 + 2 + 5), np.float32)
        table[:30, :4], table[:30, 4], table[:30, 6] = np.hstack([centers, sizes]), 1, scores
        table[:30, 7:] = shares
    elif kind == "end to end":
        table = np.hstack([corners, scores[:, None], random.integers(0, 3, (30, 1)), shares]).astype(np.float32)
        table = np.vstack([table, np.zeros((270, 11), np.float32)])
    else:
        table = np.zeros((4 + 2 + 5, 315), np.float32)
        table[:4, :30], table[5, :30], table[6:, :30] = np.hstack([centers, sizes]).T, scores, shares.T
    record = Detector(head, iou=1.0)([table, maps] if size[0] < 80 else [maps, table], WHOLE)
    wanted = (between(np.tensordot(shares.astype(np.float32), maps, 1), *NETWORK) > 0) & inside(corners)
    wanted = wanted[wanted.any(axis=(1, 2))]
    found = whole_masks(record, NETWORK)
    assert len(found) == len(wanted) > 20
    shared, either = (found & wanted).sum(axis=(1, 2)), (found | wanted).sum(axis=(1, 2))
    assert (either - shared <= 1).all()  # a sum that is 0 but for its last bit


def test_masks_stay_within_the_image_and_lie_where_it_does() -> None:
    """A letterbox of half pixels: the first row that begins in the image is the 17th."""
    geometry = Geometry(4.0, 4.0, 0.0, -66.0, NETWORK, (0.0, 0.0, 640.0, 250.0))
    table = np.zeros((4 + 1 + 1, 315), np.float32)
    table[:, 0] = 40, 20, 60, 60, 0.9, 1
    record = Detector(YoloV8Seg())([table, np.ones((1, 24, 40), np.float32)], geometry)
    assert record.masks is not None
    assert record.masks[0].region == (40, 2, 280, 134) and record.masks[0].mask.shape == (33, 60)


def test_oriented_boxes_that_are_final() -> None:
    table = np.zeros((300, 7), np.float32)
    table[:2] = [[80, 50, 40, 10, 0.9, 1, 0.5], [81, 50, 40, 10, 0.8, 1, 0.5]]
    record = Detector(YoloV8Obb())([table], WHOLE)
    assert len(record) == 2 and record.classes.tolist() == [1, 1]  # nothing is suppressed again
    columns = np.zeros((4 + 2 + 1, 315), np.float32)
    columns[:4, 0], columns[5, 0], columns[6, 0] = table[0, :4], 0.9, 0.5
    same = Detector(YoloV8Obb())([columns], WHOLE)
    np.testing.assert_allclose(record.corners[:1], same.corners, atol=1e-4)  # type: ignore[index, arg-type]


def test_a_turned_box_that_goes_takes_others_along() -> None:
    """The first overlaps the second, the second the third, the first not the third."""
    rows = np.array([[40, 40, 60, 6, 0], [52, 40, 60, 6, 0], [64, 40, 60, 6, 0]], np.float32)
    ours, scores, kinds = gaussians(rows), np.array([0.9, 0.8, 0.7], np.float32), np.zeros(3, np.int32)
    every = np.arange(3)
    assert gaussian_overlap(ours, kinds, every, every, 0.6).tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert suppress_at_once(ours, scores, kinds, 0.6, 9, gaussian_overlap).tolist() == [0]


def test_suppression_at_once_is_the_same_in_blocks_and_ends_at_its_limit() -> None:
    random = np.random.default_rng(4)
    rows = np.hstack(
        [random.uniform(0, 900, (700, 2)), random.uniform(4, 60, (700, 2)), random.uniform(-3, 3, (700, 1))]
    )
    ours, scores = gaussians(rows.astype(np.float32)), random.random(700).astype(np.float32)
    kinds = random.integers(0, 2, 700).astype(np.int32)
    order = np.argsort(-scores)
    over = np.triu(gaussian_overlap(ours, kinds, order, order, 0.3), 1)
    wanted = order[~over.any(axis=0)]
    assert suppress_at_once(ours, scores, kinds, 0.3, 700, gaussian_overlap).tolist() == wanted.tolist()
    assert suppress_at_once(ours, scores, kinds, 0.3, 9, gaussian_overlap).tolist() == wanted[:9].tolist()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_masks_of_queries_reach_beyond_their_boxes(order: tuple[int, ...]) -> None:
    random = np.random.default_rng(9)
    boxes, numbers = random.uniform(0.2, 0.5, (20, 4)).astype(np.float32), np.full((20, 5), -8, np.float32)
    numbers[np.arange(8), random.integers(0, 5, 8)] = np.linspace(3, 1, 8)
    maps = smooth(random, 20, (40, 24)) - np.float32(0.6)
    maps[3] = -1
    outputs = [[boxes, numbers, maps][index] for index in order]
    record = Detector(DetrSeg())(outputs, WHOLE)
    assert len(record) == 8  # the one without a pixel as well
    wanted = between(maps[:8], *NETWORK) > 0
    assert (whole_masks(record, NETWORK) == wanted).all() and wanted[[0, 1, 2, 4, 5, 6, 7]].any(axis=(1, 2)).all()
    assert not record.masks[3].mask.any()  # type: ignore[index]
    none = Detector(DetrSeg(), score=0.99)(outputs, WHOLE)
    assert none.masks == () and len(none) == 0
