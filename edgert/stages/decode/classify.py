"""One row of numbers for the whole image: a class, or a vector to compare with others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgert.runtime.records import Classification, Embedding
from edgert.stages.crop import Geometry
from edgert.stages.decode.decoder import Array, Shapes, Size, as_f32, shapes_of
from edgert.stages.decode.detection import strongest
from edgert.stages.decode.guess import Fit, Look, check_labels, wrong_shapes

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


_SUM_TOLERANCE = 0.02
"""How far from 1 the sum of probabilities may be: a thousand of them rounded to fp16 or INT8."""


@dataclass(frozen=True, slots=True)
class Classify:
    """The first output, [C] or with dimensions of 1 around it, as probabilities.

    Attributes:
        classify: whether the network ends in its softmax; ``auto`` looks whether the numbers are a distribution.
        top: how many classes to report.
    """

    classify: Literal["auto", "softmax", "logits"] = "auto"
    top: int = 5
    labels: tuple[str, ...] = ()

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """A number for every class."""
        length = look.vector
        if length is not None:
            yield Fit(f"{length} numbers, one per class", 3 if length in (1000, 1001) else 2, length)

    def check(self, shapes: Shapes, network: Size) -> None:
        """Raises ModelError unless the first output is one row of numbers, ConfigError for too few labels."""
        sizes = [size for size in shapes[0] if size != 1] if shapes else [0, 0]
        if len(sizes) > 1:
            raise wrong_shapes(f"classify: {self.classify}", "one output [classes]", shapes, network)
        check_labels(sizes[0] if sizes else 1, self.labels)

    def __call__(self, outputs: Sequence[Array], geometry: Geometry) -> Classification:
        """The ``top`` best classes, or all when there are fewer; none whose probability is not a number."""
        self.check(shapes_of(outputs), geometry.network)
        values = as_f32(outputs[0]).reshape(-1)
        is_final = self.classify == "softmax"
        if self.classify == "auto":
            is_final = float(np.min(values)) >= 0 and abs(float(values.sum()) - 1) <= _SUM_TOLERANCE
        best = strongest(values, self.top)  # softmax keeps the order
        scores = values[best]
        if not is_final:
            top = np.max(values)
            scores = np.exp(scores - top) / np.exp(values - top).sum()
        best, scores = best[scores == scores], scores[scores == scores]
        return Classification(scores, best.astype(np.int32), self.labels)
