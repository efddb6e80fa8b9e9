"""Mask R-CNN and Keypoint R-CNN against the post-processing that torchvision documents, on random outputs."""

from typing import Any

import numpy as np
import pytest

from edgert.stages.decode.detection import Detector
from edgert.stages.decode.rcnn import KeypointRcnn, MaskRcnn
from tests.helpers.each import each
from tests.helpers.known_boxes import identity, linear_weights, whole_masks

NETWORK = (200, 120)
WHOLE = identity(NETWORK)
NAMES = ("boxes", "labels", "scores")


def boxes_of(random: np.random.Generator, count: int) -> Any:
    corner = random.uniform(0, 0.8, (count, 2)) * NETWORK
    size = random.uniform(0.1, 0.6, (count, 2)) * NETWORK
    return np.concatenate([corner, np.minimum(corner + size, NETWORK)], axis=1).astype(np.float32)


def smooth(random: np.random.Generator, count: int, cells: int) -> Any:
    """(N, 1, cells, cells) probabilities of blobs."""
    y, x = np.indices((cells, cells)) / cells
    middle, wide = random.uniform(0.3, 0.7, (2, count, 1, 1)), random.uniform(0.1, 0.4, (count, 1, 1))
    far = np.square(x - middle[0]) + np.square(y - middle[1])
    return np.exp(-far / wide**2)[:, None].astype(np.float32)


def enlarged(mask: Any, width: int, height: int) -> Any:
    """Bilinear with ``align_corners=False``: pixel i lies at (i + 0.5) * cells / pixels - 0.5 of the cells."""
    return linear_weights(height, mask.shape[0]) @ mask.astype(np.float64) @ linear_weights(width, mask.shape[1]).T


def pasted(mask: Any, box: Any) -> Any:
    """(height, width) probabilities: padded by one, grown to the box that is larger by as much, and put into the image.

    As documented in torchvision's roi_heads.py: the grown box is cut to integers, its last pixel belongs to it.
    """
    cells = mask.shape[-1]
    x1, y1, x2, y2 = (float(number) for number in box)
    across, down = (x2 - x1) / 2 * (cells + 2) / cells, (y2 - y1) / 2 * (cells + 2) / cells
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    left, top, right, bottom = (int(number) for number in (x - across, y - down, x + across, y + down))
    grown = enlarged(np.pad(mask, 1), max(right - left + 1, 1), max(bottom - top + 1, 1))
    image = np.zeros((NETWORK[1], NETWORK[0]))
    for row, line in enumerate(grown):
        if 0 <= row + top < NETWORK[1]:
            for column, value in enumerate(line):
                if 0 <= column + left < NETWORK[0]:
                    image[row + top, column + left] = value
    return image


def overlap(one: Any, other: Any) -> float:
    union = np.logical_or(one, other).sum()
    return float(np.logical_and(one, other).sum() / union) if union else 1.0


@pytest.mark.parametrize("is_pasted", [False, True], ids=["of the box", "of the image"])
@each("seed", range(60))
def test_masks_are_those_of_the_formula(seed: int, is_pasted: bool) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 6))
    boxes, small = boxes_of(random, count), smooth(random, count, 28)
    labels, scores = random.integers(0, 91, count), random.uniform(0, 1, count).astype(np.float32)
    wanted = np.stack([pasted(mask[0], box) for mask, box in zip(small, boxes, strict=True)])
    masks = wanted[:, None].astype(np.float32) if is_pasted else small

    found = Detector(MaskRcnn(), score=0.25)([boxes, labels, scores, masks], WHOLE)

    kept = [row for row in np.argsort(-scores, kind="stable") if scores[row] >= 0.25 and labels[row] > 0]
    np.testing.assert_allclose(found.boxes, boxes[kept].reshape(-1, 4), atol=0.5)
    assert found.classes.tolist() == labels[kept].tolist()
    for mine, row in zip(whole_masks(found, NETWORK), kept, strict=True):
        assert overlap(mine, wanted[row] > 0.5) >= 0.99


@each("seed", range(100))
def test_points_are_those_of_the_outputs(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 6))
    boxes, scores = boxes_of(random, count), random.uniform(0, 1, count).astype(np.float32)
    points = np.concatenate([random.uniform(0, NETWORK, (count, 17, 2)), np.ones((count, 17, 1))], axis=2)
    heat = random.normal(0, 5, (count, 17)).astype(np.float32)

    outputs = [boxes, np.ones(count, np.int64), scores, points.astype(np.float32), heat]
    found = KeypointRcnn(score=0.25)(outputs, WHOLE)

    kept = [row for row in np.argsort(-scores, kind="stable") if scores[row] >= 0.25]
    assert found.points is not None
    np.testing.assert_allclose(found.boxes, boxes[kept].reshape(-1, 4), atol=0.5)
    np.testing.assert_allclose(found.points[..., :2], points[kept].reshape(-1, 17, 3)[..., :2], atol=0.5)
    np.testing.assert_allclose(found.points[..., 2], 1 / (1 + np.exp(-heat[kept].reshape(-1, 17))), atol=1e-5)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 0, 1), (1, 3, 2, 0)])
def test_outputs_may_come_in_any_order(order: tuple[int, ...]) -> None:
    outputs = [boxes_of(np.random.default_rng(0), 3), np.array([1, 2, 3]), np.float32([0.9, 0.8, 0.7])]
    outputs.append(np.ones((3, 1, 28, 28), np.float32))
    found = Detector(MaskRcnn())([outputs[place] for place in order], WHOLE)
    assert found.classes.tolist() == [1, 2, 3] and all(mask.mask.any() for mask in found.masks or ())
