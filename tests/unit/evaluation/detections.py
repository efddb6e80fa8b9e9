"""Random true boxes and detections that are partly right, for tests of average precision."""

import numpy as np

from edgert.dataset.labels import Boxes, GroundTruthBoxes
from edgert.runtime import Detections


def scene(
    images: int, classes: int = 4, seed: int = 0, *, crowds: bool = True
) -> tuple[GroundTruthBoxes, list[Detections]]:
    """Truth and detections of as many images; some have no box, some no detection, and a class may be missing."""
    random = np.random.default_rng(seed)
    ground_truth, found = [], []
    for _ in range(images):
        boxes = some_boxes(random, int(random.integers(0, 6)))
        kinds = random.integers(0, classes, len(boxes))
        ground_truth.append(labeled(boxes, kinds, (random.random(len(boxes)) < 0.15) & crowds))
        found.append(detected(random, boxes, kinds, classes))
    return GroundTruthBoxes(tuple(ground_truth), tuple(range(classes))), found


def some_boxes(random: np.random.Generator, count: int) -> np.ndarray:
    corners = random.uniform(0, 300, (count, 2))
    return np.concatenate([corners, corners + random.uniform(20, 120, (count, 2))], axis=1)


def labeled(boxes: np.ndarray, kinds: np.ndarray, crowds: np.ndarray | None = None) -> Boxes:
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    crowds = np.zeros(len(boxes), np.bool_) if crowds is None else crowds
    return Boxes(boxes, np.asarray(kinds, np.int64).reshape(-1), areas, crowds)


def detected(random: np.random.Generator, boxes: np.ndarray, kinds: np.ndarray, classes: int) -> Detections:
    near = boxes[random.random(len(boxes)) < 0.8]
    near = near + random.normal(0, 6, near.shape)
    wrong = some_boxes(random, int(random.integers(0, 5)))
    rows = np.concatenate([near, wrong]).astype(np.float32)
    guessed = np.concatenate([kinds[: len(near)], random.integers(0, classes, len(wrong))]).astype(np.int32)
    scores = np.sort(random.random(len(rows)).astype(np.float32))[::-1]
    return Detections(rows, scores, guessed)
