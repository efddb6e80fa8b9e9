"""Keypoints from heat maps, one map per point of one body (HRNet, SimpleBaseline, Lite-HRNet)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgert.runtime.records import Keypoints
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Array, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.guess import BODIES, Fit, Look, check_labels, wrong_shapes

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Heatmap:
    """One output [K, h, w]: each point lies at the peak of its map, found to a fraction of a cell.

    A cell's index times its size is its place in the network's input, as in HRNet and SimpleBaseline.

    Attributes:
        score: lowest mean of the points' scores for a body to count; a body is the whole image's one.
        labels: names of the K points.
    """

    score: float = 0.25
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """A map for every point."""
        for channels, height, width, order in look.maps:
            stride = look.stride(height, width)
            if order == "nchw" and channels > 1 and stride is not None and 2 <= stride <= 8:
                yield Fit(f"{channels} maps at 1/{stride:g} of the image", 4 if channels in BODIES else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        """Raises ModelError unless the one output is maps, ConfigError for too few names."""
        if len(shapes) != 1 or len(shapes[0]) != 3 or min(shapes[0][1:]) < 3:
            raise wrong_shapes("keypoints: heatmap", "one output [points, h, w]", shapes, network)
        check_labels(shapes[0][0], self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Keypoints:
        """One body, or none; its box is the hull of the points."""
        self.check(shapes_of(outputs), geometry.network)
        maps = as_f32(outputs[0])
        points = peaks(maps)
        points[:, :2] *= (geometry.network[0] / maps.shape[2], geometry.network[1] / maps.shape[1])
        score = points[:, 2].mean()
        hull = np.concatenate([points[:, :2].min(axis=0), points[:, :2].max(axis=0)])
        found = slice(0, int(score >= self.score))
        scores = np.full(1, np.clip(score, 0, 1), np.float32)
        return Keypoints(
            geometry.points(points[None])[found], geometry.boxes(hull[None])[found], scores[found], self.labels
        )


def peaks(maps: F32) -> F32:
    """(K, h, w) maps, h and w at least 3 → (K, 3) x, y in cells, to a fraction, and the value at the peak.

    The fraction is a Newton step on the logarithm of the map, exact for a Gaussian peak: Zhang et al.,
    "Distribution-Aware Coordinate Representation for Human Pose Estimation", CVPR 2020, equation 9, without its
    smoothing of the map. No step is taken at the border, nor where the peak is not one; it is at most one cell.
    """
    count, height, width = maps.shape
    y, x = np.divmod(maps.reshape(count, -1).argmax(axis=1), width)
    near_y, near_x = np.clip(y, 1, height - 2), np.clip(x, 1, width - 2)
    around = np.arange(-1, 2)
    patch = maps[
        np.arange(count)[:, None, None], near_y[:, None, None] + around[:, None], near_x[:, None, None] + around
    ]
    step = _newton(np.log(np.maximum(patch, np.float32(1e-10))))
    step[(near_y != y) | (near_x != x)] = 0
    return np.stack([x + step[:, 0], y + step[:, 1], maps[np.arange(count), y, x]], axis=1).astype(np.float32)


def _newton(patch: F32) -> F32:
    """(K, 3, 3) → (K, 2) the step in x and y from the middle to the top of the paraboloid through it."""
    middle = patch[:, 1, 1]
    dx, dy = (patch[:, 1, 2] - patch[:, 1, 0]) / 2, (patch[:, 2, 1] - patch[:, 0, 1]) / 2
    dxx = patch[:, 1, 2] - 2 * middle + patch[:, 1, 0]
    dyy = patch[:, 2, 1] - 2 * middle + patch[:, 0, 1]
    dxy = (patch[:, 2, 2] - patch[:, 2, 0] - patch[:, 0, 2] + patch[:, 0, 0]) / 4
    determinant = dxx * dyy - dxy * dxy
    peaked = (determinant > 1e-9) & (dxx < 0)
    safe = np.where(peaked, determinant, 1)
    step = np.stack([dxy * dy - dyy * dx, dxy * dx - dxx * dy], axis=1) / safe[:, None]
    clipped: F32 = np.where(peaked[:, None], np.clip(step, -1, 1), 0).astype(np.float32)
    return clipped
