"""Boxes that are known beforehand, to be written in a network's layout and read back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgert.runtime.records import Detections
from edgert.stages.crop import Geometry

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class KnownBoxes:
    """Boxes that do not overlap, by falling score.

    Attributes:
        source: (N, 4) x1, y1, x2, y2 in source pixels.
        centers, sizes: (N, 2) in network pixels.
        scores: (N,) 0.5 to 0.95, no two closer than 0.01.
        classes: (N,)
    """

    geometry: Geometry
    source: F32
    centers: F32
    sizes: F32
    scores: F32
    classes: npt.NDArray[np.int32]

    @property
    def corners(self) -> F32:
        """(N, 4) x1, y1, x2, y2 in network pixels."""
        return np.hstack([self.centers - self.sizes / 2, self.centers + self.sizes / 2])


def letterbox(network: tuple[int, int]) -> Geometry:
    """A 1000x600 image, centered in the network with its shape kept."""
    scale = max(1000 / network[0], 600 / network[1])
    offset_x, offset_y = (1000 - network[0] * scale) / 2, (600 - network[1] * scale) / 2
    return Geometry(scale, scale, offset_x, offset_y, network, (0, 0, 1000, 600))


def identity(network: tuple[int, int]) -> Geometry:
    return Geometry(1, 1, 0, 0, network, (0, 0, *network))


def known_boxes(seed: int, network: tuple[int, int], class_count: int, *, most: int = 9) -> KnownBoxes:
    """One to nine boxes, each in a field of its own of a 3x3 board over the source image."""
    rng = np.random.default_rng(seed)
    geometry = letterbox(network)
    count = int(rng.integers(1, most + 1))
    y, x = np.divmod(rng.permutation(9)[:count], 3)
    field = np.array([1000 / 3, 200])
    start = rng.uniform(0.05, 0.25, (count, 2))
    end = rng.uniform(0.6, 0.95, (count, 2))
    corner = np.stack([x, y], axis=1)
    source = np.hstack([(corner + start) * field, (corner + end) * field])
    inside = (source - [geometry.offset_x, geometry.offset_y] * 2) / geometry.scale_x
    scores = -np.sort(-(0.5 + 0.05 * rng.permutation(9)[:count] + rng.uniform(0, 0.04, count)))
    return KnownBoxes(
        geometry,
        source.astype(np.float32),
        ((inside[:, :2] + inside[:, 2:]) / 2).astype(np.float32),
        (inside[:, 2:] - inside[:, :2]).astype(np.float32),
        scores.astype(np.float32),
        rng.integers(0, class_count, count).astype(np.int32),
    )


def assert_same(found: Detections, known: KnownBoxes, *, pixels: float = 0.05) -> None:
    """Same boxes in source pixels, scores and classes, in the same order; float32 and int32."""
    assert len(found) == len(known.scores)
    assert found.boxes.dtype == found.scores.dtype == np.float32
    assert found.classes.dtype == np.int32
    np.testing.assert_allclose(found.boxes, known.source, atol=pixels)
    np.testing.assert_allclose(found.scores, known.scores, atol=1e-3)
    np.testing.assert_array_equal(found.classes, known.classes)


def linear_weights(fine: int, coarse: int) -> npt.NDArray[np.float64]:
    """Return the matrix (fine, coarse) that enlarges linearly between centers of cells; edges are repeated."""
    place = np.clip((np.arange(fine) + 0.5) * coarse / fine - 0.5, 0, coarse - 1)
    low = np.minimum(place.astype(int), coarse - 1)
    table = np.zeros((fine, coarse))
    table[np.arange(fine), low] += 1 - (place - low)
    table[np.arange(fine), np.minimum(low + 1, coarse - 1)] += place - low
    return table


def greedy(boxes: Any, scores: Any, iou: float, classes: Any = None) -> list[int]:
    """Rows that survive suppression as in textbooks: a box at a time, the best first."""
    kept: list[int] = []
    corners, kinds = np.asarray(boxes).tolist(), [0] * len(scores) if classes is None else classes
    for row in sorted(range(len(scores)), key=lambda row: (-scores[row], row)):
        if all(kinds[row] != kinds[other] or _overlap(corners[row], corners[other]) <= iou for other in kept):
            kept.append(row)
    return kept


def _overlap(a: list[float], b: list[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union else 0.0


def whole_masks(record: Detections, network: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """(N, height, width) of the masks over a network that shows the whole image."""
    found = np.zeros((len(record), network[1], network[0]), bool)
    for one, mask in zip(found, record.masks or (), strict=True):
        x1, y1, x2, y2 = (round(value) for value in mask.region)
        one[y1:y2, x1:x2] = mask.mask
    return found
