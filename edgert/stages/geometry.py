"""Where a network's pixels lie in the source picture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Geometry:
    """The affine map from network pixels to source pixels: ``source = network * scale + offset``.

    Attributes:
        scale_x, scale_y: source pixels per network pixel.
        offset_x, offset_y: source position of the network's pixel (0, 0); negative under a letterbox border.
        network: (width, height) of the network input.
        bounds: (x1, y1, x2, y2) of the frame or crop in source pixels; boxes are clipped to it.
    """

    scale_x: float
    scale_y: float
    offset_x: float
    offset_y: float
    network: tuple[int, int]
    bounds: tuple[float, float, float, float]

    def boxes(self, boxes: F32) -> F32:
        """(N, 4) x1, y1, x2, y2 in network pixels → a new array in source pixels, clipped to the picture."""
        scale, offset, low, high = _rows(self)
        mapped: F32 = boxes.astype(np.float32)
        mapped *= scale
        mapped += offset
        np.maximum(mapped, low, out=mapped)
        return np.minimum(mapped, high, out=mapped)

    def points(self, points: F32) -> F32:
        """(..., 2 or 3) x, y[, score] in network pixels → a new array in source pixels, not clipped."""
        mapped = points.astype(np.float32, copy=True)
        mapped[..., 0] = mapped[..., 0] * self.scale_x + self.offset_x
        mapped[..., 1] = mapped[..., 1] * self.scale_y + self.offset_y
        return mapped


@lru_cache(maxsize=64)
def _rows(geometry: Geometry) -> tuple[F32, F32, F32, F32]:
    """Scale, offset, least and most of x1, y1, x2, y2: the same for every picture of a camera."""
    scale, offset = (geometry.scale_x, geometry.scale_y), (geometry.offset_x, geometry.offset_y)
    low, high = geometry.bounds[:2], geometry.bounds[2:]
    one, two, three, four = (np.array(pair * 2, np.float32) for pair in (scale, offset, low, high))
    return one, two, three, four
