"""A vector to compare with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgert.runtime.record import Embedding
from edgert.stages.decode.base import Array
from edgert.stages.decode.mismatch import wrong_shapes
from edgert.stages.decode.shape import Shapes, Size, shapes_of
from edgert.stages.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Embed:
    """The first output as one vector, copied; with ``unit``, scaled to length 1 (a vector of zeros stays so)."""

    unit: bool = True

    def check(self, shapes: Shapes, network: Size) -> None:
        """Raises ModelError unless the first output is one row of numbers."""
        if not shapes or sum(size != 1 for size in shapes[0]) > 1:
            raise wrong_shapes(f"embed: {'l2' if self.unit else 'none'}", "one output [length]", shapes, network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Embedding:
        """Raises ModelError like :meth:`check`."""
        self.check(shapes_of(outputs), geometry.network)
        vector = outputs[0].reshape(-1).astype(np.float32)
        length = float(np.linalg.norm(vector)) if self.unit else 1.0
        if length > 0:
            vector /= length
        return Embedding(vector)
