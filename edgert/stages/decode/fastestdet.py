"""FastestDet (github.com/dog-qiuqiu/FastestDet): one feature map, objectness and classes combined by powers.

Formulas: ``deploy/`` and ``utils/tool.py`` (handle_preds) of that repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgert.stages.decode.base import Array, as_f32
from edgert.stages.decode.detection import F32, Candidates, best_class, corners
from edgert.stages.decode.look import Fit, Look
from edgert.stages.decode.mismatch import wrong_shapes
from edgert.stages.decode.shape import Shapes, Size, shapes_of

_OBJECT_POWER, _CLASS_POWER = 0.6, 0.4


@dataclass(frozen=True, slots=True)
class FastestDet:
    """One output [5 + C, h, w]: objectness (sigmoid), x, y, w, h raw, classes (softmax).

    Score = objectness^0.6 * class^0.4; centre = (column + tanh x) / w, (row + tanh y) / h; size = sigmoid of the other
    two, all relative to the network's width and height.
    """

    overlapping: ClassVar[bool] = True
    uncertain: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def fits(cls, look: Look) -> Iterator[Fit]:
        """One small map."""
        for channels, height, width, order in look.maps:
            stride = look.stride(height, width)
            if order == "nchw" and channels > 5 and stride is not None and stride > 8:
                yield Fit(f"5 + {channels - 5} channels, stride {stride:g}", 3, channels - 5)

    def class_count(self, shapes: Shapes, network: Size) -> int:
        """Raises ModelError unless the one output is a map of at least six channels."""
        if len(shapes) != 1 or len(shapes[0]) != 3 or shapes[0][0] < 6:
            raise wrong_shapes("detect: fastestdet", "one output [5 + classes, h, w]", shapes, network)
        return shapes[0][0] - 5

    def read(self, outputs: Sequence[Array], network: Size, score: float) -> Candidates:
        """A class score is at most 1, so objectness alone rules most cells out."""
        self.class_count(shapes_of(outputs), network)
        _, height, width = outputs[0].shape
        raw = as_f32(outputs[0]).reshape(-1, height * width)
        strength = raw[0] ** np.float32(_OBJECT_POWER)
        cell = np.flatnonzero(strength >= score)
        found = raw[:, cell].T
        kept, scores, classes = best_class(strength[cell, None] * found[:, 5:] ** np.float32(_CLASS_POWER), score)
        found, cell = found[kept], cell[kept]
        size: F32 = np.array(network, np.float32)
        pitch: F32 = np.array([network[0] / width, network[1] / height], np.float32)
        position = np.stack([cell % width, cell // width], axis=1).astype(np.float32)
        centre = (position + np.tanh(found[:, 1:3])) * pitch
        return Candidates(corners(centre, size / (1 + np.exp(-found[:, 3:5]))), scores, classes)
