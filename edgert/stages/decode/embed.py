"""A vector to compare with others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgert.runtime.record import Embedding
from edgert.stages.decode.base import Array
from edgert.stages.decode.look import Fit, Look
from edgert.stages.decode.mismatch import wrong_shapes
from edgert.stages.decode.shape import Shapes, Size, shapes_of
from edgert.stages.geometry import Geometry

_USUAL = (64, 128, 192, 256, 384, 512, 768, 1024, 1280, 2048)


@dataclass(frozen=True, slots=True)
class Embed:
    """The first output as one vector, copied; with ``l2``, scaled to length 1 (a vector of zeros stays so)."""

    embed: Literal["l2", "none"] = "l2"

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """A vector of a usual length."""
        length = look.vector
        if length is not None:
            yield Fit(f"{length} numbers, a usual length of an embedding", 3 if length in _USUAL else 1)

    def check(self, shapes: Shapes, network: Size) -> None:
        """Raises ModelError unless the first output is one row of numbers."""
        if not shapes or sum(size != 1 for size in shapes[0]) > 1:
            raise wrong_shapes(f"embed: {self.embed}", "one output [length]", shapes, network)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Embedding:
        """Raises ModelError like :meth:`check`."""
        self.check(shapes_of(outputs), geometry.network)
        vector = outputs[0].reshape(-1).astype(np.float32)
        length = float(np.linalg.norm(vector)) if self.embed == "l2" else 1.0
        if length > 0:
            vector /= length
        return Embedding(vector)
